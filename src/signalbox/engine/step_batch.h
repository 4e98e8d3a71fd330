// SPDX-License-Identifier: Apache-2.0
//
// StepBatch: one step of the engine as plain data, so that every rank, thread or process, can be
// handed the same one. StepOutput is what comes back to the leading rank.
//
//   StepBatch batch{.sequences = {{.sequence = 7, .tokens = prompt, .logits = LogitRows::kLast}}};
//   std::vector<std::byte> bytes = Encode({.batch = batch});
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "signalbox/base/ids.h"
#include "signalbox/base/status.h"

namespace signalbox {

enum class LogitRows : uint8_t { kNone, kLast, kAll };

struct SequenceStep {
  int64_t sequence = 0;  // the caller's name for it; a new name starts a new sequence
  std::vector<TokenId> tokens;
  LogitRows logits = LogitRows::kLast;
  friend bool operator==(const SequenceStep&, const SequenceStep&) = default;
};

struct StepBatch {
  std::vector<int64_t> release;  // sequences to forget, before anything else
  std::vector<SequenceStep> sequences;
  bool want_hidden = false;
  friend bool operator==(const StepBatch&, const StepBatch&) = default;
};

// What an addend contributes to the output of a layer, in the rows that one rank holds.
struct AddendTrace {
  int32_t rank = 0;
  int32_t layer = 0;            // the draft layer comes last
  std::string addend;           // one of addend:: (plan/value.h); empty: the output itself
  std::vector<int64_t> tokens;  // [n] places in the batch, padding left out
  std::vector<float> data;      // [n, hidden]
  friend bool operator==(const AddendTrace&, const AddendTrace&) = default;
};

struct StepOutput {
  std::vector<float> logits;       // [rows asked for, vocab], in batch order
  std::vector<float> hidden;       // [all new tokens, hidden] after the final norm, when asked for
  std::vector<AddendTrace> trace;  // of all ranks, when asked for
};

// New positions of the draft layer: slot i takes the target's hidden state at i and token i + 1.
struct DraftStep {
  int64_t sequence = 0;         // known to the engine
  int64_t slot = 0;             // first slot; later slots are overwritten
  std::vector<TokenId> tokens;  // [n]
  std::vector<float> hidden;    // [n, hidden]
  friend bool operator==(const DraftStep&, const DraftStep&) = default;
};

// What the leading rank asks of all ranks.
struct StepCommand {
  enum class Kind : uint8_t { kRun, kDraft, kStop };
  Kind kind = Kind::kRun;
  bool trace = false;             // the addends of every layer's output
  int64_t layers = 0;             // stop after so many layers: what follows is not computed; 0: all
  StepBatch batch;                // kRun
  std::vector<DraftStep> drafts;  // kDraft
  friend bool operator==(const StepCommand&, const StepCommand&) = default;
};

// For ranks that are processes. Decoding is Internal for bytes that Encode did not make.
std::vector<std::byte> Encode(const StepCommand& command);
Result<StepCommand> Decode(std::span<const std::byte> bytes);
std::vector<std::byte> EncodeTrace(const std::vector<AddendTrace>& trace);
Result<std::vector<AddendTrace>> DecodeTrace(std::span<const std::byte> bytes);

}  // namespace signalbox
