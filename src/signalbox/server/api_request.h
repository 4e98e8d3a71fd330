// SPDX-License-Identifier: Apache-2.0
//
// What the dialects of the API share in reading a request: one field, one meaning, wherever it is
// written. Each reader remembers what is wrong in its fields (api_fields.h) and goes on.
//
//   ReadSampling(fields, context, &request);
//   const auto grammar = ReadGrammar(fields);
//   FitContext(fields, context, {.most = fields.Integer("max_tokens", 1, INT64_MAX)}, &request);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "signalbox/server/api_fields.h"

namespace signalbox {

inline constexpr int64_t kMaxApiChoices = 4096;  // of all prompts of a call together
inline constexpr int64_t kMaxApiTop = 100;       // alternatives of one token

// What nobody honours here is not asked for; what has no effect is of the right type.
void ReadUnsupported(ApiFields& fields);
// That, and the model is one that is served.
void ReadCommon(ApiFields& fields, const ApiContext& context);

// Everything about choosing tokens and ending an answer, but for how long it may be.
void ReadSampling(ApiFields& fields, const ApiContext& context, TextRequest* request);

struct AskedGrammar {
  std::string field;
  GrammarSpec spec;
};
// From response_format, json_schema, regex, ebnf and the spellings of other servers; one at most.
std::optional<AskedGrammar> ReadGrammar(ApiFields& fields);

struct AskedLength {
  std::optional<int64_t> most;  // new tokens; nothing: `otherwise`, or what the context leaves
  std::string_view field;
  int64_t otherwise = INT64_MAX;
};
// The prompt and the new tokens fit the model's context, and the least number fits the most.
void FitContext(ApiFields& fields, const ApiContext& context, const AskedLength& length,
                std::string_view least_field, TextRequest* request);

// n, and best_of where it asks for nothing else, for so many prompts.
int32_t ReadChoices(ApiFields& fields, size_t prompts);

struct AskedPrompt {
  std::string text;
  std::vector<TokenId> ids;
};
struct AskedPrompts {
  std::vector<AskedPrompt> prompts;
  bool batch = false;  // a list, if of one
};
// A text, token ids, or a list of these. A special token that a text spells is one, as whoever
// writes a whole prompt means it.
AskedPrompts ReadPrompts(ApiFields& fields, const ApiContext& context, std::string_view name);

// The id of the answer: the client's, or a new one.
std::string ReadId(ApiFields& fields, const ApiContext& context, std::string_view prefix);

// The error of a request, also where a budget was too small for it: it would be next time.
ApiError RequestFault(const Status& status);
// The request is one that the model's service would take.
void CheckRequest(ApiFields& fields, const ApiContext& context,
                  const std::optional<AskedGrammar>& grammar, const TextRequest& request);

// `call->ignored`, or the error of strict callers. The last of a parser's steps.
void EndFields(const ApiContext& context, std::vector<std::string> unread,
               std::optional<ApiError>* error, ApiCall* call);

uint64_t RandomBits();
// Tokens of a prompt and its answer together.
int64_t MaxContext(const ApiContext& context);
std::string ModelName(const ApiContext& context);

}  // namespace signalbox
