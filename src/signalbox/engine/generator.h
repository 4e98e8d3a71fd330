// SPDX-License-Identifier: Apache-2.0
//
// Generator: runs many requests through an Engine, up to `parallel` at a time. Each step feeds
// waiting prompts in chunks and the last token of everything that is decoding, in one batch.
// Prompts wait while the chunk is full of requests that are decoding.
//
//   Generator generator(*engine, {.parallel = 16});
//   generator.Submit({.prompt = ids, .max_new_tokens = 64, .stop_ids = stops});
//   while (!generator.idle()) SB_RETURN_IF_ERROR(generator.Step(on_token));
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "signalbox/base/ids.h"
#include "signalbox/base/status.h"
#include "signalbox/engine/engine.h"
#include "signalbox/engine/sampler.h"

namespace signalbox {

struct GenerationRequest {
  std::vector<TokenId> prompt;  // not empty
  int64_t max_new_tokens = 256;
  SamplingParams sampling;
  std::vector<TokenId> stop_ids;
  int64_t min_new_tokens = 0;  // before so many, no stop id is sampled
  // The model's own end tokens do not end this request, even where stop_ids has them: they are
  // tokens like others. Other stop ids do.
  bool ignore_eos = false;
};

enum class FinishReason : uint8_t { kStop, kLength };

struct GeneratorOptions {
  int64_t parallel = 1;
  // Tokens of a step that has prompt tokens, over all requests; 0: what the engine was planned for.
  int64_t prefill_chunk = 0;
  // Ids from here on have no text and are never sampled; 0: the whole vocabulary is usable.
  int64_t usable_vocab = 0;
};

class Generator {
 public:
  // Called for every sampled token but a stop id, and with no token when a request ends.
  using OnToken = std::function<void(int64_t request, std::optional<TokenId> token,
                                     std::optional<FinishReason> finish)>;
  // Called for every sampled token, stop ids too, before OnToken: with its log-probabilities.
  using OnSample = std::function<void(int64_t request, const SampledToken& sampled)>;

  Generator(Engine& engine, const GeneratorOptions& options) : engine_(engine), options_(options) {}
  // Releases what is still running.
  ~Generator();
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  // kInvalidArgument for what can never run: an empty prompt, more tokens than the context holds,
  // sampling parameters out of range.
  Result<int64_t> Submit(GenerationRequest request);
  // After an error of the engine or of sampling (logits that are not finite) no step may follow.
  Status Step(const OnToken& on_token, const OnSample& on_sample = nullptr);
  bool idle() const { return waiting_.empty() && running_.empty(); }

 private:
  struct Running {
    int64_t id;
    GenerationRequest request;
    int64_t fed = 0;                 // prompt tokens already in the model
    std::vector<TokenId> generated;  // the last one is not yet fed
  };
  StepBatch NextBatch();
  int64_t usable_vocab() const;

  Engine& engine_;
  GeneratorOptions options_;
  int64_t next_id_ = 0;
  std::deque<Running> waiting_;
  std::vector<Running> running_;
  std::vector<int64_t> finished_;  // to be released with the next batch
};

}  // namespace signalbox
