// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/detokenizer.h"

#include "signalbox/text/unicode.h"

namespace signalbox {

std::string StreamDecoder::Push(TokenId id) {
  if (special_ == SpecialTokens::kSkip && tokenizer_->IsSpecial(id)) return {};
  pending_ += tokenizer_->TokenBytes(id);
  std::string text;
  pending_.erase(0, AppendUtf8(pending_, Utf8End::kMore, text));
  return text;
}

std::string StreamDecoder::Flush() {
  std::string text;
  AppendUtf8(pending_, Utf8End::kFinal, text);
  pending_.clear();
  return text;
}

}  // namespace signalbox
