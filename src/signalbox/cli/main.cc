// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdio>
#include <exception>

#include "signalbox/cli/commands.h"
#include "signalbox/cli/layout_flags.h"
#include "signalbox/comm/mpi_world.h"

namespace {

int Run(int argc, char** argv) {
  using signalbox::Status;
  auto invocation = signalbox::ParseCommandLine(argc, argv);
  Status status = invocation.status();
  if (invocation.ok()) {
    if (!invocation->message.empty()) {
      fmt::print("{}", invocation->message);
      return 0;
    }
    const auto run = [&](signalbox::Communicator& processes) {
      invocation->processes = &processes;
      return signalbox::RunCommand(*invocation);
    };
    signalbox::CommOptions options;
    if (invocation->flags.Knows("rank-timeout"))
      options.deadline = signalbox::RankTimeoutOf(invocation->flags);
    status = signalbox::MpiLaunched() ? signalbox::RunMpi(options, run)
                                      : signalbox::RunCommand(*invocation);
  }
  if (status.ok()) return 0;
  fmt::print(stderr, "signalbox: {}\n", status.message());
  return signalbox::ExitCode(status.code());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Run(argc, argv);
  } catch (const std::exception& e) {  // out of memory, or a fault of ours
    std::fprintf(stderr, "signalbox: internal error: %s\n", e.what());
    return 1;
  }
}
