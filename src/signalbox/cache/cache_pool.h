// SPDX-License-Identifier: Apache-2.0
//
// CachePool: the memory of everything that sequences carry between steps, on one rank: pages of
// keys and values for attention layers, and slots of convolution and recurrent state for linear
// layers. Who has which page and slot is CacheAccount's to know, in the leading process. Memory is
// reserved at once and touched when used.
//
// Errors: kResourceExhausted when there is not so much memory.
//
//   SB_ASSIGN_OR_RETURN(CachePool pool, CachePool::Create(shape, {.pages = 64, .slots = 8}));
//   pool.ClearState(3);               // a sequence begins in slot 3
//   pool.CopyState(3, 5);             // slot 5 is a snapshot of it
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "signalbox/base/status.h"
#include "signalbox/ops/ops.h"

namespace signalbox {

// Tokens per page. 16 keeps waste below 16 tokens a sequence and a page row-run long enough to
// stream.
inline constexpr int64_t kBlockTokens = 16;

struct CacheShape {
  struct Attention {
    int64_t kv_heads;
    int64_t key_dim;
    int64_t value_dim;  // 0: values lie in the keys
  };
  struct Linear {
    int64_t conv;       // floats of convolution state per sequence
    int64_t recurrent;  // floats of recurrent state per sequence
  };
  std::vector<Attention> attention;  // one per attention layer, in layer order
  std::vector<Linear> linear;        // one per linear layer, in layer order
  DType kv_dtype = DType::kF32;      // of keys and values, as KvView's; states are floats

  int64_t bytes_per_token() const;
  int64_t bytes_per_sequence() const;
};

struct CacheSize {
  int64_t pages = 0;
  int64_t slots = 0;
  friend bool operator==(const CacheSize&, const CacheSize&) = default;
};

// What the user asks for, of one part.
struct CacheBudget {
  int64_t tokens = 0;              // over all sequences
  int64_t sequences = 0;           // at the same time
  int64_t slots_per_sequence = 1;  // SlotsPerSequence
  // States kept for prompts that begin alike; nothing: two for each sequence.
  std::optional<int64_t> snapshots = std::nullopt;

  // Every sequence may leave part of a page unused.
  CacheSize size() const {
    return {.pages = PagesFor(tokens) + sequences,
            .slots = sequences * slots_per_sequence + kept()};
  }
  int64_t kept() const { return snapshots.value_or(2 * sequences); }
  static int64_t PagesFor(int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }
};

// Its state, one for each draft that may be wrong, and the one that it leaves behind for others.
inline int64_t SlotsPerSequence(int64_t drafts, bool prefix_cache) {
  return 1 + drafts + (prefix_cache ? 1 : 0);
}

class CachePool {
 public:
  static Result<CachePool> Create(const CacheShape& shape, const CacheSize& size);

  const CacheShape& shape() const { return shape_; }
  const CacheSize& size() const { return size_; }
  // Bytes that were reserved.
  int64_t bytes() const { return bytes_; }

  // Without values of their own, values is null.
  KvView kv(size_t attention_layer);
  float* conv(size_t linear_layer, int32_t slot);
  float* recurrent(size_t linear_layer, int32_t slot);
  // All linear layers.
  void ClearState(int32_t slot);
  void CopyState(int32_t from, int32_t to);

 private:
  struct FreeMemory {
    void operator()(void* p) const;
  };
  using Memory = std::unique_ptr<void, FreeMemory>;
  static Memory Allocate(int64_t bytes);

  CacheShape shape_;
  CacheSize size_;
  int64_t bytes_ = 0;
  std::vector<Memory> keys_;    // per attention layer [pages * kBlockTokens, kv_heads, key_dim]
  std::vector<Memory> values_;  // per attention layer [pages * kBlockTokens, kv_heads, value_dim]
  std::vector<Memory> conv_;    // per linear layer [slots, conv]
  std::vector<Memory> recurrent_;  // per linear layer [slots, recurrent]
};

}  // namespace signalbox
