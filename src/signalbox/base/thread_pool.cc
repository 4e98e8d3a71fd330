// SPDX-License-Identifier: Apache-2.0
#include "signalbox/base/thread_pool.h"

#include <chrono>

#include "signalbox/base/check.h"

namespace signalbox {
namespace {

// Longer than the serial work between two operations of a small model, shorter than a time slice
// that another process could have used.
constexpr std::chrono::microseconds kSpin{5};

thread_local bool inside_parallel_for = false;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  SB_CHECK(threads >= 1) << threads << " threads";
  workers_.reserve(threads - 1);
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { WorkerMain(); });
}

ThreadPool::~ThreadPool() {
  SB_CHECK(!busy_) << "pool destroyed inside ParallelFor";
  stop_ = true;
  ++epoch_;
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

bool ThreadPool::InsideParallelFor() {
  return inside_parallel_for;
}

void ThreadPool::Run(const Job& job) {
  SB_CHECK(job.grain >= 1) << "grain " << job.grain;
  SB_CHECK(!busy_.exchange(true, std::memory_order_acquire)) << "two callers of one ThreadPool";
  job_ = job;
  next_.store(0, std::memory_order_relaxed);
  gate_.store(0, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();

  WorkOnJob();

  for (uint32_t gate = gate_.fetch_or(kClosed, std::memory_order_acquire) | kClosed;
       gate != kClosed; gate = gate_.load(std::memory_order_acquire)) {
    AwaitChange(gate_, gate);
  }
  busy_.store(false, std::memory_order_release);
}

void ThreadPool::WorkOnJob() {
  inside_parallel_for = true;
  for (;;) {
    const int64_t begin = next_.fetch_add(job_.grain, std::memory_order_relaxed);
    if (begin >= job_.n) break;
    const int64_t end = job_.n - begin < job_.grain ? job_.n : begin + job_.grain;
    job_.call(job_.body, begin, end);
  }
  inside_parallel_for = false;
}

bool ThreadPool::Join() {
  uint32_t gate = gate_.load(std::memory_order_relaxed);
  while ((gate & kClosed) == 0) {
    if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire,
                                    std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

void ThreadPool::WorkerMain() {
  uint32_t seen = 0;
  for (;;) {
    AwaitChange(epoch_, seen);
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_) return;
    if (!Join()) continue;
    WorkOnJob();
    // Release: the caller sees this worker's results. Only the last one out may wake the caller.
    if (gate_.fetch_sub(1, std::memory_order_release) == kClosed + 1) gate_.notify_all();
  }
}

void ThreadPool::AwaitChange(const std::atomic<uint32_t>& value, uint32_t old) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  value.wait(old, std::memory_order_acquire);
}

}  // namespace signalbox
