// SPDX-License-Identifier: Apache-2.0
//
// The regular expression that cuts text into the pieces within which BPE merges: the "Split" stage
// of a tokenizer.json, behaviour "Isolated" (matches are pieces, and so is the text between
// matches).
//
// Patterns in such files are written for Oniguruma; PCRE2 runs them, and what the two read
// differently is translated (\s) or refused (nested character classes, && in a class, \h). So are
// back references, which would make matching more than linear.
//
//   SB_ASSIGN_OR_RETURN(Pretokenizer pre, Pretokenizer::Compile(R"(\p{L}+|\s+)"));
//   std::vector<std::string_view> pieces;
//   SB_RETURN_IF_ERROR(pre.Split("a few words", pieces));  // "a" " " "few" " " "words"
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "signalbox/base/status.h"

struct pcre2_real_code_8;  // pcre2.h stays out of our headers

namespace signalbox {

class Pretokenizer {
 public:
  // kBadCheckpoint, with the pattern, where the pattern does not compile.
  static Result<Pretokenizer> Compile(std::string_view pattern);

  // Appends the pieces of `text`, which must be valid UTF-8; concatenated, they are `text`.
  // The time is at most proportional to the length of the text, whatever the pattern:
  // kResourceExhausted where it needs more. Safe from many threads.
  Status Split(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  struct CodeDeleter {
    void operator()(pcre2_real_code_8* code) const;
  };
  using Code = std::unique_ptr<pcre2_real_code_8, CodeDeleter>;

  std::string pattern_;
  Code plain_;    // fast
  Code metered_;  // counts its work
};

}  // namespace signalbox
