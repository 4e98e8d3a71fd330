// SPDX-License-Identifier: Apache-2.0
//
// The text forms of values: Python's str() and repr(), and json.dumps().
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "signalbox/text/jinja_ops.h"
#include "signalbox/text/json_escape.h"

namespace signalbox::jinja {
namespace {

// Python's repr of a float: the shortest digits that read back as the same number.
std::string FloatRepr(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  std::string s = fmt::format("{}", d);
  if (s.find_first_of(".e") == std::string::npos) s += ".0";
  return s;
}

void AppendStringRepr(std::string_view s, std::string& out) {
  const bool double_quotes =
      s.find('\'') != std::string_view::npos && s.find('"') == std::string_view::npos;
  const char quote = double_quotes ? '"' : '\'';
  out += quote;
  for (size_t pos = 0; pos < s.size();) {
    const size_t begin = pos;
    const char32_t c = NextCodePoint(s, pos);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (IsPrintable(c)) {
      out += s.substr(begin, pos - begin);
    } else if (c < 0x100) {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<uint32_t>(c));
    } else if (c < 0x10000) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      fmt::format_to(std::back_inserter(out), "\\U{:08x}", static_cast<uint32_t>(c));
    }
  }
  out += quote;
}

void AppendRepr(const Value& value, std::string& out) {
  switch (value.kind()) {
    case Value::Kind::kUndefined:
      out += "Undefined";
      return;
    case Value::Kind::kNone:
      out += "None";
      return;
    case Value::Kind::kBool:
      out += value.integer() != 0 ? "True" : "False";
      return;
    case Value::Kind::kInt:
      out += std::to_string(value.integer());
      return;
    case Value::Kind::kFloat:
      out += FloatRepr(value.number());
      return;
    case Value::Kind::kString:
      AppendStringRepr(value.str(), out);
      return;
    case Value::Kind::kObject:
      out += "<" + std::string(KindName(value)) + ">";
      return;
    case Value::Kind::kList:
    case Value::Kind::kTuple: {
      const bool list = value.kind() == Value::Kind::kList;
      out += list ? '[' : '(';
      for (size_t i = 0; i < value.items().size(); ++i) {
        if (i > 0) out += ", ";
        AppendRepr(value.items()[i], out);
      }
      if (!list && value.items().size() == 1) out += ',';
      out += list ? ']' : ')';
      return;
    }
    case Value::Kind::kDict: {
      out += '{';
      for (size_t i = 0; i < value.dict().size(); ++i) {
        const auto& [key, item] = value.dict().entries()[i];
        if (i > 0) out += ", ";
        AppendRepr(key, out);
        out += ": ";
        AppendRepr(item, out);
      }
      out += '}';
      return;
    }
  }
}

void AppendUtf16Escape(char32_t c, std::string& out) {
  const auto append = [&out](uint32_t unit) {
    fmt::format_to(std::back_inserter(out), "\\u{:04x}", unit);
  };
  if (c < 0x10000) {
    append(static_cast<uint32_t>(c));
  } else {  // a UTF-16 surrogate pair
    append(0xD800 + ((static_cast<uint32_t>(c) - 0x10000) >> 10));
    append(0xDC00 + ((static_cast<uint32_t>(c) - 0x10000) & 0x3FF));
  }
}

void AppendJsonString(std::string_view s, bool ensure_ascii, std::string& out) {
  out += '"';
  for (size_t pos = 0; pos < s.size();) {
    const size_t begin = pos;
    const char32_t c = NextCodePoint(s, pos);
    if (AppendJsonEscape(c, out)) continue;
    if (ensure_ascii && c > 0x7E) {
      AppendUtf16Escape(c, out);
    } else {
      out += s.substr(begin, pos - begin);
    }
  }
  out += '"';
}

class JsonWriter {
 public:
  JsonWriter(Runtime& runtime, const JsonStyle& style) : runtime_(runtime), style_(style) {}

  Status Write(const Value& value, int level) {
    switch (value.kind()) {
      case Value::Kind::kNone:
        out_ += "null";
        return OkStatus();
      case Value::Kind::kBool:
        out_ += value.integer() != 0 ? "true" : "false";
        return OkStatus();
      case Value::Kind::kInt:
        out_ += std::to_string(value.integer());
        return OkStatus();
      case Value::Kind::kFloat:
        out_ += JsonFloat(value.number());
        return OkStatus();
      case Value::Kind::kString:
        AppendJsonString(value.str(), style_.ensure_ascii, out_);
        return OkStatus();
      case Value::Kind::kList:
      case Value::Kind::kTuple:
        return WriteList(value.items(), level);
      case Value::Kind::kDict:
        return WriteDict(value.dict(), level);
      default:
        return WrongKind("the value has no JSON form", value, "a value from JSON");
    }
  }

  std::string Take() && { return std::move(out_); }

 private:
  static std::string JsonFloat(double d) {
    if (std::isnan(d)) return "NaN";
    if (std::isinf(d)) return d < 0 ? "-Infinity" : "Infinity";
    return FloatRepr(d);
  }

  Status WriteList(const Value::Items& items, int level) {
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      SB_RETURN_IF_ERROR(Separate(i, level + 1));
      SB_RETURN_IF_ERROR(Write(items[i], level + 1));
    }
    if (!items.empty()) SB_RETURN_IF_ERROR(NewLine(level));
    out_ += ']';
    return OkStatus();
  }

  Status WriteDict(const Dict& dict, int level) {
    std::vector<const Dict::Entry*> entries;
    for (const Dict::Entry& entry : dict.entries()) entries.push_back(&entry);
    if (style_.sort_keys) SB_RETURN_IF_ERROR(Sort(entries));
    out_ += '{';
    for (size_t i = 0; i < entries.size(); ++i) {
      SB_RETURN_IF_ERROR(Separate(i, level + 1));
      WriteKey(entries[i]->first);
      out_ += style_.key_separator;
      SB_RETURN_IF_ERROR(Write(entries[i]->second, level + 1));
    }
    if (!entries.empty()) SB_RETURN_IF_ERROR(NewLine(level));
    out_ += '}';
    return OkStatus();
  }

  static Status Sort(std::vector<const Dict::Entry*>& entries) {
    for (const Dict::Entry* entry : entries) {
      if (!entry->first.is_string()) return WrongKind("sort_keys", entry->first, "str keys");
    }
    std::sort(entries.begin(), entries.end(), [](const Dict::Entry* a, const Dict::Entry* b) {
      return a->first.str() < b->first.str();
    });
    return OkStatus();
  }

  void WriteKey(const Value& key) {
    if (key.is_string()) return AppendJsonString(key.str(), style_.ensure_ascii, out_);
    out_ += '"';
    (void)Write(key, 0);  // hashable, so a scalar: cannot fail
    out_ += '"';
  }

  Status Separate(size_t index, int level) {
    if (index > 0) out_ += style_.item_separator;
    return NewLine(level);
  }

  Status NewLine(int level) {
    if (!style_.multi_line) return OkStatus();
    SB_RETURN_IF_ERROR(
        runtime_.budget.SpendBytes(style_.indent.size() * static_cast<size_t>(level)));
    out_ += '\n';
    for (int i = 0; i < level; ++i) out_ += style_.indent;
    return OkStatus();
  }

  Runtime& runtime_;
  const JsonStyle& style_;
  std::string out_;
};

}  // namespace

Result<Text> ToText(Runtime& runtime, const Value& value) {
  if (value.is_string()) return value.text();
  if (value.is_undefined()) return Text();
  if (value.is_object()) return WrongKind("the value has no text form", value, "a plain value");
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(value.weight()));
  std::string shown;
  AppendRepr(value, shown);
  return Text(shown, /*trusted=*/false);
}

Result<std::string> ToJson(Runtime& runtime, const Value& value, const JsonStyle& style) {
  // Separators come from the template and may be long.
  const size_t separators = style.item_separator.size() + style.key_separator.size();
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(value.weight() / 16 * separators));
  SB_RETURN_IF_ERROR(runtime.budget.SpendBytes(value.weight()));
  JsonWriter writer(runtime, style);
  SB_RETURN_IF_ERROR(writer.Write(value, 0));
  return std::move(writer).Take();
}

}  // namespace signalbox::jinja
