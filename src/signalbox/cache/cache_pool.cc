// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cache/cache_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "signalbox/base/check.h"

namespace signalbox {
int64_t CacheShape::bytes_per_token() const {
  int64_t numbers = 0;
  for (const Attention& a : attention) numbers += a.kv_heads * (a.key_dim + a.value_dim);
  return numbers * ByteSize(kv_dtype);
}

int64_t CacheShape::bytes_per_sequence() const {
  int64_t floats = 0;
  for (const Linear& l : linear) floats += l.conv + l.recurrent;
  return floats * static_cast<int64_t>(sizeof(float));
}

void CachePool::FreeMemory::operator()(void* p) const {
  std::free(p);
}

// Of one allocation; nobody has as much, and an allocator need not be asked.
constexpr int64_t kMostBytes = int64_t{1} << 40;

// calloc: large blocks come from the kernel zeroed and untouched, so an idle budget costs no
// memory.
CachePool::Memory CachePool::Allocate(int64_t bytes) {
  if (bytes > kMostBytes) return nullptr;
  return Memory(std::calloc(static_cast<size_t>(std::max<int64_t>(bytes, 1)), 1));
}

Result<CachePool> CachePool::Create(const CacheShape& shape, const CacheSize& size) {
  CachePool pool;
  pool.shape_ = shape;
  pool.size_ = size;
  bool complete = true;
  const auto add = [&](std::vector<Memory>* list, int64_t numbers, DType dtype) {
    const int64_t bytes = numbers * ByteSize(dtype);
    list->push_back(Allocate(bytes));
    pool.bytes_ += bytes;
    complete &= list->back() != nullptr;
  };
  for (const CacheShape::Attention& a : shape.attention) {
    add(&pool.keys_, size.pages * kBlockTokens * a.kv_heads * a.key_dim, shape.kv_dtype);
    add(&pool.values_, size.pages * kBlockTokens * a.kv_heads * a.value_dim, shape.kv_dtype);
  }
  for (const CacheShape::Linear& l : shape.linear) {
    add(&pool.conv_, size.slots * l.conv, DType::kF32);
    add(&pool.recurrent_, size.slots * l.recurrent, DType::kF32);
  }
  if (complete) return pool;
  return ResourceExhausted({.what = "not enough memory for the cache",
                            .found = fmt::format("{} tokens of {} bytes and {} states of {} bytes",
                                                 size.pages * kBlockTokens, shape.bytes_per_token(),
                                                 size.slots, shape.bytes_per_sequence()),
                            .remedy = "ask for fewer tokens or sequences at a time"});
}

void CachePool::ClearState(int32_t slot) {
  for (size_t l = 0; l < shape_.linear.size(); ++l) {
    std::fill_n(conv(l, slot), shape_.linear[l].conv, 0.f);
    std::fill_n(recurrent(l, slot), shape_.linear[l].recurrent, 0.f);
  }
}

void CachePool::CopyState(int32_t from, int32_t to) {
  for (size_t l = 0; l < shape_.linear.size(); ++l) {
    std::copy_n(conv(l, from), shape_.linear[l].conv, conv(l, to));
    std::copy_n(recurrent(l, from), shape_.linear[l].recurrent, recurrent(l, to));
  }
}

KvView CachePool::kv(size_t layer) {
  SB_CHECK(layer < keys_.size()) << layer;
  const bool in_keys = shape_.attention[layer].value_dim == 0;
  return {.keys = keys_[layer].get(),
          .values = in_keys ? nullptr : values_[layer].get(),
          .block = kBlockTokens,
          .dtype = shape_.kv_dtype};
}

float* CachePool::conv(size_t layer, int32_t slot) {
  return static_cast<float*>(conv_[layer].get()) + slot * shape_.linear[layer].conv;
}

float* CachePool::recurrent(size_t layer, int32_t slot) {
  return static_cast<float*>(recurrent_[layer].get()) + slot * shape_.linear[layer].recurrent;
}

}  // namespace signalbox
