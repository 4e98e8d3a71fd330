// SPDX-License-Identifier: Apache-2.0
//
// SequenceTable: sequences by name, for callers that feed tokens and keep no books of their own:
// verify, references, tests. It claims pages and slots as sequences grow and turns named batches
// into steps. The scheduler does without it.
//
// Errors: kResourceExhausted when pages or slots run out; the sequences have not advanced then.
//
//   SequenceTable table(accounts);
//   SB_ASSIGN_OR_RETURN(StepCommand step, table.Place({.sequences = {{7, prompt}}}));
//   table.Advance(step_that_ran);   // of the same batch
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "signalbox/base/status.h"
#include "signalbox/cache/cache_account.h"
#include "signalbox/engine/step_command.h"

namespace signalbox {

struct SequenceStep {
  int64_t sequence = 0;  // the caller's name for it; a new name starts a new sequence
  std::vector<TokenId> tokens;
  LogitRows logits = LogitRows::kLast;
};

struct StepBatch {
  std::vector<int64_t> release;  // sequences to forget, before anything else
  std::vector<SequenceStep> sequences;
  bool return_hidden = false;
};

// New positions of the draft layer: position p takes the target's hidden state at p and token p
// + 1.
struct DraftStep {
  int64_t sequence = 0;         // known to the table
  int64_t past = 0;             // first position; later ones are overwritten
  std::vector<TokenId> tokens;  // [n]
  int64_t hidden = 0;           // place of its first row in the step before
};

class SequenceTable {
 public:
  // One account for each part; they outlive the table.
  explicit SequenceTable(std::vector<CacheAccount>& accounts)
      : accounts_(accounts), sequences_of_part_(accounts.size(), 0) {}
  ~SequenceTable();
  SequenceTable(const SequenceTable&) = delete;
  SequenceTable& operator=(const SequenceTable&) = delete;

  Result<StepCommand> Place(const StepBatch& batch);
  Result<StepCommand> Place(const std::vector<DraftStep>& drafts);
  void Advance(const StepBatch& batch);

 private:
  struct Claim {
    int32_t part = 0;
    int32_t slot = -1;
    int64_t length = 0;
    std::vector<int32_t> pages;
  };
  void Release(const Claim& claim);
  Claim& ClaimOf(int64_t sequence);
  Status Reserve(Claim* claim, int64_t tokens);
  Status AddWindow(int64_t sequence, Window window, StepCommand* step);

  std::vector<CacheAccount>& accounts_;
  std::vector<int64_t> sequences_of_part_;
  std::unordered_map<int64_t, Claim> claims_;
};

}  // namespace signalbox
