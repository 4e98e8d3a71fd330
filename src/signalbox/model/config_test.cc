// SPDX-License-Identifier: Apache-2.0
#include "signalbox/model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

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

TEST(Config, Qwen2HasBiasesAndLeavesWeightsAsTheyAre) {
  auto c = ReadModelConfig(kModels + "random/qwen2-moe");
  ASSERT_TRUE(c.ok()) << c.status().ToString();
  ASSERT_EQ(c->facts.layers.size(), 4u);
  const auto& a = std::get<AttentionFacts>(c->facts.layers[0].mixer);
  EXPECT_TRUE(a.bias);
  EXPECT_FALSE(a.qk_norm);
  EXPECT_EQ(a.head_dim, 16);  // hidden over heads
  for (size_t l = 0; l < 4; ++l) EXPECT_EQ(c->facts.layers[l].is_moe(), l % 2 == 1) << l;
  const auto& m = std::get<MoeFacts>(c->facts.layers[1].ffn);
  EXPECT_FALSE(m.renormalise);
  EXPECT_EQ(m.inner, 32);
  EXPECT_EQ(m.shared_inner, 64);
}

TEST(Config, Qwen3NextIsGroupedWithADraftLayerAndDefaultsOfItsOwn) {
  // A release names neither its layers' types nor its draft layer.
  std::ifstream file(kModels + "configs/qwen3-next-80b-a3b.json");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  auto c = ParseModelConfig(text, "", "x");
  ASSERT_TRUE(c.ok()) << c.status().ToString();
  const ModelFacts& f = c->facts;
  EXPECT_EQ(f.norm_offset, 1.f);
  EXPECT_TRUE(f.mtp.has_value());
  for (size_t l = 0; l < f.layers.size(); ++l) EXPECT_EQ(f.layers[l].is_attention(), l % 4 == 3);
  EXPECT_TRUE(std::get<DeltaNetFacts>(f.layers[0].mixer).grouped);
  const auto& a = std::get<AttentionFacts>(f.layers[3].mixer);
  EXPECT_TRUE(a.output_gate && a.qk_norm);
  EXPECT_EQ(a.rope.rotary, 64);
  EXPECT_TRUE(std::get<MoeFacts>(f.layers[0].ffn).renormalise);
}

TEST(Config, FlatOrUnderATextConfig) {
  for (const char* name : {"qwen2-57b-a14b", "qwen3-30b-a3b", "qwen3-next-80b-a3b"}) {
    std::ifstream file(kModels + "configs/" + name + ".json");
    const std::string text(std::istreambuf_iterator<char>(file), {});
    auto flat = ParseModelConfig(text, "", name);
    auto nested =
        ParseModelConfig(R"({"model_type": "wrapper", "text_config": )" + text + "}", "", name);
    ASSERT_TRUE(flat.ok() && nested.ok()) << nested.status().ToString();
    EXPECT_EQ(nested->facts.family, flat->facts.family);
    EXPECT_EQ(nested->facts.layers.size(), flat->facts.layers.size());
  }
}

TEST(Config, YarnStretchesWhatWasTrained) {
  auto c = ParseModelConfig(Qwen3(R"(, "rope_theta": 1e6, "max_position_embeddings": 131072,
      "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768})"),
                            "", "x");
  ASSERT_TRUE(c.ok()) << c.status().ToString();
  const RopeFacts& rope = std::get<AttentionFacts>(c->facts.layers[0].mixer).rope;
  EXPECT_EQ(rope.yarn_factor, 4);
  EXPECT_EQ(rope.yarn_original, 32768);
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

// The bundled Kimi-K3 with one value of its text_config replaced.
std::string K3(const std::string& from, const std::string& to) {
  std::ifstream file(kModels + "tiny-kimi-k3-mxfp4/config.json");
  std::string text(std::istreambuf_iterator<char>(file), {});
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Config, KimiK3) {
  auto c = ReadModelConfig(kModels + "tiny-kimi-k3-mxfp4");
  ASSERT_TRUE(c.ok()) << c.status().ToString();
  const ModelFacts& f = c->facts;
  EXPECT_TRUE(f.mixes);
  EXPECT_EQ(f.activation.kind, Activation::Kind::kSitu);
  EXPECT_EQ(f.activation.gate_bound, 4);
  EXPECT_EQ(f.activation.up_bound, 25);
  EXPECT_EQ(f.norm_eps, 1e-5);
  ASSERT_EQ(f.layers.size(), 8u);
  for (size_t l = 0; l < 8; ++l) {
    // The config counts from one.
    EXPECT_EQ(f.layers[l].is_attention(), l == 3 || l == 7) << l;
    EXPECT_EQ(f.layers[l].snapshot, l % 3 == 0) << l;
    EXPECT_EQ(f.layers[l].is_moe(), l > 0) << l;
  }
  const auto& a = std::get<LatentAttentionFacts>(f.layers[3].mixer);
  EXPECT_EQ(a.cached(), 80);
  EXPECT_EQ(a.norm_eps, 1e-6);
  const auto& d = std::get<DeltaNetFacts>(f.layers[0].mixer);
  EXPECT_EQ(d.decay_bound, -5);
  EXPECT_EQ(d.decay_rank, 64);
  const auto& m = std::get<MoeFacts>(f.layers[1].ffn);
  EXPECT_EQ(m.scores, RouterScores::kSigmoid);
  EXPECT_EQ(m.latent, 128);
  EXPECT_EQ(m.shared_inner, 192);
}

TEST(Config, KimiK3RefusesWhatItsLayersDoNotDo) {
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {R"("mla_use_nope": true)", R"("mla_use_nope": false)"},
           {R"("hidden_act": "situ")", R"("hidden_act": "silu")"},
           {R"("num_expert_group": 1)", R"("num_expert_group": 2)"},
           {R"("gate_lower_bound": -5.0)", R"("gate_lower_bound": 5.0)"},
           {R"("use_full_rank_gate": true)", R"("use_full_rank_gate": false)"},
           {R"("activation_situ_beta": 4.0)", R"("activation_situ_beta": 0)"},
           {R"("num_nextn_predict_layers": 0)", R"("num_nextn_predict_layers": 1)"},
           {R"("num_hidden_layers": 8)", R"("num_hidden_layers": 9)"},
           {R"("num_hidden_layers": 8)", R"("num_hidden_layers": 7)"},
           {R"("full_attn_layers": [)", R"("full_attn_layers": [ 1, )"},
           {R"("full_attn_layers": [)", R"("full_attn_layers": [ "x", )"},
           {R"("q_lora_rank": 128)", R"("q_lora_rank": null)"}}) {
    const Status status = Error(K3(from, to));
    EXPECT_EQ(status.code(), StatusCode::kBadCheckpoint) << to;
    // The key is named.
    const std::string key = to.substr(1, to.find('"', 1) - 1);
    if (key == "num_hidden_layers") continue;  // the lists of layers are at fault
    EXPECT_THAT(status.message(), HasSubstr(key));
  }
}

TEST(Config, EveryReleasedConfigWeClaimReads) {
  for (const char* name : {"kimi-k3", "qwen1.5-moe-a2.7b", "qwen2-57b-a14b", "qwen3-30b-a3b",
                           "qwen3-235b-a22b", "qwen3-coder-480b-a35b", "qwen3-next-80b-a3b",
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
