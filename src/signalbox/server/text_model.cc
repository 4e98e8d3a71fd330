// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/text_model.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>

#include <nlohmann/json.hpp>

#include "signalbox/base/check.h"

namespace signalbox {
namespace {

// What a person reads of an answer: the reasoning, an empty line, the content; a line for each
// call.
class Reader {
 public:
  std::string Readable(const OutputEvents& events) {
    std::string text;
    for (const OutputEvent& event : events) {
      if (event.kind == OutputEvent::Kind::kReasoning) reasoned_ = true;
      if (event.kind == OutputEvent::Kind::kContent && std::exchange(reasoned_, false)) {
        text += "\n\n";
      }
      const bool call = event.kind == OutputEvent::Kind::kCallName;
      text += call ? "\n" + event.text + " " : event.text;
    }
    return text;
  }

 private:
  bool reasoned_ = false;  // and said nothing since
};

}  // namespace

Result<std::unique_ptr<TextModel>> TextModel::Load(const std::string& directory,
                                                   const EngineOptions& options,
                                                   const LoadProgress& progress) {
  SB_ASSIGN_OR_RETURN(auto engine, Engine::Load(directory, options, progress));
  const std::filesystem::path dir(directory);
  SB_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::LoadModel(dir));
  std::unique_ptr<TextModel> model(new TextModel(std::move(engine), std::move(tokenizer)));
  auto chat = LoadChatFormat(dir, model->tokenizer_);
  if (chat.ok()) {
    model->chat_ = std::move(chat).value();
  } else if (chat.status().code() != StatusCode::kNotFound) {
    return chat.status();
  }
  return model;
}

Result<std::vector<TokenId>> TextModel::EncodePlain(std::string_view text) const {
  return tokenizer_.EncodeUntrusted(std::string(text));
}

Result<std::vector<TokenId>> TextModel::EncodeChat(const std::vector<ChatTurn>& turns,
                                                   bool thinking) const {
  if (chat_ == nullptr) {
    return InvalidArgument(
        {.what = "the model has no chat format",
         .where = engine_->checkpoint().path(),
         .remedy = "use plain text, or add chat_template.jinja to the model directory"});
  }
  nlohmann::json messages = nlohmann::json::array();
  for (const ChatTurn& turn : turns)
    messages.push_back({{"role", turn.role}, {"content", turn.content}});
  // Bytes that are no UTF-8 become U+FFFD here, as they would in the tokenizer.
  const auto replace = nlohmann::json::error_handler_t::replace;
  SB_ASSIGN_OR_RETURN(const Segments segments,
                      chat_->Render({.messages = messages.dump(-1, ' ', false, replace),
                                     .extra = thinking ? R"({"enable_thinking": true})"
                                                       : R"({"enable_thinking": false})"}));
  return tokenizer_.Encode(segments);
}

// Stop strings are looked for, and an answer is told apart, as the request and the prompt's end
// say.
Result<AnswerStream> TextModel::StreamOf(const TextRequest& request) const {
  AnswerOptions options{.stops = request.stop,
                        .include_stop = request.include_stop,
                        .min_tokens = request.min_new_tokens};
  if (request.chat && chat_ != nullptr) {
    const size_t tail = std::min<size_t>(request.prompt.size(), 32);
    const std::string end =
        tokenizer_.Decode(std::span(request.prompt).last(tail), SpecialTokens::kKeep);
    options.format = chat_->output_format();
    options.output.in_reasoning = OpensReasoning(options.format, end);
  }
  return AnswerStream::Create(tokenizer_, std::move(options));
}

Status TextModel::Generate(const std::vector<TextRequest>& requests, int64_t parallel,
                           const OnText& on_text, const OnDone& on_done) {
  struct Stream {
    AnswerStream answer;
    Reader reader;
  };
  std::vector<Stream> streams;
  Generator generator(*engine_, {.parallel = parallel,
                                 .usable_vocab = static_cast<int64_t>(tokenizer_.vocab_size())});
  for (const TextRequest& r : requests) {
    SB_ASSIGN_OR_RETURN(AnswerStream answer, StreamOf(r));
    streams.push_back({.answer = std::move(answer)});
    // Ids count from zero in order of submission, so they index `streams`.
    SB_ASSIGN_OR_RETURN(const int64_t id, generator.Submit({.prompt = r.prompt,
                                                            .max_new_tokens = r.max_new_tokens,
                                                            .sampling = r.sampling,
                                                            .stop_ids = engine_->config().stop_ids,
                                                            .min_new_tokens = r.min_new_tokens,
                                                            .ignore_eos = r.ignore_eos}));
    SB_CHECK(id + 1 == static_cast<int64_t>(streams.size())) << id;
  }
  const auto show = [&](size_t i, const AnswerDelta& delta) {
    const std::string shown = streams[i].reader.Readable(delta.events);
    if (!shown.empty()) on_text(i, shown);
  };
  const auto done = [&](size_t i, const Generated& got) {
    const Answer& answer = streams[i].answer.answer();
    on_done(i, {.text = answer.text,
                .answer = answer.parts,
                .prompt_tokens = std::ssize(requests[i].prompt),
                .new_tokens = std::ssize(answer.tokens),
                .reasoning_tokens = answer.reasoning_tokens,
                .stop = answer.stop,
                .finish = answer.stop.empty() ? *got.finish : FinishReason::kStop,
                .stats = got.stats});
  };
  Status failed;
  const auto take = [&](const Generated& got) {
    const size_t i = static_cast<size_t>(got.request);
    AnswerStream& answer = streams[i].answer;
    std::vector<TokenId> ids;
    for (const SampledToken& token : got.tokens) ids.push_back(token.token);
    show(i, answer.Push(ids));
    // What comes behind a stop string is of no interest, not even a failure.
    if (!answer.finished() && got.finish) {
      if (!got.status.ok()) failed = got.status;
      show(i, answer.Finish(/*stopped=*/*got.finish == FinishReason::kStop));
    }
    if (answer.finished()) done(i, got);
    return !answer.finished();
  };
  while (!generator.idle()) {
    SB_RETURN_IF_ERROR(generator.Step(take));
    SB_RETURN_IF_ERROR(failed);
  }
  return OkStatus();
}

}  // namespace signalbox
