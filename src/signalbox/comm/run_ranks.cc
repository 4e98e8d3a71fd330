// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <exception>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "signalbox/comm/numa.h"
#include "signalbox/comm/thread_world.h"

namespace signalbox {

Status CallCatching(const std::function<Status(Communicator&)>& fn, Communicator& comm) {
  std::string what = "an exception of unknown type";
  try {
    return fn(comm);
  } catch (const std::exception& e) {
    what = e.what();
  } catch (...) {
  }
  return Internal({.what = "a rank threw", .found = what});
}

Status RunRanks(int n, const CommOptions& options, const std::function<Status(Communicator&)>& fn) {
  auto created = ThreadWorld::Create(n, options);
  if (!created.ok()) return created.status();
  std::vector<std::unique_ptr<Communicator>> ranks = std::move(created).value();
  const std::vector<CpuSet> nodes = NumaNodes("/sys/devices/system/node");

  std::mutex mutex;
  std::optional<Status> first;
  const auto fail = [&](Communicator& comm, const Status& status) {
    {
      std::lock_guard lock(mutex);
      if (!first) first = status.At(fmt::format("rank {}", comm.rank().value()));
    }
    comm.Abort(status);
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) {
    const auto body = [&, r] {
      if (nodes.size() > 1) BindThisThread(nodes[r * nodes.size() / n]);
      if (Status s = CallCatching(fn, *ranks[r]); !s.ok()) fail(*ranks[r], s);
      ranks[r].reset();  // whoever still waits for this rank need not wait for the deadline
    };
    try {
      threads.emplace_back(body);
    } catch (const std::system_error& e) {
      fail(*ranks[r], ResourceExhausted({.what = fmt::format("cannot start {} threads", n),
                                         .found = e.what(),
                                         .remedy = "use fewer ranks"}));
      break;
    }
  }
  for (std::thread& t : threads) t.join();
  return first.value_or(OkStatus());
}

}  // namespace signalbox
