// SPDX-License-Identifier: Apache-2.0
//
// Verification finds every mistake of the fault gallery and names its addend, the checker refuses
// it, and a proved layout passes.
#include "signalbox/engine/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "signalbox/a2a/contract.h"
#include "signalbox/plan/faults.h"

namespace signalbox::verify_test {
namespace {

const std::string kModels = std::string(SIGNALBOX_SOURCE_DIR) + "/models/";
const std::string kTiny = kModels + "tiny-qwen3.5-moe-mxfp4";
const std::string kBf16 = kModels + "random/qwen3.5-moe";
const std::string kLatent = kModels + "tiny-kimi-k3-mxfp4";

struct Arrangement {
  std::string name;
  std::string model;
  LayoutOptions layout;
  DType kv_dtype = DType::kF32;
};

LayoutOptions Layout(ParallelConfig parallel, const std::string& contract_file = "",
                     SharedChoice shared = SharedChoice::kAuto) {
  LayoutOptions options{.parallel = parallel, .limits = {.capacity = 128}, .shared = shared};
  if (!contract_file.empty()) {
    options.contracts.fill(*ContractFromFile(std::string(SIGNALBOX_SOURCE_DIR) +
                                             "/src/signalbox/a2a/testdata/" + contract_file));
  }
  return options;
}

std::vector<Arrangement> Arrangements() {
  return {
      {"summed", kTiny, Layout({.tp = 2, .ep = 2})},
      {"exchanged", kTiny, Layout({.tp = 2, .ep = 2}, "acme.contract")},
      {"replicas", kTiny, Layout({.tp = 2, .ep = 2, .redundant_experts = 2})},
      {"two groups", kTiny, Layout({.tp = 4, .dp = 2, .ep = 4}, "acme.contract")},
      {"gathered", kTiny, Layout({.tp = 4, .dp = 2, .ep = 2})},
      {"latent, summed", kLatent, Layout({.tp = 2, .ep = 2})},
      {"latent, exchanged", kLatent, Layout({.tp = 2, .ep = 2}, "acme.contract")},
      {"fused", kBf16, Layout({.tp = 2, .ep = 2}, "", SharedChoice::kFused)},
      {"exchanged, FP8 cache", kTiny, Layout({.tp = 2, .ep = 2}, "acme.contract"), DType::kF8E4m3},
      {"two groups, BF16 cache", kTiny, Layout({.tp = 4, .dp = 2, .ep = 4}, "acme.contract"),
       DType::kBf16},
      {"latent, FP8 cache", kLatent, Layout({.tp = 2, .ep = 2}), DType::kF8E4m3},
  };
}

EngineOptions OptionsOf(const Arrangement& a) {
  return {.threads = 1,
          .budget = {.tokens = 256, .sequences = 4},
          .kv_dtype = a.kv_dtype,
          .layout = a.layout};
}

// The same on one rank.
EngineOptions OneRank(const Arrangement& a) {
  EngineOptions options = OptionsOf(a);
  options.layout = {};
  return options;
}

std::unique_ptr<Engine> LoadOrFail(const std::string& model, const EngineOptions& options) {
  auto engine = Engine::Load(model, options);
  EXPECT_TRUE(engine.ok()) << engine.status().ToString();
  return engine.ok() ? std::move(engine).value() : nullptr;
}

// The addends in which each mistake may show first.
bool IsNamed(LayoutFault fault, const std::string& addend) {
  const bool shared = fault == LayoutFault::kSharedPerRank || fault == LayoutFault::kSharedHalved ||
                      fault == LayoutFault::kSharedDoubled;
  if (fault == LayoutFault::kGlobalSharedSlot) return addend == "routed experts + shared expert";
  return addend == (shared ? "shared expert" : "routed experts") ||
         (!shared && addend == "routed experts + shared expert");
}

int FirstLayerWithExperts(const Engine& engine) {
  const auto& layers = engine.config().facts.layers;
  return static_cast<int>(
      std::find_if(layers.begin(), layers.end(),
                   [](const LayerFacts& l) { return std::holds_alternative<MoeFacts>(l.ffn); }) -
      layers.begin());
}

TEST(ToleranceAfter, GoesHalfWayToTheRoundingStepWithEveryAttentionLayer) {
  EXPECT_EQ(ToleranceAfter(5, 1e-5, DType::kF32), 1e-5);
  for (const DType dtype : {DType::kBf16, DType::kF8E4m3}) {
    const double step = RoundingStep(dtype);
    EXPECT_EQ(ToleranceAfter(0, 1e-5, dtype), 1e-5);
    EXPECT_DOUBLE_EQ(ToleranceAfter(1, 1e-5, dtype), step / 8);
    EXPECT_DOUBLE_EQ(ToleranceAfter(2, 1e-5, dtype), step / std::sqrt(8));
    EXPECT_LE(ToleranceAfter(100, 1e-5, dtype), step);
    EXPECT_EQ(ToleranceAfter(3, 0.5, dtype), 0.5);  // what was asked for is not less
  }
}

TEST(Verify, AProvedLayoutPasses) {
  for (const Arrangement& a : Arrangements()) {
    const auto engine = LoadOrFail(a.model, OptionsOf(a));
    const auto one = LoadOrFail(a.model, OneRank(a));
    ASSERT_TRUE(engine && one) << a.name;
    const auto report = VerifyLayout(*engine, *one, {.tokens = 40});
    ASSERT_TRUE(report.ok()) << a.name << ": " << report.status().ToString();
    EXPECT_TRUE(StatusOf(*report).ok()) << a.name << StatusOf(*report).ToString();
    const auto layers = engine->config().facts.layers.size() + (engine->has_draft() ? 1 : 0);
    EXPECT_EQ(report->layers.size(), layers) << a.name;
    EXPECT_GT(report->worst, 0) << a.name << ": nothing was compared";
    for (const LayerReport& layer : report->layers) {
      EXPECT_GE(layer.addends.size(), 3u) << a.name << ", layer " << layer.layer;
      EXPECT_EQ(layer.addends.back().addend, "output");
    }
  }
}

TEST(Verify, FindsEveryFaultAndTheCheckerRefusesIt) {
  std::vector<int> found(static_cast<size_t>(LayoutFault::kCount), 0);
  for (const Arrangement& a : Arrangements()) {
    const auto one = LoadOrFail(a.model, OneRank(a));
    const auto right = LoadOrFail(a.model, OptionsOf(a));
    ASSERT_TRUE(one && right);
    for (size_t f = 0; f < found.size(); ++f) {
      const LayoutFault fault = static_cast<LayoutFault>(f);
      const std::string name = a.name + ", " + std::string(ToString(fault));
      const auto faulty = InjectFault(right->planned().layout, fault);
      if (!faulty.ok()) {
        EXPECT_EQ(faulty.status().code(), StatusCode::kInvalidArgument) << name;
        continue;
      }
      EXPECT_EQ(CheckFaulty(*faulty).code(), StatusCode::kRefused)
          << name << ": " << faulty->change << "\n"
          << CheckFaulty(*faulty).ToString();
      EngineOptions options = OptionsOf(a);
      options.fault = fault;
      const auto engine = LoadOrFail(a.model, options);
      ASSERT_TRUE(engine) << name;
      const auto report = VerifyLayout(*engine, *one, {.tokens = 40});
      ASSERT_TRUE(report.ok()) << name << ": " << report.status().ToString();
      ASSERT_TRUE(report->first) << name << " was not found";
      EXPECT_EQ(report->first->layer, FirstLayerWithExperts(*engine)) << name;
      EXPECT_TRUE(IsNamed(fault, report->first->addend)) << name << ": " << report->first->addend;
      EXPECT_FALSE(report->first->error < 0.1) << name;
      ++found[f];
    }
  }
  for (size_t f = 0; f < found.size(); ++f) {
    const LayoutFault fault = static_cast<LayoutFault>(f);
    // No bundled model has a routed scaling factor that its steps apply.
    if (fault == LayoutFault::kScalingTwice) continue;
    EXPECT_GT(found[f], 0) << ToString(fault) << " was tried nowhere";
  }
}

TEST(Verify, TheStartupCheckRunsTheFirstLayersOfEveryKind) {
  const Arrangement a = Arrangements()[1];
  const auto engine = LoadOrFail(a.model, OptionsOf(a));
  ASSERT_TRUE(engine);
  const auto report = StartupCheck(*engine, a.model);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->layers.size(), 4u);  // three of the delta rule, then attention
}

TEST(Verify, CanariesFitTheStepsOfTheLayout) {
  for (const int64_t rows : {1, 2, 5}) {
    Arrangement a = Arrangements()[1];
    a.layout.limits = {.chunked_prefill_size = rows, .max_running_requests = 1, .capacity = rows};
    EngineOptions options = OptionsOf(a);
    options.budget.sequences = 1;
    const auto engine = LoadOrFail(a.model, options);
    ASSERT_TRUE(engine);
    const auto report = StartupCheck(*engine, a.model);
    EXPECT_TRUE(report.ok()) << rows << ": " << report.status().ToString();
  }
}

TEST(Verify, TheStartupCheckStopsAWrongLayout) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF8E4m3}) {
    const Arrangement a = Arrangements()[1];
    EngineOptions options = OptionsOf(a);
    options.kv_dtype = dtype;
    const auto right = LoadOrFail(a.model, options);
    options.fault = LayoutFault::kSharedHalved;
    const auto engine = LoadOrFail(a.model, options);
    ASSERT_TRUE(right && engine);
    EXPECT_TRUE(StartupCheck(*right, a.model).ok()) << ToString(dtype);
    const auto report = StartupCheck(*engine, a.model);
    ASSERT_EQ(report.status().code(), StatusCode::kOutOfTolerance) << ToString(dtype);
    EXPECT_NE(report.status().message().find("layer 0 computes shared expert"), std::string::npos)
        << report.status().message();
  }
}

}  // namespace
}  // namespace signalbox::verify_test
