// SPDX-License-Identifier: Apache-2.0
//
// The commands of the program, one function each. A command prints its result on stdout, everything
// else on stderr, and returns what the exit code is made of.
//
//   Status s = RunCommand(invocation);   // ExitCode(s.code())
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "signalbox/base/status.h"
#include "signalbox/cli/flags.h"
#include "signalbox/server/service.h"

namespace signalbox {

Status RunCommand(const Invocation& invocation);

Status RunGenerate(const Invocation& invocation);
Status RunChat(const Invocation& invocation);
Status RunServe(const Invocation& invocation);
Status RunEval(const Invocation& invocation);
Status RunVerify(const Invocation& invocation);
Status RunPlan(const Invocation& invocation);
Status RunBackends(const Invocation& invocation);
Status RunMatrix(const Invocation& invocation);
Status RunInspect(const Invocation& invocation);
Status RunSynth(const Invocation& invocation);
Status RunEnv(const Invocation& invocation);
Status RunBench(const Invocation& invocation);
Status RunCompletions(const Invocation& invocation);
Status RunFlags(const Invocation& invocation);

// What the flags say about the engine; notes go to stderr.
Result<EngineOptions> EngineOptionsOf(const FlagValues& flags, int64_t parallel);
// Told of each phase of loading and how far it is; `total` 0: not known.
using OnLoadPhase = std::function<void(std::string_view phase, int64_t done, int64_t total)>;
// Loads the model of a command with progress on stderr, and serves it. Null in a process that is
// not the leading rank, once the leading one is done.
Result<std::unique_ptr<Service>> LoadService(const Invocation& invocation,
                                             const ServiceOptions& service,
                                             const OnLoadPhase& on_phase = {});

}  // namespace signalbox
