// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/api_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <string_view>
#include <utility>

#include "signalbox/server/api_request.h"

namespace signalbox {
namespace {

constexpr std::pair<std::string_view, std::string_view> kRoles[] = {
    {"system", "system"},       {"developer", "system"}, {"user", "user"},
    {"assistant", "assistant"}, {"tool", "tool"},        {"function", "tool"},
};

std::string ReadRole(ApiFields& message) {
  std::string role = message.Text("role").value_or("");
  std::transform(role.begin(), role.end(), role.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const auto& [spelled, meant] : kRoles)
    if (role == spelled) return std::string(meant);
  message.Refuse("role", fmt::format("expected system, developer, user, assistant, tool or "
                                     "function, found {}",
                                     Shown(ApiJson(role))));
  return role;
}

// A text, or parts that are texts, one behind the other.
std::string ReadContent(ApiFields& message) {
  const ApiJson* content = message.Find("content");
  if (content == nullptr) return "";
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) {
    message.Refuse("content", "expected a text or a list of parts, found " + Shown(*content));
    return "";
  }
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) {
    const ApiJson& value = (*content)[i];
    if (value.is_string()) {
      text += value.get<std::string>();
      continue;
    }
    const std::string place = fmt::format("content[{}]", i);
    if (!value.is_object()) {
      message.Refuse(place, "expected a part of type text, found " + Shown(value));
      return text;
    }
    ApiFields part(value, message.NameOf(place + "."), message.error());
    const std::string type = part.Text("type").value_or("text");
    const auto piece = part.Text(type == "refusal" ? "refusal" : "text");
    if (!piece) {
      const bool is_text = type == "text" || type == "input_text" || type == "output_text";
      part.Refuse(is_text ? "text" : "type",
                  is_text
                      ? "expected a text"
                      : fmt::format("the model reads text only, found {}", Shown(ApiJson(type))));
    }
    text += piece.value_or("");
  }
  return text;
}

// The object that JSON text holds. A text that holds none stays one, as JSON, where the format has
// a place for it (XTML), and is an argument by itself elsewhere: a call that a model once wrote
// wrong must not make its conversation unreadable.
ApiJson ArgumentsOf(ApiFields& function, OutputFormat format) {
  const ApiJson* arguments = function.Find("arguments");
  if (arguments == nullptr) return ApiJson::object();
  if (arguments->is_object()) return *arguments;
  if (!arguments->is_string()) {
    function.Refuse("arguments", "expected JSON text or an object, found " + Shown(*arguments));
    return ApiJson::object();
  }
  const auto& text = arguments->get_ref<const std::string&>();
  ApiJson object;
  if (!ParseApiBody(text, &object)) return object;
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return ApiJson::object();
  if (format != OutputFormat::kXtml) return {{"arguments", text}};
  const ApiJson value = ApiJson::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_string() ? text : ApiJson(text).dump();
}

ApiJson ReadCalls(ApiFields& message, OutputFormat format) {
  ApiJson calls = ApiJson::array();
  const ApiJson* list = message.Array("tool_calls");
  for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
    const std::string place = fmt::format("tool_calls[{}]", i);
    if (!(*list)[i].is_object()) {
      message.Refuse(place, "expected an object, found " + Shown((*list)[i]));
      break;
    }
    ApiFields call((*list)[i], message.NameOf(place + "."), message.error());
    const ApiJson* inner = call.Object("function");
    if (inner == nullptr) {
      call.Refuse("function", "expected an object with name and arguments");
      break;
    }
    ApiFields function(*inner, call.NameOf("function."), message.error());
    const std::string name = function.Text("name").value_or("");
    if (name.empty()) function.Refuse("name", "expected the name of a tool");
    ApiJson read = {{"type", "function"}};
    if (const auto id = call.Text("id")) read["id"] = *id;
    read["function"] = {{"name", name}, {"arguments", ArgumentsOf(function, format)}};
    calls.push_back(std::move(read));
  }
  return calls;
}

ApiJson ReadMessage(ApiFields& message, OutputFormat format) {
  const std::string role = ReadRole(message);
  ApiJson read = {{"role", role}, {"content", ReadContent(message)}};
  for (const char* name : {"name", "tool_call_id"})
    if (const auto text = message.Text(name)) read[name] = *text;
  // Newer servers and older ones call it differently.
  const auto newer = message.Text("reasoning");
  const auto reasoning = message.Text("reasoning_content");
  if (reasoning || newer) read["reasoning_content"] = reasoning ? *reasoning : *newer;
  ApiJson calls = ReadCalls(message, format);
  if (role == "assistant" && !calls.empty()) read["tool_calls"] = std::move(calls);
  const ApiJson* tools = message.Array("tools");  // XTML's, declared on the way
  if (role == "system" && tools != nullptr) read["tools"] = *tools;
  return read;
}

void ReadToolList(ApiFields& fields, ChatTools* tools) {
  const ApiJson* list = fields.Array("tools");
  for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
    const ApiJson& value = (*list)[i];
    const std::string place = fmt::format("tools[{}]", i);
    if (!value.is_object()) {
      fields.Refuse(place, "expected an object, found " + Shown(value));
      return;
    }
    ApiFields tool(value, fields.NameOf(place + "."), fields.error());
    const std::string type = tool.Text("type").value_or("function");
    if (type != "function") {
      tool.Refuse("type", "expected function, found " + Shown(ApiJson(type)));
    }
    const ApiJson* inner = tool.Object("function");
    if (inner == nullptr) {
      tool.Refuse("function", "expected an object with a name");
      return;
    }
    ApiFields function(*inner, tool.NameOf("function."), fields.error());
    if (function.Text("name").value_or("").empty()) {
      function.Refuse("name", "expected the name of a tool");
    }
    function.Text("description");
    function.Object("parameters");
    function.Bool("strict");
    tools->tools.push_back(value);
  }
}

bool HasTool(const ChatTools& tools, const std::string& name) {
  return std::any_of(tools.tools.begin(), tools.tools.end(),
                     [&](const ApiJson& tool) { return tool["function"]["name"] == name; });
}

void ReadToolChoice(ApiFields& fields, ChatTools* tools) {
  using Choice = ChatTools::Choice;
  const ApiJson* choice = fields.Find("tool_choice");
  if (choice == nullptr) return;
  if (choice->is_object()) {
    ApiFields named(*choice, fields.NameOf("tool_choice."), fields.error());
    const std::string type = named.Text("type").value_or("function");
    const ApiJson* function = named.Object("function");
    std::string name = named.Text("name").value_or("");
    if (function != nullptr) {
      ApiFields inner(*function, named.NameOf("function."), fields.error());
      name = inner.Text("name").value_or("");
    }
    if (type != "function" || name.empty()) {
      fields.Refuse("tool_choice", "expected the name of a function, found " + Shown(*choice));
    } else if (!HasTool(*tools, name)) {
      fields.Refuse("tool_choice", "no tool of the request is called " + Shown(ApiJson(name)));
    }
    tools->choice = Choice::kRequired;
    tools->name = name;
    return;
  }
  if (*choice == "none") {
    tools->choice = Choice::kNone;
  } else if (*choice == "required") {
    tools->choice = Choice::kRequired;
    if (tools->tools.empty()) fields.Refuse("tool_choice", "a call is required, but no tool given");
  } else if (*choice != "auto") {
    fields.Refuse("tool_choice",
                  "expected auto, none, required or a function, found " + Shown(*choice));
  }
}

// Efforts as clients say them, and as formats that think more or less call them.
const std::map<std::string, std::string, std::less<>>& Efforts() {
  static const std::map<std::string, std::string, std::less<>> kEfforts = {
      {"none", ""},     {"minimal", "low"}, {"low", "low"}, {"medium", "medium"},
      {"high", "high"}, {"xhigh", "max"},   {"max", "max"},
  };
  return kEfforts;
}

void SetIfMissing(ApiJson& object, const char* name, ApiJson value) {
  if (!object.contains(name)) object[name] = std::move(value);
}

}  // namespace

ApiJson ReadMessages(ApiFields& fields, OutputFormat format) {
  ApiJson messages = ApiJson::array();
  const ApiJson* list = fields.Array("messages");
  if (list == nullptr || list->empty()) {
    fields.Refuse("messages", "expected a list of at least one message");
    return messages;
  }
  for (size_t i = 0; i < list->size() && fields.ok(); ++i) {
    const std::string place = fmt::format("messages[{}]", i);
    if (!(*list)[i].is_object()) {
      fields.Refuse(place, "expected an object, found " + Shown((*list)[i]));
      break;
    }
    ApiFields message((*list)[i], fields.NameOf(place + "."), fields.error());
    messages.push_back(ReadMessage(message, format));
  }
  return messages;
}

std::optional<ApiJson> WithSystemFirst(const ApiJson& messages) {
  ApiJson others = ApiJson::array();
  std::string system;
  bool later = false;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i]["role"] != "system") {
      others.push_back(messages[i]);
      continue;
    }
    later = later || i > 0;
    if (!system.empty()) system += "\n\n";
    system += messages[i]["content"].get<std::string>();
  }
  if (!later) return std::nullopt;
  others.insert(others.begin(), ApiJson{{"role", "system"}, {"content", system}});
  return others;
}

ChatTools ReadTools(ApiFields& fields, OutputFormat format) {
  ChatTools tools;
  ReadToolList(fields, &tools);
  ReadToolChoice(fields, &tools);
  tools.parallel = fields.Bool("parallel_tool_calls").value_or(true);
  if (format == OutputFormat::kPlain && !tools.tools.empty()) {
    fields.Refuse("tools", "the model's chat format has no calls of tools");
  }
  return tools;
}

ApiJson ReadVariables(ApiFields& fields, bool* hide_reasoning) {
  const ApiJson* given = fields.Object("chat_template_kwargs");
  ApiJson variables = given == nullptr ? ApiJson::object() : *given;
  std::optional<std::string> effort = fields.Text("reasoning_effort");
  std::string effort_field = "reasoning_effort";
  std::optional<bool> thinking = fields.Bool("enable_thinking");
  if (const ApiJson* reasoning = fields.Object("reasoning")) {
    ApiFields inner(*reasoning, fields.NameOf("reasoning."), fields.error());
    if (const auto enabled = inner.Bool("enabled")) thinking = enabled;
    if (auto said = inner.Text("effort")) {
      effort = std::move(said);
      effort_field = "reasoning.effort";
    }
    *hide_reasoning = inner.Bool("exclude").value_or(false);
    for (const std::string& name : inner.Unread())
      fields.Refuse("reasoning", "expected effort, enabled or exclude, found " + name);
  }
  if (effort) {
    const auto known = Efforts().find(*effort);
    if (known == Efforts().end()) {
      fields.Refuse(effort_field,
                    "expected none, minimal, low, medium, high, xhigh or max, found " +
                        Shown(ApiJson(*effort)));
    } else if (known->second.empty()) {
      thinking = false;
    } else {
      SetIfMissing(variables, "reasoning_effort", *effort);
      SetIfMissing(variables, "thinking_effort", known->second);
    }
  }
  if (thinking) {
    SetIfMissing(variables, "enable_thinking", *thinking);
    SetIfMissing(variables, "thinking", *thinking);
  }
  return variables;
}

}  // namespace signalbox
