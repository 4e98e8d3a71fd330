// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/task_queue.h"

#include <gtest/gtest.h>

#include <future>

namespace signalbox::task_queue_test {
namespace {

using std::chrono::milliseconds;

TEST(TaskQueue, BeginsTasksInTheOrderInWhichTheyAreDue) {
  std::vector<int> order;
  std::promise<void> done;
  TaskQueue queue(1);
  queue.PostAfter(milliseconds(60), [&] { done.set_value(); });
  queue.PostAfter(milliseconds(20), [&] { order.push_back(3); });
  queue.Post([&] { order.push_back(1); });
  queue.Post([&] { order.push_back(2); });
  done.get_future().get();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST(TaskQueue, ALongTaskHoldsUpNobodyElse) {
  std::promise<void> release, done;
  TaskQueue queue(2);
  queue.Post([&] { release.get_future().get(); });
  queue.Post([&] { done.set_value(); });
  done.get_future().get();
  release.set_value();
}

TEST(TaskQueue, WhatHasNotBegunIsDropped) {
  auto held = std::make_shared<int>(1);
  bool ran = false;
  {
    TaskQueue queue(1);
    queue.PostAfter(std::chrono::hours(1), [held, &ran] { ran = true; });
  }
  EXPECT_FALSE(ran);
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace signalbox::task_queue_test
