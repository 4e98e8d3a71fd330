// SPDX-License-Identifier: Apache-2.0
//
// The two Unicode steps of tokenisation: repair of bytes that are not UTF-8, and normal form C.
//
//   std::string text;
//   AppendUtf8(bytes, Utf8End::kFinal, text);       // text is valid UTF-8 now
//   std::string storage;
//   std::string_view nfc = ToNfc(text, storage);    // text itself where it is NFC already
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace signalbox {

// What an incomplete character at the end of the input means.
enum class Utf8End {
  kMore,   // its other bytes are still to come: leave it
  kFinal,  // there are none: replace it
};

// Appends `in` to `out` and returns how many bytes of `in` were used (all of them with kFinal).
// Each maximal ill-formed subsequence (Unicode 15.0, section 3.9, "U+FFFD Substitution of Maximal
// Subparts") becomes one U+FFFD, as in Python's bytes.decode("utf-8", "replace").
size_t AppendUtf8(std::string_view in, Utf8End end, std::string& out);

// The normal form C (Unicode Annex 15) of valid UTF-8. Returns `text` itself, without a copy, where
// a table shows that it is in NFC; otherwise fills `storage` and returns a view of it.
// O(n log n) whatever the number of combining marks in a row.
std::string_view ToNfc(std::string_view text, std::string& storage);

}  // namespace signalbox
