// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cli/line_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace signalbox::line_chart_test {
namespace {

using testing::HasSubstr;
using testing::Not;

// Of every circle, from left to right: how high it is.
std::vector<double> Heights(const std::string& svg) {
  std::vector<double> heights;
  for (size_t at = 0; (at = svg.find(" cy=\"", at)) != svg.npos; ++at)
    heights.push_back(-std::stod(svg.substr(at + 5)));
  return heights;
}

TEST(LineChart, LinearPointsAreAsHighAsTheirValues) {
  const auto h = Heights(
      LineChartsToSvg("t", {{.title = "a", .x = {1, 8, 64}, .series = {{"", {0, 5, 20}}}}}));
  ASSERT_EQ(h.size(), 3u);
  EXPECT_NEAR((h[2] - h[0]) / (h[1] - h[0]), 4, 0.02);
}

TEST(LineChart, LogarithmicPointsAreAsHighAsTheirPowers) {
  const auto h = Heights(LineChartsToSvg(
      "t",
      {{.title = "a", .x = {1, 2, 3}, .series = {{"p", {1, 10, 1000}}}, .logarithmic = true}}));
  ASSERT_EQ(h.size(), 3u);
  EXPECT_NEAR((h[2] - h[0]) / (h[1] - h[0]), 3, 0.02);
}

TEST(LineChart, OnePointAndNoValuesAreDrawn) {
  for (bool logarithmic : {false, true}) {
    const std::string svg = LineChartsToSvg(
        "t", {{.x = {1}, .series = {{"p50", {0}}, {"p99", {0}}}, .logarithmic = logarithmic}});
    EXPECT_EQ(Heights(svg).size(), 2u);
    EXPECT_THAT(svg, Not(HasSubstr("nan")));
    EXPECT_THAT(svg, Not(HasSubstr("inf")));
    EXPECT_THAT(svg, HasSubstr(">p50</text>"));
  }
}

TEST(LineChart, TextIsNoMarkup) {
  EXPECT_THAT(LineChartsToSvg("a < b & c\n", {}), HasSubstr(">a &lt; b &amp; c </text>"));
}

}  // namespace
}  // namespace signalbox::line_chart_test
