// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/engine.h"

#include <algorithm>

namespace signalbox {
namespace {

Result<std::unique_ptr<Ops>> MakeOps(const EngineOptions& options) {
  if (options.device == Device::kReference) return MakeReferenceOps();
  return MakeCpuOps({.threads = options.threads});
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Load(const std::string& directory,
                                             const EngineOptions& options,
                                             const LoadProgress& progress) {
  SB_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(directory));
  SB_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(directory));
  std::unique_ptr<Engine> engine(new Engine(std::move(checkpoint), std::move(config)));
  SB_ASSIGN_OR_RETURN(std::unique_ptr<Ops> ops, MakeOps(options));
  RunnerOptions runner{.budget = options.budget, .chunked_delta = options.chunked_delta};
  if (runner.budget.sequences == 0) runner.budget.sequences = 4;
  if (runner.budget.tokens == 0) {
    runner.budget.tokens =
        std::min<int64_t>(runner.budget.sequences * engine->config_.facts.max_position, 16384);
  }
  SB_ASSIGN_OR_RETURN(engine->runner_,
                      RankRunner::Create(engine->checkpoint_, engine->config_.facts, std::move(ops),
                                         runner, progress));
  return engine;
}

}  // namespace signalbox
