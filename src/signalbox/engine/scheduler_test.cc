// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "signalbox/engine/ghost_model_test.h"

namespace signalbox::scheduler_test {
namespace {

std::vector<TokenId> Tokens(int64_t count, TokenId first = 1) {
  std::vector<TokenId> ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<TokenId>((first + i * 7) % GhostModel::kVocab));
  return ids;
}

// Runs everything to its end and compares it with what the model says.
struct Session {
  Session(GhostModel& model, const GeneratorOptions& options)
      : generator(model.runtime(), options) {}

  int64_t Ask(std::vector<TokenId> prompt, int64_t tokens) {
    const auto id = generator.Submit({.prompt = prompt, .max_new_tokens = tokens});
    EXPECT_TRUE(id.ok()) << id.status().ToString();
    prompts[*id] = std::move(prompt);
    return *id;
  }
  void Step() {
    const Status s = generator.Step([&](const Generated& g) {
      for (const SampledToken& t : g.tokens) texts[g.request].push_back(t.token);
      if (g.finish) stats[g.request] = g.stats;
      return true;
    });
    ASSERT_TRUE(s.ok()) << s.ToString();
    ++steps;
  }
  void Drain() {
    while (!generator.idle() && !testing::Test::HasFailure()) Step();
  }
  void ExpectTruth(int64_t id) {
    EXPECT_EQ(texts[id], GhostModel::Say(prompts[id], std::ssize(texts[id]))) << id;
  }

  Generator generator;
  std::map<int64_t, std::vector<TokenId>> prompts;
  std::map<int64_t, std::vector<TokenId>> texts;
  std::map<int64_t, RequestStats> stats;
  int64_t steps = 0;
};

void ExpectNothingHeld(GhostModel& model, Session& session) {
  session.generator.scheduler().ClearPrefixes();
  for (const CacheAccount& a : model.accounts) {
    EXPECT_EQ(a.free_pages(), a.size().pages);
    EXPECT_EQ(a.free_slots(), a.size().slots);
  }
}

TEST(Scheduler, WhatCanNeverFitIsRefusedWhileOthersGoOn) {
  GhostModel model({.size = {.pages = 5, .slots = 4}});
  Session session(model, {.parallel = 2});
  const int64_t first = session.Ask(Tokens(20), 10);
  session.Step();
  const auto refused = session.generator.Submit({.prompt = Tokens(60), .max_new_tokens = 21});
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().ToString().find("can never fit"), std::string::npos);
  const int64_t fits = session.Ask(Tokens(60), 20);
  session.Drain();
  EXPECT_EQ(std::ssize(session.texts[first]), 10);
  EXPECT_EQ(std::ssize(session.texts[fits]), 20);
  session.ExpectTruth(first);
  session.ExpectTruth(fits);
}

// A pool with fewer slots than requests and prefixes want: some wait, all end.
TEST(Scheduler, Hyb01SlotsRunOutAndEverybodyEnds) {
  for (const int64_t drafts : {0, 2}) {
    GhostModel model({.size = {.pages = 40, .slots = 3}, .drafts = drafts});
    Session session(model, {.parallel = 10});
    for (int i = 0; i < 10; ++i) session.Ask(Tokens(20 + i, i), 12);
    session.Drain();
    for (int64_t i = 0; i < 10; ++i) {
      EXPECT_EQ(std::ssize(session.texts[i]), 12);
      session.ExpectTruth(i);
    }
    ExpectNothingHeld(model, session);
  }
}

TEST(Scheduler, Hyb03PromptsOfEveryLengthAroundPagesColdAndAfterAHit) {
  GhostModel model({.size = {.pages = 60, .slots = 30}, .prefill_chunk = 64});
  Session session(model, {.parallel = 1});
  for (const int64_t drafts : {0}) {
    for (int64_t length = 1; length <= 70; ++length) {
      const std::vector<TokenId> prompt = Tokens(length, static_cast<TokenId>(drafts + length % 3));
      const int64_t cold = session.Ask(prompt, 3);
      const int64_t again = session.Ask(prompt, 3);
      session.Drain();
      session.ExpectTruth(cold);
      session.ExpectTruth(again);
      EXPECT_EQ(session.stats[again].cached_tokens, (length - 1) / kBlockTokens * kBlockTokens);
    }
  }
}

// Every turn repeats the conversation so far, and computes what is new and at most a page more.
TEST(Scheduler, Hyb07AChatOfFiveTurnsPrefillsWhatIsNew) {
  for (const bool has_state : {false, true}) {
    GhostModel model({.size = {.pages = 60, .slots = 12}, .has_state = has_state});
    Session session(model, {.parallel = 1});
    std::vector<TokenId> history = Tokens(50);
    int64_t before = 0;
    for (int turn = 0; turn < 5; ++turn) {
      const int64_t fresh = turn == 0 ? std::ssize(history) : 23;
      const int64_t id = session.Ask(history, 30);
      session.Drain();
      session.ExpectTruth(id);
      const int64_t computed = session.generator.stats().scheduler.prefill_tokens - before;
      before += computed;
      // Of the answer before, the last page was not whole.
      EXPECT_LE(computed, fresh + kBlockTokens) << turn;
      history.insert(history.end(), session.texts[id].begin(), session.texts[id].end());
      const auto more = Tokens(23, static_cast<TokenId>(turn));
      history.insert(history.end(), more.begin(), more.end());
    }
  }
}

// The template drops what the model thought: the next prompt goes on from the end of the last one.
TEST(Scheduler, Hyb07TheNextTurnNeedNotRepeatTheAnswer) {
  GhostModel model({.size = {.pages = 60, .slots = 12}});
  Session session(model, {.parallel = 1});
  std::vector<TokenId> history = Tokens(80);
  for (int turn = 0; turn < 4; ++turn) {
    const int64_t before = session.generator.stats().scheduler.prefill_tokens;
    const auto id = session.generator.Submit(
        {.prompt = history, .max_new_tokens = 25, .turn_ends = {std::ssize(history) - 5}});
    ASSERT_TRUE(id.ok());
    session.Drain();
    const int64_t computed = session.generator.stats().scheduler.prefill_tokens - before;
    EXPECT_LE(computed, turn == 0 ? 80 : 30 + 5 + kBlockTokens) << turn;
    history.resize(history.size() - 5);  // what opened the answer
    const auto more = Tokens(35, static_cast<TokenId>(turn + 3));
    history.insert(history.end(), more.begin(), more.end());
  }
}

TEST(Scheduler, Hyb09PreemptedSequencesSayWhatTheyWouldHaveSaid) {
  for (const int64_t drafts : {0, 3}) {
    for (const bool prefix_cache : {false, true}) {
      GhostModel model({.size = {.pages = 12, .slots = 20}, .drafts = drafts});
      Session session(model, {.parallel = 4, .prefix_cache = prefix_cache});
      for (int i = 0; i < 6; ++i) session.Ask(Tokens(20, i), 60);
      session.Drain();
      EXPECT_GT(session.generator.stats().scheduler.preemptions, 0);
      for (int64_t i = 0; i < 6; ++i) {
        EXPECT_EQ(std::ssize(session.texts[i]), 60);
        session.ExpectTruth(i);
      }
      // First come, first served.
      EXPECT_EQ(session.stats[0].preemptions, 0);
      ExpectNothingHeld(model, session);
    }
  }
}

TEST(Scheduler, NoSequenceIsOvertaken) {
  GhostModel model({.size = {.pages = 12, .slots = 20}});
  Session session(model, {.parallel = 8});
  const int64_t first = session.Ask(Tokens(100), 20);
  const int64_t large = session.Ask(Tokens(120, 5), 10);       // waits for the pages of the first
  for (int i = 0; i < 6; ++i) session.Ask(Tokens(17, i), 30);  // would fit beside it
  while (!session.stats.contains(first) && !testing::Test::HasFailure()) session.Step();
  for (int64_t later = large; later < 8; ++later) EXPECT_TRUE(session.texts[later].empty());
  session.Drain();
  session.ExpectTruth(large);
}

// Laws, for any workload: text is the truth, everything ends, nothing is held at the end, the
// oldest request goes on in every step.
void Soak(GhostModel& model, const GeneratorOptions& options, int64_t requests, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  Session session(model, options);
  const int64_t capacity = model.accounts[0].size().pages * kBlockTokens;
  int64_t asked = 0;
  std::vector<int64_t> open;
  std::map<int64_t, bool> ended;
  int64_t cancelled = 0;
  while (asked < requests || !session.generator.idle()) {
    while (asked < requests && below(3) > 0) {
      // Prompts share beginnings, of one of a few texts.
      std::vector<TokenId> prompt = Tokens(1 + below(capacity / 3), static_cast<TokenId>(below(4)));
      for (TokenId id : Tokens(below(20), static_cast<TokenId>(below(30)))) prompt.push_back(id);
      open.push_back(session.Ask(std::move(prompt), 1 + below(30)));
      ++asked;
    }
    if (!open.empty() && below(20) == 0) {
      session.generator.Cancel(open[static_cast<size_t>(below(std::ssize(open)))]);
      ++cancelled;
    }
    int64_t told = 0;
    const int64_t oldest = open.empty() ? -1 : open.front();
    const auto before = session.generator.stats().scheduler;
    ASSERT_TRUE(session.generator
                    .Step([&](const Generated& g) {
                      ++told;
                      for (const SampledToken& t : g.tokens)
                        session.texts[g.request].push_back(t.token);
                      const bool enough = below(100) == 0 && !g.tokens.empty();
                      if (g.finish || enough) ended[g.request] = true;
                      return !enough;
                    })
                    .ok());
    const auto after = session.generator.stats().scheduler;
    if (oldest >= 0 && after.steps > before.steps) {
      ASSERT_TRUE(told > 0 || after.prefill_tokens > before.prefill_tokens) << "nobody went on";
    }
    std::erase_if(open, [&](int64_t id) { return ended[id]; });
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed << " step " << session.steps;
  }
  for (const auto& [id, text] : session.texts) session.ExpectTruth(id);
  EXPECT_EQ(std::ssize(ended), requests);
  EXPECT_EQ(session.generator.stats().scheduler.finished, requests);
  ExpectNothingHeld(model, session);
}

TEST(Scheduler, Hyb11AnyWorkloadEndsAndTellsTheTruth) {
  for (uint64_t seed = 0; seed < 150 && !HasFailure(); ++seed) {
    std::mt19937_64 random(seed);
    const auto from = [&](int64_t least, int64_t end) {
      return least + static_cast<int64_t>(random() % static_cast<uint64_t>(end - least));
    };
    GhostModel model({.parts = static_cast<int>(from(1, 4)),
                      .size = {.pages = from(6, 40), .slots = from(5, 24)},
                      .prefill_chunk = from(1, 70),
                      .drafts = from(0, 5),
                      .has_state = from(0, 3) > 0});
    Soak(model, {.parallel = from(1, 9), .prefix_cache = from(0, 4) > 0}, 30, seed);
  }
}

TEST(Scheduler, TenThousandRequests) {
  GhostModel model({.parts = 2, .size = {.pages = 14, .slots = 30}, .drafts = 3});
  Soak(model, {.parallel = 12}, 10'000, 1);
}

}  // namespace
}  // namespace signalbox::scheduler_test
