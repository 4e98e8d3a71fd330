// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/bpe.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <tuple>
#include <utility>

namespace signalbox {

// Short pieces and their tokens, one to a slot that its hash names; a newcomer takes the slot.
class Bpe::Cache {
 public:
  bool Find(std::string_view piece, std::vector<TokenId>& out) {
    if (piece.size() > kMaxBytes) return false;
    const size_t index = IndexOf(piece);
    const std::lock_guard lock(locks_[index % kLocks]);
    const Slot& slot = slots_[index];
    if (std::string_view(slot.piece, slot.bytes) != piece) return false;
    out.insert(out.end(), slot.ids, slot.ids + slot.count);
    return true;
  }

  void Insert(std::string_view piece, std::span<const TokenId> ids) {
    if (piece.size() > kMaxBytes || ids.size() > kMaxIds) return;
    const size_t index = IndexOf(piece);
    const std::lock_guard lock(locks_[index % kLocks]);
    Slot& slot = slots_[index];
    std::copy(piece.begin(), piece.end(), slot.piece);
    std::copy(ids.begin(), ids.end(), slot.ids);
    slot.bytes = static_cast<uint8_t>(piece.size());
    slot.count = static_cast<uint8_t>(ids.size());
  }

 private:
  static constexpr size_t kMaxBytes = 30;
  static constexpr size_t kMaxIds = 8;
  static constexpr size_t kSlots = size_t{1} << 15;
  static constexpr size_t kLocks = 64;
  struct Slot {
    TokenId ids[kMaxIds];
    uint8_t bytes = 0;
    uint8_t count = 0;
    char piece[kMaxBytes];
  };
  static_assert(sizeof(Slot) == 64, "a cache line");

  static size_t IndexOf(std::string_view piece) {
    return std::hash<std::string_view>()(piece) % kSlots;
  }

  std::vector<Slot> slots_ = std::vector<Slot>(kSlots);  // 2 MiB
  std::array<std::mutex, kLocks> locks_;
};

Bpe::Bpe(const std::array<TokenId, 256>& byte_tokens, std::span<const BpeMerge> merges,
         MergeRank rank)
    : byte_tokens_(byte_tokens), merges_(merges.size()), cache_(std::make_unique<Cache>()) {
  uint32_t place = 0;
  for (const BpeMerge& merge : merges) {
    const auto result = static_cast<uint32_t>(merge.result);
    merges_.Insert({static_cast<uint32_t>(merge.left), static_cast<uint32_t>(merge.right)},
                   {rank == MergeRank::kPlace ? place : result, result});
    ++place;
  }
}

Bpe::~Bpe() = default;
Bpe::Bpe(Bpe&&) noexcept = default;
Bpe& Bpe::operator=(Bpe&&) noexcept = default;

void Bpe::Encode(std::string_view piece, std::vector<TokenId>& out) const {
  if (piece.size() == 1) {
    out.push_back(byte_tokens_[static_cast<uint8_t>(piece[0])]);
    return;
  }
  if (cache_->Find(piece, out)) return;
  const size_t first = out.size();
  Merge(piece, out);
  cache_->Insert(piece, std::span(out).subspan(first));
}

namespace {

constexpr int32_t kNone = -1;

// A token in a doubly linked list; a token that was merged into its left neighbour has id kNone.
struct Link {
  TokenId id;
  int32_t previous;
  int32_t next;
};

// A merge that was possible when it was queued, of the link at `at` and the next.
struct Candidate {
  uint32_t rank;
  int32_t at;
  TokenId result;
  // std::*_heap keep the greatest in front: the lowest rank, then the leftmost.
  friend bool operator<(const Candidate& a, const Candidate& b) {
    return std::tie(a.rank, a.at) > std::tie(b.rank, b.at);
  }
};

}  // namespace

void Bpe::Merge(std::string_view piece, std::vector<TokenId>& out) const {
  const int32_t size = static_cast<int32_t>(piece.size());
  std::vector<Link> links(piece.size());
  for (int32_t i = 0; i < size; ++i) {
    links[i] = {byte_tokens_[static_cast<uint8_t>(piece[i])], i - 1, i + 1 < size ? i + 1 : kNone};
  }

  std::vector<Candidate> heap;
  heap.reserve(piece.size());
  const auto candidate = [&](int32_t at) -> const PairTable::Pair* {
    if (at == kNone || links[at].id == kNone || links[at].next == kNone) return nullptr;
    return merges_.Find(
        {static_cast<uint32_t>(links[at].id), static_cast<uint32_t>(links[links[at].next].id)});
  };
  for (int32_t i = 0; i < size; ++i) {
    if (const auto* merge = candidate(i)) {
      heap.push_back({merge->first, i, static_cast<TokenId>(merge->second)});
    }
  }
  std::make_heap(heap.begin(), heap.end());
  const auto queue = [&](int32_t at) {
    if (const auto* merge = candidate(at)) {
      heap.push_back({merge->first, at, static_cast<TokenId>(merge->second)});
      std::push_heap(heap.begin(), heap.end());
    }
  };

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Candidate top = heap.back();
    heap.pop_back();
    // Stale unless the two still make the same token: what the reference implementation asks.
    const auto* merge = candidate(top.at);
    if (merge == nullptr || static_cast<TokenId>(merge->second) != top.result) continue;
    Link& left = links[top.at];
    Link& right = links[left.next];
    left.id = top.result;
    right.id = kNone;
    left.next = right.next;
    if (left.next != kNone) links[left.next].previous = top.at;
    queue(left.previous);
    queue(top.at);
  }

  for (int32_t at = size > 0 ? 0 : kNone; at != kNone; at = links[at].next) {
    out.push_back(links[at].id);
  }
}

}  // namespace signalbox
