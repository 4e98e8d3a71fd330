// SPDX-License-Identifier: Apache-2.0
#include "signalbox/base/text_util.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <limits>

namespace signalbox {
namespace {

TEST(HumanBytes, KeepsOneDecimalAndNeverPrints1024) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1.0 KiB");
  EXPECT_EQ(HumanBytes(15588720), "14.9 MiB");
  EXPECT_EQ(HumanBytes((int64_t{1} << 20) - 1), "1.0 MiB");
  EXPECT_EQ(HumanBytes(std::numeric_limits<int64_t>::max()), "8192.0 PiB");
}

TEST(Quoted, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(Quoted("mlp.gate"), "'mlp.gate'");
  EXPECT_EQ(Quoted("a\x1b[31m\n'\\"), R"('a\x1b[31m\x0a\'\\')");
  EXPECT_EQ(Quoted("ü"), "'ü'");
}

TEST(Quoted, CutsLongTextBetweenCharacters) {
  EXPECT_EQ(Quoted(std::string(119, 'a') + "ü!"), "'" + std::string(119, 'a') + "...' (122 bytes)");
  EXPECT_EQ(Quoted(std::string(118, 'a') + "\xe2\x82\xac\xe2\x82\xac"),
            "'" + std::string(118, 'a') + "...' (124 bytes)");
}

TEST(SampleOf, CountsTheRest) {
  constexpr std::array<std::string_view, 5> kNames = {"a", "b", "c", "d", "e"};
  EXPECT_EQ(SampleOf(kNames), "'a', 'b', 'c' and 2 more");
  EXPECT_EQ(SampleOf(kNames, 5), "'a', 'b', 'c', 'd', 'e'");
  EXPECT_EQ(SampleOf({}), "");
}

TEST(NearestName, FindsTypingSlipsOnly) {
  constexpr std::array<std::string_view, 4> kFlags = {"--parallel", "--port", "--prompt", "--tp"};
  EXPECT_EQ(NearestName("--paralell", kFlags), "--parallel");
  EXPECT_EQ(NearestName("--promtp", kFlags), "--prompt");  // a swap is one edit
  EXPECT_EQ(NearestName("--pt", kFlags), "--tp");
  EXPECT_EQ(NearestName("--temperature", kFlags), std::nullopt);
  EXPECT_EQ(NearestName("", kFlags), std::nullopt);
}

TEST(GlobMatch, StarIsAnyRun) {
  EXPECT_TRUE(GlobMatch("model.visual.*", "model.visual.blocks.0.attn.qkv.weight"));
  EXPECT_TRUE(GlobMatch("*.rotary_emb.inv_freq", "model.layers.0.self_attn.rotary_emb.inv_freq"));
  EXPECT_TRUE(GlobMatch("a*b*c", "a-b-b-c"));
  EXPECT_TRUE(GlobMatch("*", ""));
  EXPECT_FALSE(GlobMatch("model.visual.*", "model.visual"));
  EXPECT_FALSE(GlobMatch("a*b", "a-b-c"));
  EXPECT_FALSE(GlobMatch("", "a"));
  // Backtracking to every star would take for ever here.
  EXPECT_FALSE(GlobMatch("*a*a*a*a*a*a*a*a*a*a*b", std::string(2000, 'a')));
}

RC_GTEST_PROP(GlobMatch, TextWithRunsTakenOutStillMatches, (const std::string& text)) {
  // Any cut of the text into kept and starred pieces is a pattern for the text.
  std::string pattern;
  for (size_t i = 0; i < text.size(); ++i) {
    pattern += *rc::gen::element(0, 1, 2) == 0 ? '*' : text[i];
  }
  RC_ASSERT(GlobMatch(pattern, text));
}

}  // namespace
}  // namespace signalbox
