// SPDX-License-Identifier: Apache-2.0
//
// The engine against the references that ship with the models: logits, every layer, draft logits.
#include "signalbox/engine/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "signalbox/engine/sampler.h"
#include "signalbox/tensor/safetensors.h"

namespace signalbox {
namespace {

const std::string kModels = std::string(SIGNALBOX_SOURCE_DIR) + "/models/";
const std::string kTiny = kModels + "tiny-qwen3.5-moe-mxfp4";

std::unique_ptr<Engine> Load(const std::string& directory, const EngineOptions& options) {
  auto engine = Engine::Load(directory, options);
  EXPECT_TRUE(engine.ok()) << engine.status().ToString();
  return std::move(engine).value();
}

struct ReferenceCase {
  std::string model;
  Device device;
  int64_t chunk;  // prompt tokens per step
  bool chunked_delta = false;
};

void PrintTo(const ReferenceCase& c, std::ostream* os) {
  *os << c.model << (c.device == Device::kCpu ? " cpu" : " reference") << " chunk " << c.chunk;
}

class ReferenceLogits : public testing::TestWithParam<ReferenceCase> {};

TEST_P(ReferenceLogits, WithinTolerance) {
  const ReferenceCase& c = GetParam();
  auto engine =
      Load(kModels + c.model, {.device = c.device, .threads = 2, .chunked_delta = c.chunked_delta});
  auto sequences = ReadReference(kModels + c.model + "/reference_logits.safetensors",
                                 engine->config().facts.vocab);
  ASSERT_TRUE(sequences.ok()) << sequences.status().ToString();
  // The scalar device is slow and the same for every sequence: one will do.
  const size_t count = c.device == Device::kReference ? 1 : sequences->size();
  for (size_t n = 0; n < count; ++n) {
    const ReferenceSequence& s = (*sequences)[n];
    auto logits = AllLogits(*engine, s.ids, c.chunk);
    ASSERT_TRUE(logits.ok()) << logits.status().ToString();
    EXPECT_LE(RelativeError(*logits, s.logits), 1e-4) << "sequence " << n;
  }
}

constexpr int64_t kAtOnce = 1000;
const std::string kTinyName = "tiny-qwen3.5-moe-mxfp4";
const std::string kRandom = "random/qwen3.5-moe";
INSTANTIATE_TEST_SUITE_P(Models, ReferenceLogits,
                         testing::Values(ReferenceCase{kTinyName, Device::kCpu, kAtOnce},
                                         ReferenceCase{kTinyName, Device::kCpu, 1},
                                         ReferenceCase{kTinyName, Device::kCpu, 3},
                                         ReferenceCase{kTinyName, Device::kCpu, 7},
                                         ReferenceCase{kTinyName, Device::kCpu, 64},
                                         ReferenceCase{kTinyName, Device::kCpu, kAtOnce, true},
                                         ReferenceCase{kTinyName, Device::kCpu, 7, true},
                                         ReferenceCase{kTinyName, Device::kReference, 100, true},
                                         ReferenceCase{kTinyName, Device::kReference, kAtOnce},
                                         ReferenceCase{kRandom, Device::kCpu, kAtOnce},
                                         ReferenceCase{kRandom, Device::kCpu, 1},
                                         ReferenceCase{kRandom, Device::kCpu, 3},
                                         ReferenceCase{kRandom, Device::kCpu, 7},
                                         ReferenceCase{kRandom, Device::kCpu, 64},
                                         ReferenceCase{kRandom, Device::kCpu, kAtOnce, true},
                                         ReferenceCase{kRandom, Device::kReference, kAtOnce},
                                         ReferenceCase{kRandom, Device::kReference, 1}));

// Reads F32 or I32 tensors of the intermediates file.
class Intermediates {
 public:
  Intermediates() : file_(*SafetensorsFile::Open(kTiny + "/reference_intermediates.safetensors")) {}
  template <typename T>
  std::vector<T> Read(const std::string& name) const {
    const TensorInfo* info = file_.Find(name);
    EXPECT_NE(info, nullptr) << name;
    const auto bytes = file_.Data(*info);
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

 private:
  SafetensorsFile file_;
};

using Traces = std::map<std::string, std::vector<float>>;

// Runs `ids` in one step and keeps what the reference names: residual after mixer and after MoE,
// the shared expert's addend, router ids and weights.
Traces TraceLayers(Engine& engine, const std::vector<TokenId>& ids,
                   std::map<std::string, std::vector<int32_t>>* routes) {
  Traces traces;
  engine.runner().set_observer([&](const StepTrace& t) {
    const std::string p = "layers." + std::to_string(t.layer) + ".";
    const std::vector<float> data(t.data, t.data + t.rows * t.width);
    if (t.step->kind == StepKind::kShared) traces[p + "shared_expert"] = data;
    if (t.step->kind == StepKind::kRoute) {
      traces[p + "router_weights"] = data;
      (*routes)[p + "router_ids"].assign(t.ids, t.ids + t.rows * t.width);
    }
    if (t.step->kind != StepKind::kAdd || t.step->dst != Reg::kResidual) return;
    traces[p + (t.step->src == Reg::kMixed ? "after_mixer" : "after_moe")] = data;
  });
  StepBatch batch{.sequences = {{.sequence = 1, .tokens = ids, .logits = LogitRows::kAll}},
                  .want_hidden = true};
  auto out = engine.Run(batch);
  EXPECT_TRUE(out.ok()) << out.status().ToString();
  engine.runner().set_observer({});
  traces["final_hidden"] = out->hidden;
  return traces;
}

TEST(Reference, EveryLayerMatchesTheIntermediates) {
  const Intermediates want;
  auto engine = Load(kTiny, {.threads = 2});
  std::map<std::string, std::vector<int32_t>> routes;
  const Traces got = TraceLayers(*engine, want.Read<int32_t>("ids"), &routes);
  EXPECT_EQ(got.size(), engine->config().facts.layers.size() * 4 + 1);
  for (const auto& [name, values] : got) {
    // Near-ties may swap two experts; weights are compared where the ids agree.
    if (name.ends_with("router_weights")) continue;
    EXPECT_LE(RelativeError(values, want.Read<float>(name)), 1e-4) << name;
  }
  for (const auto& [name, ids] : routes) {
    const auto want_ids = want.Read<int32_t>(name);
    const std::string weights = name.substr(0, name.size() - 3) + "weights";
    const auto want_weights = want.Read<float>(weights);
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_NEAR(got.at(weights)[i], want_weights[i], 1e-4) << weights << " " << i;
      if (ids[i] == want_ids[i]) continue;
      // top-2: a swap is a tie when the two weights are equal to within the tolerance.
      EXPECT_NEAR(want_weights[i / 2 * 2], want_weights[i / 2 * 2 + 1], 1e-3) << name << " " << i;
    }
  }
}

// Row i of mtp.logits.S: tokens 0 .. i+1 are committed; draft 1 runs in slot i on the target's
// hidden state, draft S in the temporary slot i+S-1 on the previous draft.
TEST(Reference, DraftLogitsMatch) {
  const Intermediates want;
  auto engine = Load(kTiny, {.threads = 2});
  ASSERT_TRUE(engine->has_draft());
  const auto ids = want.Read<int32_t>("ids");
  std::map<std::string, std::vector<int32_t>> routes;
  const std::vector<float> hidden = TraceLayers(*engine, ids, &routes).at("final_hidden");
  const int64_t width = engine->config().facts.hidden;
  std::vector<float> logits[3];
  const size_t rows = ids.size() - 1;
  for (size_t i = 0; i < rows; ++i) {
    const float* h = hidden.data() + static_cast<int64_t>(i) * width;
    DraftStep step{.sequence = 1,
                   .slot = static_cast<int64_t>(i),
                   .tokens = {ids[i + 1]},
                   .hidden = {h, h + width}};
    for (auto& draft : logits) {
      auto out = engine->RunDraft({step});
      ASSERT_TRUE(out.ok()) << out.status().ToString();
      draft.insert(draft.end(), out->logits.begin(), out->logits.end());
      step = {.sequence = 1,
              .slot = step.slot + 1,
              .tokens = {ArgMax(out->logits)},
              .hidden = out->hidden};
    }
  }
  for (int s = 0; s < 3; ++s) {
    EXPECT_LE(RelativeError(logits[s], want.Read<float>("mtp.logits." + std::to_string(s + 1))),
              1e-4)
        << s + 1;
  }
}

}  // namespace
}  // namespace signalbox
