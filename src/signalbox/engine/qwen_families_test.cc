// SPDX-License-Identifier: Apache-2.0
//
// Qwen2-MoE, Qwen3-MoE and Qwen3-Next in layouts: equal to one rank, mistakes found; every released
// size is planned.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "signalbox/a2a/contract.h"
#include "signalbox/engine/verify.h"
#include "signalbox/model/synth.h"
#include "signalbox/plan/faults.h"

namespace signalbox::qwen_families_test {
namespace {

namespace fs = std::filesystem;

const std::string kModels = std::string(SIGNALBOX_SOURCE_DIR) + "/models/";

struct Arrangement {
  std::string name;
  ParallelConfig parallel;
  bool exchange = false;
  SharedChoice shared = SharedChoice::kAuto;
};

std::vector<Arrangement> Arrangements() {
  return {{"summed", {.tp = 2, .ep = 2}},
          {"exchanged", {.tp = 2, .ep = 2}, true},
          {"width cut", {.tp = 2}},
          {"replicas", {.tp = 2, .ep = 2, .redundant_experts = 2}},
          {"two groups", {.tp = 4, .dp = 2, .ep = 4}, true},
          {"fused", {.tp = 2, .ep = 2}, false, SharedChoice::kFused}};
}

LayoutOptions LayoutOf(const Arrangement& a) {
  LayoutOptions options{.parallel = a.parallel, .limits = {.capacity = 128}, .shared = a.shared};
  if (a.exchange) {
    options.contracts.fill(*ContractFromFile(std::string(SIGNALBOX_SOURCE_DIR) +
                                             "/src/signalbox/a2a/testdata/acme.contract"));
  }
  return options;
}

EngineOptions OptionsOf(const LayoutOptions& layout) {
  return {.threads = 1, .budget = {.tokens = 256, .sequences = 4}, .layout = layout};
}

class Family : public testing::TestWithParam<const char*> {
 protected:
  std::string dir() const { return kModels + "random/" + GetParam(); }
  // Null and a failure of the test, but for a shared expert that cannot be fused.
  std::unique_ptr<Engine> Load(const Arrangement& a, const EngineOptions& options) const {
    auto engine = Engine::Load(dir(), options);
    if (engine.ok()) return std::move(engine).value();
    EXPECT_EQ(a.shared, SharedChoice::kFused) << a.name << ": " << engine.status().ToString();
    EXPECT_EQ(engine.status().code(), StatusCode::kRefused) << engine.status().ToString();
    return nullptr;
  }
};

TEST_P(Family, EqualsOneRankInEveryLayout) {
  const auto one = Engine::Load(dir(), OptionsOf({}));
  ASSERT_TRUE(one.ok()) << one.status().ToString();
  for (const Arrangement& a : Arrangements()) {
    const auto engine = Load(a, OptionsOf(LayoutOf(a)));
    if (engine == nullptr) continue;
    const auto report = VerifyLayout(*engine, **one, {.tokens = 40});
    ASSERT_TRUE(report.ok()) << a.name << ": " << report.status().ToString();
    EXPECT_TRUE(StatusOf(*report).ok()) << a.name << StatusOf(*report).ToString();
    EXPECT_EQ(report->layers.size(), engine->config().facts.layers.size()) << a.name;
    EXPECT_GT(report->worst, 0) << a.name << ": nothing was compared";
  }
}

TEST_P(Family, FaultsAreFoundAndRefused) {
  const auto one = Engine::Load(dir(), OptionsOf({}));
  ASSERT_TRUE(one.ok()) << one.status().ToString();
  int found = 0;
  for (const Arrangement& a : Arrangements()) {
    const auto right = Load(a, OptionsOf(LayoutOf(a)));
    if (right == nullptr) continue;
    for (int f = 0; f < static_cast<int>(LayoutFault::kCount); ++f) {
      EngineOptions options = OptionsOf(LayoutOf(a));
      options.fault = static_cast<LayoutFault>(f);
      const std::string name = a.name + ", " + std::string(ToString(*options.fault));
      const auto faulty = InjectFault(right->planned().layout, *options.fault);
      if (!faulty.ok()) continue;
      EXPECT_EQ(CheckFaulty(*faulty).code(), StatusCode::kRefused) << name;
      const auto engine = Load(a, options);
      ASSERT_NE(engine, nullptr) << name;
      const auto report = VerifyLayout(*engine, **one, {.tokens = 40});
      ASSERT_TRUE(report.ok()) << name << ": " << report.status().ToString();
      ASSERT_TRUE(report->first) << name << " was not found";
      EXPECT_FALSE(report->first->error < 0.1) << name;
      ++found;
    }
  }
  EXPECT_GE(found, 8);
}

INSTANTIATE_TEST_SUITE_P(Models, Family, testing::Values("qwen2-moe", "qwen3-moe", "qwen3-next"));

struct Release {
  const char* config;
  int64_t parameters;        // of the text model, published or summed from published shapes
  int64_t draft_parameters;  // of the draft module
  SynthFormat other;         // a format to plan beside BF16
};

constexpr Release kReleases[] = {
    {"qwen1.5-moe-a2.7b", 14'315'784'192, 0, SynthFormat::kMxfp4},
    {"qwen2-57b-a14b", 57'408'658'944, 0, SynthFormat::kFp8},
    {"qwen3-30b-a3b", 30'532'122'624, 0, SynthFormat::kMxfp4},
    {"qwen3-235b-a22b", 235'093'634'560, 0, SynthFormat::kFp8},
    {"qwen3-coder-480b-a35b", 480'154'875'392, 0, SynthFormat::kFp8},
    {"qwen3-next-80b-a3b", 79'674'391'296, 1'650'471'424, SynthFormat::kFp8},
    {"qwen3.5-35b-a3b", 34'660'610'688, 844'640'768, SynthFormat::kMxfp4},
    {"qwen3.5-122b-a10b", 122'111'526'912, 2'523'679'232, SynthFormat::kFp8},
    {"qwen3.5-397b-a17b", 396'346'350'336, 6'595'568'128, SynthFormat::kFp8}};

void ExpectPlanned(const Release& release, const std::string& dir, SynthFormat format) {
  const Status written = WriteSynthetic(kModels + "configs/" + release.config + ".json", dir,
                                        {.format = format, .headers_only = true});
  ASSERT_TRUE(written.ok()) << written.ToString();
  const auto config = ReadModelConfig(dir);
  const auto checkpoint = Checkpoint::Open(dir);
  ASSERT_TRUE(config.ok() && checkpoint.ok()) << release.config;
  for (const Arrangement& a : {Arrangements()[0], Arrangements()[4]}) {
    const auto planned = PlanModel(*checkpoint, config->facts, LayoutOf(a));
    EXPECT_TRUE(planned.ok()) << release.config << ", " << a.name << ": "
                              << planned.status().ToString();
  }
  if (format != SynthFormat::kBf16) return;
  int64_t parameters = 0;
  int64_t draft = 0;
  for (const TensorRef& t : checkpoint->tensors()) {
    (t.name().starts_with("mtp.") ? draft : parameters) += t.info->bytes / 2;
  }
  EXPECT_EQ(parameters, release.parameters) << release.config;
  EXPECT_EQ(draft, release.draft_parameters) << release.config;
}

// Headers alone say what a plan needs.
TEST(ReleasedSizes, HaveTheirParametersAndArePlanned) {
  const fs::path dir =
      fs::temp_directory_path() / ("signalbox_released_" + std::to_string(getpid()));
  for (const Release& release : kReleases) {
    for (SynthFormat format : {SynthFormat::kBf16, release.other}) {
      ExpectPlanned(release, dir.string(), format);
      fs::remove_all(dir);
    }
  }
}

}  // namespace
}  // namespace signalbox::qwen_families_test
