// SPDX-License-Identifier: Apache-2.0
//
// What is asked of the engine and what it gives, as token ids.
//
//   GenerationRequest request{.prompt = ids, .max_new_tokens = 64, .stop_ids = stops};
//   SB_ASSIGN_OR_RETURN(int64_t id, generator.Submit(std::move(request)));
//   // then, step by step: Generated{.request = id, .tokens = {...}}
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "signalbox/base/ids.h"
#include "signalbox/base/status.h"
#include "signalbox/engine/sampler.h"
#include "signalbox/engine/token_constraint.h"

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
  // Log-probabilities of the prompt's own tokens, with so many of the most likely; -1: none. The
  // prompt is computed whole then, whatever is in the prefix cache.
  int64_t prompt_logprobs = -1;
  // Lengths of the prompt at which another prompt may continue differently: states are kept there.
  std::vector<int64_t> turn_ends;
  // Which tokens may come next; asked and told in order of the tokens.
  std::shared_ptr<TokenConstraint> constraint;
};

enum class FinishReason : uint8_t {
  kStop,       // a stop id, or the caller had enough
  kLength,     // max_new_tokens, or the end of the context
  kCancelled,  // Cancel()
  kFailed,     // its logits, or its constraint, left nothing to choose from
};
std::string_view ToString(FinishReason reason);

struct RequestStats {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, found in the prefix cache when first started
  int64_t new_tokens = 0;
  int64_t decode_steps = 0;     // steps that gave tokens, but for the one that ended the prompt
  int64_t decode_tokens = 0;    // tokens that they gave
  int64_t drafted_tokens = 0;   // verified
  int64_t accepted_tokens = 0;  // of them
  int64_t preemptions = 0;
  // When its first step began; nothing while it waits for that.
  std::optional<std::chrono::steady_clock::time_point> started = std::nullopt;

  // Tokens of a step; 1 without drafts.
  double accept_length() const {
    return decode_steps == 0
               ? 1.
               : static_cast<double>(decode_tokens) / static_cast<double>(decode_steps);
  }
};

// What a step gives a request.
struct Generated {
  int64_t request = 0;
  std::span<const SampledToken> tokens = {};  // in order, without the stop id
  // Of prompt tokens [first, first + size): the first token of a prompt has none.
  std::span<const SampledToken> prompt = {};
  std::optional<FinishReason> finish = std::nullopt;  // it has ended; nothing follows
  std::optional<TokenId> stop_id = std::nullopt;      // that ended it
  Status status = {};                                 // of kFailed
  RequestStats stats = {};                            // so far
};

}  // namespace signalbox
