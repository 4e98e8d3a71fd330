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

Texts RunAll(Engine& engine, const GeneratorOptions& options, float temperature = 0.f) {
  Generator generator(engine, options);
  for (const auto& prompt : Prompts(engine)) {
    auto id = generator.Submit({.prompt = prompt,
                                .max_new_tokens = 12,
                                .sampling = {.temperature = temperature, .seed = 5},
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
  const Texts drawn = RunAll(*engine, {.parallel = 1}, 8.f);
  EXPECT_NE(drawn, alone);
  EXPECT_EQ(RunAll(*engine, {.parallel = 8}, 8.f), drawn);
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
