// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cache/cache_pool.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <vector>

#include "signalbox/cache/cache_account.h"

namespace signalbox {
namespace {

const CacheShape kShape = {.attention = {{2, 4, 4}}, .linear = {{6, 10}, {2, 3}}};

TEST(CachePool, StatesAreCopiedAndClearedInAllLinearLayers) {
  CachePool pool = *CachePool::Create(kShape, {.pages = 2, .slots = 3});
  pool.conv(0, 1)[5] = 2.f;
  pool.recurrent(1, 1)[2] = 3.f;
  pool.CopyState(1, 2);
  pool.ClearState(1);
  EXPECT_EQ(pool.conv(0, 1)[5], 0.f);
  EXPECT_EQ(pool.recurrent(1, 1)[2], 0.f);
  EXPECT_EQ(pool.conv(0, 2)[5], 2.f);
  EXPECT_EQ(pool.recurrent(1, 2)[2], 3.f);
}

TEST(CachePool, ABudgetHasRoomForItsTokensHoweverTheyAreSpread) {
  const CacheBudget budget{.tokens = 100, .sequences = 3, .slots_per_sequence = 4, .snapshots = 2};
  EXPECT_EQ(budget.size().slots, 14);
  EXPECT_EQ((CacheBudget{.sequences = 3}).size().slots, 9);
  EXPECT_EQ((CacheBudget{.sequences = 3, .snapshots = 0}).size().slots, 3);
  for (int64_t first = 1; first <= 98; ++first) {
    const int64_t second = (100 - first) / 2;
    const int64_t third = 100 - first - second;
    EXPECT_LE(
        CacheBudget::PagesFor(first) + CacheBudget::PagesFor(second) + CacheBudget::PagesFor(third),
        budget.size().pages);
  }
}

TEST(CachePool, ReservesWhatItsShapeSays) {
  const CachePool pool = *CachePool::Create(kShape, {.pages = 3, .slots = 5});
  EXPECT_EQ(kShape.bytes_per_token(), 64);
  EXPECT_EQ(kShape.bytes_per_sequence(), 84);
  EXPECT_EQ(pool.bytes(), 3 * 16 * 64 + 5 * 84);
}

TEST(CachePool, KeysAndValuesTakeTheRoomOfTheirType) {
  for (const auto& [dtype, bytes] :
       {std::pair{DType::kF32, 4}, {DType::kBf16, 2}, {DType::kF8E4m3, 1}}) {
    CacheShape shape = kShape;
    shape.kv_dtype = dtype;
    EXPECT_EQ(shape.bytes_per_token(), 2 * (4 + 4) * bytes);
    CachePool pool = *CachePool::Create(shape, {.pages = 2, .slots = 1});
    EXPECT_EQ(pool.bytes(), 2 * 16 * 2 * (4 + 4) * bytes + kShape.bytes_per_sequence());
    const KvView kv = pool.kv(0);
    EXPECT_EQ(kv.dtype, dtype);
    const std::vector<float> row(8, 1.5f);
    const int64_t last = (2 * kBlockTokens - 1) * 8;  // the last number of the pool ends its memory
    StoreFloats(row.data(), 8, dtype, ElementAt(kv.values, last, dtype));
    std::vector<float> got(8);
    LoadFloats(ElementAt(kv.values, last, dtype), 8, dtype, got.data());
    EXPECT_EQ(got, row);
  }
}

TEST(CachePool, MoreThanThereIsIsRefused) {
  const auto pool = CachePool::Create(kShape, {.pages = int64_t{1} << 50, .slots = 1});
  EXPECT_EQ(pool.status().code(), StatusCode::kResourceExhausted);
}

// Laws: a number is given to one owner; a page is free again when its last owner has dropped it;
// what is taken and what is free add up.
RC_GTEST_PROP(CacheAccount, OwnersAndFreeNumbersAddUp, ()) {
  CacheAccount account({.pages = 6, .slots = 4});
  std::map<int32_t, int> pages;
  std::vector<int32_t> slots;
  for (int i = 0; i < 60; ++i) {
    switch (*rc::gen::inRange(0, 5)) {
      case 0: {
        const int32_t page = account.TakePage();
        RC_ASSERT((page < 0) == (pages.size() == 6));
        if (page >= 0) RC_ASSERT(pages.emplace(page, 1).second);
        break;
      }
      case 1:
        if (pages.empty()) break;
        account.SharePage(pages.begin()->first);
        ++pages.begin()->second;
        break;
      case 2:
        if (pages.empty()) break;
        account.DropPage(pages.rbegin()->first);
        if (--pages.rbegin()->second == 0) pages.erase(std::prev(pages.end()));
        break;
      case 3: {
        const int32_t slot = account.TakeSlot();
        RC_ASSERT((slot < 0) == (slots.size() == 4));
        if (slot >= 0) {
          RC_ASSERT(std::find(slots.begin(), slots.end(), slot) == slots.end());
          slots.push_back(slot);
        }
        break;
      }
      default:
        if (slots.empty()) break;
        account.DropSlot(slots.front());
        slots.erase(slots.begin());
    }
    RC_ASSERT(account.free_pages() == 6 - static_cast<int64_t>(pages.size()));
    RC_ASSERT(account.free_slots() == 4 - static_cast<int64_t>(slots.size()));
    for (const auto& [page, owners] : pages) RC_ASSERT(account.owners(page) == owners);
  }
}

}  // namespace
}  // namespace signalbox
