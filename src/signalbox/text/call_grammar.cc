// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/call_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "signalbox/text/call_writer.h"
#include "signalbox/text/xtml.h"

namespace signalbox {
namespace {

using Json = nlohmann::ordered_json;
using xtml::kClose;
using xtml::kOpen;
using xtml::kSep;

constexpr std::string_view kOpenCall = "<tool_call>";
constexpr std::string_view kCloseCall = "</tool_call>";

// --- Pieces of a structural tag, XGrammar's notation --------------------------------------------

Json Literal(std::string_view text) {
  return {{"type", "const_string"}, {"value", text}};
}

Json Token(TokenId id) {
  return {{"type", "token"}, {"token", id}};
}

Json Sequence(std::vector<Json> elements) {
  if (elements.size() == 1) return elements[0];
  return {{"type", "sequence"}, {"elements", std::move(elements)}};
}

Json AnyOf(std::vector<Json> elements) {
  if (elements.size() == 1) return elements[0];
  return {{"type", "or"}, {"elements", std::move(elements)}};
}

Json Maybe(Json content) {
  return {{"type", "optional"}, {"content", std::move(content)}};
}

Json Repeated(Json content) {
  return {{"type", "star"}, {"content", std::move(content)}};
}

Json Regex(const std::string& pattern) {
  return {{"type", "regex"}, {"pattern", pattern}};
}

Json UnderSchema(const Json& schema) {
  // Where white space is free, some models write nothing else.
  return {{"type", "json_schema"}, {"json_schema", schema}, {"max_whitespace_cnt", 1}};
}

// --- Schemas ------------------------------------------------------------------------------------

Status Unsupported(const std::string& tool, std::string what) {
  return InvalidArgument({.what = "calls of this tool cannot be enforced",
                          .where = "tools",
                          .found = fmt::format("{} in the parameters of {}", what, tool),
                          .expected = "an object with properties",
                          .remedy = "use tool_choice auto, or a simpler schema"});
}

std::vector<std::string> TypesOf(const Json& schema) {
  std::vector<std::string> types;
  if (!schema.is_object() || !schema.contains("type")) return types;
  const Json& type = schema["type"];
  for (const Json& one : type.is_array() ? type : Json::array({type}))
    if (one.is_string()) types.push_back(one.get<std::string>());
  return types;
}

Json ParametersOf(const Json& function) {
  const bool none = !function.contains("parameters") || function["parameters"].is_null();
  return none ? Json::object() : function["parameters"];
}

// A parameter that may be a text is one, and so is one that nothing is known of (output_parser.h
// reads it so).
bool IsText(const Json& schema) {
  const std::vector<std::string> types = TypesOf(schema);
  return types.empty() || std::find(types.begin(), types.end(), "string") != types.end();
}

std::string WordOf(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// Text in which none of `tags` stands, as a grammar. REQUIRES: as of FindTag: '<' begins each, and
// is nowhere else in them. Behind a '<', one rule for each beginning of a tag says what keeps it
// from becoming one.
std::string TextWithout(const std::vector<std::string>& tags) {
  std::map<std::string, std::set<char>> next;  // by beginning
  for (const std::string& tag : tags)
    for (size_t n = 1; n < tag.size(); ++n) next[tag.substr(0, n)].insert(tag[n]);
  std::map<std::string, std::string> rules;  // names, by beginning
  for (const auto& [begun, unused] : next) rules[begun] = fmt::format("t{}", rules.size());
  std::string grammar = fmt::format("root ::= [^<]* (\"<\" {})?\n", rules.at("<"));
  for (const auto& [begun, follow] : next) {
    std::string others;
    std::string rule = fmt::format("{} ::= \"\" | \"<\" {}", rules[begun], rules.at("<"));
    for (const char c : follow) {
      others += c == '/' ? "\\/" : std::string(1, c);
      const auto longer = rules.find(begun + c);
      if (longer != rules.end()) rule += fmt::format(" | \"{}\" {}", c, longer->second);
    }
    grammar += rule + fmt::format(" | [^<{}] root\n", others);
  }
  return grammar;
}

// A text as it stands, without quotes, in which no tag stands that would end it.
Json TextValue(const Json& schema, const std::vector<std::string>& tags) {
  if (schema.is_object() && schema.contains("const")) return Literal(WordOf(schema["const"]));
  if (schema.is_object() && schema.contains("enum") && schema["enum"].is_array()) {
    std::vector<Json> words;
    for (const Json& value : schema["enum"]) words.push_back(Literal(WordOf(value)));
    return AnyOf(std::move(words));
  }
  if (schema.is_object() && schema.contains("pattern") && schema["pattern"].is_string()) {
    return Regex(schema["pattern"].get<std::string>());
  }
  const auto bound = [&](const char* name) -> std::optional<int64_t> {
    if (!schema.is_object() || !schema.contains(name)) return std::nullopt;
    return schema[name].is_number() ? std::optional(schema[name].get<int64_t>()) : std::nullopt;
  };
  const auto least = bound("minLength");
  const auto most = bound("maxLength");
  if (!least && !most && tags.empty()) return {{"type", "any_text"}};
  if (!least && !most) return {{"type", "grammar"}, {"grammar", TextWithout(tags)}};
  const std::string upper = most ? fmt::format("{}", *most) : std::string();
  return Regex(fmt::format("[^<]{{{},{}}}", least.value_or(0), upper));
}

// --- Formats ------------------------------------------------------------------------------------

class Calls {
 public:
  Calls(const Tokenizer& tokenizer, OutputFormat format)
      : tokenizer_(&tokenizer), format_(format) {}

  Result<Json> Grammar(const Json& tools, const CallRules& rules) {
    std::vector<Json> first;
    std::vector<Json> others;
    for (const Json& tool : tools) {
      const Json& function = tool.at("function");
      const auto name = function.at("name").get<std::string>();
      if (!rules.name.empty() && name != rules.name) continue;
      const Json parameters = ParametersOf(function);
      SB_RETURN_IF_ERROR(CheckGrammar({GrammarSpec::Kind::kJsonSchema, parameters.dump()}));
      SB_ASSIGN_OR_RETURN(Json call, Call(name, parameters, "1"));
      first.push_back(std::move(call));
      SB_ASSIGN_OR_RETURN(call, Call(name, parameters, ""));
      others.push_back(std::move(call));
    }
    if (first.empty()) {
      return InvalidArgument({.what = "no tool to call", .where = "tools", .found = rules.name});
    }
    Json all = AnyOf(std::move(first));
    if (rules.parallel) {
      Json more = AnyOf(std::move(others));
      if (format_ != OutputFormat::kXtml) more = Sequence({Literal("\n"), std::move(more)});
      all = Sequence({std::move(all), Repeated(std::move(more))});
    }
    if (format_ != OutputFormat::kXtml) return all;
    SB_ASSIGN_OR_RETURN(Json begin, Marked({kClose, "response", kSep, kOpen, "tools", kSep}));
    SB_ASSIGN_OR_RETURN(Json end, Marked({kClose, "tools", kSep, kClose, "message", kSep}));
    return Sequence({std::move(begin), std::move(all), std::move(end)});
  }

 private:
  // Text and markers, which are tokens of their own.
  Result<Json> Marked(const std::vector<std::string_view>& parts) const {
    std::vector<Json> elements;
    for (const std::string_view part : parts) {
      const bool marker = part == kOpenCall || part == kCloseCall || part == kOpen ||
                          part == kClose || part == kSep;
      if (!marker) {
        elements.push_back(Literal(part));
        continue;
      }
      const auto id = tokenizer_->TokenToId(part);
      if (!id || !tokenizer_->IsAdded(*id)) {
        return InvalidArgument({.what = "no calls can be enforced with this model's tokenizer",
                                .where = "tokenizer",
                                .expected = fmt::format("a token {}", part)});
      }
      elements.push_back(Token(*id));
    }
    return Sequence(std::move(elements));
  }

  // `index`: of a call in XTML; empty: any from 2 on.
  Result<Json> Call(const std::string& name, const Json& parameters, const std::string& index) {
    switch (format_) {
      case OutputFormat::kPlain:
        break;
      case OutputFormat::kHermes: {
        SB_ASSIGN_OR_RETURN(Json open, Marked({kOpenCall}));
        SB_ASSIGN_OR_RETURN(Json close, Marked({kCloseCall}));
        return Sequence({open, Literal("\n{\"name\": " + JsonText(name) + ", \"arguments\": "),
                         parameters.empty() ? Literal("{}") : UnderSchema(parameters),
                         Literal("}\n"), close});
      }
      case OutputFormat::kXml: {
        const std::string tag = fmt::format("\n<function={}>\n", name);
        SB_ASSIGN_OR_RETURN(Json open, Marked({kOpenCall, tag}));
        SB_ASSIGN_OR_RETURN(Json close, Marked({"</function>\n", kCloseCall}));
        SB_ASSIGN_OR_RETURN(std::vector<Json> elements, Arguments(name, parameters));
        elements.insert(elements.begin(), std::move(open));
        elements.push_back(std::move(close));
        return Sequence(std::move(elements));
      }
      case OutputFormat::kXtml: {
        const std::string tag = fmt::format("call tool=\"{}\" index=\"", xtml::Escaped(name));
        SB_ASSIGN_OR_RETURN(Json open, Marked({kOpen, tag}));
        SB_ASSIGN_OR_RETURN(Json opened, Marked({"\"", kSep}));
        SB_ASSIGN_OR_RETURN(Json close, Marked({kClose, "call", kSep}));
        SB_ASSIGN_OR_RETURN(std::vector<Json> elements, Arguments(name, parameters));
        const Json number = index.empty() ? Regex("[2-9]|[1-9][0-9]") : Literal(index);
        const std::vector<Json> begin = {std::move(open), number, std::move(opened)};
        elements.insert(elements.begin(), begin.begin(), begin.end());
        elements.push_back(std::move(close));
        return Sequence(std::move(elements));
      }
    }
    return InvalidArgument({.what = "the model's chat format has no calls of tools"});
  }

  // An element for each property.
  Result<std::vector<Json>> Arguments(const std::string& tool, const Json& parameters) {
    for (const char* name : {"$ref", "anyOf", "oneOf", "allOf", "patternProperties", "enum"})
      if (parameters.contains(name)) return Unsupported(tool, name);
    const Json required = parameters.value("required", Json::array());
    std::vector<Json> elements;
    const Json properties = parameters.value("properties", Json::object());
    for (const auto& [key, schema] : properties.items()) {
      Json own = schema;
      for (const char* name : {"$defs", "definitions"})
        if (own.is_object() && parameters.contains(name)) own[name] = parameters[name];
      SB_ASSIGN_OR_RETURN(Json element, Argument(key, own));
      const bool must = std::find(required.begin(), required.end(), key) != required.end();
      elements.push_back(must ? std::move(element) : Maybe(std::move(element)));
    }
    return elements;
  }

  Result<Json> Argument(const std::string& key, const Json& schema) {
    const bool is_text = IsText(schema);
    if (format_ == OutputFormat::kXml) {
      static const std::vector<std::string> kTags = {"<function=", "<parameter=", "</parameter>",
                                                     "</function>", "</tool_call>"};
      return Sequence({Literal("<parameter=" + key + ">\n"),
                       is_text ? TextValue(schema, kTags) : UnderSchema(schema),
                       Literal("\n</parameter>\n")});
    }
    const std::string type = is_text ? "string" : TypesOf(schema)[0];
    const std::string tag = fmt::format("argument key=\"{}\" type=\"{}\"", xtml::Escaped(key),
                                        type == "integer" ? "number" : type);
    SB_ASSIGN_OR_RETURN(Json open, Marked({kOpen, tag, kSep}));
    SB_ASSIGN_OR_RETURN(Json close, Marked({kClose, "argument", kSep}));
    return Sequence(
        {std::move(open), is_text ? TextValue(schema, {}) : UnderSchema(schema), std::move(close)});
  }

  const Tokenizer* tokenizer_;
  const OutputFormat format_;
};

}  // namespace

Result<GrammarSpec> CallGrammar(const Tokenizer& tokenizer, OutputFormat format,
                                std::string_view tools, const CallRules& rules) {
  const Json list = Json::parse(tools, nullptr, /*allow_exceptions=*/false);
  const bool right = list.is_array() && std::all_of(list.begin(), list.end(), [](const Json& tool) {
                       const Json function =
                           tool.is_object() ? tool.value("function", Json()) : Json();
                       return function.is_object() && function.contains("name") &&
                              function["name"].is_string() && ParametersOf(function).is_object();
                     });
  if (!right) {
    return InvalidArgument({.what = "the field is of the wrong type",
                            .where = "tools",
                            .expected = "a list of tools"});
  }
  SB_ASSIGN_OR_RETURN(const Json grammar, Calls(tokenizer, format).Grammar(list, rules));
  const Json tag = {{"type", "structural_tag"}, {"format", grammar}};
  return GrammarSpec{GrammarSpec::Kind::kCalls, tag.dump()};
}

}  // namespace signalbox
