// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace signalbox::bpe_test {
namespace {

using ::testing::ElementsAre;

std::array<TokenId, 256> Bytes() {
  std::array<TokenId, 256> tokens;
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

std::vector<TokenId> Encoded(const Bpe& bpe, std::string_view piece) {
  std::vector<TokenId> ids;
  bpe.Encode(piece, ids);
  return ids;
}

// The definition, word for word.
std::vector<TokenId> ReferenceBpe(const std::vector<BpeMerge>& merges, std::string_view piece) {
  std::vector<TokenId> ids;
  for (const char c : piece) ids.push_back(static_cast<uint8_t>(c));
  for (bool merged = true; merged;) {
    merged = false;
    for (const BpeMerge& merge : merges) {
      const TokenId pair[] = {merge.left, merge.right};
      const auto at = std::search(ids.begin(), ids.end(), std::begin(pair), std::end(pair));
      if (at == ids.end()) continue;
      *at = merge.result;
      ids.erase(at + 1);
      merged = true;
      break;
    }
  }
  return ids;
}

TEST(BpeTest, LowestRankFirstThenLeftmost) {
  const std::vector<BpeMerge> merges = {
      {'b', 'c', 256}, {'a', 'b', 257}, {'a', 'a', 258}, {257, 'd', 259}};
  const Bpe bpe(Bytes(), merges);
  EXPECT_THAT(Encoded(bpe, ""), ElementsAre());
  EXPECT_THAT(Encoded(bpe, "a"), ElementsAre('a'));
  EXPECT_THAT(Encoded(bpe, "abc"), ElementsAre('a', 256));
  EXPECT_THAT(Encoded(bpe, "abd"), ElementsAre(259));
  EXPECT_THAT(Encoded(bpe, "aaa"), ElementsAre(258, 'a'));
  EXPECT_THAT(Encoded(bpe, "aaaab"), ElementsAre(258, 'a', 257));
}

RC_GTEST_PROP(BpeTest, AgreesWithTheDefinition, ()) {
  // Random merges among three letters and the tokens before; a token may be made in several ways.
  const size_t count = *rc::gen::inRange<size_t>(0, 12);
  std::vector<TokenId> tokens = {'a', 'b', 'c'};
  std::vector<std::string> spelled = {"a", "b", "c"};
  std::map<std::pair<TokenId, TokenId>, bool> seen;
  std::vector<BpeMerge> merges;
  for (size_t i = 0; i < count; ++i) {
    const size_t left = *rc::gen::inRange<size_t>(0, tokens.size());
    const size_t right = *rc::gen::inRange<size_t>(0, tokens.size());
    if (!seen.emplace(std::pair(tokens[left], tokens[right]), true).second) continue;
    const std::string merged = spelled[left] + spelled[right];
    auto known = std::find(spelled.begin(), spelled.end(), merged);
    if (known == spelled.end()) {
      tokens.push_back(static_cast<TokenId>(256 + i));
      spelled.push_back(merged);
      known = spelled.end() - 1;
    }
    merges.push_back({tokens[left], tokens[right], tokens[known - spelled.begin()]});
  }
  const Bpe bpe(Bytes(), merges);
  const std::string piece = *rc::gen::container<std::string>(rc::gen::element('a', 'b', 'c'));
  const std::vector<TokenId> expected = ReferenceBpe(merges, piece);
  RC_ASSERT(Encoded(bpe, piece) == expected);
  RC_ASSERT(Encoded(bpe, piece) == expected);  // from the cache
}

TEST(BpeTest, AMegabyteOfOneLetter) {
  std::vector<BpeMerge> merges = {{'a', 'a', 256}};
  for (TokenId id = 256; id < 266; ++id) merges.push_back({id, id, id + 1});
  const Bpe bpe(Bytes(), merges);
  const std::vector<TokenId> ids = Encoded(bpe, std::string(1 << 20, 'a'));
  EXPECT_EQ(ids, std::vector<TokenId>((1 << 20) >> 11, 266));
}

TEST(BpeTest, ThreadsShareTheCache) {
  std::vector<BpeMerge> merges;
  for (TokenId i = 0; i < 26; ++i) merges.push_back({'a' + i, 'a' + (i * 7 + 3) % 26, 256 + i});
  const Bpe bpe(Bytes(), merges);
  const auto work = [&](unsigned seed) {
    for (unsigned i = 0; i < 2000; ++i) {
      std::string piece;
      for (unsigned n = seed + i; n > 0; n /= 26) piece += static_cast<char>('a' + n % 26);
      ASSERT_EQ(Encoded(bpe, piece), ReferenceBpe(merges, piece));
    }
  };
  std::vector<std::jthread> threads;
  for (unsigned t = 0; t < 4; ++t) threads.emplace_back(work, 17'000 + 500 * t);
}

TEST(PairTableTest, GrowsAndReplaces) {
  PairTable table;
  for (uint32_t i = 0; i < 1000; ++i) table.Insert({i, i * i}, {i, 7});
  table.Insert({3, 9}, {3, 8});
  for (uint32_t i = 0; i < 1000; ++i) {
    const auto* found = table.Find({i, i * i});
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(*found, (PairTable::Pair{i, i == 3 ? 8u : 7u}));
    EXPECT_EQ(table.Find({i, i * i + 1}), nullptr);
  }
}

}  // namespace
}  // namespace signalbox::bpe_test
