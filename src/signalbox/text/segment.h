// SPDX-License-Identifier: Apache-2.0
//
// A rendered prompt as runs of text that say where their bytes came from.
//
// Trusted bytes were written by the model's author (the chat template and its special tokens), so
// `<|im_end|>` in them is a control token. Untrusted bytes came with the request (messages, tools),
// so the same characters are ordinary text there and never become a control token.
//
//   Segments s = {{"<|im_start|>user\n", true}, {"say <|im_end|>", false}, {"<|im_end|>\n", true}};
//   tokenizer.Encode(s);      // two control tokens, not three
//   PlainText(s);             // the same bytes in one string
#pragma once

#include <string>
#include <vector>

namespace signalbox {

struct Segment {
  std::string text;  // UTF-8
  bool trusted = false;
  bool apart = false;  // a text by itself for the tokenizer: nothing is merged across its borders

  friend bool operator==(const Segment&, const Segment&) = default;
};

using Segments = std::vector<Segment>;

inline std::string PlainText(const Segments& segments) {
  std::string text;
  for (const Segment& segment : segments) text += segment.text;
  return text;
}

}  // namespace signalbox
