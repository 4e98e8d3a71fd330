// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/cache_sizing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "signalbox/engine/run_requests_test.h"

namespace signalbox::cache_sizing_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const CacheDemand kDemand = {
    .max_position = 1000, .weights = 10'000, .ranks = 2, .page_bytes = 100, .slot_bytes = 50};

// Two sequences and two snapshots are 4 slots on each rank: 400 bytes.
const CacheBudget kTwo = {.sequences = 2, .snapshots = 2};

TEST(SizeCache, WithoutALimitFollowsTheContext) {
  EXPECT_EQ(SizeCache({}, 0, kDemand)->sequences, 4);
  EXPECT_EQ(SizeCache({}, 0, kDemand)->tokens, 4000);
  EXPECT_EQ(SizeCache({.sequences = 40}, 0, kDemand)->tokens, 16384);
  EXPECT_EQ(SizeCache({.tokens = 77}, 0, kDemand)->tokens, 77);
}

TEST(SizeCache, PagesAreWhatWeightsAndSlotsLeave) {
  // 1,600 bytes are 8 pages on each rank, two of which are for sequences that begin one.
  EXPECT_EQ(SizeCache(kTwo, 12'000, kDemand)->tokens, 6 * kBlockTokens);
  // No snapshots are 200 bytes more: a page on each rank.
  EXPECT_EQ(SizeCache({.sequences = 2, .snapshots = 0}, 12'000, kDemand)->tokens, 7 * kBlockTokens);
  // Never more than all sequences can have.
  EXPECT_EQ(SizeCache(kTwo, 1'000'000, kDemand)->tokens, 2000);
  // The smaller of both.
  EXPECT_EQ(SizeCache({.tokens = 40, .sequences = 2, .snapshots = 2}, 12'000, kDemand)->tokens, 40);
  EXPECT_EQ(SizeCache({.tokens = 400, .sequences = 2, .snapshots = 2}, 12'000, kDemand)->tokens,
            6 * kBlockTokens);
  // More than all sequences can have, where it was asked for.
  EXPECT_EQ(SizeCache({.tokens = 3000, .sequences = 2}, 1'000'000, kDemand)->tokens, 3000);
}

TEST(SizeCache, RefusalsSayTheNumbers) {
  const Status weights = SizeCache(kTwo, 9'000, kDemand).status();
  EXPECT_EQ(weights.code(), StatusCode::kRefused);
  EXPECT_THAT(weights.message(), AllOf(HasSubstr("weights alone"), HasSubstr("9.8 KiB"),
                                       HasSubstr("8.8 KiB"), HasSubstr("--mem-fraction-static")));
  const Status pages = SizeCache(kTwo, 10'999, kDemand).status();
  EXPECT_EQ(pages.code(), StatusCode::kRefused);
  EXPECT_THAT(pages.message(), AllOf(HasSubstr("8 states of 50 B"), HasSubstr("6 pages of 100 B"),
                                     HasSubstr("--max-running-requests")));
  EXPECT_EQ(SizeCache(kTwo, 11'000, kDemand)->tokens, kBlockTokens);
}

TEST(SizeCache, BudgetsThatNoMachineHasAreNamed) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  for (const auto& [budget, flag] : std::vector<std::pair<CacheBudget, std::string>>{
           {{.sequences = kHuge}, "--max-running-requests"},
           {{.tokens = kHuge}, "--max-total-tokens"},
           {{.slots_per_sequence = kHuge}, "--speculative-num-steps"},
           {{.snapshots = kHuge}, "--max-prefix-states"}}) {
    for (const int64_t memory : {int64_t{0}, kHuge}) {
      const Status s = SizeCache(budget, memory, kDemand).status();
      EXPECT_EQ(s.code(), StatusCode::kInvalidArgument) << s.ToString();
      EXPECT_THAT(s.message(), HasSubstr(flag));
    }
  }
  const CacheDemand endless = {.max_position = kHuge, .page_bytes = 1};
  EXPECT_GT(SizeCache({.sequences = 1 << 20}, kHuge, endless)->tokens, 0);
}

// Law: what is planned fits, and one page more on every rank would not, or nobody needs it.
RC_GTEST_PROP(SizeCache, FitsAndFills, ()) {
  const CacheDemand demand{.max_position = *rc::gen::inRange<int64_t>(1, 5000),
                           .weights = *rc::gen::inRange<int64_t>(0, 100'000),
                           .ranks = *rc::gen::inRange<int64_t>(1, 9),
                           .page_bytes = *rc::gen::inRange<int64_t>(1, 2000),
                           .slot_bytes = *rc::gen::inRange<int64_t>(0, 2000)};
  const CacheBudget asked{.tokens = *rc::gen::inRange<int64_t>(0, 9000),
                          .sequences = *rc::gen::inRange<int64_t>(1, 20),
                          .slots_per_sequence = *rc::gen::inRange<int64_t>(1, 5)};
  const int64_t memory = *rc::gen::inRange<int64_t>(1, 2'000'000);
  const auto budget = SizeCache(asked, memory, demand);
  const auto bytes = [&](const CacheBudget& b) {
    const RankMemory rank{
        .size = b.size(), .page_bytes = demand.page_bytes, .slot_bytes = demand.slot_bytes};
    return demand.weights + demand.ranks * rank.cache();
  };
  if (!budget.ok()) {
    CacheBudget least = asked;
    least.tokens = 1;
    RC_ASSERT(bytes(least) > memory);
    return;
  }
  RC_ASSERT(bytes(*budget) <= memory);
  const int64_t wanted = asked.tokens > 0 ? asked.tokens : asked.sequences * demand.max_position;
  RC_ASSERT(budget->tokens <= wanted);
  if (budget->tokens == wanted) return;
  CacheBudget more = *budget;
  more.tokens += kBlockTokens;
  RC_ASSERT(bytes(more) > memory);
}

// What the plan says is what ranks reserve, to the byte; key heads that repeat included.
TEST(RankMemory, OfTheCacheIsWhatThePlanSays) {
  for (const auto& [model, dtype] : {std::pair{kTinyQwen, DType::kF32},
                                     {kRandomQwen, DType::kBf16},
                                     {kTinyKimi, DType::kF8E4m3}}) {
    for (const ParallelConfig& p : std::vector<ParallelConfig>{{},
                                                               {.tp = 2},
                                                               {.tp = 2, .dp = 2, .ep = 2},
                                                               {.tp = 4, .dp = 2, .ep = 2},
                                                               {.tp = 4, .ep = 2}}) {
      auto engine = Engine::Load(model, {.budget = {.tokens = 100, .sequences = 3, .snapshots = 2},
                                         .kv_dtype = dtype,
                                         .layout = {.parallel = p}});
      if (!engine.ok()) {
        EXPECT_EQ(engine.status().code(), StatusCode::kRefused) << engine.status().ToString();
        continue;
      }
      SCOPED_TRACE(testing::Message() << model << " tp " << p.tp << " dp " << p.dp);
      const RankMemory plan =
          MemoryOfRank((*engine)->planned().layout.memory, (*engine)->budget().size());
      EXPECT_EQ(plan.size.pages, 7 + 3);
      EXPECT_EQ(plan.size.slots, 3 * 2 + 2);
      EXPECT_EQ((*engine)->ranks().size(), static_cast<size_t>(p.tp));
      for (RankRunner* rank : (*engine)->ranks()) {
        EXPECT_EQ(rank->memory().size, plan.size);
        EXPECT_EQ(rank->memory().page_bytes, plan.page_bytes);
        EXPECT_EQ(rank->memory().slot_bytes, plan.slot_bytes);
        EXPECT_EQ(rank->cache().bytes(), plan.cache());
      }
    }
  }
}

TEST(RankMemory, OfAnEngineIsWhatItMayHave) {
  const EngineOptions wide{.budget = {.sequences = 2}, .layout = {.parallel = {.tp = 2}}};
  const auto all = LoadEngine(kTinyQwen, wide);
  ASSERT_NE(all, nullptr);
  const RankMemory rank = all->runner().memory();
  EngineOptions narrow = wide;
  // Threads map what they share once.
  const auto demand = DemandOf(all->planned().layout, all->planned().model.facts, 1, 2);
  EXPECT_LT(demand.weights, 2 * rank.weights);
  narrow.memory = demand.weights + 2 * (8 * rank.slot_bytes + 12 * rank.page_bytes);
  const auto some = LoadEngine(kTinyQwen, narrow);
  ASSERT_NE(some, nullptr);
  EXPECT_EQ(some->runner().memory().size.pages, 12);
  narrow.memory = demand.weights;
  EXPECT_EQ(Engine::Load(kTinyQwen, narrow).status().code(), StatusCode::kRefused);
}

// Off, nothing is kept and every prompt is computed whole; the text is the same.
TEST(PrefixCacheOfAnEngine, CanBeSwitchedOff) {
  std::vector<std::vector<TokenId>> texts;
  for (const bool on : {true, false}) {
    const auto engine =
        LoadEngine(kTinyQwen, {.budget = {.tokens = 256, .sequences = 2}, .prefix_cache = on});
    ASSERT_NE(engine, nullptr);
    EXPECT_EQ(engine->budget().size().slots, on ? 8 : 2);
    Generator generator(*engine, {});
    const std::vector<TokenId> prompt(40, 7);
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(generator.Submit({.prompt = prompt, .max_new_tokens = 4}).ok());
      for (const auto& [id, outcome] : Drain(generator)) texts.push_back(outcome.tokens);
    }
    EXPECT_EQ(generator.stats().scheduler.cached_tokens > 0, on);
  }
  for (const auto& text : texts) EXPECT_EQ(text, texts[0]);
}

}  // namespace
}  // namespace signalbox::cache_sizing_test
