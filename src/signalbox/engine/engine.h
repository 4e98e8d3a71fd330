// SPDX-License-Identifier: Apache-2.0
//
// Engine: a loaded model behind one call per step, whatever ranks and devices carry it.
//
// Errors: as RankRunner, kBadCheckpoint from loading, kRefused for devices and layouts that cannot
// work.
//
//   SB_ASSIGN_OR_RETURN(auto engine, Engine::Load("models/tiny", {.threads = 2}));
//   SB_ASSIGN_OR_RETURN(StepOutput out, engine->Run(batch));
#pragma once

#include <memory>
#include <string>

#include "signalbox/base/status.h"
#include "signalbox/engine/rank_runner.h"
#include "signalbox/model/config.h"
#include "signalbox/tensor/checkpoint.h"

namespace signalbox {

enum class Device : uint8_t { kCpu, kReference };

struct EngineOptions {
  Device device = Device::kCpu;
  int threads = 1;
  // Zero: room for 4 sequences of the model's context, at most 16,384 tokens.
  CacheBudget budget;
  // Chunk form of the delta rule in prefill: faster, but how a prompt was cut shows in the last
  // bits. The recurrent form gives a token the same result whatever its batch mates and chunks are.
  bool chunked_delta = false;
};

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> Load(const std::string& directory,
                                              const EngineOptions& options,
                                              const LoadProgress& progress = {});

  Result<StepOutput> Run(const StepBatch& batch) { return runner_->Run(batch); }
  Result<StepOutput> RunDraft(const std::vector<DraftStep>& steps) {
    return runner_->RunDraft(steps);
  }
  bool has_draft() const { return runner_->has_draft(); }

  const ModelConfig& config() const { return config_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  RankRunner& runner() { return *runner_; }

 private:
  Engine(Checkpoint checkpoint, ModelConfig config)
      : checkpoint_(std::move(checkpoint)), config_(std::move(config)) {}

  Checkpoint checkpoint_;
  ModelConfig config_;
  std::unique_ptr<RankRunner> runner_;
};

}  // namespace signalbox
