// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/text_model.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>

#include <nlohmann/json.hpp>

#include "signalbox/cache/cache_pool.h"

namespace signalbox {
namespace {

// The prompt up to the last place where `end` ends. Templates trim what they write.
Result<Segments> CutBehind(const Segments& segments, std::string_view end) {
  const std::string text = PlainText(segments);
  size_t at = text.rfind(end);
  if (at == std::string::npos) {
    end = end.substr(0, end.find_last_not_of(" \t\r\n") + 1);
    at = text.rfind(end);
  }
  if (at == std::string::npos || end.empty()) {
    return InvalidArgument(
        {.what = "the last message cannot be continued",
         .where = "messages",
         .expected = "an assistant's text that the chat format writes as it is"});
  }
  size_t left = at + end.size();
  Segments cut;
  for (const Segment& segment : segments) {
    if (left == 0) break;
    cut.push_back(segment);
    cut.back().text.resize(std::min(left, segment.text.size()));
    left -= cut.back().text.size();
  }
  return cut;
}

}  // namespace

std::string AnswerReader::Readable(const OutputEvents& events) {
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
  model->grammars_ = std::make_unique<AnswerGrammars>(
      model->tokenizer_,
      model->chat_ == nullptr ? OutputFormat::kPlain : model->chat_->output_format(),
      model->engine_->config().stop_ids);
  return model;
}

Result<std::vector<TokenId>> TextModel::EncodePlain(std::string_view text) const {
  return tokenizer_.EncodeUntrusted(std::string(text));
}

Result<ChatPrompt> TextModel::EncodeChat(const std::vector<ChatTurn>& turns, bool thinking) const {
  nlohmann::json messages = nlohmann::json::array();
  for (const ChatTurn& turn : turns)
    messages.push_back({{"role", turn.role}, {"content", turn.content}});
  // Bytes that are no UTF-8 become U+FFFD here, as they would in the tokenizer.
  const auto replace = nlohmann::json::error_handler_t::replace;
  return EncodeChat(
      {.messages = messages.dump(-1, ' ', false, replace),
       .extra = thinking ? R"({"enable_thinking": true})" : R"({"enable_thinking": false})"});
}

Result<ChatPrompt> TextModel::EncodeChat(ChatRequest request, std::string_view open) const {
  if (chat_ == nullptr) {
    return InvalidArgument(
        {.what = "the model has no chat format",
         .where = directory(),
         .remedy = "use plain text, or add chat_template.jinja to the model directory"});
  }
  ChatPrompt prompt;
  if (!open.empty()) {
    request.add_generation_prompt = false;
    SB_ASSIGN_OR_RETURN(const Segments whole, chat_->Render(request));
    SB_ASSIGN_OR_RETURN(const Segments cut, CutBehind(whole, open));
    SB_ASSIGN_OR_RETURN(prompt.ids, tokenizer_.Encode(cut));
    return prompt;
  }
  SB_ASSIGN_OR_RETURN(const Segments segments, chat_->Render(request));
  SB_ASSIGN_OR_RETURN(prompt.ids, tokenizer_.Encode(segments));
  // The next turn repeats the conversation, but perhaps not what opens the answer. A format that
  // cannot leave that out has no such place.
  request.add_generation_prompt = false;
  const auto turn = chat_->Render(request);
  const auto ids = turn.ok() ? tokenizer_.Encode(*turn) : turn.status();
  if (!ids.ok()) return prompt;
  const auto [differs, unused] =
      std::mismatch(prompt.ids.begin(), prompt.ids.end(), ids->begin(), ids->end());
  prompt.turn_ends.push_back(differs - prompt.ids.begin());
  return prompt;
}

const std::string& TextModel::directory() const {
  return engine_->checkpoint().path();
}

int64_t TextModel::vocab() const {
  return std::min(engine_->config().facts.vocab, static_cast<int64_t>(tokenizer_.vocab_size()));
}

int64_t TextModel::max_context() const {
  const int64_t position = engine_->config().facts.max_position;
  const int64_t cached = engine_->accounts()[0].size().pages * kBlockTokens;
  // Drafts are written behind the last token, where there is room for them.
  return cached >= position ? position : cached - engine_->drafts();
}

// Stop strings are looked for, and an answer is told apart, as the request and the prompt's end
// say.
AnswerOptions TextModel::AnswerOf(const TextRequest& request) const {
  AnswerOptions options{
      .stops = request.stop,
      .include_stop = request.include_stop,
      .min_tokens = request.min_new_tokens,
      .special = request.skip_special ? SpecialTokens::kSkip : SpecialTokens::kKeep};
  if (request.chat && chat_ != nullptr) {
    const size_t tail = std::min<size_t>(request.prompt.size(), 32);
    const std::string end =
        tokenizer_.Decode(std::span(request.prompt).last(tail), SpecialTokens::kKeep);
    options.format = chat_->output_format();
    options.output = {.in_reasoning = OpensReasoning(options.format, end), .types = request.types};
  }
  return options;
}

Result<AnswerStream> TextModel::StreamOf(const TextRequest& request) const {
  return AnswerStream::Create(tokenizer_, AnswerOf(request));
}

Result<GenerationRequest> TextModel::GenerationOf(const TextRequest& request) const {
  GenerationRequest generation{.prompt = request.prompt,
                               .max_new_tokens = request.max_new_tokens,
                               .sampling = request.sampling,
                               .stop_ids = engine_->config().stop_ids,
                               .min_new_tokens = request.min_new_tokens,
                               .ignore_eos = request.ignore_eos,
                               .prompt_logprobs = request.prompt_logprobs,
                               .turn_ends = request.turn_ends};
  generation.stop_ids.insert(generation.stop_ids.end(), request.stop_ids.begin(),
                             request.stop_ids.end());
  if (request.grammar) {
    SB_ASSIGN_OR_RETURN(generation.constraint,
                        grammars_->Constrain(*request.grammar, request.chat && chat_ != nullptr,
                                             AnswerOf(request).output.in_reasoning));
  }
  return generation;
}

std::string_view ToString(CancelCause cause) {
  static constexpr std::string_view kNames[] = {"client", "timeout", "drain", "admin"};
  return kNames[static_cast<size_t>(cause)];
}

TextResult TextModel::ResultOf(const TextRequest& request, const Answer& answer,
                               const Generated& last) {
  // A stop string decides, whatever came behind it.
  const bool stopped = !answer.stop.empty();
  return {.text = answer.text,
          .answer = answer.parts,
          .prompt_tokens = std::ssize(request.prompt),
          .new_tokens = std::ssize(answer.tokens),
          .reasoning_tokens = answer.reasoning_tokens,
          .stop = answer.stop,
          .stop_id = stopped ? std::nullopt : last.stop_id,
          .finish = stopped ? FinishReason::kStop : *last.finish,
          .status = stopped ? OkStatus() : last.status,
          .stats = last.stats};
}

}  // namespace signalbox
