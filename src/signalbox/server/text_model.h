// SPDX-License-Identifier: Apache-2.0
//
// TextModel: an engine with its tokenizer and chat format, so that callers speak text.
//
// Errors: kBadCheckpoint from loading, kInvalidArgument where messages do not fit the format.
//
//   SB_ASSIGN_OR_RETURN(auto model, TextModel::Load(dir, {.engine = {.threads = 2}}));
//   SB_ASSIGN_OR_RETURN(auto chat, model->EncodeChat({{"user", "How many?"}}, /*thinking=*/true));
//   Service::Start(std::move(model), {})   // service.h: answers
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "signalbox/base/status.h"
#include "signalbox/engine/engine.h"
#include "signalbox/engine/generator.h"
#include "signalbox/server/grammar_constraint.h"
#include "signalbox/text/answer_stream.h"
#include "signalbox/text/chat_format.h"
#include "signalbox/text/grammar.h"
#include "signalbox/text/output_parser.h"
#include "signalbox/text/tokenizer.h"

namespace signalbox {

struct ChatTurn {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

struct ChatPrompt {
  std::vector<TokenId> ids;
  std::vector<int64_t> turn_ends;  // as in GenerationRequest
};

struct TextRequest {
  std::vector<TokenId> prompt;
  std::vector<int64_t> turn_ends;
  int32_t choices = 1;  // answers; choice i draws with seed + i
  int64_t max_new_tokens = 256;
  SamplingParams sampling;
  int64_t min_new_tokens = 0;  // as in GenerationRequest
  bool ignore_eos = false;
  std::vector<TokenId> stop_ids;  // beside the model's own
  // Text at which the answer ends, after min_new_tokens: answer_stream.h says how it is found.
  std::vector<std::string> stop;
  bool include_stop = false;
  bool skip_special = true;            // tokens that the tokenizer calls special have no text
  int64_t prompt_logprobs = -1;        // as in GenerationRequest
  bool chat = false;                   // `prompt` is of EncodeChat: the answer is told apart
  ParameterTypes types;                // of the tools that a chat may call
  std::optional<GrammarSpec> grammar;  // what is written must fit it; of a chat, what is answered
};

// Seconds of a request, as its caller sees them. Without a first token prefill lasts until the end,
// without a first step the queue does.
struct RequestTimes {
  double queue = 0;    // from its arrival until its first step began
  double prefill = 0;  // from then until its first token
  double decode = 0;   // from then until its end

  double first_token() const { return queue + prefill; }
  double end_to_end() const { return queue + prefill + decode; }
};

// Who ended a request before its time.
enum class CancelCause : uint8_t {
  kClient,   // it left, or had enough
  kTimeout,  // it took too long
  kDrain,    // the server goes down
  kAdmin,    // somebody asked the server to
};
std::string_view ToString(CancelCause cause);

struct TextResult {
  std::string text;     // without special tokens
  ParsedOutput answer;  // its parts; of plain text, all is content
  int64_t prompt_tokens = 0;
  int64_t new_tokens = 0;
  int64_t reasoning_tokens = 0;    // of the new ones
  std::string stop;                // the stop string that ended it; empty: none did
  std::optional<TokenId> stop_id;  // the token that did
  FinishReason finish = FinishReason::kStop;
  CancelCause cause = CancelCause::kClient;  // of FinishReason::kCancelled
  Status status;                             // of FinishReason::kFailed
  RequestStats stats;  // of the engine's work: tokens that came behind a stop string count as well
  RequestTimes times;
};

// What a person reads of a chat's answer: the reasoning, an empty line, the content; a line for
// each call.
class AnswerReader {
 public:
  std::string Readable(const OutputEvents& events);

 private:
  bool reasoned_ = false;  // and said nothing since
};

class TextModel {
 public:
  // The chat format may be missing; EncodeChat says so then.
  static Result<std::unique_ptr<TextModel>> Load(const std::string& directory,
                                                 const EngineOptions& options,
                                                 const LoadProgress& progress = {});

  // Plain text; a spelling of a special token in it stays text.
  Result<std::vector<TokenId>> EncodePlain(std::string_view text) const;
  // The conversation as the model's format writes it, up to where the assistant begins.
  Result<ChatPrompt> EncodeChat(const std::vector<ChatTurn>& turns, bool thinking) const;
  // Of messages with all that they may have. `open` is not empty: the last message ends in it and
  // is left open there, and the answer goes on with it.
  Result<ChatPrompt> EncodeChat(ChatRequest request, std::string_view open = {}) const;

  // What the engine is asked for one choice of a request, and what makes text of its tokens.
  // kInvalidArgument where the request asks for something impossible.
  Result<GenerationRequest> GenerationOf(const TextRequest& request) const;
  Result<AnswerStream> StreamOf(const TextRequest& request) const;
  static TextResult ResultOf(const TextRequest& request, const Answer& answer,
                             const Generated& last);

  Engine& engine() { return *engine_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  const ChatFormat* chat_format() const { return chat_.get(); }  // null where there is none
  const std::string& directory() const;
  int64_t vocab() const;  // tokens that have a row and a text
  // Tokens of a prompt and its answer together, of a request that has the cache for itself.
  int64_t max_context() const;

 private:
  TextModel(std::unique_ptr<Engine> engine, Tokenizer tokenizer)
      : engine_(std::move(engine)), tokenizer_(std::move(tokenizer)) {}

  AnswerOptions AnswerOf(const TextRequest& request) const;

  std::unique_ptr<Engine> engine_;
  Tokenizer tokenizer_;
  std::unique_ptr<const ChatFormat> chat_;  // null where the model has none
  std::unique_ptr<AnswerGrammars> grammars_;
};

}  // namespace signalbox
