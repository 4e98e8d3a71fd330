// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/generator.h"

#include <gtest/gtest.h>

#include <map>

#include "signalbox/engine/reference.h"

namespace signalbox {
namespace {

const std::string kTiny = std::string(SIGNALBOX_SOURCE_DIR) + "/models/tiny-qwen3.5-moe-mxfp4";

std::unique_ptr<Engine> LoadTiny(const EngineOptions& options) {
  auto engine = Engine::Load(kTiny, options);
  EXPECT_TRUE(engine.ok()) << engine.status().ToString();
  return std::move(engine).value();
}

std::vector<std::vector<TokenId>> Prompts(Engine& engine) {
  auto sequences =
      ReadReference(kTiny + "/reference_logits.safetensors", engine.config().facts.vocab);
  std::vector<std::vector<TokenId>> prompts;
  for (auto& s : *sequences) {
    s.ids.resize(s.ids.size() / 2);
    prompts.push_back(s.ids);
  }
  return prompts;
}

using Texts = std::map<int64_t, std::vector<TokenId>>;

Texts RunAll(Engine& engine, const GeneratorOptions& options, const SamplingParams& sampling = {}) {
  Generator generator(engine, options);
  for (const auto& prompt : Prompts(engine)) {
    auto id = generator.Submit({.prompt = prompt,
                                .max_new_tokens = 12,
                                .sampling = sampling,
                                .stop_ids = engine.config().stop_ids});
    EXPECT_TRUE(id.ok()) << id.status().ToString();
  }
  Texts texts;
  int finished = 0;
  while (!generator.idle()) {
    const Status s = generator.Step(
        [&](int64_t id, std::optional<TokenId> token, std::optional<FinishReason> finish) {
          if (token) texts[id].push_back(*token);
          finished += finish.has_value();
        });
    EXPECT_TRUE(s.ok()) << s.ToString();
    if (!s.ok()) break;
  }
  EXPECT_EQ(finished, 8);
  return texts;
}

TEST(Generator, TextDoesNotDependOnBatchMatesOrChunks) {
  auto engine = LoadTiny({.threads = 2, .budget = {.tokens = 4096, .sequences = 8}});
  const Texts alone = RunAll(*engine, {.parallel = 1});
  EXPECT_EQ(RunAll(*engine, {.parallel = 8}), alone);
  EXPECT_EQ(RunAll(*engine, {.parallel = 3, .prefill_chunk = 5}), alone);
  const SamplingParams sampling{.temperature = 8.f,
                                .seed = 5,
                                .top_k = 200,
                                .top_p = 0.95f,
                                .repetition_penalty = 1.2f,
                                .frequency_penalty = 0.5f};
  const Texts drawn = RunAll(*engine, {.parallel = 1}, sampling);
  EXPECT_NE(drawn, alone);
  EXPECT_EQ(RunAll(*engine, {.parallel = 8}, sampling), drawn);
  EXPECT_EQ(RunAll(*engine, {.parallel = 3, .prefill_chunk = 5}, sampling), drawn);
}

// Tokens of one request, its end, and what was sampled.
struct Outcome {
  std::vector<TokenId> tokens;
  std::vector<SampledToken> sampled;
  std::optional<FinishReason> finish;
};

Outcome RunOne(Engine& engine, GenerationRequest request) {
  request.prompt = Prompts(engine)[0];
  Generator generator(engine, {});
  const auto id = generator.Submit(std::move(request));
  EXPECT_TRUE(id.ok()) << id.status().ToString();
  Outcome run;
  while (!generator.idle()) {
    const Status s = generator.Step(
        [&](int64_t, std::optional<TokenId> token, std::optional<FinishReason> finish) {
          if (token) run.tokens.push_back(*token);
          if (finish) run.finish = finish;
        },
        [&](int64_t, const SampledToken& sampled) { run.sampled.push_back(sampled); });
    EXPECT_TRUE(s.ok()) << s.ToString();
    if (!s.ok()) break;
  }
  return run;
}

TEST(Generator, NoStopIdBeforeTheLeastNumberOfTokens) {
  auto engine = LoadTiny({.threads = 1});
  const Outcome free = RunOne(*engine, {.max_new_tokens = 6});
  ASSERT_EQ(free.tokens.size(), 6u);
  const std::vector<TokenId> stops = {free.tokens[0]};
  const Outcome stopped = RunOne(*engine, {.max_new_tokens = 6, .stop_ids = stops});
  EXPECT_TRUE(stopped.tokens.empty());
  EXPECT_EQ(stopped.sampled.size(), 1u);
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  for (const int64_t least : {1, 4, 6}) {
    const Outcome run =
        RunOne(*engine, {.max_new_tokens = 6, .stop_ids = stops, .min_new_tokens = least});
    EXPECT_GE(std::ssize(run.tokens), least);
    EXPECT_EQ(std::count(run.tokens.begin(), run.tokens.end(), stops[0]), 0);
  }
}

TEST(Generator, EndTokensMayBeIgnoredAndOthersStillStop) {
  auto engine = LoadTiny({.threads = 1});
  const std::vector<TokenId> eos = engine->config().stop_ids;
  ASSERT_FALSE(eos.empty());
  // A bias that makes the end token win every draw.
  const SamplingParams always{.logit_bias = {{eos[0], 100.f}}};
  const Outcome ended = RunOne(*engine, {.max_new_tokens = 5, .sampling = always, .stop_ids = eos});
  EXPECT_EQ(ended.finish, FinishReason::kStop);
  EXPECT_TRUE(ended.tokens.empty());
  const Outcome ignored = RunOne(
      *engine, {.max_new_tokens = 5, .sampling = always, .stop_ids = eos, .ignore_eos = true});
  EXPECT_EQ(ignored.finish, FinishReason::kLength);
  EXPECT_EQ(ignored.tokens, std::vector<TokenId>(5, eos[0]));
  const SamplingParams other{.logit_bias = {{7, 100.f}}};
  const Outcome stopped = RunOne(
      *engine, {.max_new_tokens = 5, .sampling = other, .stop_ids = {7}, .ignore_eos = true});
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
}

TEST(Generator, PenaltiesSeeWhatWasGenerated) {
  auto engine = LoadTiny({.threads = 1});
  // Token 7 wins until its penalty outweighs the bias it has over token 9.
  const SamplingParams p{.frequency_penalty = 1.f, .logit_bias = {{7, 100.f}, {9, 100.f}}};
  const Outcome run = RunOne(*engine, {.max_new_tokens = 40, .sampling = p});
  EXPECT_GT(std::count(run.tokens.begin(), run.tokens.end(), 7), 5);
  EXPECT_GT(std::count(run.tokens.begin(), run.tokens.end(), 9), 5);
}

TEST(Generator, LogprobsComeWithEverySampledToken) {
  auto engine = LoadTiny({.threads = 1});
  const Outcome run = RunOne(*engine, {.max_new_tokens = 6, .sampling = {.logprobs = 3}});
  ASSERT_EQ(run.sampled.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(run.sampled[i].token, run.tokens[i]);
    ASSERT_EQ(run.sampled[i].top.size(), 3u);
    EXPECT_EQ(run.sampled[i].top[0].token, run.tokens[i]);  // greedy
    EXPECT_EQ(run.sampled[i].top[0].logprob, run.sampled[i].logprob);
    EXPECT_LE(run.sampled[i].logprob, 0);
    EXPECT_GE(run.sampled[i].top[0].logprob, run.sampled[i].top[2].logprob);
  }
}

TEST(Generator, EverythingIsGivenBack) {
  auto engine = LoadTiny({.threads = 1, .budget = {.tokens = 1024, .sequences = 3}});
  const int64_t blocks = engine->runner().cache().free_blocks();
  RunAll(*engine, {.parallel = 3});
  EXPECT_EQ(engine->runner().cache().free_blocks(), blocks);
  EXPECT_EQ(engine->runner().cache().free_slots(), 3);
}

TEST(Generator, RefusesWhatCannotRun) {
  auto engine = LoadTiny({.threads = 1});
  Generator generator(*engine, {});
  EXPECT_EQ(generator.Submit({.prompt = {}}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(generator.Submit({.prompt = std::vector<TokenId>(5000, 1)}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(generator.Submit({.prompt = {1}, .sampling = {.top_p = 2.f}}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(
      generator.Submit({.prompt = {1}, .max_new_tokens = 3, .min_new_tokens = 4}).status().code(),
      StatusCode::kInvalidArgument);
  EXPECT_TRUE(generator.idle());
  auto out = engine->Run({.sequences = {{.sequence = 1, .tokens = {1, 99999}}}});
  EXPECT_EQ(out.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(engine->Run({.sequences = {{.sequence = 1, .tokens = {-1}}}}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(Generator, MoreSequencesThanSlotsIsAnErrorNotACrash) {
  auto engine = LoadTiny({.threads = 1, .budget = {.tokens = 64, .sequences = 1}});
  ASSERT_TRUE(engine->Run({.sequences = {{.sequence = 1, .tokens = {1, 2}}}}).ok());
  EXPECT_EQ(engine->Run({.sequences = {{.sequence = 2, .tokens = {1, 2}}}}).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_TRUE(engine->Run({.release = {1}, .sequences = {{.sequence = 2, .tokens = {1, 2}}}}).ok());
}

TEST(Engine, EmptyBatchIsLegal) {
  auto engine = LoadTiny({.threads = 1});
  auto out = engine->Run({});
  ASSERT_TRUE(out.ok());
  EXPECT_TRUE(out->logits.empty());
}

TEST(Engine, MissingDirectoryIsABadCheckpoint) {
  EXPECT_EQ(Engine::Load("/nonexistent", {}).status().code(), StatusCode::kBadCheckpoint);
}

}  // namespace
}  // namespace signalbox
