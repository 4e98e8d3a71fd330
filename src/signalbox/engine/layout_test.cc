// SPDX-License-Identifier: Apache-2.0
//
// Every layout computes what one rank computes: logits within rounding, greedy text exactly.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>

#include "signalbox/a2a/contract.h"
#include "signalbox/engine/generator.h"
#include "signalbox/engine/reference.h"
#include "signalbox/model/synth.h"

namespace signalbox::layout_test {
namespace {

namespace fs = std::filesystem;

struct Model {
  const char* name;
  const char* reference;
  std::string dir() const { return std::string(SIGNALBOX_SOURCE_DIR) + "/models/" + name; }
};
constexpr Model kQwen = {"tiny-qwen3.5-moe-mxfp4", "reference_logits.safetensors"};
constexpr Model kKimi = {"tiny-kimi-k3-mxfp4", "reference.safetensors"};

class Layouts : public testing::TestWithParam<Model> {};
INSTANTIATE_TEST_SUITE_P(Models, Layouts, testing::Values(kQwen, kKimi),
                         [](const auto& info) { return info.index == 0 ? "Qwen" : "Kimi"; });

struct LayoutCase {
  Model model;
  ParallelConfig parallel;
  const Contract* contract = nullptr;
  SharedChoice shared = SharedChoice::kAuto;
};

LayoutOptions OptionsOf(const LayoutCase& c) {
  LayoutOptions options{.parallel = c.parallel, .limits = {.capacity = 64}, .shared = c.shared};
  if (c.contract != nullptr) options.contracts.fill(*c.contract);
  return options;
}

std::string NameOf(const LayoutCase& c) {
  return "tp " + std::to_string(c.parallel.tp) + " dp " + std::to_string(c.parallel.dp) + " ep " +
         std::to_string(c.parallel.ep) + " redundant " +
         std::to_string(c.parallel.redundant_experts) + " " +
         (c.contract == nullptr ? "none" : ContractId(*c.contract));
}

struct LayoutOutcome {
  std::vector<float> logits;                      // of one prompt and two decode steps
  ExpertLoad load;                                // of these steps
  std::map<int64_t, std::vector<TokenId>> texts;  // greedy, three requests at a time
};

LayoutOutcome RunLayout(const Model& model, Engine& engine) {
  const auto sequences =
      *ReadReference(model.dir() + "/" + model.reference, engine.config().facts.vocab);
  LayoutOutcome outcome;
  // A prompt beside one token of another sequence, then single tokens: rows that do not divide,
  // idle ranks.
  const std::vector<TokenId> prompt(sequences[0].ids.begin(), sequences[0].ids.begin() + 37);
  const auto add = [&](StepBatch batch) {
    const auto out = engine.Run(batch);
    ASSERT_TRUE(out.ok()) << out.status().ToString();
    outcome.logits.insert(outcome.logits.end(), out->logits.begin(), out->logits.end());
  };
  add({.sequences = {{.sequence = 50, .tokens = prompt, .logits = LogitRows::kAll},
                     {.sequence = 51, .tokens = {9}}}});
  add({.sequences = {{.sequence = 50, .tokens = {17}}}});
  add({.sequences = {{.sequence = 51, .tokens = {5}}, {.sequence = 50, .tokens = {3}}}});
  add({.release = {50, 51}});
  const Result<ExpertLoad> load = engine.ExpertLoadSoFar();
  EXPECT_TRUE(load.ok()) << load.status().ToString();
  if (load.ok()) outcome.load = *load;
  Generator generator(engine, {.parallel = 3, .prefill_chunk = 20});
  for (size_t i = 0; i < 4; ++i) {
    const auto& ids = sequences[i].ids;
    auto id = generator.Submit({.prompt = {ids.begin(), ids.begin() + 15}, .max_new_tokens = 5});
    EXPECT_TRUE(id.ok());
  }
  while (!generator.idle()) {
    const Status s = generator.Step([&](const Generated& g) {
      for (const SampledToken& t : g.tokens) outcome.texts[g.request].push_back(t.token);
      return true;
    });
    EXPECT_TRUE(s.ok()) << s.ToString();
    if (!s.ok()) break;
  }
  return outcome;
}

std::unique_ptr<Engine> LoadLayout(const LayoutCase& c, Status* status) {
  auto engine = Engine::Load(
      c.model.dir(),
      {.threads = 1, .budget = {.tokens = 1024, .sequences = 8}, .layout = OptionsOf(c)});
  *status = engine.status();
  return engine.ok() ? std::move(engine).value() : nullptr;
}

// OBS-01: every row is counted once, whoever computes it.
void ExpectOneRanksLoad(const LayoutCase& c, const Engine& engine, const ExpertLoad& got,
                        const ExpertLoad& want) {
  EXPECT_EQ(got.layers, want.layers) << NameOf(c);
  EXPECT_EQ(got.experts, want.experts) << NameOf(c);
  const PlannedModel& planned = engine.planned();
  for (size_t l = 0; l < got.layers.size(); ++l) {
    // 37 + 1, 1 and 2 tokens; a rank that has a part of an expert's width counts as well.
    const auto layer = static_cast<size_t>(got.layers[l]);
    const auto& layers = engine.config().facts.layers;
    const int64_t pairs =  // no draft was asked for
        layer < layers.size() ? 41 * std::get<MoeFacts>(layers[layer].ffn).top_k : 0;
    const LayerCut& cut = planned.layout.kinds[planned.model.kind_of_layer[layer]].cut;
    const Mesh& mesh = planned.layout.mesh();
    const auto sum = [](const std::vector<int64_t>& v) {
      return std::accumulate(v.begin(), v.end(), int64_t{0});
    };
    EXPECT_EQ(sum(got.experts[l]), pairs) << NameOf(c);
    EXPECT_EQ(sum(got.ranks[l]), pairs * mesh.ranks() / mesh.Size(cut.experts)) << NameOf(c);
  }
}

void ExpectOneRanksResult(const LayoutCase& c, const LayoutOutcome& want) {
  Status status;
  auto engine = LoadLayout(c, &status);
  if (engine == nullptr) {
    // A refusal says why; nothing else may go wrong.
    EXPECT_EQ(status.code(), StatusCode::kRefused) << NameOf(c) << ": " << status.ToString();
    return;
  }
  const LayoutOutcome got = RunLayout(c.model, *engine);
  ASSERT_EQ(got.logits.size(), want.logits.size()) << NameOf(c);
  EXPECT_LE(RelativeError(got.logits, want.logits), 1e-5) << NameOf(c);
  EXPECT_EQ(got.texts, want.texts) << NameOf(c);
  ExpectOneRanksLoad(c, *engine, got.load, want.load);
}

LayoutOutcome OneRank(const Model& model) {
  const LayoutCase c{.model = model};
  Status status;
  auto engine = LoadLayout(c, &status);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return RunLayout(c.model, *engine);
}

TEST_P(Layouts, WithoutAContract) {
  const LayoutOutcome want = OneRank(GetParam());
  for (const ParallelConfig& p :
       std::vector<ParallelConfig>{{.tp = 2},
                                   {.tp = 2, .ep = 2},
                                   {.tp = 4, .dp = 2},
                                   {.tp = 4, .dp = 2, .ep = 2},
                                   {.tp = 4, .ep = 2},
                                   {.tp = 3, .dp = 3, .ep = 3, .redundant_experts = 2},
                                   {.tp = 2, .dp = 2, .ep = 2}}) {
    ExpectOneRanksResult({.model = GetParam(), .parallel = p}, want);
  }
}

// RED-01, RED-02: whatever a contract is called, the layout follows from its fields.
TEST_P(Layouts, EveryContract) {
  const LayoutOutcome want = OneRank(GetParam());
  for (const Contract& contract : AllContracts()) {
    for (const ParallelConfig& p : std::vector<ParallelConfig>{
             {.tp = 2, .ep = 2}, {.tp = 2, .dp = 2, .ep = 2, .redundant_experts = 2}}) {
      ExpectOneRanksResult({.model = GetParam(), .parallel = p, .contract = &contract}, want);
    }
  }
}

TEST_P(Layouts, SharedExpertWhereTheUserWantsIt) {
  const LayoutOutcome want = OneRank(GetParam());
  const Contract mine = *ContractFromFile(std::string(SIGNALBOX_SOURCE_DIR) +
                                          "/src/signalbox/a2a/testdata/acme.contract");
  for (SharedChoice shared :
       {SharedChoice::kReplicated, SharedChoice::kSharded, SharedChoice::kFused}) {
    ExpectOneRanksResult({.model = GetParam(), .parallel = {.tp = 2, .ep = 2}, .shared = shared},
                         want);
    ExpectOneRanksResult(
        {.model = GetParam(), .parallel = {.tp = 2, .ep = 2}, .contract = &mine, .shared = shared},
        want);
  }
}

// A contract that no code has heard of, from its file alone.
TEST_P(Layouts, AContractNobodyHasHeardOf) {
  const Contract mine = *ContractFromFile(std::string(SIGNALBOX_SOURCE_DIR) +
                                          "/src/signalbox/a2a/testdata/acme.contract");
  const LayoutCase c{.model = GetParam(), .parallel = {.tp = 2, .ep = 2}, .contract = &mine};
  Status status;
  ASSERT_NE(LoadLayout(c, &status), nullptr) << status.ToString();
  ExpectOneRanksResult(c, OneRank(GetParam()));
}

// Layouts that Kimi-K3 is made for, which a refusal would not show to be right.
TEST(KimiLayouts, AreNotRefused) {
  const LayoutOutcome want = OneRank(kKimi);
  const Contract mine = *ContractFromFile(std::string(SIGNALBOX_SOURCE_DIR) +
                                          "/src/signalbox/a2a/testdata/acme.contract");
  for (const LayoutCase& c :
       {LayoutCase{.model = kKimi, .parallel = {.tp = 2, .ep = 2}},
        LayoutCase{.model = kKimi, .parallel = {.tp = 3, .dp = 3}},
        LayoutCase{.model = kKimi, .parallel = {.tp = 2, .ep = 2}, .contract = &mine},
        LayoutCase{.model = kKimi, .parallel = {.tp = 4, .dp = 2, .ep = 4}, .contract = &mine}}) {
    Status status;
    ASSERT_NE(LoadLayout(c, &status), nullptr) << NameOf(c) << ": " << status.ToString();
    ExpectOneRanksResult(c, want);
  }
}

// Experts whose width can be cut: the latent sum is partial on every rank, completed before its
// norm and in one message with the shared expert's.
TEST(KimiLayouts, LatentSumsOfSlicedExperts) {
  const fs::path dir = fs::temp_directory_path() / ("signalbox_k3_" + std::to_string(getpid()));
  fs::create_directories(dir);
  std::ifstream file(kKimi.dir() + "/config.json");
  std::string config(std::istreambuf_iterator<char>(file), {});
  const std::string width = "\"moe_intermediate_size\": 96";
  config.replace(config.find(width), width.size(), "\"moe_intermediate_size\": 128");
  std::ofstream(dir / "source.json") << config;
  const std::string model = (dir / "model").string();
  const Status written = WriteSynthetic((dir / "source.json").string(), model, {.seed = 5});
  ASSERT_TRUE(written.ok()) << written.ToString();
  std::vector<float> want;
  for (const ParallelConfig& p : std::vector<ParallelConfig>{{}, {.tp = 2}, {.tp = 4, .ep = 2}}) {
    auto engine = Engine::Load(model, {.layout = {.parallel = p}});
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    std::vector<TokenId> ids(25);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<TokenId>(i * 37 % 1000);
    const auto logits = AllLogits(**engine, ids, 11);
    ASSERT_TRUE(logits.ok()) << logits.status().ToString();
    if (want.empty()) {
      want = *logits;
      continue;
    }
    // Untrained weights amplify roundings; a norm before the sum is off by more than 0.1.
    EXPECT_LE(RelativeError(*logits, want), 1e-4) << p.tp;
    for (const KindPlan& kind : (*engine)->planned().layout.kinds) {
      if (kind.cut.slots == 0) continue;
      int together = 0;
      for (const Step& step : kind.phases.front().plan.steps) {
        together += step.kind == StepKind::kAllReduce && step.dst == Reg::kRouted &&
                    step.also == Reg::kShared;
      }
      EXPECT_EQ(together, 1) << kind.kind;
    }
  }
  fs::remove_all(dir);
}

}  // namespace
}  // namespace signalbox::layout_test
