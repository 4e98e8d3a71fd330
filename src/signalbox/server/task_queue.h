// SPDX-License-Identifier: Apache-2.0
//
// TaskQueue: a few threads for work that must not hold up the thread that has it: what takes long,
// and what is to happen later.
//
//   TaskQueue queue(2);
//   queue.Post([=] { Parse(body); });
//   queue.PostAfter(std::chrono::seconds(5), [=] { GiveUp(); });
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace signalbox {

class TaskQueue {
 public:
  using Task = std::function<void()>;

  // REQUIRES: threads >= 1.
  explicit TaskQueue(int threads);
  // Waits for what has begun; the rest is dropped.
  ~TaskQueue();
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  // Tasks begin in the order in which they are due. They must not throw.
  void Post(Task task) { Add(Clock::time_point::min(), std::move(task)); }
  void PostAfter(std::chrono::milliseconds delay, Task task) {
    Add(Clock::now() + delay, std::move(task));
  }

 private:
  using Clock = std::chrono::steady_clock;

  void Add(Clock::time_point due, Task task);
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::multimap<Clock::time_point, Task> tasks_;  // by when they are due
  bool stopping_ = false;
  std::vector<std::thread> threads_;  // last: they use all above
};

}  // namespace signalbox
