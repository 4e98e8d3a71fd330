// SPDX-License-Identifier: Apache-2.0
//
// ReadProbe: how fast some threads read memory, right now: what a step that reads its weights once
// is measured against.
//
//   SB_ASSIGN_OR_RETURN(auto probe, ReadProbe::Create({.threads = 2}));
//   double rate = probe->Measure();   // 5.7e10 bytes per second
#pragma once

#include <cstdint>
#include <memory>

#include "signalbox/base/status.h"
#include "signalbox/base/thread_pool.h"

namespace signalbox {

struct ReadProbeOptions {
  int threads = 1;
  int64_t bytes = 0;  // of the buffer; 0: more than the caches of so many cores hold
};

class ReadProbe {
 public:
  // kResourceExhausted: there is not so much memory.
  static Result<std::unique_ptr<ReadProbe>> Create(const ReadProbeOptions& options);
  ~ReadProbe();

  // Bytes per second of the fastest of some passes over the buffer.
  double Measure();
  int64_t bytes() const { return bytes_; }
  // Of all bytes, as 64-bit words: what a pass computes, so that it is not left out.
  uint64_t sum() const { return sum_; }

 private:
  ReadProbe(int threads, int64_t bytes, uint64_t* words);
  uint64_t Pass();

  ThreadPool pool_;
  const int64_t bytes_;
  uint64_t* const words_;  // [bytes / 8]
  uint64_t sum_ = 0;
};

}  // namespace signalbox
