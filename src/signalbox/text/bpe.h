// SPDX-License-Identifier: Apache-2.0
//
// Byte-pair encoding of one piece of text: begin with one token per byte; while any two neighbours
// have a merge, apply the merge of the lowest rank (the leftmost of several); the rest is the
// result. (Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units",
// algorithm 1.)
//
//   Bpe bpe(byte_tokens, merges);
//   std::vector<TokenId> ids;
//   bpe.Encode("lower", ids);
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "signalbox/base/ids.h"
#include "signalbox/text/bpe_pair_table.h"

namespace signalbox {

// left right -> result.
struct BpeMerge {
  TokenId left;
  TokenId right;
  TokenId result;
};

// The rank of a merge: its place in the list, or (tiktoken) the id of its result, so that all
// merges to one token have one rank.
enum class MergeRank { kPlace, kResult };

class Bpe {
 public:
  // byte_tokens[b] is the token of byte b. Of two merges of one pair the later counts.
  Bpe(const std::array<TokenId, 256>& byte_tokens, std::span<const BpeMerge> merges,
      MergeRank rank = MergeRank::kPlace);
  ~Bpe();
  Bpe(Bpe&&) noexcept;
  Bpe& operator=(Bpe&&) noexcept;

  // Appends the tokens of `piece`, which is shorter than 2^31 bytes. O(n log n). Recent short
  // pieces are remembered, in a fixed amount of memory. Safe from many threads.
  void Encode(std::string_view piece, std::vector<TokenId>& out) const;

 private:
  class Cache;
  void Merge(std::string_view piece, std::vector<TokenId>& out) const;

  std::array<TokenId, 256> byte_tokens_;
  PairTable merges_;              // (left, right) -> (rank, result)
  std::unique_ptr<Cache> cache_;  // behind a pointer: it has mutexes, and a Bpe can be moved
};

}  // namespace signalbox
