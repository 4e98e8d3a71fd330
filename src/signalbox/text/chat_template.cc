// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/chat_template.h"

#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "signalbox/text/chat_request.h"
#include "signalbox/text/jinja_template.h"

namespace signalbox {
namespace {

using jinja::Value;

constexpr std::string_view kTokenNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                            "pad_token", "cls_token", "mask_token"};

// A file's bytes; nothing where there is no such file.
Result<std::optional<std::string>> ReadIfExists(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::optional<std::string>();
  std::ifstream in(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in.good() && !in.eof()) {
    return BadCheckpoint({.what = "the file cannot be read", .where = path.string()});
  }
  return std::optional<std::string>(std::move(bytes));
}

// The object in a JSON file, empty where there is no such file.
Result<jinja::Dict> ReadObject(const std::filesystem::path& path) {
  SB_ASSIGN_OR_RETURN(const auto bytes, ReadIfExists(path));
  if (!bytes.has_value()) return jinja::Dict();
  const auto value = Value::FromJson(*bytes, /*trusted=*/true);
  if (!value.ok() || !value->is_dict()) {
    return BadCheckpoint({.what = "the file is not a JSON object",
                          .where = path.string(),
                          .found = value.ok() ? "" : value.status().detail().found});
  }
  return value->dict();
}

// Special tokens are strings, or objects that hold the string and how to match it.
TemplateTokens TokensOf(const jinja::Dict& config) {
  TemplateTokens tokens;
  for (const std::string_view name : kTokenNames) {
    const Value* token = config.Find(name);
    if (token != nullptr && token->is_dict()) token = token->dict().Find("content");
    if (token != nullptr && token->is_string()) tokens[std::string(name)] = token->str();
  }
  return tokens;
}

struct Sources {
  std::string origin;
  std::string main;
  std::optional<std::string> with_tools;
};

// The value of a chat_template key: a template, or a list of {name, template}.
Result<Sources> SourcesOf(const Value& value, const std::string& origin) {
  Sources sources{.origin = origin, .main = "", .with_tools = std::nullopt};
  if (value.is_string()) {
    sources.main = value.str();
    return sources;
  }
  bool has_main = false;
  for (const Value& entry : value.is_sequence() ? value.items() : Value::Items()) {
    const Value* name = entry.is_dict() ? entry.dict().Find("name") : nullptr;
    const Value* text = entry.is_dict() ? entry.dict().Find("template") : nullptr;
    if (name == nullptr || !name->is_string() || text == nullptr || !text->is_string()) continue;
    if (name->str() == "tool_use") sources.with_tools = text->str();
    if (name->str() != "default") continue;
    sources.main = text->str();
    has_main = true;
  }
  if (has_main) return sources;
  return BadCheckpoint({.what = "no usable chat template",
                        .where = origin,
                        .expected = "a string, or a list of {name, template} with a default"});
}

Result<Sources> FindSources(const std::filesystem::path& dir, const jinja::Dict& config) {
  SB_ASSIGN_OR_RETURN(auto file, ReadIfExists(dir / "chat_template.jinja"));
  if (file.has_value()) {
    return Sources{.origin = "chat_template.jinja", .main = std::move(*file), .with_tools = {}};
  }
  if (const Value* value = config.Find("chat_template"); value != nullptr && !value->is_none()) {
    return SourcesOf(*value, "chat_template of tokenizer_config.json");
  }
  SB_ASSIGN_OR_RETURN(const jinja::Dict processor, ReadObject(dir / "chat_template.json"));
  if (const Value* value = processor.Find("chat_template"); value != nullptr) {
    return SourcesOf(*value, "chat_template.json");
  }
  return NotFound({.what = "the model has no chat template",
                   .where = dir.string(),
                   .expected = "chat_template.jinja, or chat_template in tokenizer_config.json",
                   .remedy = "use plain completions, or put a template there"});
}

Result<std::shared_ptr<const jinja::Template>> ParseShared(std::string_view source) {
  SB_ASSIGN_OR_RETURN(jinja::Template parsed, jinja::Template::Parse(source));
  return std::shared_ptr<const jinja::Template>(
      std::make_shared<jinja::Template>(std::move(parsed)));
}

OutputFormat OutputFormatOf(std::string_view source) {
  const auto has = [source](std::string_view tag) { return source.find(tag) != source.npos; };
  if (has("<function=")) return OutputFormat::kXml;
  return has("<tool_call>") || has("</think>") ? OutputFormat::kHermes : OutputFormat::kPlain;
}

}  // namespace

Result<ChatTemplate> ChatTemplate::Parse(std::string_view source, TemplateTokens tokens) {
  ChatTemplate chat;
  auto parsed = ParseShared(source);
  if (!parsed.ok()) return parsed.status().At(chat.origin_);
  chat.template_ = *parsed;
  chat.tokens_ = std::move(tokens);
  chat.output_format_ = OutputFormatOf(source);
  return chat;
}

Result<ChatTemplate> ChatTemplate::Load(const std::filesystem::path& model_dir) {
  SB_ASSIGN_OR_RETURN(const jinja::Dict config, ReadObject(model_dir / "tokenizer_config.json"));
  SB_ASSIGN_OR_RETURN(const Sources sources, FindSources(model_dir, config));
  const auto damaged = [&](const Status& status) {
    return BadCheckpoint(status.At(sources.origin).At(model_dir.string()).detail());
  };
  ChatTemplate chat;
  chat.origin_ = sources.origin;
  chat.tokens_ = TokensOf(config);
  chat.output_format_ = OutputFormatOf(sources.main + sources.with_tools.value_or(""));
  auto parsed = ParseShared(sources.main);
  if (!parsed.ok()) return damaged(parsed.status());
  chat.template_ = *parsed;
  if (sources.with_tools.has_value()) {
    auto with_tools = ParseShared(*sources.with_tools);
    if (!with_tools.ok()) return damaged(with_tools.status());
    chat.tool_template_ = *with_tools;
  }
  return chat;
}

Result<Segments> ChatTemplate::Render(const ChatRequest& request) const {
  SB_ASSIGN_OR_RETURN(ChatFields fields, ParseChatRequest(request));
  jinja::Dict context;
  for (const auto& [name, text] : tokens_) {
    context.Set(name, Value::String(text, /*trusted=*/true));
  }
  context.Set("documents", Value::None());  // templates for retrieval ask for it
  context.Set("add_generation_prompt", Value::Bool(request.add_generation_prompt));
  for (const auto& [name, value] : fields.extra.entries()) context.Set(name, value);
  context.Set("messages", std::move(fields.messages));
  const bool for_tools =
      tool_template_ != nullptr && !fields.tools.is_none() && !fields.tools.items().empty();
  context.Set("tools", std::move(fields.tools));
  auto prompt = (for_tools ? tool_template_ : template_)->Render(context);
  if (!prompt.ok()) return prompt.status().At(origin_);
  return prompt;
}

}  // namespace signalbox
