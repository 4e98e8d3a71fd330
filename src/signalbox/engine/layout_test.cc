// SPDX-License-Identifier: Apache-2.0
//
// Every layout computes what one rank computes: logits within rounding, greedy text exactly.
#include <gtest/gtest.h>

#include <map>

#include "signalbox/a2a/contract.h"
#include "signalbox/engine/generator.h"
#include "signalbox/engine/reference.h"

namespace signalbox {
namespace {

const std::string kTiny = std::string(SIGNALBOX_SOURCE_DIR) + "/models/tiny-qwen3.5-moe-mxfp4";

struct LayoutCase {
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

struct Outcome {
  std::vector<float> logits;                      // of one prompt and two decode steps
  std::map<int64_t, std::vector<TokenId>> texts;  // greedy, three requests at a time
};

Outcome RunLayout(Engine& engine) {
  const auto sequences =
      *ReadReference(kTiny + "/reference_logits.safetensors", engine.config().facts.vocab);
  Outcome outcome;
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
  Generator generator(engine, {.parallel = 3, .prefill_chunk = 40});
  for (size_t i = 0; i < 4; ++i) {
    const auto& ids = sequences[i].ids;
    auto id = generator.Submit({.prompt = {ids.begin(), ids.begin() + 30}, .max_new_tokens = 8});
    EXPECT_TRUE(id.ok());
  }
  while (!generator.idle()) {
    const Status s =
        generator.Step([&](int64_t id, std::optional<TokenId> token, std::optional<FinishReason>) {
          if (token) outcome.texts[id].push_back(*token);
        });
    EXPECT_TRUE(s.ok()) << s.ToString();
    if (!s.ok()) break;
  }
  return outcome;
}

std::unique_ptr<Engine> LoadLayout(const LayoutCase& c, Status* status) {
  auto engine = Engine::Load(
      kTiny, {.threads = 1, .budget = {.tokens = 1024, .sequences = 8}, .layout = OptionsOf(c)});
  *status = engine.status();
  return engine.ok() ? std::move(engine).value() : nullptr;
}

void ExpectOneRanksResult(const LayoutCase& c, const Outcome& want) {
  Status status;
  auto engine = LoadLayout(c, &status);
  if (engine == nullptr) {
    // A refusal says why; nothing else may go wrong.
    EXPECT_EQ(status.code(), StatusCode::kRefused) << NameOf(c) << ": " << status.ToString();
    return;
  }
  const Outcome got = RunLayout(*engine);
  ASSERT_EQ(got.logits.size(), want.logits.size()) << NameOf(c);
  EXPECT_LE(RelativeError(got.logits, want.logits), 1e-5) << NameOf(c);
  EXPECT_EQ(got.texts, want.texts) << NameOf(c);
}

Outcome OneRank() {
  Status status;
  auto engine = LoadLayout({}, &status);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return RunLayout(*engine);
}

TEST(Layouts, WithoutAContract) {
  const Outcome want = OneRank();
  for (const ParallelConfig& p :
       std::vector<ParallelConfig>{{.tp = 2},
                                   {.tp = 2, .ep = 2},
                                   {.tp = 4, .dp = 2},
                                   {.tp = 4, .dp = 2, .ep = 2},
                                   {.tp = 4, .ep = 2},
                                   {.tp = 3, .dp = 3, .ep = 3, .redundant_experts = 2},
                                   {.tp = 2, .dp = 2, .ep = 2}}) {
    ExpectOneRanksResult({.parallel = p}, want);
  }
}

// RED-01, RED-02: whatever a contract is called, the layout follows from its fields.
TEST(Layouts, EveryContract) {
  const Outcome want = OneRank();
  for (const Contract& contract : AllContracts()) {
    for (const ParallelConfig& p : std::vector<ParallelConfig>{
             {.tp = 2, .ep = 2}, {.tp = 2, .dp = 2, .ep = 2, .redundant_experts = 2}}) {
      ExpectOneRanksResult({.parallel = p, .contract = &contract}, want);
    }
  }
}

TEST(Layouts, SharedExpertWhereTheUserWantsIt) {
  const Outcome want = OneRank();
  const Contract mine = *ContractFromFile(std::string(SIGNALBOX_SOURCE_DIR) +
                                          "/src/signalbox/a2a/testdata/acme.contract");
  for (SharedChoice shared :
       {SharedChoice::kReplicated, SharedChoice::kSharded, SharedChoice::kFused}) {
    ExpectOneRanksResult({.parallel = {.tp = 2, .ep = 2}, .shared = shared}, want);
    ExpectOneRanksResult({.parallel = {.tp = 2, .ep = 2}, .contract = &mine, .shared = shared},
                         want);
  }
}

// A contract that no code has heard of, from its file alone.
TEST(Layouts, AContractNobodyHasHeardOf) {
  const Contract mine = *ContractFromFile(std::string(SIGNALBOX_SOURCE_DIR) +
                                          "/src/signalbox/a2a/testdata/acme.contract");
  const LayoutCase c{.parallel = {.tp = 2, .ep = 2}, .contract = &mine};
  Status status;
  ASSERT_NE(LoadLayout(c, &status), nullptr) << status.ToString();
  ExpectOneRanksResult(c, OneRank());
}

}  // namespace
}  // namespace signalbox
