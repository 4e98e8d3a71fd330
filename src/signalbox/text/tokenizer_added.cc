// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/tokenizer_added.h"

#include "signalbox/base/check.h"

namespace signalbox {

void AddedTokenMatcher::Add(std::string_view spelling, TokenId id) {
  SB_CHECK(!spelling.empty() && spelling.size() <= kMaxBytes) << spelling.size();
  first_bytes_[static_cast<uint8_t>(spelling[0])] = true;
  uint32_t node = 0;
  for (const char c : spelling) {
    const PairTable::Pair step{node, static_cast<uint8_t>(c)};
    if (const auto* child = children_.Find(step)) {
      node = child->first;
    } else {
      node = static_cast<uint32_t>(tokens_.size());
      tokens_.push_back(kNoToken);
      children_.Insert(step, {node, 0});
    }
  }
  tokens_[node] = id;
}

void AddedTokenMatcher::FindAll(std::string_view text, size_t begin, size_t end,
                                std::vector<AddedTokenMatch>& matches) const {
  for (size_t at = begin; at < end;) {
    if (!first_bytes_[static_cast<uint8_t>(text[at])]) {
      ++at;
      continue;
    }
    AddedTokenMatch longest{at, at, kNoToken};
    uint32_t node = 0;
    for (size_t i = at; i < end; ++i) {
      const auto* child = children_.Find({node, static_cast<uint8_t>(text[i])});
      if (child == nullptr) break;
      node = child->first;
      if (tokens_[node] != kNoToken) longest = {at, i + 1, tokens_[node]};
    }
    if (longest.id == kNoToken) {
      ++at;
      continue;
    }
    matches.push_back(longest);
    at = longest.end;
  }
}

}  // namespace signalbox
