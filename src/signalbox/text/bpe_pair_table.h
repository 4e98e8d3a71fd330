// SPDX-License-Identifier: Apache-2.0
//
// A hash table from a pair of 32-bit numbers to a pair of 32-bit numbers: open addressing in one
// array, built once and then only read. BPE looks up here for every two neighbouring tokens, and
// the trie of added tokens for every (node, byte).
//
//   PairTable table(2);
//   table.Insert({7, 9}, {0, 300});
//   const PairTable::Pair* hit = table.Find({7, 9});  // nullptr where there is none
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace signalbox {

class PairTable {
 public:
  struct Pair {
    uint32_t first;
    uint32_t second;
    friend bool operator==(Pair, Pair) = default;
  };

  // Room for `capacity` entries; inserting more is slow but right.
  explicit PairTable(size_t capacity = 0) { Rehash(capacity); }

  // Replaces the value of a key that is there already. REQUIRES: key != {~0, ~0}.
  void Insert(Pair key, Pair value) {
    if (2 * (size_ + 1) > entries_.size()) Rehash(2 * size_ + 2);
    Entry& entry = entries_[SlotOf(key)];
    if (entry.key == kFree) ++size_;
    entry = {key, value};
  }

  const Pair* Find(Pair key) const {
    const Entry& entry = entries_[SlotOf(key)];
    return entry.key == kFree ? nullptr : &entry.value;
  }

 private:
  static constexpr Pair kFree{~0u, ~0u};
  struct Entry {
    Pair key = kFree;
    Pair value{0, 0};
  };

  // The place of `key`, or the free place where it belongs.
  size_t SlotOf(Pair key) const {
    uint64_t hash = (uint64_t{key.first} << 32 | key.second) * 0x9E3779B97F4A7C15u;
    size_t slot = static_cast<size_t>(hash >> shift_);
    while (!(entries_[slot].key == kFree) && !(entries_[slot].key == key)) {
      slot = (slot + 1) & (entries_.size() - 1);
    }
    return slot;
  }

  void Rehash(size_t capacity) {
    std::vector<Entry> old = std::move(entries_);
    const size_t slots = std::bit_ceil(2 * capacity + 2);
    entries_.assign(slots, Entry{});
    shift_ = 64 - std::countr_zero(slots);
    for (const Entry& entry : old) {
      if (!(entry.key == kFree)) entries_[SlotOf(entry.key)] = entry;
    }
  }

  std::vector<Entry> entries_;  // a power of two of them, at most half in use
  size_t size_ = 0;
  int shift_ = 0;
};

}  // namespace signalbox
