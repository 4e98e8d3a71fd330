// SPDX-License-Identifier: Apache-2.0
//
// /tokenize, /detokenize and /tokenizer_info.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "signalbox/base/json_util.h"
#include "signalbox/server/api_reply.h"
#include "signalbox/server/api_request.h"

namespace signalbox {
namespace {

// The tokens and, where they are asked for, their texts.
ApiJson TokensJson(const ApiContext& context, const std::vector<std::vector<TokenId>>& prompts,
                   bool batch, bool texts) {
  ApiJson counts = ApiJson::array();
  ApiJson tokens = ApiJson::array();
  ApiJson strings = ApiJson::array();
  for (const std::vector<TokenId>& ids : prompts) {
    counts.push_back(ids.size());
    tokens.push_back(ids);
    ApiJson of_prompt = ApiJson::array();
    for (const TokenId id : ids) of_prompt.push_back(TokenText(context.model->tokenizer(), id));
    strings.push_back(std::move(of_prompt));
  }
  ApiJson answer = {{"count", batch ? counts : counts[0]},
                    {"max_model_len", MaxContext(context)},
                    {"tokens", batch ? tokens : tokens[0]}};
  if (texts) answer["token_strs"] = batch ? strings : strings[0];
  return answer;
}

ApiAnswer TokenizeChat(std::string_view body, const ApiContext& context) {
  ApiCall call;
  if (auto error = ParseChat(body, context, &call)) return {.error = std::move(error)};
  return {.body = ApiDump(TokensJson(context, {call.requests[0].prompt}, false, false))};
}

// What JSON a file of the model holds; null where there is none.
ApiJson FileOf(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  return ParseJson(text).ok() ? ApiJson::parse(text, nullptr, /*allow_exceptions=*/false)
                              : ApiJson();
}

// Special tokens are texts, or objects that hold the text.
ApiJson TokenOf(const ApiJson& config, const char* name) {
  if (!config.is_object() || !config.contains(name)) return nullptr;
  const ApiJson& token = config.at(name);
  return token.is_object() && token.contains("content") ? token.at("content") : token;
}

}  // namespace

ApiAnswer Tokenize(std::string_view body, const ApiContext& context) {
  ApiJson object;
  if (auto error = ParseApiBody(body, &object)) return {.error = std::move(error)};
  if (object.contains("messages")) return TokenizeChat(body, context);
  std::optional<ApiError> error;
  ApiFields fields(object, "", &error);
  ReadCommon(fields, context);
  const char* name = object.contains("prompt") ? "prompt" : "text";
  const ApiJson* value = fields.Find(name);
  std::vector<std::vector<TokenId>> prompts;
  const std::vector<std::string> texts = fields.Texts(name);
  if (value == nullptr || texts.empty()) fields.Refuse(name, "expected a text, or a list of texts");
  for (const std::string& text : texts) {
    auto ids = context.model->tokenizer().EncodeTrusted(text);
    if (!ids.ok()) fields.Refuse(name, ids.status().message());
    prompts.push_back(ids.ok() ? *std::move(ids) : std::vector<TokenId>());
  }
  const bool strings = fields.Bool("return_token_strs").value_or(false);
  ApiCall unused;
  EndFields(context, fields.Unread(), &error, &unused);
  if (error) return {.error = std::move(error)};
  return {.body = ApiDump(TokensJson(context, prompts, value->is_array(), strings))};
}

ApiAnswer Detokenize(std::string_view body, const ApiContext& context) {
  ApiJson object;
  if (auto error = ParseApiBody(body, &object)) return {.error = std::move(error)};
  std::optional<ApiError> error;
  ApiFields fields(object, "", &error);
  ReadCommon(fields, context);
  const ApiJson* tokens = fields.Array("tokens");
  const bool batch = tokens != nullptr && !tokens->empty() && tokens->front().is_array();
  const bool skip = fields.Bool("skip_special_tokens").value_or(false);
  if (tokens == nullptr) fields.Refuse("tokens", "expected a list of token ids");
  ApiJson texts = ApiJson::array();
  const ApiJson one = ApiJson::array({tokens == nullptr ? ApiJson() : *tokens});
  for (const ApiJson& list : batch ? *tokens : one) {
    const auto ids = list.is_array() ? IdsOf(list, context.model->vocab()) : std::nullopt;
    if (!ids) {
      fields.Refuse("tokens", fmt::format("expected a list of token ids below {}, found {}",
                                          context.model->vocab(), Shown(list)));
      break;
    }
    texts.push_back(context.model->tokenizer().Decode(
        *ids, skip ? SpecialTokens::kSkip : SpecialTokens::kKeep));
  }
  ApiCall unused;
  EndFields(context, fields.Unread(), &error, &unused);
  if (error) return {.error = std::move(error)};
  const ApiJson text = batch ? texts : texts[0];
  return {.body = ApiDump({{"prompt", text}, {"text", text}})};
}

ApiAnswer TokenizerInfo(const ApiContext& context) {
  const std::filesystem::path dir(context.model->directory());
  const ApiJson config = FileOf(dir / "tokenizer_config.json");
  ApiJson info = {{"tokenizer_class", TokenOf(config, "tokenizer_class")},
                  {"vocab_size", context.model->vocab()},
                  {"model_max_length", MaxContext(context)}};
  for (const char* name : {"bos_token", "eos_token", "pad_token", "unk_token"})
    info[name] = TokenOf(config, name);
  std::ifstream in(dir / "chat_template.jinja", std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  info["chat_template"] = text.empty() ? TokenOf(config, "chat_template") : ApiJson(text);
  return {.body = ApiDump(info)};
}

}  // namespace signalbox
