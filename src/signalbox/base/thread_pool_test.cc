// SPDX-License-Identifier: Apache-2.0
#include "signalbox/base/thread_pool.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <numeric>
#include <set>
#include <vector>

namespace signalbox {
namespace {

TEST(ThreadPool, OneThreadRunsTheWholeRangeOnTheCaller) {
  ThreadPool pool(1);
  EXPECT_EQ(pool.threads(), 1);
  std::vector<std::pair<int64_t, int64_t>> chunks;
  const std::thread::id caller = std::this_thread::get_id();
  pool.ParallelFor(100, 7, [&](int64_t begin, int64_t end) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    chunks.emplace_back(begin, end);
  });
  EXPECT_EQ(chunks, (std::vector<std::pair<int64_t, int64_t>>{{0, 100}}));
}

TEST(ThreadPool, EmptyRangeCallsNothing) {
  ThreadPool pool(2);
  pool.ParallelFor(0, 1, [](int64_t, int64_t) { FAIL(); });
  pool.ParallelFor(-3, 1, [](int64_t, int64_t) { FAIL(); });
}

// Every index once, no chunk above the grain, results visible to the caller, jobs back to back.
RC_GTEST_PROP(ThreadPool, CoversTheRangeOnce, ()) {
  ThreadPool pool(*rc::gen::inRange(1, 5));
  const int jobs = *rc::gen::inRange(1, 20);
  const auto n = *rc::gen::inRange<int64_t>(0, 500);
  const auto grain = *rc::gen::inRange<int64_t>(1, 40);
  std::vector<int> visits(n, 0);
  std::atomic<bool> oversized{false};
  for (int job = 0; job < jobs; ++job) {
    pool.ParallelFor(n, grain, [&](int64_t begin, int64_t end) {
      if (pool.threads() > 1 && end - begin > grain) oversized = true;
      for (int64_t i = begin; i < end; ++i) ++visits[i];
    });
  }
  RC_ASSERT(!oversized);
  for (const int v : visits) RC_ASSERT(v == jobs);
}

TEST(ThreadPool, WorkersTakePart) {
  ThreadPool pool(3);
  std::mutex mutex;
  std::set<std::thread::id> ids;
  // Each chunk holds its thread until three have arrived, so three threads must come.
  std::atomic<int> arrived{0};
  pool.ParallelFor(3, 1, [&](int64_t, int64_t) {
    {
      const std::lock_guard lock(mutex);
      ids.insert(std::this_thread::get_id());
    }
    ++arrived;
    while (arrived < 3) std::this_thread::yield();
  });
  EXPECT_EQ(ids.size(), 3u);
}

TEST(ThreadPool, WorkersWakeAfterTheySlept) {
  ThreadPool pool(2);
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> arrived{0};
    pool.ParallelFor(2, 1, [&](int64_t, int64_t) {
      ++arrived;
      while (arrived < 2) std::this_thread::yield();
    });
    EXPECT_EQ(arrived, 2);
  }
}

TEST(ThreadPool, NestedCallsRunInline) {
  ThreadPool pool(2);
  std::atomic<int64_t> sum{0};
  pool.ParallelFor(8, 1, [&](int64_t begin, int64_t) {
    const std::thread::id outer = std::this_thread::get_id();
    pool.ParallelFor(10, 1, [&](int64_t b, int64_t e) {
      EXPECT_EQ(std::this_thread::get_id(), outer);
      for (int64_t i = b; i < e; ++i) sum += 10 * begin + i;
    });
  });
  EXPECT_EQ(sum, 79 * 80 / 2);
}

TEST(ThreadPool, CallersMayTakeTurns) {
  ThreadPool pool(2);
  std::vector<int> values(1000, 0);
  for (int turn = 0; turn < 4; ++turn) {
    std::thread([&] {
      pool.ParallelFor(1000, 10, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++values[i];
      });
    }).join();
  }
  EXPECT_EQ(std::accumulate(values.begin(), values.end(), 0), 4000);
}

TEST(ThreadPoolDeathTest, TwoCallersAtOnceAreOurBug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        ThreadPool pool(2);
        pool.ParallelFor(2, 1, [&](int64_t, int64_t) {
          std::thread([&] { pool.ParallelFor(2, 1, [](int64_t, int64_t) {}); }).join();
        });
      },
      "two callers");
}

}  // namespace
}  // namespace signalbox
