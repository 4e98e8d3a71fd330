// SPDX-License-Identifier: Apache-2.0
//
// StepCommand: one step of the engine as plain data, so that every rank, thread or process, can be
// handed the same one. It names pages and slots by number: who has which is decided before, by the
// leading process (docs/engine.md). StepOutput is what comes back to the leading rank.
//
//   StepCommand step{.windows = {{.tokens = prompt, .pages = {0, 1}, .slot = 0}}};
//   std::vector<std::byte> bytes = Encode(step);
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "signalbox/base/ids.h"
#include "signalbox/base/status.h"
#include "signalbox/plan/planner.h"

namespace signalbox {

enum class LogitRows : uint8_t { kNone, kLast, kAll };

// The new tokens of one sequence, and where its state lies: numbers of its part's pages and slots.
struct Window {
  int32_t part = 0;             // position of its ranks over attn_dp
  int64_t past = 0;             // tokens whose state is in the cache
  std::vector<TokenId> tokens;  // not empty
  std::vector<int32_t> pages;   // in token order; they hold past + tokens
  int32_t slot = 0;             // state before the first token; cleared where past is 0
  std::vector<int32_t> after;   // [tokens] slots for the state after each; empty: `slot` advances
  LogitRows logits = LogitRows::kLast;
  // Of a draft step: the first of its consecutive rows of hidden state, by place in the command
  // before. Row i belongs to the token before tokens[i].
  int64_t hidden = 0;
  friend bool operator==(const Window&, const Window&) = default;
};

// Between slots of one part.
struct StateCopy {
  int32_t part = 0;
  int32_t from = 0;
  int32_t to = 0;
  friend bool operator==(const StateCopy&, const StateCopy&) = default;
};

// What an addend contributes to the output of a layer, in the rows that one rank holds.
struct AddendTrace {
  int32_t rank = 0;
  int32_t layer = 0;            // the draft layer comes last
  std::string addend;           // one of addend:: (plan/value.h); empty: the output itself
  std::vector<int64_t> tokens;  // [n] places in the step, padding left out
  std::vector<float> data;      // [n, hidden]
  friend bool operator==(const AddendTrace&, const AddendTrace&) = default;
};

struct StepOutput {
  std::vector<float> logits;       // [rows asked for, vocab], in order of the windows
  std::vector<float> hidden;       // [all new tokens, hidden] after the final norm, when asked for
  std::vector<AddendTrace> trace;  // of all ranks, when asked for
  // Of kCountPairs: [layers, the draft layer][slots] (token, expert) pairs since the beginning.
  std::vector<std::vector<int64_t>> pairs;
};

// What the leading rank asks of all ranks.
struct StepCommand {
  // kDraft runs the draft layer alone, on rows of hidden state that the ranks kept.
  // kCountPairs computes nothing.
  enum class Kind : uint8_t { kRun, kDraft, kCountPairs, kStop };
  Kind kind = Kind::kRun;
  Phase phase = Phase::kPrefill;
  bool keep_hidden = false;       // for a draft step; a draft step always keeps its own
  bool return_hidden = false;     // to the caller
  bool trace = false;             // the addends of every layer's output
  int64_t layers = 0;             // stop after so many layers: what follows is not computed; 0: all
  std::vector<StateCopy> copies;  // done first, in order
  std::vector<Window> windows;
  friend bool operator==(const StepCommand&, const StepCommand&) = default;
};

// For ranks that are processes. Decoding is Internal for bytes that Encode did not make.
std::vector<std::byte> Encode(const StepCommand& command);
Result<StepCommand> Decode(std::span<const std::byte> bytes);
std::vector<std::byte> EncodeTrace(const std::vector<AddendTrace>& trace);
Result<std::vector<AddendTrace>> DecodeTrace(std::span<const std::byte> bytes);

}  // namespace signalbox
