// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "signalbox/base/check.h"

namespace signalbox {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// The length of a character by its first byte, and the range of its second byte (Unicode 15.0,
// table 3-7); length 0: no character begins so.
struct Lead {
  int length;
  uint8_t second_min = 0x80;
  uint8_t second_max = 0xBF;
};

Lead LeadOf(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

// How many bytes at the front of `in` belong together: a character, or as much of one as is there.
struct Prefix {
  size_t bytes;
  bool complete;
};

Prefix ReadCharacter(std::string_view in) {
  const Lead lead = LeadOf(static_cast<uint8_t>(in[0]));
  if (lead.length == 0) return {1, false};
  for (size_t i = 1; i < static_cast<size_t>(lead.length); ++i) {
    if (i == in.size()) return {i, false};
    const uint8_t byte = static_cast<uint8_t>(in[i]);
    const bool fits =
        i == 1 ? byte >= lead.second_min && byte <= lead.second_max : byte >= 0x80 && byte <= 0xBF;
    if (!fits) return {i, false};
  }
  return {static_cast<size_t>(lead.length), true};
}

// Ranges in which every character has NFC_Quick_Check=Yes and combining class 0, so that text of
// these alone is in NFC (Annex 15, section 9). The scripts that fill most prompts; text of other
// scripts takes the full way. unicode_test.cc proves the table.
struct Range {
  utf8proc_int32_t first;
  utf8proc_int32_t last;
};
constexpr Range kStable[] = {
    {0x0000, 0x02FF},    // Latin
    {0x0400, 0x0482},    // Cyrillic
    {0x1E00, 0x1EFF},    // Latin with two marks (Vietnamese)
    {0x200B, 0x205F},    // punctuation, zero-width joiner
    {0x2190, 0x2328},    // arrows, operators
    {0x2400, 0x2ADB},    // enclosed figures, box drawing, symbols
    {0x3000, 0x3029},    // CJK punctuation
    {0x3030, 0x3098},    // Hiragana
    {0x309B, 0xA48C},    // Katakana, ideographs, Yi
    {0xAC00, 0xD7A3},    // Hangul syllables
    {0xFE00, 0xFE1F},    // variation selectors
    {0xFF00, 0xFFFF},    // full-width forms
    {0x1F000, 0x1FAFF},  // emoji
    {0x20000, 0x2A6DF},  // ideographs, extension B
};

bool IsStable(utf8proc_int32_t code_point) {
  for (const Range& range : kStable) {
    if (code_point <= range.last) return code_point >= range.first;
  }
  return false;
}

// Reads the code point at `offset` of valid UTF-8 and moves `offset` past it.
utf8proc_int32_t NextCodePoint(std::string_view text, size_t& offset) {
  utf8proc_int32_t code_point = -1;
  const utf8proc_ssize_t size =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + offset,
                       static_cast<utf8proc_ssize_t>(text.size() - offset), &code_point);
  SB_CHECK(size > 0) << "text is not UTF-8 at byte " << offset;
  offset += static_cast<size_t>(size);
  return code_point;
}

bool IsNfcByTable(std::string_view text) {
  for (size_t offset = 0; offset < text.size();) {
    if (static_cast<uint8_t>(text[offset]) < 0x80) {
      ++offset;
    } else if (!IsStable(NextCodePoint(text, offset))) {
      return false;
    }
  }
  return true;
}

int CombiningClass(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

constexpr utf8proc_option_t kNfc =
    static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

// Canonical decomposition with marks in canonical order. utf8proc_decompose() would do both, but
// orders by exchanging neighbours, which takes minutes for a megabyte of marks.
std::vector<utf8proc_int32_t> Decompose(std::string_view text) {
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  for (size_t offset = 0; offset < text.size();) {
    utf8proc_int32_t parts[16];
    int boundary_state = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(NextCodePoint(text, offset), parts,
                                                           std::size(parts), kNfc, &boundary_state);
    SB_CHECK(count > 0 && count <= std::ssize(parts)) << "decomposition of length " << count;
    points.insert(points.end(), parts, parts + count);
  }
  for (auto mark = points.begin(); mark != points.end();) {
    if (CombiningClass(*mark) == 0) {
      ++mark;
      continue;
    }
    const auto end =
        std::find_if(mark, points.end(), [](auto point) { return CombiningClass(point) == 0; });
    std::stable_sort(mark, end,
                     [](auto a, auto b) { return CombiningClass(a) < CombiningClass(b); });
    mark = end;
  }
  return points;
}

}  // namespace

size_t AppendUtf8(std::string_view in, Utf8End end, std::string& out) {
  size_t used = 0;
  while (used < in.size()) {
    size_t valid_end = used;
    Prefix next{0, true};
    while (valid_end < in.size()) {
      next = ReadCharacter(in.substr(valid_end));
      if (!next.complete) break;
      valid_end += next.bytes;
    }
    out.append(in, used, valid_end - used);
    used = valid_end;
    if (used == in.size()) break;
    const bool could_go_on =
        used + next.bytes == in.size() && LeadOf(static_cast<uint8_t>(in[used])).length != 0;
    if (could_go_on && end == Utf8End::kMore) break;
    out.append(kReplacement);
    used += next.bytes;
  }
  return used;
}

std::string_view ToNfc(std::string_view text, std::string& storage) {
  if (IsNfcByTable(text)) return text;
  std::vector<utf8proc_int32_t> points = Decompose(text);
  const utf8proc_ssize_t count =
      utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()), kNfc);
  SB_CHECK(count >= 0) << "composition failed: " << utf8proc_errmsg(count);
  storage.clear();
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    utf8proc_uint8_t bytes[4];
    const utf8proc_ssize_t size = utf8proc_encode_char(points[static_cast<size_t>(i)], bytes);
    storage.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
  }
  return storage;
}

}  // namespace signalbox
