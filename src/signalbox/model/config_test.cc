// SPDX-License-Identifier: Apache-2.0
#include "signalbox/model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace signalbox {
namespace {

const std::string kModels = std::string(SIGNALBOX_SOURCE_DIR) + "/models/";

using testing::HasSubstr;

std::string Qwen3(const std::string& more) {
  return R"({"model_type": "qwen3_moe", "hidden_size": 64, "vocab_size": 300, "num_hidden_layers": 3,
             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "num_experts": 8,
             "num_experts_per_tok": 2, "moe_intermediate_size": 32)" +
         more + "}";
}

Status Error(const std::string& config) {
  return ParseModelConfig(config, "", "config.json").status();
}

TEST(Config, BundledModelIsNestedWithStopIdsFromGeneration) {
  auto c = ReadModelConfig(kModels + "tiny-qwen3.5-moe-mxfp4");
  ASSERT_TRUE(c.ok()) << c.status().ToString();
  EXPECT_EQ(c->facts.family, "qwen3_5_moe");
  EXPECT_EQ(c->stop_ids, (std::vector<TokenId>{653, 651}));
  EXPECT_EQ(c->facts.norm_offset, 1.f);
  ASSERT_EQ(c->facts.layers.size(), 8u);
  EXPECT_TRUE(c->facts.layers[3].is_attention());
  EXPECT_FALSE(c->facts.layers[4].is_attention());
  EXPECT_EQ(std::get<AttentionFacts>(c->facts.layers[3].mixer).rope.rotary, 16);
  EXPECT_TRUE(c->facts.mtp.has_value());
}

TEST(Config, FlatTextOnlyConfigReads) {
  auto c = ReadModelConfig(kModels + "random/qwen3.5-moe");
  ASSERT_TRUE(c.ok()) << c.status().ToString();
  EXPECT_EQ(c->facts.layers.size(), 4u);
}

TEST(Config, Qwen3HasPlainNormsFullRotationAndNoSharedExpert) {
  auto c = ParseModelConfig(Qwen3(R"(, "norm_topk_prob": true, "rope_theta": 1e6,
                                     "shared_expert_intermediate_size": 0)"),
                            "", "x");
  ASSERT_TRUE(c.ok()) << c.status().ToString();
  const auto& a = std::get<AttentionFacts>(c->facts.layers[0].mixer);
  EXPECT_EQ(a.rope.rotary, 32);
  EXPECT_TRUE(a.qk_norm);
  EXPECT_FALSE(a.output_gate);
  EXPECT_EQ(c->facts.norm_offset, 0.f);
  const auto& m = std::get<MoeFacts>(c->facts.layers[0].ffn);
  EXPECT_TRUE(m.renormalise);
  EXPECT_EQ(m.shared_inner, 0);
}

TEST(Config, SparseStepAndMlpOnlyLayersAreDense) {
  auto c = ParseModelConfig(
      Qwen3(R"(, "decoder_sparse_step": 2, "mlp_only_layers": [1], "intermediate_size": 96)"), "",
      "x");
  ASSERT_TRUE(c.ok()) << c.status().ToString();
  for (const LayerFacts& layer : c->facts.layers) EXPECT_FALSE(layer.is_moe());
}

TEST(Config, ErrorsNameKeyFoundAndExpected) {
  EXPECT_THAT(
      Error(R"({"model_type": "llama"})").message(),
      testing::AllOf(HasSubstr("model_type"), HasSubstr("'llama'"), HasSubstr("qwen3_moe")));
  EXPECT_THAT(Error(Qwen3(R"(, "norm_topk_prob": "yes")")).message(),
              testing::AllOf(HasSubstr("norm_topk_prob"), HasSubstr("\"yes\""),
                             HasSubstr("true or false")));
  EXPECT_THAT(Error(Qwen3(R"(, "hidden_act": "gelu")")).message(), HasSubstr("'gelu'"));
  EXPECT_THAT(Error(Qwen3(R"(, "rope_scaling": {"rope_type": "linear"})")).message(),
              HasSubstr("'yarn'"));
  EXPECT_EQ(Error("[]").code(), StatusCode::kBadCheckpoint);
  EXPECT_EQ(Error("{").code(), StatusCode::kBadCheckpoint);
}

TEST(Config, SizesThatDoNotFitAreErrors) {
  for (const char* more :
       {R"(, "num_experts_per_tok": 9)", R"(, "num_key_value_heads": 3)",
        R"(, "num_hidden_layers": 1000000)", R"(, "num_hidden_layers": -1)",
        R"(, "hidden_size": 1e30)", R"(, "vocab_size": 0)", R"(, "partial_rotary_factor": 2)",
        R"(, "eos_token_id": 300)", R"(, "use_sliding_window": true)"}) {
    std::string config = Qwen3("");
    // A later key would be a duplicate, which is an error by itself: replace the earlier one.
    const std::string key = std::string(more).substr(2, std::string(more).find(':') - 2);
    if (const size_t at = config.find(key); at != std::string::npos) {
      const size_t end = config.find_first_of(",}", at);
      config.replace(at, end - at, std::string(more).substr(2));
    } else {
      config = Qwen3(more);
    }
    EXPECT_EQ(Error(config).code(), StatusCode::kBadCheckpoint) << config;
  }
}

TEST(Config, EveryReleasedQwenConfigWeClaimReads) {
  for (const char* name :
       {"qwen1.5-moe-a2.7b", "qwen2-57b-a14b", "qwen3-30b-a3b", "qwen3-235b-a22b",
        "qwen3.5-35b-a3b", "qwen3.5-122b-a10b", "qwen3.5-397b-a17b"}) {
    std::string text;
    FILE* f = fopen((kModels + "configs/" + name + ".json").c_str(), "r");
    ASSERT_NE(f, nullptr) << name;
    for (int c; (c = fgetc(f)) != EOF;) text += static_cast<char>(c);
    fclose(f);
    auto config = ParseModelConfig(text, "", name);
    EXPECT_TRUE(config.ok()) << config.status().ToString();
  }
}

}  // namespace
}  // namespace signalbox
