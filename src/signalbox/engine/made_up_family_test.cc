// SPDX-License-Identifier: Apache-2.0
//
// docs/howto/add-a-model.md, followed once for a family that does not exist: "plum" computes what
// Qwen3-MoE computes, but its config has other keys and its files other names, with query, key and
// value in one tensor. random/qwen3-moe rewritten in that spelling must give the logits of its
// reference, on one rank and in layouts.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>

#include "signalbox/a2a/contract.h"
#include "signalbox/engine/reference.h"
#include "signalbox/engine/verify.h"
#include "signalbox/model/config_reader.h"
#include "signalbox/model/families/rules.h"
#include "signalbox/model/family.h"
#include "signalbox/model/synth.h"
#include "signalbox/tensor/safetensors_writer.h"

namespace signalbox::made_up_family_test {
namespace {

namespace fs = std::filesystem;
using Kind = TensorRule::Kind;
using weight_rules::Matrix;
using weight_rules::MatrixByCols;
using weight_rules::Vector;

// ------------------------------------------------------------------------------------ step 1:
// facts

Result<ModelFacts> ParsePlum(ConfigReader& c) {
  ModelFacts f;
  f.family = "plum";
  f.hidden = c.Positive("width");
  f.vocab = c.Positive("words");
  f.max_position = c.Positive("context");
  f.norm_eps = c.Number("eps");
  AttentionFacts attention{.heads = c.Positive("heads"),
                           .kv_heads = c.Positive("kv_heads"),
                           .head_dim = c.Positive("head_width"),
                           .qk_norm = true};
  attention.rope = {.rotary = attention.head_dim, .theta = c.Number("theta")};
  const MoeFacts moe{.experts = c.Positive("experts"),
                     .top_k = c.Positive("active_experts"),
                     .inner = c.Positive("expert_width"),
                     .renormalise = true};
  const int64_t layers = c.LayerCount();
  SB_RETURN_IF_ERROR(c.status());
  f.layers.assign(static_cast<size_t>(layers), {.mixer = attention, .ffn = moe});
  return f;
}

// ------------------------------------------------------------------------------- step 2: weight
// map

std::vector<TensorRule> PlumLayer(const ModelFacts& f, const LayerFacts& layer) {
  const auto& a = std::get<AttentionFacts>(layer.mixer);
  const auto& m = std::get<MoeFacts>(layer.ffn);
  const int64_t q = a.heads * a.head_dim;
  const int64_t kv = a.kv_heads * a.head_dim;
  const Split width = Split::kExpertWidth;
  return {
      Vector("norm_before.weight", Role::kInputNorm, f.hidden),
      Vector("norm_between.weight", Role::kFfnNorm, f.hidden),
      {.kind = Kind::kMatrix,
       .name = "attention.qkv",
       .parts = {{Role::kQuery, q, Split::kHeads, a.heads},
                 {Role::kKey, kv, Split::kSharedHeads, a.kv_heads},
                 {Role::kValue, kv, Split::kSharedHeads, a.kv_heads}},
       .other = f.hidden},
      MatrixByCols("attention.out", Role::kOut, f.hidden, q, Split::kHeads, a.heads),
      Vector("attention.query_norm.weight", Role::kQueryNorm, a.head_dim),
      Vector("attention.key_norm.weight", Role::kKeyNorm, a.head_dim),
      Matrix("router", Role::kRouter, m.experts, f.hidden),
      {.kind = Kind::kExperts,
       .name = "experts.w13",
       .parts = {{Role::kExpertGate, m.inner, width, m.inner, "experts.{}.w1"},
                 {Role::kExpertUp, m.inner, width, m.inner, "experts.{}.w3"}},
       .other = f.hidden,
       .experts = m.experts},
      {.kind = Kind::kExperts,
       .name = "experts.w2",
       .parts = {{Role::kExpertDown, m.inner, width, m.inner, "experts.{}.w2"}},
       .axis = 1,
       .other = f.hidden,
       .experts = m.experts},
  };
}

// ------------------------------------------------------------------------- step 3: a place in a
// list

void RegisterPlum() {
  if (FindFamily("plum") != nullptr) return;
  RegisterFamily({.name = "plum",
                  .model_types = {"plum"},
                  .parse = ParsePlum,
                  .files = {.trunk_prefixes = {"tree."}, .skipped = {}},
                  .layer_rules = PlumLayer,
                  .mtp_rules = nullptr});
}

// --------------------------------------------------------------- step 4: a checkpoint with
// reference

const std::string kSource = std::string(SIGNALBOX_SOURCE_DIR) + "/models/random/qwen3-moe";

constexpr char kPlumConfig[] = R"({"model_type": "plum", "width": 64, "words": 256, "context": 512,
  "eps": 1e-06, "num_hidden_layers": 3, "heads": 4, "kv_heads": 2, "head_width": 32,
  "theta": 1000000.0, "experts": 8, "active_experts": 2, "expert_width": 32})";

std::string PlumName(std::string name) {
  static const std::vector<std::pair<std::regex, std::string>> kRules = {
      {std::regex("^model\\."), "tree."},
      {std::regex("input_layernorm"), "norm_before"},
      {std::regex("post_attention_layernorm"), "norm_between"},
      {std::regex("self_attn\\.o_proj"), "attention.out"},
      {std::regex("self_attn\\.q_norm"), "attention.query_norm"},
      {std::regex("self_attn\\.k_norm"), "attention.key_norm"},
      {std::regex("mlp\\.gate\\."), "router."},
      {std::regex("mlp\\.experts"), "experts"},
      {std::regex("gate_proj"), "w1"},
      {std::regex("up_proj"), "w3"},
      {std::regex("down_proj"), "w2"}};
  for (const auto& [from, to] : kRules) name = std::regex_replace(name, from, to);
  return name;
}

// A tensor of the file and the tensors of the source that follow one another in it.
struct Piece {
  TensorSpec spec;
  std::vector<const TensorRef*> sources;
};

std::vector<Piece> PlumPieces(const Checkpoint& source) {
  std::vector<Piece> pieces;
  for (const TensorRef& t : source.tensors()) {
    const std::string& name = t.name();
    if (name.find("k_proj") != std::string::npos || name.find("v_proj") != std::string::npos) {
      continue;  // behind the query
    }
    Piece piece{{PlumName(name), t.info->dtype, t.info->shape}, {&t}};
    if (const size_t at = name.find("self_attn.q_proj"); at != std::string::npos) {
      const std::string layer = name.substr(0, at);
      piece.spec.name = PlumName(layer) + "attention.qkv.weight";
      for (const char* more : {"self_attn.k_proj.weight", "self_attn.v_proj.weight"}) {
        piece.sources.push_back(source.Find(layer + more));
        piece.spec.shape[0] += piece.sources.back()->info->shape[0];
      }
    }
    pieces.push_back(piece);
  }
  return pieces;
}

class Plum : public testing::Test {
 protected:
  void SetUp() override {
    RegisterPlum();
    dir_ = fs::temp_directory_path() / ("signalbox_plum_" + std::to_string(getpid()));
    fs::create_directories(dir_);
    std::ofstream(dir_ / "config.json") << kPlumConfig;
  }
  void TearDown() override { fs::remove_all(dir_); }

  void Rewrite() const {
    const auto source = Checkpoint::Open(kSource);
    ASSERT_TRUE(source.ok()) << source.status().ToString();
    const std::vector<Piece> pieces = PlumPieces(*source);
    std::vector<TensorSpec> specs;
    for (const Piece& p : pieces) specs.push_back(p.spec);
    auto writer = SafetensorsWriter::Create(dir_ / "model.safetensors", specs);
    ASSERT_TRUE(writer.ok()) << writer.status().ToString();
    for (const Piece& p : pieces) {
      int64_t at = 0;
      for (const TensorRef* t : p.sources) {
        ASSERT_TRUE(writer->Write(p.spec.name, at, t->data()).ok());
        at += t->info->bytes;
      }
    }
    ASSERT_TRUE(writer->Close().ok());
  }

  fs::path dir_;
};

TEST_F(Plum, MatchesTheReferenceHoweverThePromptIsCut) {
  Rewrite();
  // The reference's frequencies were rounded: models/random/README.md.
  auto engine = Engine::Load(dir_.string(), {.threads = 2, .bf16_rope = true});
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  const auto sequences = ReadReference(kSource + "/reference_logits.safetensors", 256);
  ASSERT_TRUE(sequences.ok()) << sequences.status().ToString();
  for (const ReferenceSequence& s : *sequences) {
    for (int64_t chunk : {1000, 1, 3, 7, 64}) {
      const auto logits = AllLogits(**engine, s.ids, chunk);
      ASSERT_TRUE(logits.ok()) << logits.status().ToString();
      EXPECT_LE(RelativeError(*logits, s.logits), 1e-5) << "chunks of " << chunk;
    }
  }
}

// Step 5: nothing to write. Layouts follow from the facts and the splits of the weight map.
TEST_F(Plum, EveryLayoutEqualsOneRank) {
  Rewrite();
  const EngineOptions alone{.threads = 1, .budget = {.tokens = 256, .sequences = 4}};
  const auto one = Engine::Load(dir_.string(), alone);
  ASSERT_TRUE(one.ok()) << one.status().ToString();
  const auto acme = ContractFromFile(std::string(SIGNALBOX_SOURCE_DIR) +
                                     "/src/signalbox/a2a/testdata/acme.contract");
  ASSERT_TRUE(acme.ok()) << acme.status().ToString();
  for (bool exchange : {false, true}) {
    EngineOptions options = alone;
    options.layout = {.parallel = {.tp = 2, .ep = 2}, .limits = {.capacity = 128}};
    if (exchange) options.layout.contracts.fill(*acme);
    const auto engine = Engine::Load(dir_.string(), options);
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    const auto report = VerifyLayout(**engine, **one, {.tokens = 40});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_TRUE(StatusOf(*report).ok()) << StatusOf(*report).ToString();
    EXPECT_GT(report->worst, 0);
  }
}

// Step 6: synth writes what the weight map says, in every format, and the loader takes all of it.
TEST_F(Plum, IsSynthesisedInEveryFormat) {
  // Words enough for the byte tokenizer that synth writes.
  std::string config(kPlumConfig);
  config.replace(config.find("\"words\": 256"), 12, "\"words\": 300");
  std::ofstream(dir_ / "config.json") << config;
  for (SynthFormat format : {SynthFormat::kBf16, SynthFormat::kFp8, SynthFormat::kMxfp4}) {
    const std::string out = (dir_ / "synth").string();
    const Status written =
        WriteSynthetic((dir_ / "config.json").string(), out, {.format = format, .seed = 1});
    ASSERT_TRUE(written.ok()) << written.ToString();
    auto engine = Engine::Load(out, {.threads = 1});
    EXPECT_TRUE(engine.ok()) << engine.status().ToString();
  }
}

TEST_F(Plum, ErrorsNameTheKeyAndTheTensor) {
  const Status missing = ParseModelConfig(R"({"model_type": "plum"})", "", "x").status();
  EXPECT_NE(missing.message().find("key width"), std::string::npos) << missing.message();
  Rewrite();
  std::string config(kPlumConfig);
  config.replace(config.find("\"expert_width\": 32"), 18, "\"expert_width\": 64");
  std::ofstream(dir_ / "config.json") << config;
  const Status wrong = Engine::Load(dir_.string(), {}).status();
  EXPECT_EQ(wrong.code(), StatusCode::kBadCheckpoint);
  EXPECT_NE(wrong.message().find("tree.layers.0.experts.0.w1"), std::string::npos)
      << wrong.message();
}

}  // namespace
}  // namespace signalbox::made_up_family_test
