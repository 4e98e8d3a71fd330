// SPDX-License-Identifier: Apache-2.0
#include "signalbox/plan/print.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "signalbox/plan/exchange.h"
#include "signalbox/plan/planner_models_test.h"

namespace signalbox {
namespace {

using ::testing::HasSubstr;

LayoutPlan Plan(const ParallelConfig& parallel, std::string_view prefill = "",
                std::string_view decode = "") {
  PlanRequest request{.parallel = parallel, .facts = TestModel("gated"), .emulated = true};
  if (!prefill.empty()) {
    request.contracts[0] = KindOfContract(prefill);
    request.contracts[1] = KindOfContract(decode.empty() ? prefill : decode);
  }
  return *PlanLayout(request);
}

size_t Count(std::string_view text, std::string_view what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++n;
  return n;
}

TEST(LayoutText, IsTheOneInTheFile) {
  std::ifstream file(SIGNALBOX_TESTDATA "/layout.golden");
  std::stringstream expected;
  expected << file.rdbuf();
  EXPECT_EQ(LayoutToText(Plan({.tp = 4, .dp = 2, .ep = 4}, "flat-global")), expected.str());
}

TEST(LayoutText, ShowsEqualPlansOnceAndOthersApart) {
  EXPECT_THAT(LayoutToText(Plan({.tp = 2, .ep = 2}, "flat-global")),
              HasSubstr("gated (2 layers): prefill, decode\n"));
  const std::string text = LayoutToText(Plan({.tp = 2, .ep = 2}, "flat-local", "by-expert"));
  EXPECT_THAT(text, HasSubstr("gated (2 layers): prefill\n  back end flat-local"));
  EXPECT_THAT(text, HasSubstr("gated (2 layers): decode\n  back end by-expert"));
}

TEST(LayoutJson, StepsAreThoseOfThePlan) {
  const LayoutPlan plan = Plan({.tp = 4, .dp = 2, .ep = 4}, "flat-global");
  const auto json = nlohmann::json::parse(LayoutToJson(plan));
  EXPECT_EQ(json["rows_in"], nlohmann::json({"attn_dp"}));
  EXPECT_EQ(json["row_multiple"], 2);
  EXPECT_EQ(json["memory_per_rank"]["weights"], plan.memory.weights());
  const auto& phase = json["kinds"][0]["phases"][1];
  EXPECT_EQ(phase["back_end"], "flat-global");
  const PhasePlan& decode = *plan.kinds[0].phase(Phase::kDecode);
  ASSERT_EQ(phase["steps"].size(), decode.plan.steps.size());
  nlohmann::json document = nlohmann::json::parse(PlanToJson(decode.plan, plan.mesh()));
  document["steps"] = phase["steps"];
  for (auto& step : document["steps"]) {
    step.erase("text");
    step.erase("value");
  }
  const auto read = PlanFromJson(document.dump());
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->plan, decode.plan);
}

TEST(LayoutSvg, HasAColumnPerRankAndABandPerStep) {
  const LayoutPlan plan = Plan({.tp = 4, .dp = 2, .ep = 4}, "flat-global");
  const std::string svg = LayoutToSvg(plan, {.kind = 0, .phase = Phase::kDecode});
  const size_t steps = plan.kinds[0].phase(Phase::kDecode)->plan.steps.size();
  EXPECT_EQ(Count(svg, "class=\"head\""), 4u);
  EXPECT_EQ(Count(svg, "class=\"step\""), steps + 1);  // and the layer's input
  // One sum after attention on each rank; its sign is in the legend too.
  EXPECT_EQ(Count(svg, "class=\"plus\""), 4u + 1);
  // Two collectives over pairs, two exchanges over all four.
  EXPECT_EQ(Count(svg, "class=\"flow\""), 2 * 8u + 2 * 16u);
  EXPECT_EQ(Count(svg, "<text"), Count(svg, "</text>"));
}

TEST(LayoutSvg, EscapesWhatModelsAreCalled) {
  LayoutPlan plan = Plan({.tp = 2});
  plan.kinds[0].kind = "a<b>&\n";
  EXPECT_THAT(LayoutToSvg(plan, {}), HasSubstr("a&lt;b&gt;&amp; , decode"));
}

TEST(LayoutSvg, DrawsManyRanks) {
  const std::string svg = LayoutToSvg(Plan({.tp = 16, .dp = 2, .ep = 16}, "flat-global"), {});
  EXPECT_EQ(Count(svg, "class=\"head\""), 8u);
  EXPECT_THAT(svg, HasSubstr("the first 8 of 16 ranks"));
}

}  // namespace
}  // namespace signalbox
