// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cache/cache_pool.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <set>

namespace signalbox {
namespace {

const CacheShape kShape = {.attention = {{2, 4, 4}}, .linear = {{6, 10}}};

TEST(CachePool, SlotsAreZeroedWhenHandedOutAgain) {
  CachePool pool = *CachePool::Create(kShape, {.tokens = 32, .sequences = 1});
  SequenceCache a;
  ASSERT_TRUE(pool.Reserve(&a, 5).ok());
  pool.recurrent(0, a.slot)[9] = 3.f;
  pool.conv(0, a.slot)[0] = 3.f;
  pool.Release(&a);
  SequenceCache b;
  ASSERT_TRUE(pool.Reserve(&b, 1).ok());
  EXPECT_EQ(pool.recurrent(0, b.slot)[9], 0.f);
  EXPECT_EQ(pool.conv(0, b.slot)[0], 0.f);
}

TEST(CachePool, ExhaustionClaimsNothing) {
  CachePool pool = *CachePool::Create(kShape, {.tokens = 32, .sequences = 2});
  SequenceCache a;
  const int64_t blocks = pool.free_blocks();
  const Status s = pool.Reserve(&a, (blocks + 1) * kBlockTokens);
  EXPECT_EQ(s.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(a.slot, -1);
  EXPECT_EQ(pool.free_blocks(), blocks);
  EXPECT_EQ(pool.free_slots(), 2);
}

// Laws: no page or slot belongs to two sequences; everything comes back.
RC_GTEST_PROP(CachePool, ClaimsNeverOverlap, ()) {
  CachePool pool = *CachePool::Create(kShape, {.tokens = 200, .sequences = 4});
  const int64_t blocks = pool.free_blocks();
  std::map<int, SequenceCache> sequences;
  for (int i = 0; i < 40; ++i) {
    const int name = *rc::gen::inRange(0, 6);
    if (*rc::gen::inRange(0, 3) == 0) {
      pool.Release(&sequences[name]);
      sequences.erase(name);
      continue;
    }
    SequenceCache& s = sequences[name];
    const int64_t tokens = *rc::gen::inRange(0, 90);
    if (pool.Reserve(&s, tokens).ok()) {
      RC_ASSERT(static_cast<int64_t>(s.blocks.size()) * kBlockTokens >= tokens);
    } else if (s.slot < 0) {
      sequences.erase(name);
    }
    std::set<int32_t> used;
    std::set<int32_t> slots;
    size_t claims = 0;
    for (const auto& [key, q] : sequences) {
      used.insert(q.blocks.begin(), q.blocks.end());
      slots.insert(q.slot);
      claims += q.blocks.size();
    }
    RC_ASSERT(used.size() == claims);
    RC_ASSERT(slots.size() == sequences.size());
    RC_ASSERT(pool.free_blocks() + static_cast<int64_t>(claims) == blocks);
  }
  for (auto& [key, q] : sequences) pool.Release(&q);
  RC_ASSERT(pool.free_blocks() == blocks);
  RC_ASSERT(pool.free_slots() == 4);
}

}  // namespace
}  // namespace signalbox
