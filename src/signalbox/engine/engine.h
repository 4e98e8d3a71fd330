// SPDX-License-Identifier: Apache-2.0
//
// Engine: a loaded model behind one call per step, whatever ranks and devices carry it. The layout
// is planned and proved before weights are touched.
//
// Errors: as RankRunner, kBadCheckpoint from loading, kRefused for devices and layouts that cannot
// work.
//
//   SB_ASSIGN_OR_RETURN(auto engine, Engine::Load("models/tiny", {.threads = 2}));
//   SB_ASSIGN_OR_RETURN(StepOutput out, engine->Run({.sequences = {{.sequence = 7, .tokens =
//   ids}}}));
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "signalbox/base/status.h"
#include "signalbox/engine/expert_load.h"
#include "signalbox/engine/rank_runner.h"
#include "signalbox/engine/rank_team.h"
#include "signalbox/engine/sequence_table.h"
#include "signalbox/model/config.h"
#include "signalbox/model/layout_facts.h"
#include "signalbox/plan/faults.h"
#include "signalbox/plan/planner.h"
#include "signalbox/tensor/checkpoint.h"

namespace signalbox {

enum class Device : uint8_t { kCpu, kReference };

// What the user asked of the layout.
struct LayoutOptions {
  ParallelConfig parallel;
  std::array<std::optional<Contract>, 3> contracts;  // by phase
  PlanLimits limits;
  SharedChoice shared = SharedChoice::kAuto;
  std::span<const RunnerTerms> runners = StandardRunners();  // that may be chosen
};

struct PlannedModel {
  ModelLayout model;
  LayoutPlan layout;
};
// Why the numbers of a token may depend on the phase that it is computed in; OK where they cannot:
// all phases take the same steps, through the same contract.
Status SameInAllPhases(const LayoutPlan& layout);

// Reads headers only, no weights. `kv_dtype`: as EngineOptions', for the memory of a rank.
Result<PlannedModel> PlanModel(const Checkpoint& checkpoint, const ModelFacts& facts,
                               const LayoutOptions& options, DType kv_dtype = DType::kF32);

struct EngineOptions {
  Device device = Device::kCpu;
  int threads = 1;      // of all ranks together
  int64_t context = 0;  // tokens of a sequence at most; 0: as many as the model has positions
  // Of each part; zeroes are filled in by SizeCache. Slots for roll-back follow from the layout's
  // drafts.
  CacheBudget budget;
  // Bytes for the weights and the cache of the ranks in this process; 0: no limit. Processes take
  // what the one with the least can have.
  int64_t memory = 0;
  // Prompts start from what others have computed; off, no snapshots are kept.
  bool prefix_cache = true;
  // How long ranks that are threads wait for one another (RankTeam).
  std::chrono::milliseconds rank_timeout = CommOptions{}.deadline;
  // What the cache holds keys and values in: kF32, kBf16 or kF8E4m3 (KvView).
  DType kv_dtype = DType::kF32;
  // Of routed experts in MXFP4, and of a shared expert in one of their slots: kInt8 is faster and
  // rounds what they are given (ops/int8.h).
  ActivationPrecision expert_activations = ActivationPrecision::kFloat;
  // Chunk form of the delta rule in prefill: faster, but how a prompt was cut shows in the last
  // bits. The recurrent form gives a token the same result whatever its batch mates and chunks are.
  bool chunked_delta = false;
  // Latent attention makes the keys and values of all heads in prefill steps, instead of moving
  // queries to the latent space; the same effect in the last bits.
  bool expand_latents = false;
  // Rotary frequencies rounded to BF16, for references of a library that cast the whole model; in
  // fp32 otherwise, as models are served.
  bool bf16_rope = false;
  // What a request gets does not depend on its batch mates, on how its prompt was cut, on prefix
  // hits or on drafts, bit for bit. Refused where a layout or an option cannot promise that.
  bool deterministic = false;
  LayoutOptions layout;
  // A mistake to make on purpose, past the checker.
  std::optional<LayoutFault> fault;
  // Ranks are processes of this world instead of threads; it outlives the engine.
  Communicator* processes = nullptr;
};

// Makes the model's positions as many as `context`, if that is not 0. kRefused for more than it
// has.
Status LimitContext(int64_t context, ModelFacts* facts);

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> Load(const std::string& directory,
                                              const EngineOptions& options,
                                              const LoadProgress& progress = {});

  // Whether this process gives commands. The others Follow() until the leading one is done.
  bool leads() const { return team_ == nullptr || team_->leads(); }
  Status Follow() { return team_->Follow(); }

  // One step; the caller has accounts() to say which pages and slots it may name.
  Result<StepOutput> Execute(const StepCommand& command) {
    return team_ == nullptr ? alone_->Execute(command) : team_->Execute(command);
  }
  // Steps of sequences by name, with pages and slots found for them.
  struct RunOptions {
    bool trace = false;
    int64_t layers = 0;
  };
  Result<StepOutput> Run(const StepBatch& batch) { return Run(batch, {}); }
  Result<StepOutput> Run(const StepBatch& batch, const RunOptions& options);
  Result<StepOutput> RunDraft(const std::vector<DraftStep>& steps, bool trace = false);
  // Asks all ranks, between steps; the draft layer comes last.
  Result<ExpertLoad> ExpertLoadSoFar();
  // Tokens that the draft layer guesses for a sequence in a step, as planned; 0: it is not used.
  int64_t drafts() const { return drafts_; }
  bool has_draft() const { return ranks_.front()->has_draft(); }

  const ModelConfig& config() const { return config_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  const PlannedModel& planned() const { return planned_; }
  // What EngineOptions::fault has made of the layout.
  const std::optional<FaultyLayout>& faulty() const { return faulty_; }
  // Of each part.
  const CacheBudget& budget() const { return budget_; }
  bool prefix_cache() const { return prefix_cache_; }
  DType kv_dtype() const { return kv_dtype_; }
  ActivationPrecision expert_activations() const { return expert_activations_; }
  // Who has what of the cache, by part.
  std::vector<CacheAccount>& accounts() { return accounts_; }
  // Most tokens of a step that has prompt tokens.
  int64_t prefill_chunk() const { return prefill_chunk_; }
  // The ranks in this process, in order.
  const std::vector<RankRunner*>& ranks() const { return ranks_; }
  RankRunner& runner() { return *ranks_.front(); }

 private:
  Engine(Checkpoint checkpoint, ModelConfig config)
      : checkpoint_(std::move(checkpoint)), config_(std::move(config)) {}
  Status Start(const EngineOptions& options, const LoadProgress& progress);
  Status FillBudget(const EngineOptions& options);

  Checkpoint checkpoint_;
  ModelConfig config_;
  PlannedModel planned_;
  std::optional<FaultyLayout> faulty_;
  CacheBudget budget_;
  bool prefix_cache_ = true;
  DType kv_dtype_ = DType::kF32;
  ActivationPrecision expert_activations_ = ActivationPrecision::kFloat;
  std::vector<CacheAccount> accounts_;
  std::unique_ptr<SequenceTable> named_;
  int64_t prefill_chunk_ = 0;
  int64_t drafts_ = 0;
  std::unique_ptr<RankRunner> alone_;  // one rank that exchanges nothing needs no team
  std::vector<RankRunner*> ranks_;
  std::unique_ptr<RankTeam> team_;
};

}  // namespace signalbox
