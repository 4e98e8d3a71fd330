// SPDX-License-Identifier: Apache-2.0
//
// Finds the spellings of added tokens in text: the leftmost first, of several there the longest.
//
//   AddedTokenMatcher matcher;
//   matcher.Add("<think>", 654);
//   matcher.FindAll("a<think>b", 0, 9, matches);  // {1, 8, 654}
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "signalbox/base/ids.h"
#include "signalbox/text/bpe_pair_table.h"

namespace signalbox {

struct AddedTokenMatch {
  size_t begin;
  size_t end;
  TokenId id;
};

class AddedTokenMatcher {
 public:
  // The longest spelling: FindAll reads no byte more often than this.
  static constexpr size_t kMaxBytes = 256;

  // REQUIRES: 0 < spelling.size() <= kMaxBytes.
  void Add(std::string_view spelling, TokenId id);

  // Appends the matches in text[begin, end), in order and without overlap.
  void FindAll(std::string_view text, size_t begin, size_t end,
               std::vector<AddedTokenMatch>& matches) const;

 private:
  static constexpr TokenId kNoToken = -1;

  PairTable children_;                      // (node, byte) -> (child, 0); node 0 is the root
  std::vector<TokenId> tokens_{kNoToken};   // per node: the token spelled by the path to it
  std::array<bool, 256> first_bytes_ = {};  // whether any spelling begins so
};

}  // namespace signalbox
