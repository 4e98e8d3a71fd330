// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/stop_strings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace signalbox::stop_strings_test {
namespace {

using ::testing::HasSubstr;

StopStrings Stops(std::vector<std::string> stops) {
  auto result = StopStrings::Create(std::move(stops));
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  return *std::move(result);
}

TEST(StopStringsTest, HoldsBackWhatMayBeTheBeginning) {
  StopStrings stops = Stops({"</answer>", "aab"});
  EXPECT_EQ(stops.held(), 0u);
  EXPECT_FALSE(stops.Push("42</an"));
  EXPECT_EQ(stops.held(), 4u);
  EXPECT_FALSE(stops.Push("d aaa"));
  EXPECT_EQ(stops.held(), 2u);
  const auto match = stops.Push("bc");
  ASSERT_TRUE(match);
  EXPECT_EQ(match->stop, 1u);
  EXPECT_EQ(match->end, 1u);
}

TEST(StopStringsTest, OfThoseThatEndTogetherTheLongest) {
  for (const auto& list : {std::vector<std::string>{"c", "abc", "bc"}, {"abc", "bc", "c"}}) {
    StopStrings stops = Stops(list);
    const auto match = stops.Push("xabc");
    ASSERT_TRUE(match);
    EXPECT_EQ(stops.text(match->stop), "abc");
    EXPECT_EQ(match->end, 4u);
  }
}

TEST(StopStringsTest, NoStopsHoldNothingBack) {
  StopStrings stops = Stops({});
  EXPECT_FALSE(stops.Push("anything"));
  EXPECT_EQ(stops.held(), 0u);
}

TEST(StopStringsTest, RefusesWhatIsOutOfItsLimits) {
  const auto message = [](std::vector<std::string> stops) {
    const Status s = StopStrings::Create(std::move(stops)).status();
    EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
    return s.message();
  };
  EXPECT_THAT(message({"a", ""}), HasSubstr("empty"));
  EXPECT_THAT(message({std::string(1025, 'x')}), HasSubstr("1025 bytes, expected at most 1024"));
  EXPECT_THAT(message(std::vector<std::string>(65, "x")), HasSubstr("65, expected at most 64"));
  EXPECT_THAT(message({"\xC3"}), HasSubstr("UTF-8"));
  EXPECT_THAT(message({"a\xA9"}), HasSubstr("UTF-8"));
  Stops(std::vector<std::string>(64, std::string(1024, 'x')));
}

struct Search {
  size_t end;
  std::string stop;
};

// The definition: the first end of a stop; there, the longest that ends.
std::optional<Search> FirstStop(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string longest;
    for (const std::string& stop : stops) {
      if (text.substr(0, end).ends_with(stop) && stop.size() > longest.size()) longest = stop;
    }
    if (!longest.empty()) return Search{end, longest};
  }
  return std::nullopt;
}

// The longest end of `text` that is a beginning of a stop, but not all of it.
size_t HeldBack(const std::string& text, const std::vector<std::string>& stops) {
  size_t most = 0;
  for (const std::string& stop : stops) {
    for (size_t n = 1; n < stop.size(); ++n) {
      if (text.ends_with(stop.substr(0, n))) most = std::max(most, n);
    }
  }
  return most;
}

// Two letters make every kind of overlap likely.
RC_GTEST_PROP(StopStringsTest, FindsTheFirstHoweverTheTextIsCut, ()) {
  const auto word = [](int longest) {
    return rc::gen::resize(
        longest, rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::element('a', 'b'))));
  };
  const auto list = *rc::gen::resize(4, rc::gen::container<std::vector<std::string>>(word(9)));
  const auto pieces = *rc::gen::container<std::vector<std::string>>(word(4));
  StopStrings stops = Stops(list);
  std::string text;
  for (const std::string& piece : pieces) {
    const size_t begin = text.size();
    text += piece;
    const auto match = stops.Push(piece);
    const auto expected = FirstStop(text, list);
    RC_ASSERT(match.has_value() == expected.has_value());
    if (match) {
      RC_ASSERT(begin + match->end == expected->end);
      RC_ASSERT(stops.text(match->stop) == expected->stop);
      return;
    }
    RC_ASSERT(stops.held() == HeldBack(text, list));
  }
}

}  // namespace
}  // namespace signalbox::stop_strings_test
