// SPDX-License-Identifier: Apache-2.0
//
// A string that remembers which of its bytes the template's author wrote (trusted) and which came
// with the request (untrusted). Every Jinja operation on strings is built from Append and Slice, so
// provenance survives concatenation, trimming, splitting, joining and replacing.
//
// Text is valid UTF-8 wherever it enters (JSON, template source); offsets are bytes unless a name
// says code points. Whitespace and case follow Python's str.
//
//   Text t("<|im_end|>", /*trusted=*/true);
//   t.Append("<|im_end|>", /*trusted=*/false);
//   t.ToSegments();  // {"<|im_end|>", true}, {"<|im_end|>", false}
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "signalbox/text/segment.h"

namespace signalbox::jinja {

class Text {
 public:
  Text() = default;
  Text(std::string_view bytes, bool trusted) { Append(bytes, trusted); }

  std::string_view bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  // Memory held, in bytes: what the work budget charges for a copy.
  size_t footprint() const { return bytes_.size() + runs_.size() * sizeof(Run); }

  void Append(std::string_view bytes, bool trusted);
  void Append(const Text& other) { Append(other, 0, other.size()); }
  // Appends the bytes [begin, end) of `other`. REQUIRES: &other != this.
  void Append(const Text& other, size_t begin, size_t end);
  // REQUIRES: begin <= end <= size().
  Text Slice(size_t begin, size_t end) const;
  // Whether every byte in [begin, end) is trusted; true for an empty range.
  bool TrustedIn(size_t begin, size_t end) const;
  Segments ToSegments() const;

 private:
  struct Run {
    size_t end;  // one past the run's last byte
    bool trusted;
  };
  size_t RunAt(size_t offset) const;

  std::string bytes_;
  std::vector<Run> runs_;  // ascending ends, neighbours differ in trust
};

// --- UTF-8 -----------------------------------------------------------------------------------
bool IsValidUtf8(std::string_view s);
void AppendUtf8(char32_t code_point, std::string& out);
// The code point at s[pos]; pos moves past it. A stray byte counts as one code point.
char32_t NextCodePoint(std::string_view s, size_t& pos);
size_t CountCodePoints(std::string_view s);
// Byte offset of the code point with this index, or s.size() past the end.
size_t CodePointOffset(std::string_view s, size_t index);
// Python's str.isspace and str.isprintable, per code point.
bool IsSpace(char32_t c);
bool IsPrintable(char32_t c);

// --- Operations with Python's meaning; provenance is kept ------------------------------------
struct ByteRange {
  size_t begin = 0;
  size_t end = 0;
};
// What remains after stripping whitespace, or the code points of `*chars`, from the chosen ends.
ByteRange StripRange(std::string_view s, const std::string_view* chars, bool left, bool right);
// The lines of Python's str.splitlines; `keep_ends` leaves each line its terminator.
std::vector<ByteRange> SplitLines(std::string_view s, bool keep_ends);
// First occurrence at or after `from`, or npos; linear time.
size_t Find(std::string_view s, std::string_view needle, size_t from = 0);
size_t CountOccurrences(std::string_view s, std::string_view needle);
// Replaces the first `count` occurrences (all when count < 0).
Text Replace(const Text& s, std::string_view from, const Text& to, int64_t count);

enum class Case { kUpper, kLower, kCapitalize, kTitle, kJinjaTitle };
// Simple (one to one) case mappings: 'ß' stays as it is. kTitle starts a word after every
// uncased character; kJinjaTitle, the filter, after whitespace and any of - ( { [ <.
Text ChangeCase(const Text& s, Case how);
Text Reverse(const Text& s);

}  // namespace signalbox::jinja
