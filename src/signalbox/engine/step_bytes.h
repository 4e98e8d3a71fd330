// SPDX-License-Identifier: Apache-2.0
//
// Bytes that a step of the target model has to read from memory, on all ranks together: what its
// time is measured against. Each rank reads its dense weights once, whatever the number of tokens;
// of its routed experts, those that tokens were sent to; keys, values and states of the sequences
// in the step.
//
//   StepBytes b = BytesOfStep(*engine, {.tokens = 4, .kv_tokens = 4 * 1025, .sequences = 4});
//   b.total() / seconds;
#pragma once

#include <cstdint>

#include "signalbox/engine/engine.h"

namespace signalbox {

// Over all parts.
struct StepLoad {
  int64_t tokens = 0;     // new ones
  int64_t kv_tokens = 0;  // cached and new ones of the sequences in the step
  int64_t sequences = 0;
};

struct StepBytes {
  double dense = 0;    // with the head; of the embedding only rows are read, and left out
  double experts = 0;  // expected
  double kv = 0;
  double state = 0;
  double total() const { return dense + experts + kv + state; }
  StepBytes& operator+=(const StepBytes& other);
};

// Share of n experts that at least one of `tokens` tokens chooses, each k of them, all choices
// being equally likely and independent: 1 - (1 - k / n)^tokens.
double ShareOfExpertsHit(int64_t experts, int64_t top_k, int64_t tokens);

StepBytes BytesOfStep(const Engine& engine, const StepLoad& load);

}  // namespace signalbox
