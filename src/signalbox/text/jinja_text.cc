// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/jinja_text.h"

#include <string.h>
#include <utf8proc.h>

#include <algorithm>

namespace signalbox::jinja {
namespace {

bool IsCased(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
         category == UTF8PROC_CATEGORY_LT;
}

char32_t Upper(char32_t c) {
  return utf8proc_toupper(static_cast<utf8proc_int32_t>(c));
}
char32_t Lower(char32_t c) {
  return utf8proc_tolower(static_cast<utf8proc_int32_t>(c));
}
char32_t Title(char32_t c) {
  return utf8proc_totitle(static_cast<utf8proc_int32_t>(c));
}

bool IsLineEnd(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool StartsJinjaWord(char32_t previous) {
  return IsSpace(previous) || previous == '-' || previous == '(' || previous == '{' ||
         previous == '[' || previous == '<';
}

size_t PreviousCodePoint(std::string_view s, size_t pos) {
  do {
    --pos;
  } while (pos > 0 && (static_cast<unsigned char>(s[pos]) & 0xC0) == 0x80);
  return pos;
}

}  // namespace

// --- Text --------------------------------------------------------------------------------------

void Text::Append(std::string_view bytes, bool trusted) {
  if (bytes.empty()) return;
  bytes_.append(bytes);
  if (!runs_.empty() && runs_.back().trusted == trusted) {
    runs_.back().end = bytes_.size();
  } else {
    runs_.push_back({bytes_.size(), trusted});
  }
}

size_t Text::RunAt(size_t offset) const {
  return static_cast<size_t>(
      std::upper_bound(runs_.begin(), runs_.end(), offset,
                       [](size_t at, const Run& run) { return at < run.end; }) -
      runs_.begin());
}

void Text::Append(const Text& other, size_t begin, size_t end) {
  for (size_t run = other.RunAt(begin); begin < end; ++run) {
    const size_t stop = std::min(end, other.runs_[run].end);
    Append(std::string_view(other.bytes_).substr(begin, stop - begin), other.runs_[run].trusted);
    begin = stop;
  }
}

Text Text::Slice(size_t begin, size_t end) const {
  Text slice;
  slice.Append(*this, begin, end);
  return slice;
}

bool Text::TrustedIn(size_t begin, size_t end) const {
  for (size_t run = RunAt(begin); begin < end; ++run) {
    if (!runs_[run].trusted) return false;
    begin = runs_[run].end;
  }
  return true;
}

Segments Text::ToSegments() const {
  Segments segments;
  size_t begin = 0;
  for (const Run& run : runs_) {
    segments.push_back({bytes_.substr(begin, run.end - begin), run.trusted});
    begin = run.end;
  }
  return segments;
}

// --- UTF-8 -------------------------------------------------------------------------------------

bool IsValidUtf8(std::string_view s) {
  for (size_t pos = 0; pos < s.size();) {
    utf8proc_int32_t c = 0;
    const auto n = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(s.data()) + pos,
                                    static_cast<utf8proc_ssize_t>(s.size() - pos), &c);
    if (n <= 0) return false;
    pos += static_cast<size_t>(n);
  }
  return true;
}

void AppendUtf8(char32_t code_point, std::string& out) {
  utf8proc_uint8_t buffer[4];
  const auto n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), buffer);
  out.append(reinterpret_cast<const char*>(buffer), static_cast<size_t>(n));
}

char32_t NextCodePoint(std::string_view s, size_t& pos) {
  const auto first = static_cast<unsigned char>(s[pos]);
  if (first < 0x80) {
    ++pos;
    return first;
  }
  utf8proc_int32_t c = 0;
  const auto n = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(s.data()) + pos,
                                  static_cast<utf8proc_ssize_t>(s.size() - pos), &c);
  pos += n > 0 ? static_cast<size_t>(n) : 1;
  return n > 0 ? static_cast<char32_t>(c) : U'\uFFFD';
}

size_t CountCodePoints(std::string_view s) {
  return static_cast<size_t>(std::count_if(
      s.begin(), s.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

size_t CodePointOffset(std::string_view s, size_t index) {
  size_t pos = 0;
  for (; pos < s.size(); ++pos) {
    if ((static_cast<unsigned char>(s[pos]) & 0xC0) == 0x80) continue;
    if (index == 0) break;
    --index;
  }
  return pos;
}

bool IsSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool IsPrintable(char32_t c) {
  if (c == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
      return false;
    default:
      return true;
  }
}

// --- Operations --------------------------------------------------------------------------------

ByteRange StripRange(std::string_view s, const std::string_view* chars, bool left, bool right) {
  const auto strips = [chars, s](size_t begin, size_t end) {
    size_t pos = begin;
    if (chars == nullptr) return IsSpace(NextCodePoint(s, pos));
    return chars->find(s.substr(begin, end - begin)) != std::string_view::npos;
  };
  ByteRange kept{0, s.size()};
  while (left && kept.begin < kept.end) {
    size_t next = kept.begin;
    NextCodePoint(s, next);
    if (!strips(kept.begin, next)) break;
    kept.begin = next;
  }
  while (right && kept.begin < kept.end) {
    const size_t previous = PreviousCodePoint(s, kept.end);
    if (!strips(previous, kept.end)) break;
    kept.end = previous;
  }
  return kept;
}

std::vector<ByteRange> SplitLines(std::string_view s, bool keep_ends) {
  std::vector<ByteRange> lines;
  size_t begin = 0;
  for (size_t pos = 0; pos < s.size();) {
    const size_t end = pos;
    const char32_t c = NextCodePoint(s, pos);
    if (!IsLineEnd(c)) continue;
    if (c == '\r' && pos < s.size() && s[pos] == '\n') ++pos;
    lines.push_back({begin, keep_ends ? pos : end});
    begin = pos;
  }
  if (begin < s.size()) lines.push_back({begin, s.size()});
  return lines;
}

size_t Find(std::string_view s, std::string_view needle, size_t from) {
  if (from > s.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  // memmem is linear in the worst case; string_view::find is not, and both sides may be hostile.
  const void* hit = memmem(s.data() + from, s.size() - from, needle.data(), needle.size());
  return hit == nullptr ? std::string_view::npos
                        : static_cast<size_t>(static_cast<const char*>(hit) - s.data());
}

size_t CountOccurrences(std::string_view s, std::string_view needle) {
  if (needle.empty()) return CountCodePoints(s) + 1;
  size_t count = 0;
  for (size_t pos = 0; (pos = Find(s, needle, pos)) != std::string_view::npos; ++count) {
    pos += needle.size();
  }
  return count;
}

Text Replace(const Text& s, std::string_view from, const Text& to, int64_t count) {
  Text out;
  size_t pos = 0;
  for (int64_t done = 0; count < 0 || done < count; ++done) {
    if (from.empty()) {
      // Python puts `to` before every code point and at the end.
      out.Append(to);
      if (pos >= s.size()) return out;
      size_t next = pos;
      NextCodePoint(s.bytes(), next);
      out.Append(s, pos, next);
      pos = next;
      continue;
    }
    const size_t hit = Find(s.bytes(), from, pos);
    if (hit == std::string_view::npos) break;
    out.Append(s, pos, hit);
    out.Append(to);
    pos = hit + from.size();
  }
  out.Append(s, pos, s.size());
  return out;
}

Text ChangeCase(const Text& s, Case how) {
  Text out;
  std::string changed;
  char32_t previous = ' ';
  for (size_t pos = 0; pos < s.size();) {
    const size_t begin = pos;
    const char32_t c = NextCodePoint(s.bytes(), pos);
    bool starts = false;
    switch (how) {
      case Case::kUpper:
      case Case::kLower:
        break;
      case Case::kCapitalize:
        starts = begin == 0;
        break;
      case Case::kTitle:
        starts = !IsCased(previous);
        break;
      case Case::kJinjaTitle:
        starts = begin == 0 || StartsJinjaWord(previous);
        break;
    }
    changed.clear();
    AppendUtf8(how == Case::kUpper || (starts && how == Case::kJinjaTitle) ? Upper(c)
               : starts                                                    ? Title(c)
                                                                           : Lower(c),
               changed);
    out.Append(changed, s.TrustedIn(begin, pos));
    previous = c;
  }
  return out;
}

Text Reverse(const Text& s) {
  Text out;
  for (size_t end = s.size(); end > 0;) {
    const size_t begin = PreviousCodePoint(s.bytes(), end);
    out.Append(s, begin, end);
    end = begin;
  }
  return out;
}

}  // namespace signalbox::jinja
