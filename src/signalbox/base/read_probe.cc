// SPDX-License-Identifier: Apache-2.0
#include "signalbox/base/read_probe.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>

#include "signalbox/base/host_memory.h"

namespace signalbox {
namespace {

constexpr int64_t kMebi = int64_t{1} << 20;
constexpr int64_t kLine = 64;      // bytes
constexpr int64_t kGrain = kMebi;  // bytes that a thread takes at a time
constexpr int kPasses = 3;

// Each core may sit on a last-level cache of its own.
int64_t BufferFor(int threads) {
  const int64_t cache = std::max<int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE), 0);
  return std::clamp<int64_t>(4 * cache * threads, 256 * kMebi, 4096 * kMebi);
}

// Eight independent sums, so that loads do not wait for one another. n is a multiple of eight.
uint64_t SumWords(const uint64_t* words, int64_t n) {
  std::array<uint64_t, 8> sums{};
  for (int64_t i = 0; i < n; i += 8) {
    for (int64_t j = 0; j < 8; ++j) sums[j] += words[i + j];
  }
  uint64_t sum = 0;
  for (const uint64_t s : sums) sum += s;
  return sum;
}

}  // namespace

Result<std::unique_ptr<ReadProbe>> ReadProbe::Create(const ReadProbeOptions& options) {
  const int64_t wanted = options.bytes > 0 ? options.bytes : BufferFor(options.threads);
  const int64_t bytes = (wanted + kLine - 1) / kLine * kLine;
  // Asked first: an allocator may promise what the machine does not have, and a sanitizer's aborts.
  SB_ASSIGN_OR_RETURN(const HostMemory memory, ReadHostMemory());
  auto* const words =
      bytes > memory.total ? nullptr : static_cast<uint64_t*>(std::aligned_alloc(kLine, bytes));
  if (words == nullptr) {
    return ResourceExhausted(
        {.what = "no memory to measure reading with", .found = fmt::format("{} bytes", bytes)});
  }
  return std::unique_ptr<ReadProbe>(new ReadProbe(options.threads, bytes, words));
}

ReadProbe::ReadProbe(int threads, int64_t bytes, uint64_t* words)
    : pool_(std::max(threads, 1)), bytes_(bytes), words_(words) {
  // Written by all threads: pages of an untouched buffer are one page of zeros, and on several
  // memory nodes they lie where they were written first.
  pool_.ParallelFor(bytes_ / kLine, kGrain / kLine, [&](int64_t begin, int64_t end) {
    for (int64_t i = 8 * begin; i < 8 * end; ++i) words_[i] = static_cast<uint64_t>(i);
  });
}

ReadProbe::~ReadProbe() {
  std::free(words_);
}

uint64_t ReadProbe::Pass() {
  std::atomic<uint64_t> sum = 0;
  pool_.ParallelFor(bytes_ / kLine, kGrain / kLine, [&](int64_t begin, int64_t end) {
    sum += SumWords(words_ + 8 * begin, 8 * (end - begin));
  });
  return sum;
}

double ReadProbe::Measure() {
  using Clock = std::chrono::steady_clock;
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = Clock::now();
    sum_ = Pass();
    const std::chrono::duration<double> took = Clock::now() - start;
    best = std::max(best, static_cast<double>(bytes_) / std::max(took.count(), 1e-9));
  }
  return best;
}

}  // namespace signalbox
