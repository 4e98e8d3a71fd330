// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "signalbox/text/grammar.h"
#include "signalbox/text/grammar_check.h"

namespace signalbox {
namespace {

using Json = nlohmann::json;
using Limits = GrammarLimits;

// What a keyword's value holds.
enum class Holds : uint8_t { kValue, kSchema, kSchemas, kNamedSchemas, kCount, kNothing };
// What it is about. An annotation is about nothing.
enum class About : uint8_t { kNone, kAll, kType, kText, kNumber, kObject, kArray };

struct Keyword {
  std::string_view name;
  About about;
  Holds holds;
  bool names_type = false;  // the type may be left out beside it
};

// kNothing: not supported. What is not in the table is an annotation.
constexpr Keyword kKeywords[] = {
    {"$ref", About::kAll, Holds::kValue},
    {"const", About::kAll, Holds::kValue},
    {"enum", About::kAll, Holds::kValue},
    {"anyOf", About::kAll, Holds::kSchemas},
    {"oneOf", About::kAll, Holds::kSchemas},
    {"allOf", About::kAll, Holds::kSchemas},
    {"type", About::kType, Holds::kValue},
    {"minLength", About::kText, Holds::kCount},
    {"maxLength", About::kText, Holds::kCount},
    {"pattern", About::kText, Holds::kValue},
    {"minimum", About::kNumber, Holds::kValue},
    {"maximum", About::kNumber, Holds::kValue},
    {"exclusiveMinimum", About::kNumber, Holds::kValue},
    {"exclusiveMaximum", About::kNumber, Holds::kValue},
    {"multipleOf", About::kNumber, Holds::kValue},
    {"properties", About::kObject, Holds::kNamedSchemas, true},
    {"additionalProperties", About::kObject, Holds::kSchema, true},
    {"unevaluatedProperties", About::kObject, Holds::kSchema, true},
    {"patternProperties", About::kObject, Holds::kNamedSchemas},
    {"propertyNames", About::kObject, Holds::kSchema},
    {"required", About::kObject, Holds::kValue},
    {"minProperties", About::kObject, Holds::kCount},
    {"maxProperties", About::kObject, Holds::kCount},
    {"items", About::kArray, Holds::kSchema, true},
    {"prefixItems", About::kArray, Holds::kSchemas, true},
    {"unevaluatedItems", About::kArray, Holds::kSchema, true},
    {"minItems", About::kArray, Holds::kCount},
    {"maxItems", About::kArray, Holds::kCount},
    {"$defs", About::kNone, Holds::kNamedSchemas},
    {"definitions", About::kNone, Holds::kNamedSchemas},
    {"not", About::kNone, Holds::kNothing},
    {"if", About::kNone, Holds::kNothing},
    {"then", About::kNone, Holds::kNothing},
    {"else", About::kNone, Holds::kNothing},
    {"dependentRequired", About::kNone, Holds::kNothing},
    {"dependentSchemas", About::kNone, Holds::kNothing},
    {"dependencies", About::kNone, Holds::kNothing},
    {"additionalItems", About::kNone, Holds::kNothing},
    {"uniqueItems", About::kNone, Holds::kNothing},
    {"contains", About::kNone, Holds::kNothing},
    {"minContains", About::kNone, Holds::kNothing},
    {"maxContains", About::kNone, Holds::kNothing},
    {"$dynamicRef", About::kNone, Holds::kNothing},
    {"$recursiveRef", About::kNone, Holds::kNothing},
};

const Keyword* Find(std::string_view name) {
  const auto* found = std::find_if(std::begin(kKeywords), std::end(kKeywords),
                                   [name](const Keyword& k) { return k.name == name; });
  return found == std::end(kKeywords) ? nullptr : found;
}

Status Unsupported(std::string_view keyword, std::string expected) {
  return InvalidArgument({.what = "schema keyword not supported",
                          .where = std::string(keyword),
                          .expected = std::move(expected)});
}

bool IsOfType(const Json& value, std::string_view type) {
  if (type == "string") return value.is_string();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "array") return value.is_array();
  return type == "object" && value.is_object();
}

// The types that a schema names: none where it does not, or says no type.
std::vector<std::string> TypesOf(const Json& schema) {
  std::vector<std::string> types;
  if (!schema.contains("type")) return types;
  const Json& type = schema.at("type");
  if (type.is_string()) types.push_back(type.get<std::string>());
  if (type.is_array()) {
    for (const Json& t : type)
      if (t.is_string()) types.push_back(t.get<std::string>());
  }
  return types;
}

// A keyword that is taken for all of the schema has no company but, for values, a type.
Status CheckWhole(const Json& schema) {
  std::string_view whole;
  for (const auto& [name, unused] : schema.items()) {
    const Keyword* keyword = Find(name);
    if (keyword == nullptr || keyword->about != About::kAll) continue;
    if (!whole.empty()) return Unsupported(name, fmt::format("not beside {}", whole));
    whole = keyword->name;
  }
  if (whole.empty()) return OkStatus();
  const bool values = whole == "const" || whole == "enum";
  for (const auto& [name, unused] : schema.items()) {
    const Keyword* keyword = Find(name);
    if (keyword == nullptr || keyword->about == About::kNone || keyword->about == About::kAll)
      continue;
    if (keyword->about != About::kType || !values) {
      return Unsupported(name, fmt::format("not beside {}", whole));
    }
  }
  const std::vector<std::string> types = TypesOf(schema);
  if (!values || types.empty()) return OkStatus();
  const Json one = Json::array({schema.at(std::string(whole))});
  for (const Json& value : whole == "enum" ? one[0] : one) {
    const bool fits = std::any_of(types.begin(), types.end(),
                                  [&](const std::string& t) { return IsOfType(value, t); });
    if (!fits) return Unsupported(whole, "values of the schema's type");
  }
  return OkStatus();
}

// Without a type, one kind of keyword must say which it is.
Status CheckTypeNamed(const Json& schema) {
  if (schema.contains("type")) return OkStatus();
  About about = About::kNone;
  for (const auto& [name, unused] : schema.items()) {
    const Keyword* keyword = Find(name);
    if (keyword != nullptr && keyword->names_type) about = std::max(about, keyword->about);
    if (keyword != nullptr && keyword->names_type && keyword->about < about) {
      return Unsupported(name, "a type beside it");
    }
  }
  for (const auto& [name, unused] : schema.items()) {
    const Keyword* keyword = Find(name);
    if (keyword != nullptr && keyword->about >= About::kText && keyword->about != about) {
      return Unsupported(name, "a type beside it");
    }
  }
  return OkStatus();
}

class Walk {
 public:
  // `repeated` is the product of the counts around.
  Status Schema(const Json& schema, size_t repeated) {  // NOLINT(misc-no-recursion): kMaxJsonDepth
    if (!schema.is_object()) return OkStatus();
    for (const auto& [name, unused] : schema.items()) {
      const Keyword* keyword = Find(name);
      if (keyword != nullptr && keyword->holds == Holds::kNothing) {
        return Unsupported(name, "a schema without it");
      }
    }
    SB_RETURN_IF_ERROR(CheckWhole(schema));
    if (schema.contains("$ref")) SB_RETURN_IF_ERROR(Reference(schema.at("$ref")));
    SB_RETURN_IF_ERROR(CheckTypeNamed(schema));
    SB_RETURN_IF_ERROR(Counts(schema, repeated));
    SB_RETURN_IF_ERROR(Patterns(schema));
    return Inner(schema, repeated);
  }

 private:
  // NOLINTNEXTLINE(misc-no-recursion)
  Status Inner(const Json& schema, size_t repeated) {
    for (const auto& [name, value] : schema.items()) {
      const Keyword* keyword = Find(name);
      if (keyword == nullptr) continue;
      // Draft 7's `items` may be a list.
      const bool many = keyword->holds == Holds::kSchemas || keyword->holds == Holds::kNamedSchemas;
      if (keyword->holds == Holds::kSchema) {
        if (value.is_array()) return Unsupported(name, "a schema; prefixItems takes a list");
        SB_RETURN_IF_ERROR(Schema(value, repeated));
      }
      if (!many || !value.is_structured()) continue;
      for (const Json& inner : value) SB_RETURN_IF_ERROR(Schema(inner, repeated));
    }
    return OkStatus();
  }

  // Only to what the walk sees.
  static Status Reference(const Json& to) {
    if (!to.is_string()) return Unsupported("$ref", "a text");
    const auto& path = to.get_ref<const std::string&>();
    if (path == "#") return OkStatus();
    const std::string first =
        path.starts_with("#/") ? path.substr(2, path.find('/', 2) - 2) : std::string();
    const Keyword* keyword = Find(first);
    const bool seen = keyword != nullptr &&
                      (keyword->holds == Holds::kSchema || keyword->holds == Holds::kSchemas ||
                       keyword->holds == Holds::kNamedSchemas);
    return seen ? OkStatus() : Unsupported("$ref", "#, or a place in the schema such as #/$defs/x");
  }

  Status Counts(const Json& schema, size_t& repeated) {
    size_t most = 1;
    size_t properties = 0;
    for (const auto& [name, value] : schema.items()) {
      const Keyword* keyword = Find(name);
      if (keyword == nullptr || keyword->holds != Holds::kCount || !value.is_number()) continue;
      const double count = value.get<double>();
      if (!(count >= 0 && count <= Limits::kRepeat)) {
        return InvalidArgument({.what = "count out of range",
                                .where = name,
                                .found = value.dump(),
                                .expected = fmt::format("0 to {}", Limits::kRepeat)});
      }
      const auto times = static_cast<size_t>(count);
      if (keyword->about == About::kArray) most = std::max(most, times);
      if (keyword->about == About::kObject) properties = std::max(properties, times);
    }
    repeated *= most;
    if (repeated > Limits::kRepeated) {
      return TooMuch("counts multiply to too many", repeated, Limits::kRepeated);
    }
    if (!schema.contains("properties") || !schema.at("properties").is_object()) return OkStatus();
    const size_t named = schema.at("properties").size();
    properties_ += named;
    if (properties_ > Limits::kProperties) {
      return TooMuch("too many properties", properties_, Limits::kProperties);
    }
    if (properties * named > Limits::kProperties) {
      return TooMuch("minProperties or maxProperties times properties", properties * named,
                     Limits::kProperties);
    }
    return OkStatus();
  }

  Status Patterns(const Json& schema) {
    std::vector<std::string> patterns;
    if (schema.contains("pattern") && schema.at("pattern").is_string()) {
      patterns.push_back(schema.at("pattern").get<std::string>());
    }
    if (schema.contains("patternProperties") && schema.at("patternProperties").is_object()) {
      for (const auto& [pattern, unused] : schema.at("patternProperties").items())
        patterns.push_back(pattern);
    }
    for (const std::string& pattern : patterns) {
      SB_RETURN_IF_ERROR(CheckRegex(pattern));
      pattern_bytes_ += pattern.size();
    }
    if (pattern_bytes_ > Limits::kRegexBytes) {
      return TooMuch("patterns of too many bytes", pattern_bytes_, Limits::kRegexBytes);
    }
    return OkStatus();
  }

  size_t properties_ = 0;
  size_t pattern_bytes_ = 0;
};

}  // namespace

Status CheckSchema(const Json& schema) {
  return Walk().Schema(schema, 1);
}

}  // namespace signalbox
