// SPDX-License-Identifier: Apache-2.0
//
// TextModel: an engine with its tokenizer and chat format, so that callers speak text.
//
// Errors: kBadCheckpoint from loading, kInvalidArgument where messages do not fit the format.
//
//   SB_ASSIGN_OR_RETURN(auto model, TextModel::Load(dir, {.engine = {.threads = 2}}));
//   SB_ASSIGN_OR_RETURN(auto ids, model->EncodeChat({{"user", "How many?"}}, /*thinking=*/true));
//   SB_ASSIGN_OR_RETURN(TextResult r, model->Generate(request, on_text));
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "signalbox/base/status.h"
#include "signalbox/engine/engine.h"
#include "signalbox/engine/generator.h"
#include "signalbox/text/answer_stream.h"
#include "signalbox/text/chat_format.h"
#include "signalbox/text/output_parser.h"
#include "signalbox/text/tokenizer.h"

namespace signalbox {

struct ChatTurn {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

struct TextRequest {
  std::vector<TokenId> prompt;
  int64_t max_new_tokens = 256;
  SamplingParams sampling;
  int64_t min_new_tokens = 0;  // as in GenerationRequest
  bool ignore_eos = false;
  // Text at which the answer ends, after min_new_tokens: answer_stream.h says how it is found.
  std::vector<std::string> stop;
  bool include_stop = false;
  bool chat = false;  // `prompt` is of EncodeChat: on_text gets the answer readable, without tags
};

struct TextResult {
  std::string text;     // without special tokens
  ParsedOutput answer;  // its parts; of plain text, all is content
  int64_t prompt_tokens = 0;
  int64_t new_tokens = 0;
  int64_t reasoning_tokens = 0;  // of the new ones
  std::string stop;              // the stop string that ended it; empty: none did
  FinishReason finish = FinishReason::kStop;
  RequestStats stats;  // of the engine's work: tokens that came behind a stop string count as well
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
  Result<std::vector<TokenId>> EncodeChat(const std::vector<ChatTurn>& turns, bool thinking) const;

  // Runs requests up to `parallel` at a time. `on_text` gets whole characters as they come.
  // kInvalidArgument for a request that cannot run, before any does.
  using OnText = std::function<void(size_t request, std::string_view text)>;
  using OnDone = std::function<void(size_t request, const TextResult& result)>;
  Status Generate(const std::vector<TextRequest>& requests, int64_t parallel, const OnText& on_text,
                  const OnDone& on_done);

  Engine& engine() { return *engine_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  TextModel(std::unique_ptr<Engine> engine, Tokenizer tokenizer)
      : engine_(std::move(engine)), tokenizer_(std::move(tokenizer)) {}

  Result<AnswerStream> StreamOf(const TextRequest& request) const;

  std::unique_ptr<Engine> engine_;
  Tokenizer tokenizer_;
  std::unique_ptr<const ChatFormat> chat_;  // null where the model has none
};

}  // namespace signalbox
