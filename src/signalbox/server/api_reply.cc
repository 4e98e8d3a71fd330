// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/api_reply.h"

#include <fmt/format.h>

#include <algorithm>

#include "signalbox/server/api_request.h"
#include "signalbox/text/unicode.h"

namespace signalbox {
namespace {

// A byte may take six of JSON (\u0000), and reasoning is told under two names.
constexpr size_t kPartBytes = 4096;

bool BeginsCharacter(char c) {
  return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
}

}  // namespace

std::string ApiDump(const ApiJson& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/false, ApiJson::error_handler_t::replace);
}

std::string StreamEvent(const ApiJson& value) {
  return "data: " + ApiDump(value) + "\n\n";
}

std::vector<std::string_view> TextParts(std::string_view text) {
  std::vector<std::string_view> parts;
  while (text.size() > kPartBytes) {
    size_t end = kPartBytes;
    for (int i = 0; i < 3 && !BeginsCharacter(text[end]); ++i) --end;
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  parts.push_back(text);
  return parts;
}

std::string TokenText(const Tokenizer& tokenizer, TokenId id) {
  const std::string_view bytes = tokenizer.TokenBytes(id);
  std::string text;
  AppendUtf8(bytes, Utf8End::kFinal, text);
  if (text == bytes) return text;
  text = "bytes:";
  for (const char c : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return text;
}

ApiJson TokenBytesJson(const Tokenizer& tokenizer, TokenId id) {
  ApiJson bytes = ApiJson::array();
  for (const char c : tokenizer.TokenBytes(id)) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

std::string FinishText(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
    case FinishReason::kFailed:
      break;
  }
  return "abort";
}

ApiJson MatchedStop(const TextResult& result) {
  if (!result.stop.empty()) return result.stop;
  if (result.stop_id) return *result.stop_id;
  return nullptr;
}

ApiJson ApiUsage::Json() const {
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", completion_tokens},
          {"total_tokens", prompt_tokens + completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", reasoning_tokens}}}};
}

ChoicesReply::ChoicesReply(ReplyOptions options)
    : options_(std::move(options)),
      open_(options_.prompts.size() * static_cast<size_t>(options_.choices)) {
  for (const auto& prompt : options_.prompts) usage_.prompt_tokens += std::ssize(prompt);
}

std::string ChoicesReply::Events(size_t prompt, const TextUpdate& update) {
  if (complete()) return "";
  if (update.result && update.result->finish == FinishReason::kFailed) {
    error_ = RequestFault(update.result->status);
    // What went wrong inside is in the log, by this id.
    if (error_->status >= 500) {
      error_->message = "the server failed on this request, whose id is " + options_.head.id;
    }
    return options_.stream ? "data: " + error_->Body() + "\n\n" + std::string(kStreamEnd) : "";
  }
  if (!options_.hide_answer) usage_.completion_tokens += std::ssize(update.tokens);
  if (update.result) {
    --open_;
    usage_.reasoning_tokens += update.result->reasoning_tokens;
    // The other choices start behind the first one's prompt.
    if (update.choice == 0) usage_.cached_tokens += update.stats.cached_tokens;
  }
  const auto choice = static_cast<size_t>(update.choice);
  std::string events = Take(prompt * static_cast<size_t>(options_.choices) + choice, update);
  if (!options_.stream) return "";
  if (open_ > 0) return events;
  if (options_.include_usage) {
    ApiJson last = Head();
    last["choices"] = ApiJson::array();
    last["usage"] = usage_.Json();
    events += StreamEvent(last);
  }
  return events + std::string(kStreamEnd);
}

ApiJson ChoicesReply::Head() const {
  const ReplyHead& head = options_.head;
  return {
      {"id", head.id}, {"object", head.object}, {"created", head.created}, {"model", head.model}};
}

std::string ChoicesReply::Chunk(ApiJson choice) const {
  ApiJson chunk = Head();
  chunk["choices"] = ApiJson::array({std::move(choice)});
  if (options_.continuous_usage) chunk["usage"] = usage_.Json();
  return StreamEvent(chunk);
}

ApiJson ChoicesReply::Whole(ApiJson choices) const {
  ApiJson body = Head();
  body["choices"] = std::move(choices);
  body["usage"] = usage_.Json();
  return body;
}

void ReadStream(ApiFields& fields, ReplyOptions* options, std::vector<std::string>* unread) {
  options->stream = fields.Bool("stream").value_or(false);
  const ApiJson* object = fields.Object("stream_options");
  if (object == nullptr) return;
  if (!options->stream) fields.Refuse("stream_options", "only with stream: true");
  ApiFields inner(*object, fields.NameOf("stream_options."), fields.error());
  options->include_usage = inner.Bool("include_usage").value_or(false);
  options->continuous_usage =
      inner.Bool("continuous_usage_stats").value_or(false) && options->include_usage;
  *unread = inner.Unread();
}

}  // namespace signalbox
