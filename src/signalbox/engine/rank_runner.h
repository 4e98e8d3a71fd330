// SPDX-License-Identifier: Apache-2.0
//
// RankRunner: one rank of a model. It holds the rank's weights, cache memory and device, and runs
// steps of new tokens through the plans of its layout. Every rank is handed the same step and finds
// its own part in it. It knows no sequence: a step names the pages and slots that it works on.
//
// Errors: kInvalidArgument for ids outside the vocabulary and positions outside the context, the
// same on every rank; nothing has changed then. Others end the rank's part in the world.
//
//   SB_ASSIGN_OR_RETURN(auto runner, RankRunner::Create(setup, std::move(ops)));
//   SB_ASSIGN_OR_RETURN(StepOutput out, runner->Execute(step));   // out.logits on rank 0
#pragma once

#include <memory>
#include <vector>

#include "signalbox/base/ids.h"
#include "signalbox/base/status.h"
#include "signalbox/cache/cache_pool.h"
#include "signalbox/engine/cache_sizing.h"
#include "signalbox/engine/layer_executor.h"
#include "signalbox/engine/rank_team.h"
#include "signalbox/engine/step_command.h"
#include "signalbox/model/config.h"
#include "signalbox/model/layout_facts.h"
#include "signalbox/model/weights.h"
#include "signalbox/plan/planner.h"

namespace signalbox {

// What all ranks share; everything pointed to outlives the runner.
struct RankSetup {
  const Checkpoint* checkpoint = nullptr;
  const ModelFacts* facts = nullptr;
  const ModelLayout* model = nullptr;  // which kind a layer is
  const LayoutPlan* layout = nullptr;  // how a kind runs
  Communicator* comm = nullptr;        // null on one rank
  CacheBudget budget;
  DType kv_dtype = DType::kF32;  // of keys and values in the cache
  ActivationPrecision expert_activations = ActivationPrecision::kFloat;
  bool chunked_delta = false;
  bool expand_latents = false;
  bool bf16_rope = false;
  bool first_replica = false;
  RowFaults row_faults;  // deliberate mistakes of the fault gallery
};

class RankRunner final : public Rank {
 public:
  // Collective: sets up the exchanges of the layout.
  static Result<std::unique_ptr<RankRunner>> Create(const RankSetup& setup,
                                                    std::unique_ptr<Ops> ops,
                                                    const LoadProgress& progress = {});

  Result<StepOutput> Execute(const StepCommand& command) override;
  bool has_draft() const { return weights_.mtp.has_value(); }

  const ModelFacts& facts() const { return facts_; }
  const ModelWeights& weights() const { return weights_; }
  Ops& ops() { return *ops_; }
  CachePool& cache() { return *cache_; }
  const CachePool& cache() const { return *cache_; }
  // What it has mapped and reserved.
  RankMemory memory() const;
  // Sees every step of every layer on this rank; empty to switch off.
  void set_observer(StepObserver observer) { observer_ = std::move(observer); }

 private:
  // Rows of one window of the step, and the part that has them.
  struct Piece {
    int part;
    int64_t rows;
  };
  // What a step turns into on the way through the layers: this rank's part of it.
  struct Flat {
    std::vector<int32_t> ids;
    std::vector<int32_t> positions;
    std::vector<SequenceSpan> spans;
    std::vector<const Window*> windows;
    std::vector<const int32_t*> block_tables;
    std::vector<int64_t> places;  // in the step
    std::vector<int64_t> wanted;  // own tokens that logits are asked for
    BatchParts parts;             // tokens of all parts
    std::vector<Piece> logits;    // of all parts
    std::vector<Piece> tokens;
    Phase phase = Phase::kPrefill;
    bool rolls_back = false;  // windows say where states go after each token
  };

  RankRunner(const RankSetup& setup, std::unique_ptr<Ops> ops);
  WeightShards ShardsOf(const LayerCut& cut) const;
  Status Build();
  Status BuildExchanges();
  Status Check(const StepCommand& command) const;
  Flat Flatten(const StepCommand& command) const;
  Result<StepOutput> Run(const StepCommand& command);
  // One pass of the draft module. Logits predict the token after the given one; hidden is its
  // normed output. REQUIRES: has_draft(), and hidden rows of the step before.
  Result<StepOutput> RunDraft(const StepCommand& command);
  // Logits and hidden rows that the step asks for, from those of this part.
  Status Answer(const StepCommand& command, const Flat& flat, StepOutput* output);
  MathContext Context();
  Status RunLayer(size_t layer, const Flat& flat, const RowLayout& rows, SnapshotBank* bank,
                  float* x);
  void Record(size_t layer, const Flat& flat, const RowLayout& rows, const float* x,
              std::vector<ExitAddend> addends);
  // On rank 0 those of all ranks.
  Result<std::vector<std::vector<int64_t>>> CollectPairs();
  Status CollectTrace(std::vector<AddendTrace>* trace);
  // y [rows.size(), hidden] <- what the head reads, for some rows of x.
  void FinalNorm(const float* x, const SnapshotBank& bank, std::span<const int64_t> rows, float* y);
  void Logits(const float* normed, int64_t rows, std::vector<float>* out);
  // rows: this part's rows of `pieces` on entry; on rank 0 those of all parts on return, in order
  // of the pieces.
  Status Collect(std::span<const Piece> pieces, int64_t width, std::vector<float>* rows);
  bool leads_part() const { return mesh().Position(rank_, layout_.parallel.attn_tp) == 0; }
  const Mesh& mesh() const { return layout_.mesh(); }

  const Checkpoint& checkpoint_;
  const ModelFacts& facts_;
  const ModelLayout& model_;
  const LayoutPlan& layout_;
  Communicator* comm_;
  const RankSetup setup_;
  const RankId rank_;
  int part_ = 0;  // own position over attn_dp
  int parts_ = 1;
  ModelWeights weights_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<CachePool> cache_;
  Scratch scratch_;
  StepObserver observer_;
  std::vector<size_t> cache_of_layer_;  // [layers + draft]: index among its kind
  std::vector<RopeTable> ropes_;        // [layers + draft], empty for linear layers
  std::vector<std::optional<ExpertPlacement>> placements_;               // [kinds]
  std::vector<std::vector<std::unique_ptr<ExpertExchange>>> exchanges_;  // [kinds][phases]
  std::vector<std::vector<int64_t>> pairs_;  // [layers + draft][slots]: LayerRun::pairs
  std::vector<float> kept_;                  // [own tokens of the step before, hidden]
  std::vector<int64_t> kept_places_;         // their places in it, ascending
  bool tracing_ = false;                     // the command at hand
  int64_t layer_limit_ = 0;
  std::vector<AddendTrace> trace_;
};

}  // namespace signalbox
