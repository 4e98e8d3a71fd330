// SPDX-License-Identifier: Apache-2.0
//
// GhostModel: a model without arithmetic that knows when it is lied to. Its pages hold tokens and
// its slots the prefix that they stand for, so every step checks that what it is told to start from
// is what its sequence has seen: a stale page, a state of another position, a page that two write.
// The next token is a hash of all before it; drafts are right about half of the time.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <vector>

#include "signalbox/engine/generator.h"

namespace signalbox {

struct GhostOptions {
  int parts = 1;
  CacheSize size{.pages = 24, .slots = 12};
  int64_t max_position = 400;
  int64_t prefill_chunk = 40;
  int64_t drafts = 0;
  bool has_state = true;
};

class GhostModel {
 public:
  static constexpr int64_t kVocab = 61;

  explicit GhostModel(const GhostOptions& options)
      : options_(options),
        accounts(static_cast<size_t>(options.parts), CacheAccount(options.size)),
        pages_(static_cast<size_t>(options.parts),
               std::vector<Page>(static_cast<size_t>(options.size.pages))),
        slots_(static_cast<size_t>(options.parts),
               std::vector<State>(static_cast<size_t>(options.size.slots))) {}

  StepRuntime runtime() {
    return {.execute = [this](const StepCommand& c) { return Execute(c); },
            .accounts = &accounts,
            .vocab = kVocab,
            .max_position = options_.max_position,
            .prefill_chunk = options_.prefill_chunk,
            .drafts = options_.drafts,
            .has_state = options_.has_state};
  }

  // What the model says after a prompt: the truth, without any cache.
  static std::vector<TokenId> Say(const std::vector<TokenId>& prompt, int64_t tokens) {
    State s;
    for (TokenId id : prompt) s = s.Then(id);
    std::vector<TokenId> said;
    for (int64_t i = 0; i < tokens; ++i) {
      said.push_back(s.Next());
      s = s.Then(said.back());
    }
    return said;
  }

  int64_t most_rows = 0;

 private:
  struct State {
    int64_t length = 0;
    uint64_t hash = 7;
    State Then(TokenId id) const {
      return {length + 1, (hash ^ static_cast<uint64_t>(id + 1)) * 0x9e3779b97f4a7c15u + 0x1234567};
    }
    TokenId Next() const { return static_cast<TokenId>((hash >> 32) % kVocab); }
    TokenId Guess() const {
      return (hash >> 20) % 2 == 0 ? Next() : static_cast<TokenId>((hash >> 40) % kVocab);
    }
    friend bool operator==(const State&, const State&) = default;
  };
  using Page = std::array<TokenId, kBlockTokens>;

  State FromPages(const Window& w) const {
    State s;
    for (int64_t p = 0; p < w.past; ++p) s = s.Then(TokenAt(w, p));
    return s;
  }
  TokenId TokenAt(const Window& w, int64_t position) const {
    const auto page = static_cast<size_t>(w.pages[static_cast<size_t>(position / kBlockTokens)]);
    return pages_[static_cast<size_t>(w.part)][page][static_cast<size_t>(position % kBlockTokens)];
  }
  State& Slot(int32_t part, int32_t slot) {
    return slots_[static_cast<size_t>(part)][static_cast<size_t>(slot)];
  }
  static void Say(TokenId id, StepOutput& out) {
    out.logits.resize(out.logits.size() + kVocab, 0.f);
    out.logits[out.logits.size() - kVocab + static_cast<size_t>(id)] = 1.f;
  }

  Result<StepOutput> Execute(const StepCommand& command) {
    return command.kind == StepCommand::Kind::kDraft ? Draft(command) : Run(command);
  }

  Result<StepOutput> Run(const StepCommand& command) {
    for (const StateCopy& c : command.copies) Slot(c.part, c.to) = Slot(c.part, c.from);
    StepOutput out;
    std::vector<State> rows;
    std::set<std::pair<int, int32_t>> written;
    std::set<std::pair<int, int32_t>> used_slots;
    for (const Window& w : command.windows) {
      State s = FromPages(w);
      if (options_.has_state) {
        if (w.past == 0) Slot(w.part, w.slot) = State();
        EXPECT_EQ(Slot(w.part, w.slot).length, w.past);
        EXPECT_EQ(Slot(w.part, w.slot).hash, s.hash) << "state and pages of different prefixes";
        EXPECT_TRUE(used_slots.emplace(w.part, w.slot).second);
      }
      const int64_t count = std::ssize(w.tokens);
      for (int64_t i = 0; i < count; ++i) {
        const TokenId id = w.tokens[static_cast<size_t>(i)];
        const int64_t p = w.past + i;
        const int32_t page = w.pages.at(static_cast<size_t>(p / kBlockTokens));
        EXPECT_EQ(accounts[static_cast<size_t>(w.part)].owners(page), 1) << "a shared page";
        if (i == 0 || p % kBlockTokens == 0) {
          EXPECT_TRUE(written.emplace(w.part, page).second);
        }
        pages_[static_cast<size_t>(w.part)][static_cast<size_t>(page)]
              [static_cast<size_t>(p % kBlockTokens)] = id;
        s = s.Then(id);
        rows.push_back(s);
        if (options_.has_state)
          Slot(w.part, w.after.empty() ? w.slot : w.after.at(static_cast<size_t>(i))) = s;
        if (w.logits == LogitRows::kAll || (w.logits == LogitRows::kLast && i + 1 == count))
          Say(s.Next(), out);
      }
    }
    most_rows = std::max(most_rows, std::ssize(rows));
    if (command.phase == Phase::kPrefill) {
      EXPECT_LE(std::ssize(rows), options_.prefill_chunk);
    }
    rows_ = command.keep_hidden ? rows : std::vector<State>();
    return out;
  }

  Result<StepOutput> Draft(const StepCommand& command) {
    StepOutput out;
    std::vector<State> rows;
    for (const Window& w : command.windows) {
      for (int64_t i = 0; i < std::ssize(w.tokens); ++i) {
        const State& hidden = rows_.at(static_cast<size_t>(w.hidden + i));
        // The row is of the position, and the token is the one behind it.
        EXPECT_EQ(hidden.length, w.past + i + 1);
        rows.push_back(hidden.Then(w.tokens[static_cast<size_t>(i)]));
        EXPECT_LT((w.past + i) / kBlockTokens, std::ssize(w.pages));
      }
      if (w.logits == LogitRows::kLast) Say(rows.back().Guess(), out);
    }
    rows_ = rows;
    return out;
  }

  const GhostOptions options_;

 public:
  std::vector<CacheAccount> accounts;

 private:
  std::vector<std::vector<Page>> pages_;
  std::vector<std::vector<State>> slots_;
  std::vector<State> rows_;
};

}  // namespace signalbox
