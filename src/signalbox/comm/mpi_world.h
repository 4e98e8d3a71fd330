// SPDX-License-Identifier: Apache-2.0
//
// The communicator of ranks that are processes, over MPI (`mpirun -n 4 signalbox ...`).
//
// Only point-to-point messages are used: MPI's own reductions may add in any order, and creating a
// sub-communicator blocks for ever when a rank takes another path. Before the data of a call the
// members exchange their tags, one small message per pair. A sum is a gather of the parts that a
// rank reduces, added in ascending group order: an all-reduce of S bytes over n ranks moves
// 2 S (n-1) / n bytes per rank, as a ring does, in 2 (n-1) messages, and needs S bytes of scratch
// memory; up to kDirectBytes it moves S (n-1) bytes in n-1 messages.
//
// A waiting rank polls, at first without pause, then every 50 microseconds. One rank that fails
// tells all others. MPI is asked for MPI_THREAD_SERIALIZED: every call, Abort included, comes from
// the thread that created the world.
//
//   if (MpiLaunched()) return RunMpi({}, [&](Communicator& comm) { return Serve(comm, plan); });
#pragma once

#include <functional>
#include <memory>

#include "signalbox/comm/communicator.h"

namespace signalbox {

// Whether an MPI launcher started this process, by its environment; initialises nothing.
bool MpiLaunched();

// How many of the launcher's processes share this host, by the environment; 1 where nobody says.
int MpiProcessesHere();

// A communicator over all processes that were started together; initialises MPI if nobody has. All
// of them must call it, in the same order. Refused: built without MPI.
Result<std::unique_ptr<Communicator>> CreateMpiCommunicator(const CommOptions& options);

// Runs `fn` as this process's rank, and finalises MPI. When `fn` fails, the other ranks are told,
// the error is printed on standard error and the whole job is ended with its exit code; the call
// does not return. Refused: built without MPI.
Status RunMpi(const CommOptions& options, const std::function<Status(Communicator&)>& fn);

}  // namespace signalbox
