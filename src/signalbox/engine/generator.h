// SPDX-License-Identifier: Apache-2.0
//
// Generator: runs many requests through an Engine. A step computes what the scheduler chose,
// samples, and tells every request what it got; then the draft layer guesses for the next one.
//
// One thread at a time. Errors: kInvalidArgument for a request that can never run; a request whose
// logits are not finite ends alone. Any other error is the engine's: no step may follow.
//
//   Generator generator(*engine, {.parallel = 16});
//   SB_ASSIGN_OR_RETURN(int64_t id, generator.Submit({.prompt = ids, .stop_ids = stops}));
//   while (!generator.idle()) SB_RETURN_IF_ERROR(generator.Step(on_tokens));
#pragma once

#include <functional>
#include <vector>

#include "signalbox/base/status.h"
#include "signalbox/engine/engine.h"
#include "signalbox/engine/request.h"
#include "signalbox/engine/scheduler.h"

namespace signalbox {

// What a generator needs of whatever computes its steps.
struct StepRuntime {
  std::function<Result<StepOutput>(const StepCommand& command)> execute;
  std::vector<CacheAccount>* accounts = nullptr;  // by part
  int64_t vocab = 0;
  int64_t max_position = 0;
  int64_t prefill_chunk = 0;     // most rows of a step with prompt tokens
  int64_t drafts = 0;            // per sequence and step
  bool has_state = false;        // the model has linear layers
  bool prefix_cache = true;      // prompts may start from what others have computed
  std::vector<TokenId> end_ids;  // that ignore_eos ignores
};
// The engine outlives it.
StepRuntime RuntimeOf(Engine& engine);

struct GeneratorOptions {
  int64_t parallel = 1;
  // Tokens of a step that has prompt tokens, over all requests; 0: what the engine was planned for.
  int64_t prefill_chunk = 0;
  // Ids from here on have no text and are never sampled; 0: the whole vocabulary is usable.
  int64_t usable_vocab = 0;
  bool prefix_cache = true;  // where the engine has one
  bool speculate = true;     // where the engine was planned for drafts
};

struct GeneratorStats {
  SchedulerStats scheduler;
  int64_t new_tokens = 0;
  int64_t decode_steps = 0;  // of requests, as in RequestStats
  int64_t decode_tokens = 0;
  int64_t drafted_tokens = 0;    // all that were verified, also behind a wrong one
  std::vector<int64_t> drafted;  // by position behind the last token, up to the first wrong one
  std::vector<int64_t> accepted;
};

class Generator {
 public:
  // Called for every request that got something, in order of the requests in the step. False: it
  // had enough, and the request ends without another call.
  using OnTokens = std::function<bool(const Generated& generated)>;

  Generator(StepRuntime runtime, const GeneratorOptions& options);
  Generator(Engine& engine, const GeneratorOptions& options)
      : Generator(RuntimeOf(engine), options) {}

  Result<int64_t> Submit(GenerationRequest request);
  // Whether Submit would take it. From any thread.
  Status Check(const GenerationRequest& request) const;
  // The request is not in the next step, which tells so; nothing happens if it has ended.
  void Cancel(int64_t request) { cancelled_.push_back(request); }
  Status Step(const OnTokens& on_tokens);
  bool idle() const { return scheduler_.idle() && cancelled_.empty(); }

  GeneratorStats stats() const;
  const Scheduler& scheduler() const { return scheduler_; }
  Scheduler& scheduler() { return scheduler_; }

 private:
  // A window of the last step that the draft layer runs as well.
  struct Drafting {
    Sequence* sequence;
    int64_t past;
    int64_t place;  // of its first row in the step
  };
  // False when the sequence is gone.
  bool Take(const Window& window, Sequence& sequence, std::span<const float> logits,
            const OnTokens& on_tokens);
  Result<SampledToken> SampleNext(const Sequence& sequence, std::span<const float> row);
  std::vector<SampledToken> PromptLogprobs(const Window& window, const Sequence& sequence,
                                           std::span<const float> logits) const;
  Status Draft(const std::vector<Drafting>& windows);

  const StepRuntime runtime_;
  const int64_t usable_vocab_;
  const int64_t drafts_;
  Scheduler scheduler_;
  std::vector<int64_t> cancelled_;
  GeneratorStats stats_;
};

}  // namespace signalbox
