// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/task_queue.h"

#include <utility>

#include "signalbox/base/check.h"

namespace signalbox {

TaskQueue::TaskQueue(int threads) {
  SB_CHECK(threads >= 1);
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

TaskQueue::~TaskQueue() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

void TaskQueue::Add(Clock::time_point due, Task task) {
  std::lock_guard lock(mutex_);
  tasks_.emplace(due, std::move(task));
  changed_.notify_one();
}

void TaskQueue::Run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (tasks_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const Clock::time_point due = tasks_.begin()->first;
    if (due > Clock::now()) {
      changed_.wait_until(lock, due);
      continue;
    }
    Task task = std::move(tasks_.extract(tasks_.begin()).mapped());
    lock.unlock();
    task();
    task = nullptr;  // what it holds goes before the next one is waited for
    lock.lock();
  }
}

}  // namespace signalbox
