// SPDX-License-Identifier: Apache-2.0
//
// For tests: requests run to their end, and what they got.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "signalbox/engine/generator.h"
#include "signalbox/engine/reference.h"

namespace signalbox {

inline const std::string kTinyQwen =
    std::string(SIGNALBOX_SOURCE_DIR) + "/models/tiny-qwen3.5-moe-mxfp4";
inline const std::string kTinyKimi =
    std::string(SIGNALBOX_SOURCE_DIR) + "/models/tiny-kimi-k3-mxfp4";
// Four small layers with random weights, 256 tokens, no weights of a draft layer.
inline const std::string kRandomQwen =
    std::string(SIGNALBOX_SOURCE_DIR) + "/models/random/qwen3.5-moe";

inline std::unique_ptr<Engine> LoadEngine(const std::string& directory,
                                          const EngineOptions& options) {
  auto engine = Engine::Load(directory, options);
  EXPECT_TRUE(engine.ok()) << engine.status().ToString();
  return engine.ok() ? std::move(engine).value() : nullptr;
}

// Tokens and logits of the model's reference.
inline std::vector<ReferenceSequence> ReferenceOf(const std::string& directory,
                                                  const Engine& engine) {
  const bool kimi = directory == kTinyKimi;
  auto sequences =
      ReadReference(directory + (kimi ? "/reference.safetensors" : "/reference_logits.safetensors"),
                    engine.config().facts.vocab);
  EXPECT_TRUE(sequences.ok()) << sequences.status().ToString();
  return std::move(sequences).value();
}

// A prompt given in pieces has the logits, bit for bit, of the whole.
inline void ExpectPiecesToBeTheWhole(Engine& engine, const std::vector<TokenId>& ids) {
  const auto whole = AllLogits(engine, ids, 1000);
  ASSERT_TRUE(whole.ok()) << whole.status().ToString();
  for (const int64_t chunk : {1, 7}) {
    const auto pieces = AllLogits(engine, ids, chunk);
    ASSERT_TRUE(pieces.ok()) << pieces.status().ToString();
    EXPECT_EQ(*pieces, *whole) << chunk;
  }
}

// Halves of the sequences of the reference, as prompts.
inline std::vector<std::vector<TokenId>> ReferencePrompts(Engine& engine,
                                                          const std::string& directory) {
  std::vector<std::vector<TokenId>> prompts;
  for (auto& s : ReferenceOf(directory, engine)) {
    s.ids.resize(s.ids.size() / 2);
    prompts.push_back(s.ids);
  }
  return prompts;
}

struct Outcome {
  std::vector<TokenId> tokens;
  std::vector<SampledToken> sampled;
  std::vector<SampledToken> prompt;
  std::optional<FinishReason> finish;
  std::optional<TokenId> stop_id;
  Status status;
  RequestStats stats;

  void Add(const Generated& g) {
    EXPECT_FALSE(finish) << "after its end";
    for (const SampledToken& t : g.tokens) tokens.push_back(t.token);
    sampled.insert(sampled.end(), g.tokens.begin(), g.tokens.end());
    prompt.insert(prompt.end(), g.prompt.begin(), g.prompt.end());
    finish = g.finish;
    stop_id = g.stop_id;
    status = g.status;
    stats = g.stats;
  }
};
using Outcomes = std::map<int64_t, Outcome>;

// Steps until all have ended.
inline Outcomes Drain(Generator& generator) {
  Outcomes outcomes;
  while (!generator.idle()) {
    const Status s = generator.Step([&](const Generated& g) {
      outcomes[g.request].Add(g);
      return true;
    });
    EXPECT_TRUE(s.ok()) << s.ToString();
    if (!s.ok()) break;
  }
  return outcomes;
}

// In order of the requests.
inline std::vector<Outcome> RunRequests(Engine& engine, const GeneratorOptions& options,
                                        const std::vector<GenerationRequest>& requests) {
  Generator generator(engine, options);
  for (const GenerationRequest& r : requests) {
    const auto id = generator.Submit(r);
    EXPECT_TRUE(id.ok()) << id.status().ToString();
  }
  std::vector<Outcome> all;
  for (auto& [id, outcome] : Drain(generator)) {
    EXPECT_TRUE(outcome.finish) << id;
    all.push_back(std::move(outcome));
  }
  EXPECT_EQ(all.size(), requests.size());
  return all;
}

inline std::vector<std::vector<TokenId>> TokensOf(const std::vector<Outcome>& outcomes) {
  std::vector<std::vector<TokenId>> tokens;
  for (const Outcome& o : outcomes) tokens.push_back(o.tokens);
  return tokens;
}

// Nothing is held any more.
inline void ExpectAllFree(Engine& engine) {
  for (const CacheAccount& a : engine.accounts()) {
    EXPECT_EQ(a.free_pages(), a.size().pages);
    EXPECT_EQ(a.free_slots(), a.size().slots);
  }
}

}  // namespace signalbox
