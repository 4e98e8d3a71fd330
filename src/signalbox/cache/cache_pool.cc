// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cache/cache_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "signalbox/base/check.h"

namespace signalbox {
namespace {

int64_t BlocksFor(int64_t tokens) {
  return (tokens + kBlockTokens - 1) / kBlockTokens;
}

}  // namespace

int64_t CacheShape::bytes_per_token() const {
  int64_t floats = 0;
  for (const Attention& a : attention) floats += a.kv_heads * (a.key_dim + a.value_dim);
  return floats * static_cast<int64_t>(sizeof(float));
}

int64_t CacheShape::bytes_per_sequence() const {
  int64_t floats = 0;
  for (const Linear& l : linear) floats += l.conv + l.recurrent;
  return floats * static_cast<int64_t>(sizeof(float));
}

void CachePool::FreeMemory::operator()(float* p) const {
  std::free(p);
}

// calloc: large blocks come from the kernel zeroed and untouched, so an idle budget costs no
// memory.
CachePool::Memory CachePool::Allocate(int64_t floats) {
  return Memory(static_cast<float*>(
      std::calloc(static_cast<size_t>(std::max<int64_t>(floats, 1)), sizeof(float))));
}

Result<CachePool> CachePool::Create(const CacheShape& shape, const CacheBudget& budget) {
  CachePool pool;
  pool.shape_ = shape;
  const int64_t blocks =
      BlocksFor(budget.tokens) + budget.sequences;  // each sequence may waste part of a page
  bool complete = true;
  const auto add = [&](std::vector<Memory>* list, int64_t floats) {
    list->push_back(Allocate(floats));
    complete &= list->back() != nullptr;
  };
  for (const CacheShape::Attention& a : shape.attention) {
    add(&pool.keys_, blocks * kBlockTokens * a.kv_heads * a.key_dim);
    add(&pool.values_, blocks * kBlockTokens * a.kv_heads * a.value_dim);
  }
  for (const CacheShape::Linear& l : shape.linear) {
    add(&pool.conv_, budget.sequences * l.conv);
    add(&pool.recurrent_, budget.sequences * l.recurrent);
  }
  if (!complete) {
    return ResourceExhausted(
        {.what = "not enough memory for the cache",
         .found =
             fmt::format("{} tokens of {} bytes and {} sequences of {} bytes", budget.tokens,
                         shape.bytes_per_token(), budget.sequences, shape.bytes_per_sequence()),
         .remedy = "ask for fewer tokens or sequences at a time"});
  }
  // Highest first: pages and slots are handed out from 0 up.
  for (int64_t b = blocks; b-- > 0;) pool.free_blocks_.push_back(static_cast<int32_t>(b));
  for (int64_t s = budget.sequences; s-- > 0;) pool.free_slots_.push_back(static_cast<int32_t>(s));
  return pool;
}

Status CachePool::Reserve(SequenceCache* sequence, int64_t tokens) {
  const int64_t more = BlocksFor(tokens) - static_cast<int64_t>(sequence->blocks.size());
  if (more > free_blocks()) {
    return ResourceExhausted(
        {.what = "no room in the KV pool",
         .found = fmt::format("{} free pages of {} tokens", free_blocks(), kBlockTokens),
         .expected = fmt::format("{} pages", more)});
  }
  if (sequence->slot < 0) {
    if (free_slots_.empty()) {
      return ResourceExhausted(
          {.what = "no free state slot", .expected = "one slot per running sequence"});
    }
    sequence->slot = free_slots_.back();
    free_slots_.pop_back();
    for (size_t l = 0; l < shape_.linear.size(); ++l) {
      std::fill_n(conv(l, sequence->slot), shape_.linear[l].conv, 0.f);
      std::fill_n(recurrent(l, sequence->slot), shape_.linear[l].recurrent, 0.f);
    }
  }
  for (int64_t i = 0; i < more; ++i) {
    sequence->blocks.push_back(free_blocks_.back());
    free_blocks_.pop_back();
  }
  return OkStatus();
}

void CachePool::Release(SequenceCache* sequence) {
  free_blocks_.insert(free_blocks_.end(), sequence->blocks.rbegin(), sequence->blocks.rend());
  if (sequence->slot >= 0) free_slots_.push_back(sequence->slot);
  *sequence = SequenceCache();
}

KvView CachePool::kv(size_t layer) {
  SB_CHECK(layer < keys_.size()) << layer;
  const bool in_keys = shape_.attention[layer].value_dim == 0;
  return {.keys = keys_[layer].get(),
          .values = in_keys ? nullptr : values_[layer].get(),
          .block = kBlockTokens};
}

float* CachePool::conv(size_t layer, int32_t slot) {
  return conv_[layer].get() + slot * shape_.linear[layer].conv;
}

float* CachePool::recurrent(size_t layer, int32_t slot) {
  return recurrent_[layer].get() + slot * shape_.linear[layer].recurrent;
}

}  // namespace signalbox
