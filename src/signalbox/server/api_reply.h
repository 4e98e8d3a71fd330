// SPDX-License-Identifier: Apache-2.0
//
// What the dialects of the API share in writing an answer: server-sent events, usage, tokens as
// JSON, and the life of a call of several prompts with several choices each.
//
//   class ChatReply final : public ChoicesReply { ... };
//   std::string Take(size_t choice, const TextUpdate& update) override;   // what to stream of it
//
// Law: the chunks of a stream, added up, are the body of the answer that is not streamed, however
// the tokens were cut into updates.
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "signalbox/server/api_fields.h"

namespace signalbox {

inline constexpr std::string_view kStreamEnd = "data: [DONE]\n\n";
// "data: {...}\n\n": one line, valid UTF-8.
std::string StreamEvent(const ApiJson& value);
std::string ApiDump(const ApiJson& value);

// `text` in parts whose events stay below 64 KiB, whatever must be escaped. Cut between characters;
// at least one part.
std::vector<std::string_view> TextParts(std::string_view text);

// The text of a token, or "bytes:\xe2\x96" where its bytes are no text by themselves.
std::string TokenText(const Tokenizer& tokenizer, TokenId id);
ApiJson TokenBytesJson(const Tokenizer& tokenizer, TokenId id);

// "stop", "length" or "abort".
std::string FinishText(FinishReason reason);
// What ended the answer: a stop string, a token id, or null.
ApiJson MatchedStop(const TextResult& result);

struct ApiUsage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t reasoning_tokens = 0;

  ApiJson Json() const;
};

// What every dialect's answer begins with.
struct ReplyHead {
  std::string id;
  std::string object;
  std::string model;
  int64_t created = std::time(nullptr);
};

struct ReplyOptions {
  ReplyHead head;
  const Tokenizer* tokenizer = nullptr;
  std::vector<std::vector<TokenId>> prompts;  // by request
  int32_t choices = 1;                        // of each
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool hide_answer = false;  // no token was asked for: the one that had to be made is not told
};

class ChoicesReply : public ApiReply {
 public:
  std::string Events(size_t prompt, const TextUpdate& update) final;
  bool complete() const final { return open_ == 0 || error_.has_value(); }
  std::optional<ApiError> error() const final { return error_; }

 protected:
  explicit ChoicesReply(ReplyOptions options);

  // Takes what the update adds to a choice, and gives the events that stream it.
  virtual std::string Take(size_t choice, const TextUpdate& update) = 0;
  // One chunk, of one choice.
  std::string Chunk(ApiJson choice) const;
  // The body, of all choices.
  ApiJson Whole(ApiJson choices) const;
  const std::vector<TokenId>& PromptOf(size_t choice) const {
    return options_.prompts[choice / static_cast<size_t>(options_.choices)];
  }
  size_t choices() const { return options_.prompts.size() * static_cast<size_t>(options_.choices); }
  const ReplyOptions& options() const { return options_; }
  const ApiUsage& usage() const { return usage_; }

 private:
  ApiJson Head() const;

  const ReplyOptions options_;
  size_t open_;  // choices
  ApiUsage usage_;
  std::optional<ApiError> error_;
};

// stream, stream_options.
void ReadStream(ApiFields& fields, ReplyOptions* options, std::vector<std::string>* unread);

}  // namespace signalbox
