// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/sequence_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace signalbox {

SequenceTable::~SequenceTable() {
  for (const auto& [name, claim] : claims_) Release(claim);
}

void SequenceTable::Release(const Claim& claim) {
  CacheAccount& account = accounts_[static_cast<size_t>(claim.part)];
  for (int32_t page : claim.pages) account.DropPage(page);
  if (claim.slot >= 0) account.DropSlot(claim.slot);
  --sequences_of_part_[static_cast<size_t>(claim.part)];
}

// New sequences go to the part with the fewest.
SequenceTable::Claim& SequenceTable::ClaimOf(int64_t sequence) {
  const auto [it, fresh] = claims_.try_emplace(sequence);
  if (fresh) {
    const auto least = std::min_element(sequences_of_part_.begin(), sequences_of_part_.end());
    it->second.part = static_cast<int32_t>(least - sequences_of_part_.begin());
    ++*least;
  }
  return it->second;
}

Status SequenceTable::Reserve(Claim* claim, int64_t tokens) {
  CacheAccount& account = accounts_[static_cast<size_t>(claim->part)];
  const int64_t more = CacheBudget::PagesFor(tokens) - std::ssize(claim->pages);
  if (more > account.free_pages()) {
    return ResourceExhausted(
        {.what = "no room in the KV cache",
         .found = fmt::format("{} free pages of {} tokens", account.free_pages(), kBlockTokens),
         .expected = fmt::format("{} pages", more)});
  }
  if (claim->slot < 0) claim->slot = account.TakeSlot();
  if (claim->slot < 0) {
    return ResourceExhausted(
        {.what = "no free state slot", .expected = "one slot per running sequence"});
  }
  for (int64_t i = 0; i < more; ++i) claim->pages.push_back(account.TakePage());
  return OkStatus();
}

// The window says which tokens; where they go is the sequence's claim.
Status SequenceTable::AddWindow(int64_t sequence, Window window, StepCommand* step) {
  Claim& claim = ClaimOf(sequence);
  SB_RETURN_IF_ERROR(Reserve(&claim, window.past + std::ssize(window.tokens)));
  if (window.tokens.size() > 1) step->phase = Phase::kPrefill;
  window.part = claim.part;
  window.pages = claim.pages;
  window.slot = claim.slot;
  step->windows.push_back(std::move(window));
  return OkStatus();
}

Result<StepCommand> SequenceTable::Place(const StepBatch& batch) {
  for (int64_t name : batch.release) {
    const auto it = claims_.find(name);
    if (it == claims_.end()) continue;
    Release(it->second);
    claims_.erase(it);
  }
  StepCommand step{.phase = Phase::kDecode, .return_hidden = batch.return_hidden};
  for (const SequenceStep& s : batch.sequences) {
    const Claim& claim = ClaimOf(s.sequence);
    SB_RETURN_IF_ERROR(AddWindow(
        s.sequence, {.past = claim.length, .tokens = s.tokens, .logits = s.logits}, &step));
  }
  step.keep_hidden = batch.return_hidden;
  return step;
}

Result<StepCommand> SequenceTable::Place(const std::vector<DraftStep>& drafts) {
  StepCommand step{
      .kind = StepCommand::Kind::kDraft, .phase = Phase::kDecode, .return_hidden = true};
  for (const DraftStep& d : drafts) {
    SB_RETURN_IF_ERROR(AddWindow(
        d.sequence,
        {.past = d.past, .tokens = d.tokens, .logits = LogitRows::kAll, .hidden = d.hidden},
        &step));
  }
  return step;
}

void SequenceTable::Advance(const StepBatch& batch) {
  for (const SequenceStep& s : batch.sequences) ClaimOf(s.sequence).length += std::ssize(s.tokens);
}

}  // namespace signalbox
