// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/step_bytes.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "signalbox/engine/run_requests_test.h"

namespace signalbox::step_bytes_test {
namespace {

constexpr StepLoad kLoad = {.tokens = 5, .kv_tokens = 100, .sequences = 5};

StepBytes BytesIn(const ParallelConfig& parallel) {
  const auto engine = LoadEngine(
      kRandomQwen, {.budget = {.tokens = 64, .sequences = 2}, .layout = {.parallel = parallel}});
  return engine == nullptr ? StepBytes() : BytesOfStep(*engine, kLoad);
}

// models/random/qwen3.5-moe: hidden 64, three linear layers and one of attention, each with 8
// experts of width 32 in BF16, 2 per token, and a draft layer that no step of the target reads.
TEST(StepBytes, OfASmallModelByHand) {
  const StepBytes b = BytesIn({});
  EXPECT_DOUBLE_EQ(b.kv, 100. * 2 * 2 * 32 * 4);
  EXPECT_DOUBLE_EQ(b.state, 5. * 3 * (3 * (2 * 2 * 16 + 4 * 16) + 4 * 16 * 16) * 4);
  const double expert = 3. * 32 * 64 * 2;
  EXPECT_DOUBLE_EQ(b.experts, 4 * 8 * expert * ShareOfExpertsHit(8, 2, 5));
  const double linear = 2. * 64 * (2 * 2 * 16 + 2 * 4 * 16 + 2 * 4 + 4 * 16);
  const double attention = 2. * 64 * 32 * (2 * 4 + 2 * 2 + 4);
  const double shared_and_router = 2. * (3 * 32 * 64 + 64 + 8 * 64);
  const double head = 2. * 256 * 64;
  const double matrices = 3 * linear + attention + 4 * shared_and_router + head;
  const double vectors = 4. * (2 * 4 * 64 + 64 + 2 * 32 + 3 * (4 * 128 + 2 * 4 + 16));
  EXPECT_DOUBLE_EQ(b.dense, matrices + vectors);
}

// What is cut is read once, what is replicated once on every rank.
TEST(StepBytes, OfALayoutAreThoseOfAllRanks) {
  const StepBytes one = BytesIn({});
  for (const ParallelConfig& p :
       std::vector<ParallelConfig>{{.tp = 2}, {.tp = 2, .ep = 2}, {.tp = 2, .dp = 2, .ep = 2}}) {
    const StepBytes b = BytesIn(p);
    EXPECT_DOUBLE_EQ(b.experts, one.experts);
    EXPECT_DOUBLE_EQ(b.kv, one.kv);
    EXPECT_DOUBLE_EQ(b.state, one.state);
    EXPECT_GT(b.dense, one.dense);
    EXPECT_LE(b.dense, 2 * one.dense);
  }
}

RC_GTEST_PROP(StepBytes, ExpertsHitGrowWithTokensUpToAll, ()) {
  const int64_t experts = *rc::gen::inRange<int64_t>(1, 512);
  const int64_t top_k = *rc::gen::inRange<int64_t>(1, experts + 1);
  const int64_t tokens = *rc::gen::inRange<int64_t>(1, 2000);
  const double share = ShareOfExpertsHit(experts, top_k, tokens);
  RC_ASSERT(share <= 1.);
  RC_ASSERT(share >= ShareOfExpertsHit(experts, top_k, tokens - 1));
  const double each = static_cast<double>(top_k) / static_cast<double>(experts);
  RC_ASSERT(std::abs(ShareOfExpertsHit(experts, top_k, 1) - each) < 1e-12);
  RC_ASSERT(share <= each * static_cast<double>(tokens) + 1e-12);
}

}  // namespace
}  // namespace signalbox::step_bytes_test
