// SPDX-License-Identifier: Apache-2.0
//
// Scratch: short-lived float buffers of one forward pass. Take() bumps a pointer; a Scope gives
// everything taken inside it back at its end. Blocks are kept, so that a steady state allocates
// nothing. One thread at a time. Contents are not cleared.
//
//   Scratch scratch;
//   { Scratch::Scope scope(scratch); float* h = scratch.Take(tokens * width); ... }
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace signalbox {

class Scratch {
 public:
  // `count` floats, aligned to 64 bytes; valid until the enclosing Scope ends.
  float* Take(int64_t count);
  // The same for ids and indices.
  int32_t* TakeInts(int64_t count) { return reinterpret_cast<int32_t*>(Take(count)); }

  class Scope {
   public:
    explicit Scope(Scratch& scratch)
        : scratch_(scratch), block_(scratch.block_), used_(scratch.used_) {}
    ~Scope() {
      scratch_.block_ = block_;
      scratch_.used_ = used_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Scratch& scratch_;
    size_t block_;
    int64_t used_;
  };

 private:
  struct Free {
    void operator()(float* p) const;
  };
  struct Block {
    std::unique_ptr<float, Free> data;
    int64_t size;
  };
  std::vector<Block> blocks_;
  size_t block_ = 0;  // the block that Take() bumps
  int64_t used_ = 0;  // floats of it in use
};

}  // namespace signalbox
