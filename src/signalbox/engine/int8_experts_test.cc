// SPDX-License-Identifier: Apache-2.0
//
// Experts that are given int8: how far the logits move, what does not move them, and that every
// rank is told.
#include <gtest/gtest.h>

#include <algorithm>

#include "signalbox/engine/run_requests_test.h"
#include "signalbox/engine/verify.h"

namespace signalbox::int8_experts_test {
namespace {

constexpr ActivationPrecision kInt8 = ActivationPrecision::kInt8;

struct Int8Case {
  std::string model;
  double within;  // of the reference, relative; about twice what was measured
};
void PrintTo(const Int8Case& c, std::ostream* os) {
  *os << (c.model == kTinyQwen ? "qwen" : "kimi");
}
class Int8Experts : public testing::TestWithParam<Int8Case> {};
INSTANTIATE_TEST_SUITE_P(Models, Int8Experts,
                         testing::Values(Int8Case{kTinyQwen, 1.5e-2}, Int8Case{kTinyKimi, 9e-2}));

TEST_P(Int8Experts, LogitsStayClose) {
  const auto engine = LoadEngine(GetParam().model, {.threads = 2, .expert_activations = kInt8});
  ASSERT_TRUE(engine);
  double worst = 0;
  for (const ReferenceSequence& s : ReferenceOf(GetParam().model, *engine)) {
    const auto logits = AllLogits(*engine, s.ids, 64);
    ASSERT_TRUE(logits.ok()) << logits.status().ToString();
    worst = std::max(worst, RelativeError(*logits, s.logits));
  }
  EXPECT_LE(worst, GetParam().within);
  EXPECT_GT(worst, 1e-5) << "nothing was rounded";
  RecordProperty("error", std::to_string(worst));
}

TEST_P(Int8Experts, LogitsDoNotDependOnHowThePromptIsCut) {
  const auto engine = LoadEngine(GetParam().model, {.threads = 2, .expert_activations = kInt8});
  ASSERT_TRUE(engine);
  const ReferenceSequence s = ReferenceOf(GetParam().model, *engine).front();
  ExpectPiecesToBeTheWhole(*engine, s.ids);
}

// Ranks that add up their parts, and ranks that send rows to each other's experts.
TEST_P(Int8Experts, RanksAgreeWithOne) {
  for (const bool exchanged : {false, true}) {
    EngineOptions options{.budget = {.tokens = 256, .sequences = 4}, .expert_activations = kInt8};
    const auto one = LoadEngine(GetParam().model, options);
    options.layout = {.parallel = {.tp = 2, .ep = 2}, .limits = {.capacity = 128}};
    if (exchanged) {
      options.layout.contracts.fill(*ContractFromFile(std::string(SIGNALBOX_SOURCE_DIR) +
                                                      "/src/signalbox/a2a/testdata/acme.contract"));
    }
    const auto two = LoadEngine(GetParam().model, options);
    ASSERT_TRUE(one && two);
    const auto report = VerifyLayout(*two, *one, {});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_TRUE(StatusOf(*report).ok()) << StatusOf(*report).ToString();
  }
}

}  // namespace
}  // namespace signalbox::int8_experts_test
