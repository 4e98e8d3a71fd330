// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cli/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "signalbox/base/check.h"
#include "signalbox/base/progress.h"
#include "signalbox/cli/layout_flags.h"
#include "signalbox/cli/model_flags.h"
#include "signalbox/comm/communicator.h"
#include "signalbox/engine/verify.h"

namespace signalbox {
namespace {

// Size of the weights on disk, for the progress line; 0 when it cannot be told.
int64_t WeightBytes(const std::string& directory) {
  int64_t bytes = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (entry.path().extension() == ".safetensors")
      bytes += static_cast<int64_t>(entry.file_size(error));
  }
  return bytes;
}

// A layout of one rank has nothing to be compared with.
Status CheckAtStart(Engine& engine, const std::string& directory, bool quiet) {
  if (engine.planned().layout.mesh().ranks() == 1) return OkStatus();
  const auto start = std::chrono::steady_clock::now();
  SB_ASSIGN_OR_RETURN(const VerifyReport report, StartupCheck(engine, directory));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  if (!quiet) {
    fmt::print(stderr, "start-up check: {} layers as on one rank, largest error {:.1e}, {:.2f} s\n",
               report.layers.size(), report.worst, took.count());
  }
  return OkStatus();
}

bool Leads(const Invocation& invocation) {
  return invocation.processes == nullptr || invocation.processes->rank() == RankId(0);
}

void PrintNotes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) fmt::print(stderr, "signalbox: note: {}\n", note);
}

}  // namespace

Status RunCommand(const Invocation& invocation) {
  const std::string& name = invocation.command;
  if (Leads(invocation)) PrintNotes(invocation.notes);
  if (invocation.flags.Knows("launcher") && name != "plan")
    SB_RETURN_IF_ERROR(CheckLauncher(invocation.flags, invocation.processes != nullptr));
  if (invocation.flags.Knows("tokenizer-path") && !invocation.positionals[0].empty())
    SB_RETURN_IF_ERROR(CheckModelFlags(invocation.flags, invocation.positionals[0]));
  if (name == "serve") return RunServe(invocation);
  if (name == "generate") return RunGenerate(invocation);
  if (name == "chat") return RunChat(invocation);
  if (name == "eval") return RunEval(invocation);
  if (name == "plan") return RunPlan(invocation);
  if (name == "backends") return RunBackends(invocation);
  if (name == "verify") return RunVerify(invocation);
  if (name == "matrix") return RunMatrix(invocation);
  if (name == "inspect") return RunInspect(invocation);
  if (name == "synth") return RunSynth(invocation);
  if (name == "env") return RunEnv(invocation);
  if (name.starts_with("bench ")) return RunBench(invocation);
  if (name == "completions") return RunCompletions(invocation);
  if (name == "flags") return RunFlags(invocation);
  SB_CHECK(name == "version") << name;
  fmt::print("signalbox {}\n", SIGNALBOX_VERSION);
  return OkStatus();
}

Result<EngineOptions> EngineOptionsOf(const FlagValues& flags, int64_t parallel) {
  std::vector<std::string> notes;
  auto options = EngineOptionsOf(flags, parallel, &notes);
  PrintNotes(notes);
  return options;
}

Result<std::unique_ptr<Service>> LoadService(const Invocation& invocation,
                                             const ServiceOptions& service,
                                             const OnLoadPhase& on_phase) {
  const std::string& directory = invocation.positionals[0];
  const bool quiet = invocation.flags.Switch("quiet") || !Leads(invocation);
  SB_ASSIGN_OR_RETURN(EngineOptions options, EngineOptionsOf(invocation.flags, service.parallel));
  int64_t& running = options.layout.limits.max_running_requests;
  if (running == 0) running = service.parallel;
  options.processes = invocation.processes;
  const auto start = std::chrono::steady_clock::now();
  const int64_t total = WeightBytes(directory);
  const auto tell = [&](std::string_view phase, int64_t done, int64_t of) {
    if (on_phase) on_phase(phase, done, of);
  };
  Progress progress(
      {.label = "loading", .total = total, .unit = Progress::Unit::kBytes, .quiet = quiet});
  tell("reading weights", 0, total);
  auto model = TextModel::Load(directory, options, [&](int64_t bytes) {
    progress.Update(bytes);
    tell("reading weights", bytes, total);
  });
  progress.Finish();
  if (model.ok() && !(*model)->engine().leads()) {
    SB_RETURN_IF_ERROR((*model)->engine().Follow());
    return std::unique_ptr<Service>();
  }
  if (model.ok() && !quiet) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    Engine& engine = (*model)->engine();
    fmt::print(stderr, "{}: {} layers, device {}, {:.2f} s\n{}", engine.config().facts.family,
               engine.config().facts.layers.size(), engine.runner().ops().name(), took.count(),
               MemoryText(invocation.flags, engine.runner().memory(),
                          engine.planned().layout.mesh().ranks(), engine.budget().tokens));
  }
  tell("start-up check", 0, 0);
  if (model.ok() && !invocation.flags.Switch("no-startup-check"))
    SB_RETURN_IF_ERROR(CheckAtStart((*model)->engine(), directory, quiet));
  if (!model.ok()) return model.status();
  return Service::Start(std::move(*model), service);
}

}  // namespace signalbox
