// SPDX-License-Identifier: Apache-2.0
//
// CachePool: everything that sequences carry between steps, on one rank, out of a fixed budget:
// pages of keys and values for attention layers, and one slot of convolution and recurrent state
// for linear layers. A SequenceCache is a sequence's claim on the pool. Memory is reserved at once
// and touched when used.
//
// Errors: kResourceExhausted when pages or slots run out; nothing is claimed then.
//
//   SB_ASSIGN_OR_RETURN(CachePool pool, CachePool::Create(shape, {.tokens = 4096, .sequences =
//   16})); SequenceCache seq; SB_RETURN_IF_ERROR(pool.Reserve(&seq, 100));   // room for 100 tokens
//   pool.Release(&seq);
#pragma once

#include <cstdint>
#include <memory>
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

  int64_t bytes_per_token() const;
  int64_t bytes_per_sequence() const;
};

struct CacheBudget {
  int64_t tokens = 0;     // over all sequences
  int64_t sequences = 0;  // at the same time
};

struct SequenceCache {
  int64_t length = 0;           // tokens whose state is in the cache
  std::vector<int32_t> blocks;  // pages in token order
  int32_t slot = -1;            // state slot; -1 before the first Reserve
};

class CachePool {
 public:
  static Result<CachePool> Create(const CacheShape& shape, const CacheBudget& budget);

  // Makes room for `tokens` tokens in all, and gives a zeroed state slot on first use.
  Status Reserve(SequenceCache* sequence, int64_t tokens);
  void Release(SequenceCache* sequence);

  // Without values of their own, values is null.
  KvView kv(size_t attention_layer);
  float* conv(size_t linear_layer, int32_t slot);
  float* recurrent(size_t linear_layer, int32_t slot);

  int64_t free_blocks() const { return static_cast<int64_t>(free_blocks_.size()); }
  int64_t free_slots() const { return static_cast<int64_t>(free_slots_.size()); }

 private:
  struct FreeMemory {
    void operator()(float* p) const;
  };
  using Memory = std::unique_ptr<float, FreeMemory>;
  static Memory Allocate(int64_t floats);

  CacheShape shape_;
  std::vector<Memory> keys_;    // per attention layer [blocks * kBlockTokens, kv_heads, key_dim]
  std::vector<Memory> values_;  // per attention layer [blocks * kBlockTokens, kv_heads, value_dim]
  std::vector<Memory> conv_;    // per linear layer [slots, conv]
  std::vector<Memory> recurrent_;  // per linear layer [slots, recurrent]
  std::vector<int32_t> free_blocks_;
  std::vector<int32_t> free_slots_;
};

}  // namespace signalbox
