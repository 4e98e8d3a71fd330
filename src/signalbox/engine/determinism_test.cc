// SPDX-License-Identifier: Apache-2.0
//
// DET-01: with `deterministic`, bit for bit, what a request gets does not depend on its batch
// mates, on how its prompt was cut, on prefix hits or on drafts, in any layout.
#include <gtest/gtest.h>

#include "signalbox/a2a/contract.h"
#include "signalbox/engine/run_requests_test.h"

namespace signalbox::determinism_test {
namespace {

std::vector<GenerationRequest> Requests(Engine& engine, const std::string& model) {
  std::vector<GenerationRequest> requests;
  for (std::vector<TokenId> prompt : ReferencePrompts(engine, model)) {
    // A common beginning, and lengths around pages and chunks.
    std::vector<TokenId> ids;
    for (TokenId t = 0; t < 20; ++t) ids.push_back(t * 3 + 5);
    prompt.resize(std::min<size_t>(prompt.size(), 11 + 3 * requests.size()));
    ids.insert(ids.end(), prompt.begin(), prompt.end());
    requests.push_back({.prompt = ids, .max_new_tokens = 10, .sampling = {.logprobs = 0}});
    if (requests.size() == 5) break;
  }
  return requests;
}

std::vector<std::pair<TokenId, double>> Seen(const std::vector<Outcome>& outcomes) {
  std::vector<std::pair<TokenId, double>> seen;
  for (const Outcome& o : outcomes)
    for (const SampledToken& t : o.sampled) seen.emplace_back(t.token, t.logprob);
  return seen;
}

struct Case {
  ParallelConfig parallel;
  const Contract* contract = nullptr;
};

std::string NameOf(const Case& c) {
  return "tp " + std::to_string(c.parallel.tp) + " dp " + std::to_string(c.parallel.dp) + " ep " +
         std::to_string(c.parallel.ep) + " redundant " +
         std::to_string(c.parallel.redundant_experts) + " " +
         (c.contract == nullptr ? "none" : ContractId(*c.contract));
}

void ExpectTheSameBits(const std::string& model, const Case& c, int drafts) {
  EngineOptions options{
      .threads = 1, .budget = {.tokens = 1024, .sequences = 8}, .deterministic = true};
  options.layout.parallel = c.parallel;
  options.layout.limits = {.max_running_requests = 8, .draft_tokens = drafts, .capacity = 96};
  if (c.contract != nullptr) options.layout.contracts.fill(*c.contract);
  auto engine = Engine::Load(model, options);
  if (!engine.ok()) {
    EXPECT_EQ(engine.status().code(), StatusCode::kRefused) << engine.status().ToString();
    return;
  }
  const auto requests = Requests(**engine, model);
  const auto serial = Seen(
      RunRequests(**engine, {.parallel = 1, .prefix_cache = false, .speculate = false}, requests));
  for (const GeneratorOptions& g :
       {GeneratorOptions{.parallel = 5, .prefix_cache = false},
        GeneratorOptions{.parallel = 3, .prefill_chunk = 9}, GeneratorOptions{.parallel = 1}}) {
    const auto got = Seen(RunRequests(**engine, g, requests));
    EXPECT_EQ(got, serial) << NameOf(c) << " parallel " << g.parallel;
  }
}

const std::vector<ParallelConfig> kLayouts = {{},
                                              {.tp = 2},
                                              {.tp = 2, .ep = 2},
                                              {.tp = 4, .dp = 2, .ep = 2},
                                              {.tp = 2, .dp = 2, .ep = 2, .redundant_experts = 2}};

TEST(Determinism, WithoutAContract) {
  for (const ParallelConfig& p : kLayouts) ExpectTheSameBits(kTinyQwen, {p}, 2);
  ExpectTheSameBits(kTinyKimi, {kLayouts[0]}, 0);
  ExpectTheSameBits(kTinyKimi, {kLayouts[2]}, 0);
}

// Parts of their own, rows that ranks share, and experts with several copies.
TEST(Determinism, EveryContract) {
  for (const Contract& contract : AllContracts())
    ExpectTheSameBits(kRandomQwen, {kLayouts.back(), &contract}, 0);
}

// DET-03: what cannot promise it is refused, or replaced.
TEST(Determinism, Det03WhatCannotPromiseItIsRefused) {
  EngineOptions options{.chunked_delta = true, .deterministic = true};
  EXPECT_EQ(Engine::Load(kRandomQwen, options).status().code(), StatusCode::kRefused);
  options = {.expand_latents = true, .deterministic = true};
  EXPECT_EQ(Engine::Load(kTinyKimi, options).status().code(), StatusCode::kRefused);
}

}  // namespace
}  // namespace signalbox::determinism_test
