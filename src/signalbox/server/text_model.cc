// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/text_model.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>

#include <nlohmann/json.hpp>

#include "signalbox/base/check.h"
#include "signalbox/text/detokenizer.h"

namespace signalbox {
namespace {

// Adds events to an answer and returns what a person reads of them: the reasoning, an empty line,
// the content; a line for each call.
std::string Readable(const OutputEvents& events, ParsedOutput& answer) {
  std::string text;
  for (const OutputEvent& event : events) {
    const bool first = event.kind == OutputEvent::Kind::kContent && answer.content.empty();
    if (first && !answer.reasoning.empty()) text += "\n\n";
    const bool call = event.kind == OutputEvent::Kind::kCallName;
    text += call ? "\n" + event.text + " " : event.text;
    answer.Add({event});
  }
  return text;
}

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

Status TextModel::Generate(const std::vector<TextRequest>& requests, int64_t parallel,
                           const OnText& on_text, const OnDone& on_done) {
  struct Stream {
    StreamDecoder decoder;
    std::optional<OutputReader> reader;  // of a chat
    TextResult result;
  };
  const auto reader_of = [this](const TextRequest& r) -> std::optional<OutputReader> {
    if (!r.chat || chat_ == nullptr) return std::nullopt;
    const size_t tail = std::min<size_t>(r.prompt.size(), 32);
    const std::string end = tokenizer_.Decode(std::span(r.prompt).last(tail), SpecialTokens::kKeep);
    const OutputFormat format = chat_->output_format();
    return OutputReader(tokenizer_,
                        MakeOutputParser(format, {.in_reasoning = OpensReasoning(format, end)}));
  };
  std::vector<Stream> streams;
  Generator generator(*engine_, {.parallel = parallel,
                                 .usable_vocab = static_cast<int64_t>(tokenizer_.vocab_size())});
  for (const TextRequest& r : requests) {
    streams.push_back({StreamDecoder(tokenizer_, SpecialTokens::kSkip),
                       reader_of(r),
                       {.prompt_tokens = static_cast<int64_t>(r.prompt.size())}});
    // Ids count from zero in order of submission, so they index `streams`.
    SB_ASSIGN_OR_RETURN(const int64_t id, generator.Submit({.prompt = r.prompt,
                                                            .max_new_tokens = r.max_new_tokens,
                                                            .sampling = r.sampling,
                                                            .stop_ids = engine_->config().stop_ids,
                                                            .min_new_tokens = r.min_new_tokens,
                                                            .ignore_eos = r.ignore_eos}));
    SB_CHECK(id + 1 == static_cast<int64_t>(streams.size())) << id;
  }
  const auto emit = [&](size_t i, const std::string& text, const OutputEvents& events) {
    Stream& stream = streams[i];
    stream.result.text += text;
    const std::string shown = stream.reader ? Readable(events, stream.result.answer) : text;
    if (!shown.empty()) on_text(i, shown);
  };
  while (!generator.idle()) {
    Status failed;
    SB_RETURN_IF_ERROR(generator.Step([&](const Generated& got) {
      const size_t i = static_cast<size_t>(got.request);
      auto& [decoder, reader, result] = streams[i];
      OutputEvents events;
      for (const SampledToken& token : got.tokens) {
        events.clear();
        if (reader) reader->Push(token.token, events);
        emit(i, decoder.Push(token.token), events);
      }
      result.new_tokens = got.stats.new_tokens;
      if (!got.finish) return true;
      if (!got.status.ok()) failed = got.status;
      events.clear();
      if (reader) reader->Finish(*got.finish == FinishReason::kStop, events);
      emit(i, decoder.Flush(), events);
      result.finish = *got.finish;
      result.stats = got.stats;
      on_done(i, result);
      return true;
    }));
    SB_RETURN_IF_ERROR(failed);
  }
  return OkStatus();
}

}  // namespace signalbox
