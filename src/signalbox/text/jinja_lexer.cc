// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/jinja_lexer.h"

#include <algorithm>
#include <charconv>

#include "signalbox/text/jinja_text.h"

namespace signalbox::jinja {
namespace {

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}
bool IsNameChar(char c) {
  return IsDigit(c) || c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// All line ends become \n and one at the very end is dropped.
std::string NormalizeNewlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

int DigitValue(char c) {
  if (IsDigit(c)) return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : 99;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  Result<std::vector<Token>> Run() {
    while (pos_ < source_.size()) {
      SB_RETURN_IF_ERROR(LexData());
    }
    Push(TokenType::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view Rest() const { return std::string_view(source_).substr(pos_); }
  bool At(std::string_view s) const { return Rest().substr(0, s.size()) == s; }

  Status Error(std::string what) const {
    return InvalidArgument({.what = std::move(what), .where = LineName(line_)});
  }

  void Push(TokenType type, std::string_view text) {
    tokens_.push_back({.type = type, .line = line_, .text = std::string(text)});
  }

  // Moves to `end`, counting lines.
  void Advance(size_t end) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(pos_),
                                         source_.begin() + static_cast<ptrdiff_t>(end), '\n'));
    pos_ = end;
  }

  size_t AfterSpace(size_t pos) const {
    return pos + StripRange(std::string_view(source_).substr(pos), nullptr, true, false).begin;
  }

  // Template data up to the next tag, then the tag.
  Status LexData() {
    size_t tag = pos_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 == source_.size()) {
        tag = source_.size();
        break;
      }
      const char next = source_[tag + 1];
      if (next == '{' || next == '%' || next == '#') break;
    }
    if (tag == source_.size()) {
      PushData(tag, /*sign=*/'+', /*is_variable=*/false);
      return OkStatus();
    }
    const char kind = source_[tag + 1];
    char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    if (sign != '-' && sign != '+') sign = '\0';
    PushData(tag, sign, kind == '{');
    Advance(tag + (sign == '\0' ? 2 : 3));
    if (kind == '#') return LexComment();
    if (kind == '%') {
      if (const size_t raw = RawBegin(); raw != 0) {
        Advance(raw);
        return LexRaw();
      }
    }
    Push(kind == '{' ? TokenType::kVariableBegin : TokenType::kBlockBegin, "");
    return LexTag(kind == '{');
  }

  // The data [pos_, end) before a tag, with what the tag's sign or lstrip_blocks takes from its
  // end.
  void PushData(size_t end, char sign, bool is_variable) {
    std::string_view data = std::string_view(source_).substr(pos_, end - pos_);
    if (sign == '-') {
      data = data.substr(0, StripRange(data, nullptr, false, true).end);
    } else if (sign != '+' && !is_variable) {
      const size_t line_start = data.rfind('\n') + 1;  // npos + 1 is 0
      const bool starts_line = line_start > 0 || pos_ == 0 || source_[pos_ - 1] == '\n';
      const ByteRange left = StripRange(data.substr(line_start), nullptr, true, false);
      if (starts_line && left.begin == left.end) data = data.substr(0, line_start);
    }
    if (!data.empty()) Push(TokenType::kData, data);
    Advance(end);
  }

  // The offset after "-%}", "+%}" or "%}" at `pos` with what it swallows; 0 where there is none.
  size_t BlockEnd(size_t pos, std::string_view close) const {
    const std::string_view rest = std::string_view(source_).substr(pos);
    const size_t length = close.size();
    if (rest.substr(0, length) == close) {
      const bool newline = rest.size() > length && rest[length] == '\n';
      return pos + length + (newline ? 1 : 0);
    }
    if (rest.empty() || rest.substr(1, length) != close) return 0;
    if (rest[0] == '+') return pos + length + 1;
    return rest[0] == '-' ? AfterSpace(pos + length + 1) : 0;
  }

  // The offset after "raw %}" at pos_, or 0. Unlike other blocks it keeps a following newline.
  size_t RawBegin() const {
    size_t pos = AfterSpace(pos_);
    if (source_.compare(pos, 3, "raw") != 0) return 0;
    pos = AfterSpace(pos + 3);
    if (source_.compare(pos, 2, "%}") == 0) return pos + 2;
    return source_.compare(pos, 3, "-%}") == 0 ? AfterSpace(pos + 3) : 0;
  }

  Status LexRaw() {
    for (size_t tag = pos_; (tag = source_.find("{%", tag)) != std::string::npos; tag += 2) {
      char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
      if (sign != '-' && sign != '+') sign = '\0';
      const size_t word = AfterSpace(tag + (sign == '\0' ? 2 : 3));
      if (source_.compare(word, 6, "endraw") != 0) continue;
      const size_t end = BlockEnd(AfterSpace(word + 6), "%}");
      if (end == 0) continue;
      PushData(tag, sign, /*is_variable=*/false);
      Advance(end);
      return OkStatus();
    }
    return Error("a raw block is not closed");
  }

  Status LexComment() {
    const size_t close = source_.find("#}", pos_);
    if (close == std::string::npos) return Error("a comment is not closed");
    const bool sign = close > pos_ && (source_[close - 1] == '-' || source_[close - 1] == '+');
    Advance(BlockEnd(sign ? close - 1 : close, "#}"));
    return OkStatus();
  }

  Status LexTag(bool is_variable) {
    std::string open;  // brackets not closed yet: inside them "}}" is two operators
    while (true) {
      Advance(AfterSpace(pos_));
      if (pos_ == source_.size()) return Error("a tag is not closed");
      if (open.empty()) {
        size_t end = BlockEnd(pos_, is_variable ? "}}" : "%}");
        if (is_variable && At("}}")) end = pos_ + 2;  // no trimming after an expression
        if (is_variable && At("+")) end = 0;
        if (end != 0) {
          Push(is_variable ? TokenType::kVariableEnd : TokenType::kBlockEnd, "");
          Advance(end);
          return OkStatus();
        }
      }
      SB_RETURN_IF_ERROR(LexToken(open));
    }
  }

  Status LexToken(std::string& open) {
    const char c = source_[pos_];
    if (IsDigit(c)) return LexNumber();
    if (c == '\'' || c == '"') return LexString(c);
    if (IsNameChar(c)) {
      size_t end = pos_;
      while (end < source_.size() && IsNameChar(source_[end])) ++end;
      Push(TokenType::kName, std::string_view(source_).substr(pos_, end - pos_));
      Advance(end);
      return OkStatus();
    }
    constexpr std::string_view kLong[] = {"//", "**", "==", "!=", ">=", "<="};
    const bool is_long = std::any_of(std::begin(kLong), std::end(kLong),
                                     [this](std::string_view op) { return At(op); });
    constexpr std::string_view kShort = "+-/*%~[](){}<>=.:|,;";
    if (!is_long && kShort.find(c) == std::string_view::npos) {
      return Error("unexpected character in a tag");
    }
    if (!is_long) SB_RETURN_IF_ERROR(Balance(c, open));
    Push(TokenType::kOperator, Rest().substr(0, is_long ? 2 : 1));
    Advance(pos_ + (is_long ? 2 : 1));
    return OkStatus();
  }

  Status Balance(char c, std::string& open) const {
    constexpr std::string_view kOpen = "([{";
    constexpr std::string_view kClose = ")]}";
    if (kOpen.find(c) != std::string_view::npos) open += c;
    const size_t closes = kClose.find(c);
    if (closes == std::string_view::npos) return OkStatus();
    if (open.empty() || open.back() != kOpen[closes]) {
      return Error(std::string("unexpected '") + c + "'");
    }
    open.pop_back();
    return OkStatus();
  }

  // Digits of one base with single underscores between them, from `pos`; returns their end.
  size_t Digits(size_t pos, int base, std::string& digits) const {
    while (pos < source_.size()) {
      const bool gap = source_[pos] == '_' && pos + 1 < source_.size();
      const char c = source_[pos + (gap ? 1 : 0)];
      if (DigitValue(c) >= base) break;
      digits += c;
      pos += gap ? 2 : 1;
    }
    return pos;
  }

  Status LexNumber() {
    int base = 10;
    if (source_[pos_] == '0' && pos_ + 1 < source_.size()) {
      const char prefix = static_cast<char>(source_[pos_ + 1] | 0x20);
      base = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 10;
    }
    std::string digits;
    size_t end = Digits(pos_ + (base == 10 ? 0 : 2), base, digits);
    const bool after_dot = pos_ > 0 && source_[pos_ - 1] == '.';
    bool is_float = false;
    const auto digit_at = [this](size_t at) { return at < source_.size() && IsDigit(source_[at]); };
    if (base == 10 && !after_dot) {
      if (end < source_.size() && source_[end] == '.' && digit_at(end + 1)) {
        is_float = true;
        digits += '.';
        end = Digits(end + 1, 10, digits);
      }
      if (end < source_.size() && (source_[end] | 0x20) == 'e') {
        const bool sign =
            end + 1 < source_.size() && (source_[end + 1] == '+' || source_[end + 1] == '-');
        if (digit_at(end + (sign ? 2 : 1))) {
          is_float = true;
          digits += sign && source_[end + 1] == '-' ? "e-" : "e+";
          end = Digits(end + (sign ? 2 : 1), 10, digits);
        }
      }
    }
    Token token{
        .type = is_float ? TokenType::kFloat : TokenType::kInteger, .line = line_, .text = digits};
    const char* last = digits.data() + digits.size();
    const auto result = is_float ? std::from_chars(digits.data(), last, token.number)
                                 : std::from_chars(digits.data(), last, token.integer, base);
    const bool leading_zero =
        !is_float && base == 10 && digits.size() > 1 && digits[0] == '0' && token.integer != 0;
    if (digits.empty() || result.ec != std::errc() || result.ptr != last || leading_zero) {
      return Error("'" + digits + "' is not a number in range");
    }
    tokens_.push_back(std::move(token));
    Advance(end);
    return OkStatus();
  }

  Status LexString(char quote) {
    std::string value;
    size_t pos = pos_ + 1;
    while (true) {
      if (pos >= source_.size()) return Error("a string is not closed");
      const char c = source_[pos];
      if (c == quote) break;
      if (c != '\\') {
        value += c;
        ++pos;
      } else {
        SB_RETURN_IF_ERROR(Unescape(pos, value));
      }
    }
    Push(TokenType::kString, value);
    Advance(pos + 1);
    return OkStatus();
  }

  // Python's escapes; unknown ones stay as they are written.
  Status Unescape(size_t& pos, std::string& value) const {
    if (pos + 1 >= source_.size()) return Error("a string is not closed");
    const char c = source_[pos + 1];
    constexpr std::string_view kNames = "\\'\"abfnrtv";
    constexpr std::string_view kValues = "\\'\"\a\b\f\n\r\t\v";
    if (const size_t simple = kNames.find(c); simple != std::string_view::npos) {
      value += kValues[simple];
      pos += 2;
    } else if (c == '\n') {
      pos += 2;
    } else if (c >= '0' && c <= '7') {
      return AppendCodePoint(pos, pos + 1, 3, 8, /*exact=*/false, value);
    } else if (c == 'x' || c == 'u' || c == 'U') {
      return AppendCodePoint(pos, pos + 2, c == 'x' ? 2 : c == 'u' ? 4 : 8, 16, true, value);
    } else if (c == 'N') {
      return Error("the escape \\N is not supported");
    } else {
      value += '\\';
      ++pos;
    }
    return OkStatus();
  }

  Status AppendCodePoint(size_t& pos, size_t begin, size_t max_digits, int base, bool exact,
                         std::string& value) const {
    char32_t code = 0;
    size_t end = begin;
    while (end < source_.size() && end - begin < max_digits && DigitValue(source_[end]) < base) {
      code = code * static_cast<char32_t>(base) + static_cast<char32_t>(DigitValue(source_[end]));
      ++end;
    }
    const bool surrogate = code >= 0xD800 && code < 0xE000;
    if ((exact && end - begin != max_digits) || code > 0x10FFFF || surrogate) {
      return Error("a string has an escape that is not a character");
    }
    AppendUtf8(code, value);
    pos = end;
    return OkStatus();
  }

  std::string source_;
  size_t pos_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::string LineName(int line) {
  return "template line " + std::to_string(line);
}

Result<std::vector<Token>> Tokenize(std::string_view source) {
  if (!IsValidUtf8(source)) return InvalidArgument({.what = "the template is not UTF-8"});
  return Lexer(NormalizeNewlines(source)).Run();
}

}  // namespace signalbox::jinja
