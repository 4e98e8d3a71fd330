// SPDX-License-Identifier: Apache-2.0
//
// RankTeam: the ranks of an engine behind one call. Ranks are threads of this process that wait for
// commands, or processes that are sent them; each runs every command, and the leading rank's answer
// is the team's.
//
// A command that all ranks refuse alike (a full cache, a wrong id) leaves the team as it was. When
// ranks part ways (one fails, dies or is late) the team has ended: this and every later call
// returns why. kDeadlineExceeded names the ranks that have not answered: one that waits for others
// is ended by the communicator's deadline; one that neither answers nor finishes a collective call
// by the team's own, a quarter longer so that the first has its say. The making of the ranks has no
// deadline of its own.
//
//   SB_ASSIGN_OR_RETURN(auto team, RankTeam::StartThreads(2, {}, make_rank));
//   SB_ASSIGN_OR_RETURN(StepOutput out, team->Execute(step));
#pragma once

#include <functional>
#include <memory>

#include "signalbox/base/status.h"
#include "signalbox/comm/communicator.h"
#include "signalbox/engine/step_command.h"

namespace signalbox {

// One rank's work: executes commands. Made and used by the rank's own thread.
class Rank {
 public:
  virtual ~Rank() = default;
  virtual Result<StepOutput> Execute(const StepCommand& command) = 0;
};
using MakeRank = std::function<Result<std::unique_ptr<Rank>>(Communicator& comm)>;

class RankTeam {
 public:
  virtual ~RankTeam() = default;

  // Returns when every rank has been made. The destructor waits for a rank that is stuck.
  static Result<std::unique_ptr<RankTeam>> StartThreads(int ranks, const CommOptions& options,
                                                        const MakeRank& make);
  // This process is one rank of `comm`, which must outlive the team and has the deadline.
  static Result<std::unique_ptr<RankTeam>> JoinProcesses(Communicator& comm, const MakeRank& make);

  // Whether this process gives commands; the others Follow().
  virtual bool leads() const = 0;
  // REQUIRES: leads().
  virtual Result<StepOutput> Execute(const StepCommand& command) = 0;
  // Executes commands until the leading rank stops, and waits for them without a deadline.
  // REQUIRES: !leads().
  virtual Status Follow() = 0;
};

// Errors that all ranks report alike and survive.
bool IsRefusal(const Status& status);

}  // namespace signalbox
