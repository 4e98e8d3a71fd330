// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/output_parser.h"

#include <utility>

#include "signalbox/base/check.h"
#include "signalbox/text/jinja_value.h"
#include "signalbox/text/qwen_parser.h"
#include "signalbox/text/xtml_parser.h"

namespace signalbox {
namespace {

using jinja::Value;

class PlainParser final : public OutputParser {
 public:
  void Text(std::string_view text, OutputEvents& events) override {
    if (!text.empty()) {
      events.push_back({.kind = OutputEvent::Kind::kContent, .text = std::string(text)});
    }
  }
  void Marker(std::string_view spelling, OutputEvents& events) override { Text(spelling, events); }
  void Finish(bool /*stopped*/, OutputEvents& /*events*/) override {}
  bool in_reasoning() const override { return false; }
};

const Value* DictField(const Value* value, std::string_view key) {
  if (value == nullptr || !value->is_dict()) return nullptr;
  const Value* field = value->dict().Find(key);
  return field != nullptr && field->is_dict() ? field : nullptr;
}

std::string TypeOf(const Value& schema) {
  const Value* type = schema.is_dict() ? schema.dict().Find("type") : nullptr;
  if (type == nullptr) return "";
  if (type->is_string()) return std::string(type->str());
  std::string types;
  for (const Value& one : type->is_sequence() ? type->items() : Value::Items()) {
    if (one.is_string()) types += (types.empty() ? "" : ",") + std::string(one.str());
  }
  return types;
}

}  // namespace

void ParsedOutput::Add(const OutputEvents& events) {
  for (const OutputEvent& event : events) {
    switch (event.kind) {
      case OutputEvent::Kind::kReasoning:
        reasoning += event.text;
        break;
      case OutputEvent::Kind::kContent:
        content += event.text;
        break;
      case OutputEvent::Kind::kCallName:
        SB_CHECK(event.call == calls.size()) << event.call;
        calls.push_back({.name = event.text, .arguments = ""});
        break;
      case OutputEvent::Kind::kCallArguments:
        SB_CHECK(event.call + 1 == calls.size()) << event.call;
        calls.back().arguments += event.text;
        break;
    }
  }
}

Result<ParameterTypes> ParameterTypesOf(std::string_view tools) {
  ParameterTypes types;
  if (tools.empty()) return types;
  SB_ASSIGN_OR_RETURN(const Value list, Value::FromJson(tools));
  if (!list.is_sequence()) {
    return InvalidArgument(
        {.what = "the field is of the wrong type", .where = "tools", .expected = "an array"});
  }
  for (const Value& tool : list.items()) {
    const Value* function = DictField(&tool, "function");
    if (function == nullptr) function = &tool;
    const Value* name = function->is_dict() ? function->dict().Find("name") : nullptr;
    const Value* properties = DictField(DictField(function, "parameters"), "properties");
    if (name == nullptr || !name->is_string() || properties == nullptr) continue;
    for (const auto& [parameter, schema] : properties->dict().entries()) {
      types[std::string(name->str())][std::string(parameter.str())] = TypeOf(schema);
    }
  }
  return types;
}

std::unique_ptr<OutputParser> MakeOutputParser(OutputFormat format, OutputOptions options) {
  switch (format) {
    case OutputFormat::kPlain:
      break;
    case OutputFormat::kHermes:
      return std::make_unique<QwenParser>(MakeHermesCallParser(), options.in_reasoning);
    case OutputFormat::kXml:
      return std::make_unique<QwenParser>(MakeXmlCallParser(std::move(options.types)),
                                          options.in_reasoning);
    case OutputFormat::kXtml:
      return std::make_unique<XtmlParser>(options.in_reasoning);
  }
  return std::make_unique<PlainParser>();
}

bool OpensReasoning(OutputFormat format, std::string_view prompt) {
  switch (format) {
    case OutputFormat::kPlain:
      return false;
    case OutputFormat::kHermes:
    case OutputFormat::kXml:
      return prompt.substr(0, prompt.find_last_not_of(" \t\r\n") + 1).ends_with("<think>");
    case OutputFormat::kXtml:
      return prompt.ends_with("<|open|>think<|sep|>");
  }
  return false;
}

}  // namespace signalbox
