// SPDX-License-Identifier: Apache-2.0
//
// RankRunner: one rank of a model. It holds the rank's weights, caches, device and plans, and runs
// batches of new tokens through them. A batch is plain data, so that every rank can be handed the
// same one.
//
// Errors: kResourceExhausted when the cache is full (no sequence has advanced then),
// kInvalidArgument for ids outside the vocabulary.
//
//   StepBatch batch{.sequences = {{.sequence = 7, .tokens = prompt, .logits = LogitRows::kLast}}};
//   SB_ASSIGN_OR_RETURN(StepOutput out, runner.Run(batch));   // out.logits [1, vocab]
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "signalbox/base/ids.h"
#include "signalbox/base/status.h"
#include "signalbox/cache/cache_pool.h"
#include "signalbox/engine/layer_executor.h"
#include "signalbox/model/config.h"
#include "signalbox/model/weights.h"

namespace signalbox {

enum class LogitRows : uint8_t { kNone, kLast, kAll };

struct SequenceStep {
  int64_t sequence = 0;  // the caller's name for it; a new name starts a new sequence
  std::vector<TokenId> tokens;
  LogitRows logits = LogitRows::kLast;
};

struct StepBatch {
  std::vector<int64_t> release;  // sequences to forget, before anything else
  std::vector<SequenceStep> sequences;
  bool want_hidden = false;
};

struct StepOutput {
  std::vector<float> logits;  // [rows asked for, vocab], in batch order
  std::vector<float> hidden;  // [all new tokens, hidden] after the final norm, when asked for
};

// New positions of the draft layer: slot i takes the target's hidden state at i and token i + 1.
struct DraftStep {
  int64_t sequence = 0;         // known to the runner
  int64_t slot = 0;             // first slot; later slots are overwritten
  std::vector<TokenId> tokens;  // [n]
  std::vector<float> hidden;    // [n, hidden]
};

struct RunnerOptions {
  CacheBudget budget;
  bool chunked_delta = false;
};

class RankRunner {
 public:
  // `checkpoint` must outlive the runner.
  static Result<std::unique_ptr<RankRunner>> Create(const Checkpoint& checkpoint,
                                                    const ModelFacts& facts,
                                                    std::unique_ptr<Ops> ops,
                                                    const RunnerOptions& options,
                                                    const LoadProgress& progress = {});

  Result<StepOutput> Run(const StepBatch& batch);
  // One pass of the draft module. logits [n, vocab] predict the token after the given one; hidden
  // [n, hidden] is its normed output. REQUIRES: has_draft().
  Result<StepOutput> RunDraft(const std::vector<DraftStep>& steps);
  bool has_draft() const { return weights_.mtp.has_value(); }

  const ModelFacts& facts() const { return facts_; }
  const ModelWeights& weights() const { return weights_; }
  const std::vector<LayerPlan>& plans() const { return plans_; }
  Ops& ops() { return *ops_; }
  CachePool& cache() { return *cache_; }
  // Sees every step of every layer; empty to switch off.
  void set_observer(StepObserver observer) { observer_ = std::move(observer); }

 private:
  // What a batch turns into on the way through the layers.
  struct Flat {
    std::vector<int32_t> ids;
    std::vector<int32_t> positions;
    std::vector<SequenceSpan> spans;
    std::vector<SequenceCache*> caches;
    std::vector<const int32_t*> block_tables;
  };

  RankRunner(const ModelFacts& facts, std::unique_ptr<Ops> ops, const RunnerOptions& options);
  Status BuildPlans();
  Status Admit(const StepBatch& batch, Flat* flat);
  void AddSpan(int64_t sequence, int64_t past, std::span<const TokenId> tokens, Flat* flat);
  MathContext Context();
  Status RunLayer(size_t layer, const Flat& flat, float* x);
  void Logits(const float* normed, int64_t rows, std::vector<float>* out);

  ModelFacts facts_;
  ModelWeights weights_;
  std::unique_ptr<Ops> ops_;
  RunnerOptions options_;
  std::unique_ptr<CachePool> cache_;
  Scratch scratch_;
  StepObserver observer_;
  std::vector<LayerPlan> plans_;        // one per kind of layer
  std::vector<size_t> plan_of_layer_;   // [layers + draft]
  std::vector<size_t> cache_of_layer_;  // [layers + draft]: index among its kind
  std::vector<RopeTable> ropes_;        // [layers + draft], empty for linear layers
  std::unordered_map<int64_t, SequenceCache> sequences_;
};

}  // namespace signalbox
