// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/text_model.h"

#include <filesystem>

#include <nlohmann/json.hpp>

#include "signalbox/base/check.h"
#include "signalbox/text/detokenizer.h"

namespace signalbox {

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
    TextResult result;
  };
  std::vector<Stream> streams;
  Generator generator(*engine_, {.parallel = parallel,
                                 .usable_vocab = static_cast<int64_t>(tokenizer_.vocab_size())});
  for (const TextRequest& r : requests) {
    streams.push_back({StreamDecoder(tokenizer_, SpecialTokens::kSkip),
                       {.prompt_tokens = static_cast<int64_t>(r.prompt.size())}});
    // Ids count from zero in order of submission, so they index `streams`.
    SB_ASSIGN_OR_RETURN(const int64_t id,
                        generator.Submit({.prompt = r.prompt,
                                          .max_new_tokens = r.max_new_tokens,
                                          .sampling = r.sampling,
                                          .stop_ids = engine_->config().stop_ids}));
    SB_CHECK(id + 1 == static_cast<int64_t>(streams.size())) << id;
  }
  const auto emit = [&](size_t i, const std::string& text) {
    if (text.empty()) return;
    streams[i].result.text += text;
    on_text(i, text);
  };
  while (!generator.idle()) {
    SB_RETURN_IF_ERROR(generator.Step(
        [&](int64_t id, std::optional<TokenId> token, std::optional<FinishReason> finish) {
          const size_t i = static_cast<size_t>(id);
          if (token) {
            ++streams[i].result.new_tokens;
            emit(i, streams[i].decoder.Push(*token));
          }
          if (!finish) return;
          emit(i, streams[i].decoder.Flush());
          streams[i].result.finish = *finish;
          on_done(i, streams[i].result);
        }));
  }
  return OkStatus();
}

}  // namespace signalbox
