// SPDX-License-Identifier: Apache-2.0
//
// RankRunner: one rank of a model. It holds the rank's weights, caches and device, and runs batches
// of new tokens through the plans of its layout. Every rank is handed the same batch and finds its
// own part in it.
//
// Errors: kResourceExhausted when the cache is full (no sequence has advanced then),
// kInvalidArgument for ids outside the vocabulary; the same on every rank. Others end the rank's
// part in the world.
//
//   SB_ASSIGN_OR_RETURN(auto runner, RankRunner::Create(setup, std::move(ops)));
//   SB_ASSIGN_OR_RETURN(StepOutput out, runner->Run(batch));   // out.logits [1, vocab] on rank 0
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "signalbox/base/ids.h"
#include "signalbox/base/status.h"
#include "signalbox/cache/cache_pool.h"
#include "signalbox/engine/layer_executor.h"
#include "signalbox/engine/rank_team.h"
#include "signalbox/engine/step_batch.h"
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
  bool chunked_delta = false;
  bool expand_latents = false;
  bool bf16_rope = false;
  RowFaults row_faults;  // deliberate mistakes of the fault gallery
};

class RankRunner final : public Rank {
 public:
  // Collective: sets up the exchanges of the layout.
  static Result<std::unique_ptr<RankRunner>> Create(const RankSetup& setup,
                                                    std::unique_ptr<Ops> ops,
                                                    const LoadProgress& progress = {});

  Result<StepOutput> Execute(const StepCommand& command) override;
  Result<StepOutput> Run(const StepBatch& batch);
  // One pass of the draft module. logits [n, vocab] predict the token after the given one; hidden
  // [n, hidden] is its normed output. REQUIRES: has_draft().
  Result<StepOutput> RunDraft(const std::vector<DraftStep>& steps);
  bool has_draft() const { return weights_.mtp.has_value(); }

  const ModelFacts& facts() const { return facts_; }
  const ModelWeights& weights() const { return weights_; }
  Ops& ops() { return *ops_; }
  CachePool& cache() { return *cache_; }
  // Sees every step of every layer on this rank; empty to switch off.
  void set_observer(StepObserver observer) { observer_ = std::move(observer); }

 private:
  // Rows of one sequence of the batch, and the part that has them.
  struct Piece {
    int part;
    int64_t rows;
  };
  struct Span {
    int64_t sequence;
    int64_t past;
    std::span<const TokenId> tokens;
  };
  // What a batch turns into on the way through the layers: this rank's part of it.
  struct Flat {
    std::vector<int32_t> ids;
    std::vector<int32_t> positions;
    std::vector<SequenceSpan> spans;
    std::vector<SequenceCache*> caches;
    std::vector<const int32_t*> block_tables;
    std::vector<int64_t> places;  // in the batch
    BatchParts parts;             // tokens of all parts
    Phase phase = Phase::kPrefill;
  };

  RankRunner(const RankSetup& setup, std::unique_ptr<Ops> ops);
  WeightShards ShardsOf(const LayerCut& cut) const;
  Status Build();
  Status BuildExchanges();
  int PartOf(int64_t sequence);
  Status Admit(const StepBatch& batch);
  Status AgreeOn(const Status& mine);
  Status CheckTokens(const SequenceStep& step) const;
  Flat Flatten(const std::vector<Span>& spans);
  MathContext Context();
  Status RunLayer(size_t layer, const Flat& flat, const RowLayout& rows, SnapshotBank* bank,
                  float* x);
  void Record(size_t layer, const Flat& flat, const RowLayout& rows, const float* x,
              std::vector<ExitAddend> addends);
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
  ModelWeights weights_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<CachePool> cache_;
  Scratch scratch_;
  StepObserver observer_;
  std::vector<size_t> cache_of_layer_;  // [layers + draft]: index among its kind
  std::vector<RopeTable> ropes_;        // [layers + draft], empty for linear layers
  std::vector<std::optional<ExpertPlacement>> placements_;               // [kinds]
  std::vector<std::vector<std::unique_ptr<ExpertExchange>>> exchanges_;  // [kinds][phases]
  std::unordered_map<int64_t, SequenceCache> sequences_;                 // of this part
  std::unordered_map<int64_t, int> part_of_;  // all sequences, the same on every rank
  std::vector<int64_t> part_load_;            // sequences of each part
  bool tracing_ = false;                      // the command at hand
  int64_t layer_limit_ = 0;
  std::vector<AddendTrace> trace_;
};

}  // namespace signalbox
