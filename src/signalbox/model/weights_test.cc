// SPDX-License-Identifier: Apache-2.0
//
// Weight map, loading and synth: whatever synth writes, the loader reads; shards tile the whole.
#include "signalbox/model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "signalbox/model/config.h"
#include "signalbox/model/synth.h"

namespace signalbox {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// A small hybrid model with two value heads per key head, a shared expert and a draft layer.
constexpr char kConfig[] = R"({
  "model_type": "qwen3_5_moe_text", "hidden_size": 64, "vocab_size": 300, "num_hidden_layers": 2,
  "layer_types": ["full_attention", "linear_attention"],
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2,
  "moe_intermediate_size": 64, "shared_expert_intermediate_size": 32, "linear_num_key_heads": 2,
  "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "mtp_num_hidden_layers": 1%s})";

class WeightsTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::temp_directory_path() / ("signalbox_weights_" + std::to_string(getpid()));
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  // Writes a synthetic checkpoint; `more` goes into the config.
  std::string Synth(const SynthOptions& options, const std::string& more = "") {
    std::string config = kConfig;
    config.replace(config.find("%s"), 2, more);
    std::ofstream(dir_ / "source.json") << config;
    const std::string out = (dir_ / "model").string();
    const Status status = WriteSynthetic((dir_ / "source.json").string(), out, options);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return out;
  }

  fs::path dir_;
};

struct Loaded {
  Checkpoint checkpoint;
  ModelConfig config;
};

Loaded Open(const std::string& dir) {
  auto checkpoint = Checkpoint::Open(dir);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  auto config = ReadModelConfig(dir);
  EXPECT_TRUE(config.ok()) << config.status().ToString();
  return {std::move(checkpoint).value(), std::move(config).value()};
}

// Every layer cut alike.
Result<ModelWeights> Load(const Loaded& m, const WeightShards& shards) {
  const std::vector<WeightShards> all(m.config.facts.layers.size() + 1, shards);
  return LoadWeights(m.checkpoint, m.config.facts, all);
}

// Rows (or columns) of every shard, decoded and put side by side, are the whole matrix.
void ExpectTiles(const MatrixView& whole, const std::vector<MatrixView>& shards, bool by_cols) {
  std::vector<float> want(static_cast<size_t>(whole.cols));
  int64_t row = 0;
  if (!by_cols) {
    for (const MatrixView& s : shards) {
      std::vector<float> got(static_cast<size_t>(s.cols));
      for (int64_t r = 0; r < s.rows; ++r, ++row) {
        s.DecodeRow(r, got);
        whole.DecodeRow(row, want);
        ASSERT_EQ(got, want) << row;
      }
    }
    EXPECT_EQ(row, whole.rows);
    return;
  }
  for (int64_t r = 0; r < whole.rows; ++r) {
    std::vector<float> got;
    for (const MatrixView& s : shards) {
      std::vector<float> part(static_cast<size_t>(s.cols));
      s.DecodeRow(r, part);
      got.insert(got.end(), part.begin(), part.end());
    }
    whole.DecodeRow(r, want);
    ASSERT_EQ(got, want) << r;
  }
}

TEST_F(WeightsTest, LoaderReadsWhatSynthWrites) {
  for (const auto& [format, stored] : {std::pair{SynthFormat::kMxfp4, WeightFormat::kMxfp4},
                                       std::pair{SynthFormat::kFp8, WeightFormat::kFp8Block},
                                       std::pair{SynthFormat::kBf16, WeightFormat::kBf16}}) {
    for (const char* tied : {"", R"(, "tie_word_embeddings": true)"}) {
      const Loaded m = Open(Synth({.format = format}, tied));
      auto w = LoadWeights(m.checkpoint, m.config.facts, {});
      ASSERT_TRUE(w.ok()) << w.status().ToString();
      ASSERT_EQ(w->layers.size(), 2u);
      EXPECT_EQ(w->layers[0].experts[3].down.format, stored);
      EXPECT_EQ(w->layers[0].matrix(Role::kOut).format,
                format == SynthFormat::kFp8 ? WeightFormat::kFp8Block : WeightFormat::kBf16);
      EXPECT_EQ(w->layers[0].matrix(Role::kRouter).format, WeightFormat::kBf16);
      EXPECT_TRUE(w->mtp.has_value());
      for (const TensorUse& use : DescribeTensors(m.checkpoint, m.config.facts))
        EXPECT_NE(use.use, "") << use.name;
    }
  }
}

// The bundled Kimi-K3's shape, written and read; heads, padded A_log and widths cut in two.
TEST_F(WeightsTest, KimiK3IsWrittenReadAndCut) {
  const std::string source =
      std::string(SIGNALBOX_SOURCE_DIR) + "/models/tiny-kimi-k3-mxfp4/config.json";
  const std::string out = (dir_ / "k3").string();
  const Status status = WriteSynthetic(source, out, {.layers = 4});
  ASSERT_TRUE(status.ok()) << status.ToString();
  const Loaded m = Open(out);
  for (const TensorUse& use : DescribeTensors(m.checkpoint, m.config.facts))
    EXPECT_NE(use.use, "") << use.name;
  auto whole = LoadWeights(m.checkpoint, m.config.facts, {});
  ASSERT_TRUE(whole.ok()) << whole.status().ToString();
  EXPECT_EQ(whole->layers[1].experts[3].down.format, WeightFormat::kMxfp4);
  std::vector<ModelWeights> halves;
  for (int i = 0; i < 2; ++i) {
    const Shard half{.index = i, .count = 2};
    auto w = Load(m, {.heads = half, .shared_width = half, .dense_width = half});
    ASSERT_TRUE(w.ok()) << w.status().ToString();
    halves.push_back(std::move(w).value());
  }
  const auto joined = [&](size_t layer, Role role) {
    std::vector<float> both;
    for (const ModelWeights& w : halves) {
      const auto part = w.layers[layer].vector(role);
      both.insert(both.end(), part.begin(), part.end());
    }
    return both;
  };
  const auto all = [&](size_t layer, Role role) {
    const auto v = whole->layers[layer].vector(role);
    return std::vector<float>(v.begin(), v.end());
  };
  EXPECT_EQ(all(0, Role::kDeltaALog).size(), 4u);
  EXPECT_EQ(joined(0, Role::kDeltaALog), all(0, Role::kDeltaALog));
  EXPECT_EQ(joined(0, Role::kDeltaDtBias), all(0, Role::kDeltaDtBias));
  EXPECT_EQ(halves[1].layers[3].matrix(Role::kKeyLatent).rows, 80);  // whole on every rank
  const auto expect = [&](size_t layer, Role role, bool by_cols) {
    ExpectTiles(whole->layers[layer].matrix(role),
                {halves[0].layers[layer].matrix(role), halves[1].layers[layer].matrix(role)},
                by_cols);
  };
  for (Role role : {Role::kDeltaQuery, Role::kDeltaDecay, Role::kDenseUp}) expect(0, role, false);
  for (Role role : {Role::kQuery, Role::kKeyValue, Role::kOutGate}) expect(3, role, false);
  for (Role role : {Role::kOut, Role::kSharedDown}) expect(3, role, true);
}

TEST_F(WeightsTest, SynthIsReproducibleAndSeeded) {
  const auto bytes = [&](uint64_t seed) {
    const std::string dir = Synth({.seed = seed});
    std::ifstream file(dir + "/model.safetensors", std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string first = bytes(1);
  EXPECT_EQ(first, bytes(1));
  EXPECT_NE(first, bytes(2));
}

TEST_F(WeightsTest, LayersAreCutAndHeadersOnlyTakesNoData) {
  const std::string dir = Synth({.layers = 1, .headers_only = true});
  const Loaded m = Open(dir);
  EXPECT_EQ(m.config.facts.layers.size(), 1u);
  EXPECT_TRUE(LoadWeights(m.checkpoint, m.config.facts, {}).ok());
}

TEST_F(WeightsTest, BindingChecksEveryTensorAndReadsNoVector) {
  Loaded m = Open(Synth({}));
  auto loaded = LoadWeights(m.checkpoint, m.config.facts, {});
  auto bound = BindWeights(m.checkpoint, m.config.facts);
  ASSERT_TRUE(loaded.ok() && bound.ok()) << bound.status().ToString();
  EXPECT_EQ(bound->bytes, loaded->bytes);
  EXPECT_EQ(bound->layers[1].matrix(Role::kDeltaOut).data,
            loaded->layers[1].matrix(Role::kDeltaOut).data);
  EXPECT_TRUE(loaded->layers[0].has(Role::kInputNorm));
  EXPECT_FALSE(bound->layers[0].has(Role::kInputNorm));
  std::get<DeltaNetFacts>(m.config.facts.layers[1].mixer).conv_kernel = 5;
  EXPECT_EQ(BindWeights(m.checkpoint, m.config.facts).status().code(), StatusCode::kBadCheckpoint);
}

TEST_F(WeightsTest, ShardsTileTheWhole) {
  const Loaded m = Open(Synth({}));
  const ModelFacts& facts = m.config.facts;
  auto whole = LoadWeights(m.checkpoint, facts, {});
  ASSERT_TRUE(whole.ok());
  std::vector<ModelWeights> shards;
  for (int i = 0; i < 2; ++i) {
    const Shard half{.index = i, .count = 2};
    auto w =
        Load(m, {.heads = half, .expert_width = half, .shared_width = half, .dense_width = half});
    ASSERT_TRUE(w.ok()) << w.status().ToString();
    shards.push_back(std::move(w).value());
  }
  const auto expect = [&](size_t layer, Role role, bool by_cols) {
    ExpectTiles(whole->layers[layer].matrix(role),
                {shards[0].layers[layer].matrix(role), shards[1].layers[layer].matrix(role)},
                by_cols);
  };
  for (Role role : {Role::kQuery, Role::kKey, Role::kValue, Role::kSharedGate, Role::kSharedUp})
    expect(0, role, false);
  for (Role role : {Role::kOut, Role::kSharedDown}) expect(0, role, true);
  for (Role role : {Role::kDeltaQuery, Role::kDeltaKey, Role::kDeltaValue, Role::kDeltaGate,
                    Role::kDeltaBeta}) {
    expect(1, role, false);
  }
  expect(1, Role::kDeltaOut, true);
  ExpectTiles(whole->layers[0].experts[2].down,
              {shards[0].layers[0].experts[2].down, shards[1].layers[0].experts[2].down}, true);
  ExpectTiles(whole->layers[0].experts[2].gate,
              {shards[0].layers[0].experts[2].gate, shards[1].layers[0].experts[2].gate}, false);
  // Convolution channels follow their projections: query, key, value of this rank.
  EXPECT_EQ(shards[0].layers[1].vector(Role::kDeltaConv).size() * 2,
            whole->layers[1].vector(Role::kDeltaConv).size());
}

// Qwen3-Next: a rank takes whole groups of one key head and its value heads.
TEST_F(WeightsTest, GroupedProjectionsAreCutBetweenKeyHeads) {
  std::string config = kConfig;
  config.replace(config.find("qwen3_5_moe_text"), 16, "qwen3_next");
  config.replace(config.find("%s"), 2, "");
  std::ofstream(dir_ / "next.json") << config;
  const std::string out = (dir_ / "next").string();
  const Status written = WriteSynthetic((dir_ / "next.json").string(), out, {});
  ASSERT_TRUE(written.ok()) << written.ToString();
  const Loaded m = Open(out);
  for (const TensorUse& use : DescribeTensors(m.checkpoint, m.config.facts))
    EXPECT_NE(use.use, "") << use.name;
  auto whole = LoadWeights(m.checkpoint, m.config.facts, {});
  ASSERT_TRUE(whole.ok()) << whole.status().ToString();
  EXPECT_TRUE(whole->mtp.has_value());
  EXPECT_EQ(whole->layers[1].matrix(Role::kDeltaGrouped).rows, 2 * (8 + 8 + 16 + 16));
  std::vector<ModelWeights> halves;
  for (int i = 0; i < 2; ++i) {
    auto w = Load(m, {.heads = {.index = i, .count = 2}});
    ASSERT_TRUE(w.ok()) << w.status().ToString();
    halves.push_back(std::move(w).value());
  }
  for (Role role : {Role::kDeltaGrouped, Role::kDeltaGroupedRates}) {
    ExpectTiles(whole->layers[1].matrix(role),
                {halves[0].layers[1].matrix(role), halves[1].layers[1].matrix(role)}, false);
  }
  EXPECT_EQ(halves[0].layers[1].vector(Role::kDeltaConv).size() * 2,
            whole->layers[1].vector(Role::kDeltaConv).size());
  const auto quarter = Load(m, {.heads = {.index = 1, .count = 4}});
  EXPECT_EQ(quarter.status().code(), StatusCode::kRefused);
}

TEST_F(WeightsTest, KeyValueHeadsRepeatWhenRanksAreMore) {
  const Loaded m = Open(Synth({}));
  auto w = Load(m, {.heads = {.index = 3, .count = 4}});
  ASSERT_TRUE(w.ok()) << w.status().ToString();
  EXPECT_EQ(w->layers[0].matrix(Role::kKey).rows, 16);  // kv head 1 of 2, shared by ranks 2 and 3
  EXPECT_EQ(w->layers[0].matrix(Role::kQuery).rows, 32);
}

TEST_F(WeightsTest, SlotsHoldTheExpertsAskedFor) {
  const Loaded m = Open(Synth({}));
  auto whole = LoadWeights(m.checkpoint, m.config.facts, {});
  auto w = Load(m, {.slots = std::vector<ExpertId>{ExpertId(3), ExpertId(1), ExpertId(3)}});
  ASSERT_TRUE(w.ok()) << w.status().ToString();
  ASSERT_EQ(w->layers[0].experts.size(), 3u);
  EXPECT_EQ(w->layers[0].experts[0].up.data, whole->layers[0].experts[3].up.data);
  EXPECT_EQ(w->layers[0].experts[2].up.data, whole->layers[0].experts[3].up.data);
}

// SHP-03: a block of 32 columns with one scale cannot be cut.
TEST_F(WeightsTest, Shp03BlocksAreNotCut) {
  const Loaded m = Open(Synth({}));
  auto w = Load(m, {.expert_width = {.index = 0, .count = 4}});
  ASSERT_FALSE(w.ok());
  EXPECT_THAT(w.status().message(), HasSubstr("32"));
}

TEST_F(WeightsTest, WeightsOfAnotherModelAreAnError) {
  const std::string dir = Synth({});
  Loaded m = Open(dir);
  m.config.facts.hidden = 128;
  const Status status = LoadWeights(m.checkpoint, m.config.facts, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kBadCheckpoint);
  EXPECT_THAT(status.message(), testing::AllOf(HasSubstr("embed_tokens"), HasSubstr("128")));
}

TEST_F(WeightsTest, UnreadTensorsAreAnError) {
  Loaded m = Open(Synth({}));
  m.config.facts.layers.pop_back();
  const Status status = LoadWeights(m.checkpoint, m.config.facts, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kBadCheckpoint);
  EXPECT_THAT(status.message(), HasSubstr("layers.1."));
}

}  // namespace
}  // namespace signalbox
