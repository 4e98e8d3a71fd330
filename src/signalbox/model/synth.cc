// SPDX-License-Identifier: Apache-2.0
#include "signalbox/model/synth.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "signalbox/base/json_util.h"
#include "signalbox/model/config.h"
#include "signalbox/model/weight_map.h"
#include "signalbox/tensor/dtype.h"
#include "signalbox/tensor/matrix.h"
#include "signalbox/tensor/safetensors_writer.h"

namespace signalbox {
namespace {

using Json = nlohmann::json;

// SplitMix64: one multiply-xorshift chain per number, any seed is as good as any other.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

// How the bytes of a tensor are made.
enum class Fill : uint8_t { kWeight, kNorm, kDecay, kNibbles, kScales, kFp8, kFp8Scales };

// Root mean square of the FP8 elements; most of their range stays unused, as after a release's
// division by the largest.
constexpr float kFp8Spread = 64;

// What releases in block FP8 leave in BF16.
bool StaysBf16(Role role) {
  for (Role r : {Role::kEmbedding, Role::kHead, Role::kRouter, Role::kSharedScore, Role::kDeltaBeta,
                 Role::kDeltaDecay, Role::kDeltaGroupedRates, Role::kMtpProject}) {
    if (role == r) return true;
  }
  return false;
}

struct PlannedTensor {
  TensorSpec spec;
  Fill fill;
  float spread;  // kWeight: standard deviation; kNorm: mean
};

int64_t Elements(const TensorSpec& spec) {
  int64_t n = 1;
  for (int64_t d : spec.shape) n *= d;
  return n;
}

class Planner {
 public:
  Planner(const ModelFacts& facts, const SynthOptions& options)
      : facts_(facts), files_(FilesOf(facts)), options_(options) {}

  std::vector<PlannedTensor> Plan() {
    const std::string& trunk = files_.trunk_prefixes.front();
    Add(TrunkRules(facts_), trunk, true);
    Add(HeadRules(facts_), "", true);
    for (size_t l = 0; l < facts_.layers.size(); ++l) {
      Add(LayerRules(facts_, facts_.layers[l]), fmt::format("{}layers.{}.", trunk, l), true);
    }
    if (facts_.mtp) {
      Add(MtpRules(facts_), files_.mtp_prefix, false);
      Add(LayerRules(facts_, *facts_.mtp), files_.mtp_prefix + "layers.0.", false);
    }
    return std::move(tensors_);
  }

 private:
  // 1/sqrt(inputs) keeps activations near one through a projection.
  static float Spread(int64_t cols) { return 1.f / std::sqrt(static_cast<float>(cols)); }

  void Matrix(const std::string& name, std::vector<int64_t> shape) {
    const float spread = Spread(shape.back());
    tensors_.push_back({{name, DType::kBf16, std::move(shape)}, Fill::kWeight, spread});
  }

  void Mxfp4(const std::string& module, int64_t rows, int64_t cols) {
    const std::string nibbles = module + std::string(files_.packed_suffix);
    tensors_.push_back({{nibbles, DType::kU8, {rows, cols / 2}}, Fill::kNibbles, 0});
    tensors_.push_back(
        {{module + ".weight_scale", DType::kU8, {rows, cols / 32}}, Fill::kScales, Spread(cols)});
  }

  void Fp8(const std::string& module, int64_t rows, int64_t cols) {
    const auto blocks = [](int64_t n) { return (n + kFp8BlockSize - 1) / kFp8BlockSize; };
    tensors_.push_back({{module + ".weight", DType::kF8E4m3, {rows, cols}}, Fill::kFp8, 0});
    tensors_.push_back({{module + ".weight_scale_inv", DType::kBf16, {blocks(rows), blocks(cols)}},
                        Fill::kFp8Scales,
                        Spread(cols) / kFp8Spread});
  }

  void Projection(const TensorRule& rule, const std::string& prefix) {
    const int64_t rows = rule.axis == 0 ? rule.total() : rule.other;
    const int64_t cols = rule.axis == 0 ? rule.other : rule.total();
    if (options_.format == SynthFormat::kFp8 && !StaysBf16(rule.parts.front().role)) {
      Fp8(prefix + rule.name, rows, cols);
    } else {
      Matrix(prefix + rule.name + ".weight", {rows, cols});
    }
  }

  void Experts(const TensorRule& rule, const std::string& prefix, bool trunk) {
    if (options_.format == SynthFormat::kBf16 && rule.fused_release && trunk) {
      const int64_t rows = rule.axis == 0 ? rule.total() : rule.other;
      const int64_t cols = rule.axis == 0 ? rule.other : rule.total();
      Matrix(prefix + rule.name, {rule.experts, rows, cols});
      return;
    }
    for (const TensorPart& part : rule.parts) {
      const int64_t rows = rule.axis == 0 ? part.size : rule.other;
      const int64_t cols = rule.axis == 0 ? rule.other : part.size;
      for (int64_t e = 0; e < rule.experts; ++e) {
        const std::string module = prefix + fmt::format(fmt::runtime(part.expert_name), e);
        if (options_.format == SynthFormat::kMxfp4 && cols % kMxBlock == 0) {
          Mxfp4(module, rows, cols);
        } else if (options_.format == SynthFormat::kFp8) {
          Fp8(module, rows, cols);
        } else {
          Matrix(module + ".weight", {rows, cols});
        }
      }
    }
  }

  void Vector(const TensorRule& rule, const std::string& prefix) {
    std::vector<int64_t> shape = {rule.total()};
    shape.insert(shape.end(), rule.trailing.begin(), rule.trailing.end());
    const Role role = rule.parts.front().role;
    if (role == Role::kDeltaConv || role == Role::kQueryBias || role == Role::kKeyBias ||
        role == Role::kValueBias || role == Role::kRouterBias || role == Role::kMixerMixQuery ||
        role == Role::kFfnMixQuery || role == Role::kOutputMixQuery) {
      tensors_.push_back({{prefix + rule.name, DType::kBf16, shape}, Fill::kWeight, 0.3f});
    } else if (role == Role::kDeltaALog || role == Role::kDeltaDtBias) {
      tensors_.push_back({{prefix + rule.name, DType::kBf16, shape}, Fill::kDecay, 0});
    } else {
      const float mean = role == Role::kDeltaNorm ? 1.f : 1.f - facts_.norm_offset;
      tensors_.push_back({{prefix + rule.name, DType::kBf16, shape}, Fill::kNorm, mean});
    }
  }

  void Add(const std::vector<TensorRule>& rules, const std::string& prefix, bool trunk) {
    for (const TensorRule& rule : rules) {
      switch (rule.kind) {
        case TensorRule::Kind::kMatrix:
          Projection(rule, prefix);
          break;
        case TensorRule::Kind::kVector:
          Vector(rule, prefix);
          break;
        case TensorRule::Kind::kExperts:
          Experts(rule, prefix, trunk);
          break;
      }
    }
  }

  const ModelFacts& facts_;
  const FamilyFiles files_;
  const SynthOptions& options_;
  std::vector<PlannedTensor> tensors_;
};

// Uniform in [-sqrt 3, sqrt 3): variance one.
float Unit(uint64_t bits) {
  return (static_cast<float>(bits & 0xffff) / 32768.f - 1.f) * 1.7320508f;
}

void FillBytes(const PlannedTensor& tensor, Random* random, std::vector<std::byte>* out) {
  const size_t bytes = out->size();
  if (tensor.fill == Fill::kNibbles) {
    for (size_t i = 0; i < bytes; ++i) (*out)[i] = static_cast<std::byte>(random->Next() >> 56);
    return;
  }
  if (tensor.fill == Fill::kScales) {
    // The sixteen codes have a root mean square of 2.92 = 2^1.55; a spread of scales over four
    // octaves.
    const int mean = static_cast<int>(std::lround(std::log2(tensor.spread) - 1.55f)) + 127;
    for (size_t i = 0; i < bytes; ++i) {
      (*out)[i] = static_cast<std::byte>(mean - 1 + static_cast<int>(random->Next() >> 62));
    }
    return;
  }
  if (tensor.fill == Fill::kFp8) {
    for (size_t i = 0; i < bytes; ++i) {
      (*out)[i] = static_cast<std::byte>(FloatToE4m3(kFp8Spread * Unit(random->Next() >> 32)));
    }
    return;
  }
  for (size_t i = 0; i + 1 < bytes; i += 2) {
    const float unit = Unit(random->Next() >> 32);
    float value = unit * tensor.spread;
    if (tensor.fill == Fill::kNorm) value = tensor.spread + 0.05f * unit;
    if (tensor.fill == Fill::kDecay) value = 0.5f * unit;
    if (tensor.fill == Fill::kFp8Scales) value = tensor.spread * (1 + 0.5f * unit);
    const uint16_t bits = FloatToBf16(value);
    (*out)[i] = static_cast<std::byte>(bits & 0xff);
    (*out)[i + 1] = static_cast<std::byte>(bits >> 8);
  }
}

Status WriteText(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file) return OkStatus();
  return InvalidArgument(
      {.what = "cannot write", .where = path.string(), .remedy = "check the folder and the disk"});
}

// The released config with fewer layers, if asked.
Result<Json> TrimmedConfig(const std::string& path, int64_t layers) {
  SB_ASSIGN_OR_RETURN(Json config, ReadJsonFile(path));
  if (layers == 0 || !config.is_object()) return config;
  Json& text = config.contains("text_config") ? config["text_config"] : config;
  if (!text.is_object()) return config;
  text["num_hidden_layers"] = layers;
  if (text.contains("layer_types") && text["layer_types"].is_array() &&
      static_cast<int64_t>(text["layer_types"].size()) > layers) {
    text["layer_types"].erase(text["layer_types"].begin() + layers, text["layer_types"].end());
  }
  // Lists of layer numbers, from one.
  if (text.contains("linear_attn_config") && text["linear_attn_config"].is_object()) {
    for (const char* key : {"full_attn_layers", "kda_layers"}) {
      if (!text["linear_attn_config"].contains(key)) continue;
      Json kept = Json::array();
      for (const Json& number : text["linear_attn_config"][key]) {
        if (!number.is_number_integer() || number.get<double>() <= double(layers)) {
          kept.push_back(number);
        }
      }
      text["linear_attn_config"][key] = std::move(kept);
    }
  }
  return config;
}

// 256 single bytes and the three ChatML tokens: any text can be put in and whatever comes out can
// be shown.
Json ByteTokenizer() {
  Json vocab = Json::object();
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    // Byte-level BPE writes printable Latin-1 as itself and the others as U+0100 and up, in order.
    const bool printable = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    const int point = printable ? byte : next++;
    std::string utf8;
    if (point < 0x80) {
      utf8 = static_cast<char>(point);
    } else {
      utf8 = {static_cast<char>(0xc0 | (point >> 6)), static_cast<char>(0x80 | (point & 0x3f))};
    }
    vocab[utf8] = byte;
  }
  Json added = Json::array();
  int id = 256;
  for (const char* content : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    added.push_back({{"id", id++},
                     {"content", content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", "\\p{L}+|\\p{N}|[^\\p{L}\\p{N}]+"}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  const Json bytes = {{"type", "ByteLevel"},
                      {"add_prefix_space", false},
                      {"trim_offsets", false},
                      {"use_regex", false}};
  return {{"version", "1.0"},
          {"added_tokens", added},
          {"normalizer", {{"type", "NFC"}}},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}};
}

Status WriteTensors(const std::vector<PlannedTensor>& tensors, const SynthOptions& options,
                    const std::filesystem::path& path,
                    const std::function<void(int64_t, int64_t)>& progress) {
  std::vector<TensorSpec> specs;
  int64_t total = 0;
  for (const PlannedTensor& t : tensors) {
    specs.push_back(t.spec);
    total += Elements(t.spec) * ByteSize(t.spec.dtype);
  }
  SB_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                      SafetensorsWriter::Create(path, specs, {{"format", "pt"}}));
  if (options.headers_only) return writer.Close();
  constexpr int64_t kPiece = 4 << 20;  // bytes made and written at a time
  int64_t done = 0;
  std::vector<std::byte> piece;
  for (size_t i = 0; i < tensors.size(); ++i) {
    Random random(options.seed * 0x10001 + i);
    const int64_t bytes = Elements(tensors[i].spec) * ByteSize(tensors[i].spec.dtype);
    for (int64_t at = 0; at < bytes; at += kPiece) {
      piece.resize(static_cast<size_t>(std::min(kPiece, bytes - at)));
      FillBytes(tensors[i], &random, &piece);
      SB_RETURN_IF_ERROR(writer.Write(tensors[i].spec.name, at, piece));
      done += static_cast<int64_t>(piece.size());
      if (progress) progress(done, total);
    }
  }
  return writer.Close();
}

}  // namespace

Status WriteSynthetic(const std::string& config_path, const std::string& out,
                      const SynthOptions& options,
                      const std::function<void(int64_t, int64_t)>& progress) {
  SB_ASSIGN_OR_RETURN(const Json config, TrimmedConfig(config_path, options.layers));
  SB_ASSIGN_OR_RETURN(const ModelConfig parsed, ParseModelConfig(config.dump(), "", config_path));
  const std::filesystem::path dir(out);
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) {
    return InvalidArgument(
        {.what = "cannot make the folder", .where = out, .found = error.message()});
  }
  SB_RETURN_IF_ERROR(WriteTensors(Planner(parsed.facts, options).Plan(), options,
                                  dir / "model.safetensors", progress));
  SB_RETURN_IF_ERROR(WriteText(dir / "config.json", config.dump(1) + "\n"));
  // The bundled byte tokenizer's <|im_end|> and <|endoftext|>, not the release's ids.
  SB_RETURN_IF_ERROR(
      WriteText(dir / "generation_config.json", Json{{"eos_token_id", {258, 256}}}.dump(1) + "\n"));
  return WriteText(dir / "tokenizer.json", ByteTokenizer().dump() + "\n");
}

}  // namespace signalbox
