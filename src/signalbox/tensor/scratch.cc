// SPDX-License-Identifier: Apache-2.0
#include "signalbox/tensor/scratch.h"

#include <algorithm>
#include <new>

#include "signalbox/base/check.h"

namespace signalbox {
namespace {

constexpr int64_t kAlign = 16;          // floats in a cache line
constexpr int64_t kMinBlock = 1 << 18;  // 1 MiB: a small model's pass fits into one block

}  // namespace

void Scratch::Free::operator()(float* p) const {
  ::operator delete(p, std::align_val_t(64));
}

float* Scratch::Take(int64_t count) {
  SB_CHECK(count >= 0) << count;
  const int64_t need = (count + kAlign - 1) / kAlign * kAlign;
  while (block_ < blocks_.size() && used_ + need > blocks_[block_].size) {
    ++block_;
    used_ = 0;
  }
  if (block_ == blocks_.size()) {
    const int64_t size = std::max(need, kMinBlock);
    blocks_.push_back({std::unique_ptr<float, Free>(static_cast<float*>(::operator new(
                           static_cast<size_t>(size) * sizeof(float), std::align_val_t(64)))),
                       size});
    used_ = 0;
  }
  float* p = blocks_[block_].data.get() + used_;
  used_ += need;
  return p;
}

}  // namespace signalbox
