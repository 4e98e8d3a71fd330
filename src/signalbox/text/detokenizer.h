// SPDX-License-Identifier: Apache-2.0
//
// Text of a token stream, as it arrives: a token may end inside a character, and a client must
// never see half of one.
//
//   StreamDecoder decoder(tokenizer, SpecialTokens::kSkip);
//   for (TokenId id : sampled) send(decoder.Push(id));
//   send(decoder.Flush());
//
// Law: the concatenation of all parts is tokenizer.Decode(ids), for every list of ids.
#pragma once

#include <string>

#include "signalbox/base/ids.h"
#include "signalbox/text/tokenizer.h"

namespace signalbox {

class StreamDecoder {
 public:
  // `tokenizer` must outlive the decoder.
  StreamDecoder(const Tokenizer& tokenizer, SpecialTokens special)
      : tokenizer_(&tokenizer), special_(special) {}

  // The text that `id` completes: whole characters only, often none.
  std::string Push(TokenId id);
  // The end of the stream: a character that was begun becomes U+FFFD. The decoder is as new.
  std::string Flush();

 private:
  const Tokenizer* tokenizer_;
  SpecialTokens special_;
  std::string pending_;  // the first bytes of a character: at most three
};

}  // namespace signalbox
