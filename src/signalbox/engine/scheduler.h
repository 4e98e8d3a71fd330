// SPDX-License-Identifier: Apache-2.0
//
// Scheduler: which tokens of which requests go into the next step, and who has which page and slot
// of the cache (docs/engine.md). It decides and keeps books; it computes nothing, and what it does
// follows from what it was told alone.
//
// Errors: kInvalidArgument for a request that can never run.
//
//   SB_RETURN_IF_ERROR(scheduler.Check(request));
//   int64_t id = scheduler.Submit(request);
//   ScheduledStep step = scheduler.Next();          // run step.command on all ranks
//   scheduler.Advance(step, i, {sampled...});       // what window i's sequence got
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "signalbox/base/status.h"
#include "signalbox/cache/cache_account.h"
#include "signalbox/cache/prefix_cache.h"
#include "signalbox/engine/sequence.h"
#include "signalbox/engine/step_command.h"

namespace signalbox {

struct SchedulerOptions {
  int64_t max_position = 0;   // tokens of a sequence at most
  int64_t parallel = 1;       // sequences that run at a time
  int64_t prefill_chunk = 0;  // rows of a step with prompt tokens
  int64_t drafts = 0;         // per sequence and step
  bool has_state = false;     // the model has linear layers
  bool prefix_cache = true;
};

struct SchedulerStats {
  int64_t steps = 0;
  int64_t prefill_tokens = 0;  // of prompts, and of resumed sequences
  int64_t cached_tokens = 0;   // that the prefix cache saved
  int64_t prefix_lookups = 0;
  int64_t lookup_tokens = 0;  // that were looked up: those of the sequences started
  int64_t prefix_hits = 0;
  int64_t preemptions = 0;
  int64_t finished = 0;
};

// windows[i] of the command are tokens of sequences[i]; its drafts come last.
struct ScheduledStep {
  StepCommand command;
  std::vector<Sequence*> sequences;
};

class Scheduler {
 public:
  // One account for each part; they outlive the scheduler.
  Scheduler(std::vector<CacheAccount>& accounts, const SchedulerOptions& options);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Whether it can ever run. From any thread.
  Status Check(const GenerationRequest& request) const;
  // Up to the end of the context.
  int64_t NewTokensAtMost(const GenerationRequest& request) const;
  // REQUIRES: Check() is OK.
  int64_t Submit(GenerationRequest request);
  // Takes a request out, wherever it is; null where there is none of that id. Its pages are free
  // for the next step. `keep`: what it computed may serve others.
  std::unique_ptr<Sequence> Remove(int64_t id, bool keep = true);
  bool idle() const { return waiting_.empty() && running_.empty(); }

  // The next step; no windows only when idle.
  ScheduledStep Next();
  // The window ran, and ids has grown by `sampled` tokens: none where it did not reach their end,
  // one more than the drafts that were right otherwise.
  void Advance(const Window& window, Sequence& sequence, int64_t sampled);
  int64_t waiting() const { return std::ssize(waiting_); }
  int64_t running() const { return std::ssize(running_); }
  int64_t running_of(int part) const { return running_of_part_[static_cast<size_t>(part)]; }
  const SchedulerStats& stats() const { return stats_; }
  const PrefixCache& prefix(int part) const { return *prefixes_[static_cast<size_t>(part)]; }
  // Forgets all prefixes.
  void ClearPrefixes();

  // Drafts that the sequence may still use.
  int64_t DraftsWanted(const Sequence& sequence) const;

 private:
  bool Admit(Sequence& sequence);
  int BestPart(const Sequence& sequence) const;
  bool CanReuse(const Sequence& sequence) const;
  // Pages for so many tokens; others give way. False: the sequence itself had to.
  bool EnsurePages(Sequence& sequence, int64_t tokens);
  int64_t PagesNeeded(int64_t tokens) const;
  int64_t SlotsNeeded() const;
  int64_t PromptSnapshots(int part) const;
  // -1 when neither a free one nor one of the prefix cache is left.
  int32_t TakePage(int part);
  int32_t TakeSlot(int part);
  void Preempt(Sequence& sequence);
  void ReleaseCache(Sequence& sequence, bool keep);
  int64_t ChunkOf(const Sequence& sequence, int64_t room) const;
  void AddWindow(Sequence& sequence, int64_t tokens, ScheduledStep& step);
  void KeepPromptState(Sequence& sequence);
  void KeepRunningState(Sequence& sequence, int64_t before, std::span<const int32_t> after);
  PrefixCache& prefixes(int part) { return *prefixes_[static_cast<size_t>(part)]; }

  std::vector<CacheAccount>& accounts_;
  const SchedulerOptions options_;
  std::vector<std::unique_ptr<PrefixCache>> prefixes_;
  int64_t next_id_ = 0;
  std::deque<std::unique_ptr<Sequence>> waiting_;  // by arrival
  std::list<std::unique_ptr<Sequence>> running_;   // by arrival
  std::vector<StateCopy> copies_;                  // of the next step
  std::vector<int64_t> running_of_part_;
  SchedulerStats stats_;
};

}  // namespace signalbox
