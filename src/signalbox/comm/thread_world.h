// SPDX-License-Identifier: Apache-2.0
//
// ThreadWorld: ranks that are threads of one process and read each other's buffers.
//
// A call costs two meetings (all are here; all have read), an all-reduce above kDirectBytes three,
// because each member then reduces one part and collects the others. A waiting rank spins for some
// microseconds and then sleeps, so that many ranks share few cores. A rank whose communicator is
// destroyed has left: calls that wait for it end at once.
//
//   Status s = RunRanks(4, {}, [&](Communicator& comm) { return Serve(comm, plan); });
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "signalbox/comm/communicator.h"

namespace signalbox {

inline constexpr int kMaxThreadRanks = 256;

class ThreadWorld {
 public:
  // The communicators of ranks 0 .. n-1. InvalidArgument: n outside 1 .. kMaxThreadRanks.
  static Result<std::vector<std::unique_ptr<Communicator>>> Create(int n,
                                                                   const CommOptions& options);
};

// Runs `fn` as ranks 0 .. n-1, each on a thread of its own, and returns the error that came first,
// with its rank. An error or an exception of one rank aborts the world. Where the machine has
// several NUMA nodes each thread, and those it starts, stay on one of them.
// A rank that neither returns nor calls its communicator cannot be ended from outside: the call
// waits for it.
Status RunRanks(int n, const CommOptions& options, const std::function<Status(Communicator&)>& fn);

// Calls `fn`; an exception becomes Internal.
Status CallCatching(const std::function<Status(Communicator&)>& fn, Communicator& comm);

}  // namespace signalbox
