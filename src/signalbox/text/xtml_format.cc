// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/xtml_format.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "signalbox/base/text_util.h"
#include "signalbox/text/chat_request.h"
#include "signalbox/text/jinja_ops.h"
#include "signalbox/text/jinja_template.h"
#include "signalbox/text/xtml.h"

namespace signalbox {
namespace {

using jinja::Dict;
using jinja::Value;
using xtml::Attributes;
using xtml::Writer;

// --- Words of the format: the model was trained on exactly these --------------------------------

constexpr std::string_view kEfforts[] = {"low", "medium", "high", "max"};
constexpr const char* kEffortText =
    "`thinking_effort` guides on how much to think in your thinking channel (not including the "
    "response channel), supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort={}`.";
constexpr const char* kToolsText =
    "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n{}\n```";
constexpr const char* kNewToolsText =
    "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\n"
    "Here are the specs for the extended tools.\n\n```json\n{}\n```";
constexpr const char* kMustCallText =
    "The system is invoked with `tool_choice=required`.\n"
    "You MUST call tools in the next message.";
constexpr const char* kMustNotCallText =
    "The system is invoked with `tool_choice=none`.\n"
    "You MUST NOT call any tools in the next message.";
constexpr const char* kJsonText =
    "The system is invoked with `response_format={}`.\n"
    "Your response must be raw JSON data without markdown code blocks (```json) or any additional "
    "formatting.";
constexpr const char* kSchemaText =
    "\nThe JSON data must match the following schema:\n```json\n{}\n```";

// --- Fields
// ---------------------------------------------------------------------------------------

// The value of a key; null where it is missing or none.
const Value* FieldOf(const Dict& dict, std::string_view key) {
  const Value* value = dict.Find(key);
  return value == nullptr || value->is_none() ? nullptr : value;
}

// The text of a key; nothing where it is missing, none or no text.
std::optional<std::string_view> TextOf(const Dict& dict, std::string_view key) {
  const Value* value = FieldOf(dict, key);
  if (value == nullptr || !value->is_string()) return std::nullopt;
  return value->str();
}

bool IsBlank(std::string_view text) {
  const auto [begin, end] = jinja::StripRange(text, nullptr, true, true);
  return begin == end;
}

Status Refusal(std::string where, std::string what, std::string expected) {
  return InvalidArgument(
      {.what = std::move(what), .where = std::move(where), .expected = std::move(expected)});
}

Result<std::string> JsonOf(const Value& value, const jinja::JsonStyle& style) {
  jinja::Runtime runtime{
      .budget = jinja::Budget(jinja::Limits().steps), .now = {}, .namespaces = {}};
  return jinja::ToJson(runtime, value, style);
}

Result<std::string> SortedJson(const Value& value) {
  return JsonOf(value, {.sort_keys = true, .item_separator = ",", .key_separator = ":"});
}

std::string_view TypeOf(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kBool:
      return "boolean";
    case Value::Kind::kNone:
      return "null";
    case Value::Kind::kInt:
    case Value::Kind::kFloat:
      return "number";
    case Value::Kind::kString:
      return "string";
    case Value::Kind::kDict:
      return "object";
    default:
      return "array";
  }
}

// A tool call: {"function": {...}}, or the function itself.
const Dict* FunctionOf(const Value& call) {
  if (!call.is_dict()) return nullptr;
  const Value* function = FieldOf(call.dict(), "function");
  return function != nullptr && function->is_dict() ? &function->dict() : &call.dict();
}

std::optional<std::string_view> NameOf(const Value& call) {
  const Dict* function = FunctionOf(call);
  return function == nullptr ? std::nullopt : TextOf(*function, "name");
}

// --- Messages -----------------------------------------------------------------------------------

// The conversation as it is rendered, message by message.
class Conversation {
 public:
  Conversation(const Value::Items& messages, bool thinking, Writer& writer)
      : messages_(messages), thinking_(thinking), writer_(writer) {}

  Status Render() {
    for (size_t i = 0; i < messages_.size(); ++i) {
      const std::string where = fmt::format("messages[{}]", i);
      if (!messages_[i].is_dict()) return Refusal(where, "a message is no object", "an object");
      const auto role = TextOf(messages_[i].dict(), "role");
      if (role == "tool") {
        size_t end = i + 1;
        while (end < messages_.size() && messages_[end].is_dict() &&
               TextOf(messages_[end].dict(), "role") == "tool") {
          ++end;
        }
        SB_RETURN_IF_ERROR(RenderResults(i, end));
        i = end - 1;
      } else {
        SB_RETURN_IF_ERROR(RenderMessage(messages_[i].dict(), role.value_or(""), where));
      }
    }
    return OkStatus();
  }

 private:
  Status RenderMessage(const Dict& message, std::string_view role, const std::string& where) {
    if (role == "developer") role = "system";  // OpenAI's newer name for it
    if (role == "system") {
      const Value* tools = FieldOf(message, "tools");
      if (tools != nullptr && tools->is_sequence() && !tools->items().empty()) {
        SB_ASSIGN_OR_RETURN(const std::string json, SortedJson(*tools));
        writer_.Notice("tool-declare", fmt::format(kNewToolsText, json));
        return OkStatus();
      }
    } else if (role != "user" && role != "assistant") {
      return InvalidArgument({.what = "a message of an unknown role",
                              .where = where + ".role",
                              .found = Quoted(role),
                              .expected = "system, developer, user, assistant or tool"});
    }
    Attributes attributes = {{"role", std::string(role)}};
    const auto name = TextOf(message, "name");
    if (name && !name->empty()) attributes.emplace_back("name", std::string(*name));
    writer_.Open("message", attributes);
    if (role == "assistant") {
      SB_RETURN_IF_ERROR(RenderAssistant(message, where));
    } else {
      SB_RETURN_IF_ERROR(RenderContent(message, where));
    }
    writer_.EndMessage();
    return OkStatus();
  }

  Status RenderContent(const Dict& message, const std::string& where) {
    const std::string place = where + ".content";
    const Value* content = FieldOf(message, "content");
    if (content == nullptr) return OkStatus();
    if (content->is_string()) {
      writer_.Text(content->str());
      return OkStatus();
    }
    if (!content->is_sequence()) {
      return Refusal(place, "content of the wrong type", "text, or a list of parts of type text");
    }
    for (const Value& part : content->items()) {
      const auto text =
          part.is_dict() ? TextOf(part.dict(), "text") : std::optional<std::string_view>();
      if (!text) {
        return Refusal(place, "a part that is no text", "parts of type text: the model reads text");
      }
      writer_.Text(*text);
    }
    return OkStatus();
  }

  Status RenderAssistant(const Dict& message, const std::string& where) {
    if (thinking_) {
      auto reasoning = TextOf(message, "reasoning_content");
      if (!reasoning || reasoning->empty()) reasoning = TextOf(message, "reasoning");
      const std::string_view text = reasoning.value_or("");
      writer_.Element("think", {}, IsBlank(text) ? "" : text);
    }
    writer_.Open("response");
    SB_RETURN_IF_ERROR(RenderContent(message, where));
    writer_.Close("response");

    calls_.clear();
    results_ = 0;
    const Value* calls = FieldOf(message, "tool_calls");
    if (calls == nullptr) return OkStatus();
    if (!calls->is_sequence()) return Refusal(where + ".tool_calls", "no list of calls", "a list");
    calls_ = calls->items();
    if (calls_.empty()) return OkStatus();
    writer_.Open("tools");
    for (size_t i = 0; i < calls_.size(); ++i) {
      SB_RETURN_IF_ERROR(RenderCall(calls_[i], i, fmt::format("{}.tool_calls[{}]", where, i)));
    }
    writer_.Close("tools");
    return OkStatus();
  }

  Status RenderCall(const Value& call, size_t index, const std::string& where) {
    const auto name = NameOf(call);
    if (!name) return Refusal(where, "a call of no function", "an object with function.name");
    writer_.Open("call", {{"tool", std::string(*name)}, {"index", std::to_string(index + 1)}});
    const Value* arguments = FieldOf(*FunctionOf(call), "arguments");
    Value parsed;
    if (arguments != nullptr && arguments->is_string()) {
      const std::string_view text = arguments->str();
      auto json = Value::FromJson(text);
      // JSON text that holds a text is what the parser makes of arguments that were no JSON.
      if (!json.ok() || json->is_string()) {
        if (!IsBlank(text)) {
          writer_.Element("json", {{"type", "object"}}, json.ok() ? json->str() : text);
        }
        arguments = nullptr;
      } else {
        parsed = std::move(json).value();
        arguments = &parsed;
      }
    }
    if (arguments != nullptr && !arguments->is_dict()) {
      return Refusal(where + ".arguments", "arguments of the wrong type",
                     "an object, or its JSON text");
    }
    if (arguments != nullptr) {
      for (const auto& [key, value] : arguments->dict().entries()) {
        SB_ASSIGN_OR_RETURN(
            const std::string text,
            value.is_string() ? Result<std::string>(std::string(value.str())) : JsonOf(value, {}));
        writer_.Element("argument",
                        {{"key", std::string(key.str())}, {"type", std::string(TypeOf(value))}},
                        text);
      }
    }
    writer_.Close("call");
    return OkStatus();
  }

  // A result of a tool: the call it answers, where its id names one.
  struct ToolResult {
    size_t message;
    std::optional<size_t> call;
  };

  // The results messages_[begin, end), in the order of the calls where every id is known.
  Status RenderResults(size_t begin, size_t end) {
    std::map<std::string, size_t, std::less<>> call_of;  // by id; the first of equal ids
    for (size_t i = 0; i < calls_.size(); ++i) {
      const auto id =
          calls_[i].is_dict() ? TextOf(calls_[i].dict(), "id") : std::optional<std::string_view>();
      if (id) call_of.emplace(std::string(*id), i);
    }
    std::vector<ToolResult> results;
    bool all_known = true;
    for (size_t i = begin; i < end; ++i) {
      const Dict& message = messages_[i].dict();
      auto id = TextOf(message, "tool_call_id");
      if (!id) id = TextOf(message, "id");
      const auto call = id ? call_of.find(*id) : call_of.end();
      all_known = all_known && call != call_of.end();
      results.push_back(
          {i, call == call_of.end() ? std::nullopt : std::optional<size_t>(call->second)});
    }
    if (all_known) {
      std::stable_sort(results.begin(), results.end(),
                       [](const ToolResult& a, const ToolResult& b) { return *a.call < *b.call; });
    }
    for (const ToolResult& result : results) {
      SB_RETURN_IF_ERROR(RenderResult(result, all_known));
    }
    return OkStatus();
  }

  Status RenderResult(const ToolResult& result, bool by_id) {
    const Dict& message = messages_[result.message].dict();
    const std::string where = fmt::format("messages[{}]", result.message);
    ++results_;
    std::optional<std::string_view> name;
    if (by_id) name = NameOf(calls_[*result.call]);
    if (!name) name = TextOf(message, "tool");
    if (!name) name = TextOf(message, "name");
    if (!name && results_ <= calls_.size()) name = NameOf(calls_[results_ - 1]);
    if (!name) {
      return Refusal(where, "the result of an unknown tool",
                     "tool_call_id of a call before it, or the tool's name");
    }
    writer_.Open(
        "message",
        {{"role", "tool"}, {"tool", std::string(*name)}, {"index", std::to_string(results_)}});
    SB_RETURN_IF_ERROR(RenderContent(message, where));
    writer_.EndMessage();
    return OkStatus();
  }

  const Value::Items& messages_;
  bool thinking_;
  Writer& writer_;
  Value::Items calls_;  // of the last assistant message
  size_t results_ = 0;  // of tools, since then
};

// --- Variables
// ----------------------------------------------------------------------------------------

Status WrongVariable(std::string_view name, std::string expected) {
  return Refusal(fmt::format("chat_template_kwargs.{}", name), "the variable is of the wrong type",
                 std::move(expected));
}

Result<bool> Flag(const Dict& extra, std::string_view name, bool otherwise) {
  const Value* value = FieldOf(extra, name);
  if (value == nullptr) return otherwise;
  if (value->kind() != Value::Kind::kBool) return WrongVariable(name, "true or false");
  return value->integer() != 0;
}

// Empty for none.
Result<std::string> Effort(const Dict& extra) {
  const Value* value = extra.Find("thinking_effort");
  if (value == nullptr) return std::string("max");
  if (value->is_none()) return std::string();
  const std::string_view text = value->is_string() ? value->str() : "";
  if (std::find(std::begin(kEfforts), std::end(kEfforts), text) == std::end(kEfforts)) {
    return WrongVariable("thinking_effort", "low, medium, high, max or null");
  }
  return std::string(text);
}

// The text of the notice about response_format; empty for none.
Result<std::string> FormatNotice(const Dict& extra) {
  const Value* format = FieldOf(extra, "response_format");
  if (format == nullptr) return std::string();
  const auto type = format->is_dict()     ? TextOf(format->dict(), "type")
                    : format->is_string() ? std::optional(format->str())
                                          : std::nullopt;
  if (type == "json_object") return fmt::format(kJsonText, "json_object");
  if (type != "json_schema") return std::string();
  const Value* schema = format->is_dict() ? FieldOf(format->dict(), "json_schema") : nullptr;
  for (const char* key : {"schema", "json_schema"}) {
    const Value* inner =
        schema != nullptr && schema->is_dict() ? FieldOf(schema->dict(), key) : nullptr;
    if (inner == nullptr) continue;
    schema = inner;
    break;
  }
  if (schema == nullptr) return WrongVariable("response_format", "a json_schema with a schema");
  SB_ASSIGN_OR_RETURN(const std::string json, SortedJson(*schema));
  return fmt::format(kJsonText, "json_schema") + fmt::format(kSchemaText, json);
}

}  // namespace

Result<Segments> XtmlFormat::Render(const ChatRequest& request) const {
  SB_ASSIGN_OR_RETURN(const ChatFields fields, ParseChatRequest(request));
  SB_ASSIGN_OR_RETURN(const bool enabled, Flag(fields.extra, "enable_thinking", true));
  SB_ASSIGN_OR_RETURN(const bool thinking, Flag(fields.extra, "thinking", enabled));
  SB_ASSIGN_OR_RETURN(const bool prompted,
                      Flag(fields.extra, "add_generation_prompt", request.add_generation_prompt));
  SB_ASSIGN_OR_RETURN(const std::string effort, Effort(fields.extra));
  SB_ASSIGN_OR_RETURN(const std::string format_notice, FormatNotice(fields.extra));

  Writer writer;
  if (!fields.tools.is_none() && !fields.tools.items().empty()) {
    SB_ASSIGN_OR_RETURN(const std::string json, SortedJson(fields.tools));
    writer.Notice("tool-declare", fmt::format(kToolsText, json));
  }
  if (thinking && !effort.empty()) {
    writer.Notice("thinking-effort", fmt::format(kEffortText, effort));
  }
  SB_RETURN_IF_ERROR(Conversation(fields.messages.items(), thinking, writer).Render());
  const auto choice = TextOf(fields.extra, "tool_choice");
  if (choice == "required") writer.Notice("tool-choice", kMustCallText);
  if (choice == "none") writer.Notice("tool-choice", kMustNotCallText);
  if (!format_notice.empty()) writer.Notice("response-format", format_notice);
  if (prompted) {
    writer.Open("message", {{"role", "assistant"}});
    writer.Open(thinking ? "think" : "response");
  }
  return std::move(writer).Take();
}

}  // namespace signalbox
