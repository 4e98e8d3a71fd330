// SPDX-License-Identifier: Apache-2.0
//
// ThreadPool: the threads of one rank's arithmetic. The caller works too; workers claim chunks from
// one counter, spin for a few microseconds between calls and then sleep, so that a pool at rest
// costs nothing and a call never waits for a thread that has not started on it.
//
//   ThreadPool pool(2);                                       // this thread and one worker
//   pool.ParallelFor(rows, 16, [&](int64_t begin, int64_t end) { ... });
//
// One caller at a time (checked). A ParallelFor inside a ParallelFor runs inline. The function must
// not throw. What it computes must not depend on which chunks it is given.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace signalbox {

class ThreadPool {
 public:
  // `threads` counts the caller, so 1 starts none. REQUIRES: threads >= 1.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls fn(begin, end) for chunks of at most `grain` that cover [0, n) once each, and returns
  // when all are done. Runs fn(0, n) on the caller when there is nothing to share.
  // REQUIRES: grain >= 1.
  template <typename Fn>
  void ParallelFor(int64_t n, int64_t grain, Fn&& fn) {
    if (n <= 0) return;
    if (workers_.empty() || n <= grain || InsideParallelFor()) {
      fn(int64_t{0}, n);
      return;
    }
    using Body = std::remove_reference_t<Fn>;
    Run({.call = [](void* body, int64_t begin,
                    int64_t end) { (*static_cast<Body*>(body))(begin, end); },
         .body = const_cast<void*>(static_cast<const void*>(&fn)),
         .n = n,
         .grain = grain});
  }

 private:
  struct Job {
    void (*call)(void* body, int64_t begin, int64_t end) = nullptr;
    void* body = nullptr;
    int64_t n = 0;
    int64_t grain = 1;
  };

  static bool InsideParallelFor();
  void Run(const Job& job);
  void WorkOnJob();
  void WorkerMain();
  // True when the worker is now part of the open job.
  bool Join();
  // Spins, then sleeps, until `value` is no longer `old`.
  static void AwaitChange(const std::atomic<uint32_t>& value, uint32_t old);

  // A job is open between two writes of gate_ by the caller; while open, gate_ counts the workers
  // that joined it. Workers that come late find it closed, and the caller waits for none of them.
  static constexpr uint32_t kClosed = uint32_t{1} << 31;

  Job job_;                        // written while gate_ is closed and empty
  std::atomic<bool> busy_{false};  // a caller is inside
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<uint32_t> gate_{kClosed};
  alignas(64) std::atomic<uint32_t> epoch_{0};  // one more for every job; workers wait on it
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace signalbox
