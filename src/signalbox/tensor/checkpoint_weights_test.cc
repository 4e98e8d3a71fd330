// SPDX-License-Identifier: Apache-2.0
#include "signalbox/tensor/checkpoint_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "signalbox/tensor/safetensors_writer.h"

namespace signalbox {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

// "[2,3]"
std::vector<int64_t> ParseShape(const std::string& text) {
  std::vector<int64_t> shape;
  std::istringstream in(text.substr(1));
  for (int64_t n; in >> n; in.get()) shape.push_back(n);
  return shape;
}

// "a.weight BF16 [2,3]; ..."
std::vector<TensorSpec> ParseSpecs(const std::string& text) {
  std::vector<TensorSpec> specs;
  std::istringstream in(text);
  for (std::string name, dtype, shape; in >> name >> dtype >> shape;) {
    specs.push_back({name, *ParseDType(dtype), ParseShape(shape)});
  }
  return specs;
}

class CheckpointWeightsTest : public testing::Test {
 protected:
  // A checkpoint of the given tensors, valid until the next one; bytes not given are zero.
  using Contents = std::map<std::string, std::vector<uint8_t>>;
  const Checkpoint& Write(const std::string& specs, const Contents& contents = {}) {
    checkpoint_.emplace(Make(specs, contents));
    return *checkpoint_;
  }

  void TearDown() override { fs::remove(path_); }

  fs::path path_ = fs::path(testing::TempDir()) / "checkpoint_weights_test.safetensors";

 private:
  Checkpoint Make(const std::string& specs, const Contents& contents) {
    Result<SafetensorsWriter> writer = SafetensorsWriter::Create(path_, ParseSpecs(specs));
    SB_CHECK(writer.ok()) << writer.status().message();
    for (const auto& [name, bytes] : contents) {
      SB_CHECK(writer->Write(name, 0, std::as_bytes(std::span(bytes))).ok());
    }
    SB_CHECK(writer->Close().ok());
    Result<Checkpoint> checkpoint = Checkpoint::Open(path_);
    SB_CHECK(checkpoint.ok()) << checkpoint.status().message();
    return std::move(checkpoint).value();
  }

  std::optional<Checkpoint> checkpoint_;
};

std::vector<uint8_t> Bytes(size_t count, uint8_t value) {
  return std::vector<uint8_t>(count, value);
}

std::vector<float> Decode(const MatrixView& view) {
  std::vector<float> values;
  std::vector<float> row(static_cast<size_t>(view.cols));
  for (int64_t r = 0; r < view.rows; ++r) {
    view.DecodeRow(r, row);
    values.insert(values.end(), row.begin(), row.end());
  }
  return values;
}

TEST_F(CheckpointWeightsTest, SpellingsOfWeights) {
  std::ifstream in(SIGNALBOX_TESTDATA "/weights.txt");
  std::map<std::string, std::string> block;
  int cases = 0;
  for (std::string line; in;) {
    if (std::getline(in, line) && !line.empty()) {
      if (line[0] != '#') block[line.substr(0, line.find(':'))] = line.substr(line.find(':') + 2);
      continue;
    }
    if (block.empty()) continue;
    SCOPED_TRACE(block["case"]);
    TensorLedger ledger(Write(block["file"]));
    std::istringstream read(block["read"]);
    std::string name, shape_text;
    read >> name >> shape_text;
    const std::vector<int64_t> shape = ParseShape(shape_text);
    Result<std::vector<MatrixView>> views = std::vector<MatrixView>();
    if (shape.size() == 3) {
      views = ReadFused(ledger, name, shape[0], shape[1], shape[2]);
    } else {
      Result<MatrixView> view = ReadMatrix(ledger, name, shape[0], shape[1]);
      views = view.ok() ? Result<std::vector<MatrixView>>(std::vector{*view}) : view.status();
    }
    if (block.contains("gives")) {
      if (!views.ok()) {
        ADD_FAILURE() << views.status().message();
      } else {
        EXPECT_EQ(views->size(), shape.size() == 3 ? static_cast<size_t>(shape[0]) : 1u);
        for (const MatrixView& view : *views) EXPECT_EQ(view.ToString(), block["gives"]);
        EXPECT_TRUE(ledger.Finish().ok()) << ledger.Finish().message();
      }
    } else {
      EXPECT_EQ(views.status().code(), StatusCode::kBadCheckpoint);
      std::string message = views.status().message();
      message = message.substr(0, message.rfind("; "));
      const size_t at = message.find(path_.string());
      if (at != std::string::npos) message.replace(at, path_.string().size(), "FILE");
      EXPECT_EQ(message, block["error"]);
      EXPECT_FALSE(views.status().detail().remedy.empty());
    }
    EXPECT_EQ(HasWeight(ledger.checkpoint(), name),
              block.contains("gives") || !block["error"].starts_with("tensor is missing"));
    block.clear();
    ++cases;
  }
  EXPECT_EQ(cases, 37);
}

TEST_F(CheckpointWeightsTest, ViewsShowTheStoredNumbers) {
  // Code 2 (1.0) in low nibbles, code 13 (-3.0) in high ones; scales 2^0 and 2^1.
  TensorLedger ledger(
      Write("q.weight U8 [1,32]; q.weight_scale U8 [1,2]; f.weight F8_E4M3 [1,129]; "
            "f.weight_scale_inv F32 [1,2]",
            {{"q.weight", Bytes(32, 0xd2)},
             {"q.weight_scale", {127, 128}},
             {"f.weight", Bytes(129, 0x38)},                         // 1.0
             {"f.weight_scale_inv", {0, 0, 0, 63, 0, 0, 0, 64}}}));  // 0.5, 2
  const std::vector<float> q = Decode(*ReadMatrix(ledger, "q", 1, 64));
  EXPECT_EQ(q[0], 1.f);
  EXPECT_EQ(q[1], -3.f);
  EXPECT_EQ(q[31], -3.f);
  EXPECT_EQ(q[32], 2.f);
  EXPECT_EQ(q[63], -6.f);
  const std::vector<float> f = Decode(*ReadMatrix(ledger, "f", 1, 129));
  EXPECT_EQ(f[127], 0.5f);
  EXPECT_EQ(f[128], 2.f);
}

TEST_F(CheckpointWeightsTest, FusedExpertsFollowEachOther) {
  // All codes are 1.0, so that a value is its scale: 2^expert for MXFP4; 1, 2, 4, .. 32 in BF16 for
  // the two row blocks of each FP8 expert.
  const std::vector<uint8_t> mx_scales = {127, 127, 128, 128, 129, 129};
  const std::vector<uint8_t> f8_scales = {0x80, 0x3f, 0x00, 0x40, 0x80, 0x40,
                                          0x00, 0x41, 0x80, 0x41, 0x00, 0x42};
  TensorLedger ledger(
      Write("m U8 [3,2,16]; m_scale U8 [3,2,1]; f F8_E4M3 [3,129,1]; "
            "f_scale_inv BF16 [3,2,1]",
            {{"m", Bytes(96, 0x22)},
             {"m_scale", mx_scales},
             {"f", Bytes(387, 0x38)},
             {"f_scale_inv", f8_scales}}));
  Result<std::vector<MatrixView>> m = ReadFused(ledger, "m", 3, 2, 32);
  Result<std::vector<MatrixView>> f = ReadFused(ledger, "f", 3, 129, 1);
  ASSERT_TRUE(m.ok() && f.ok());
  for (int e = 0; e < 3; ++e) {
    EXPECT_EQ(Decode((*m)[e]), std::vector<float>(64, static_cast<float>(1 << e))) << e;
    std::vector<float> expected(128, static_cast<float>(1 << (2 * e)));
    expected.push_back(static_cast<float>(2 << (2 * e)));
    EXPECT_EQ(Decode((*f)[e]), expected) << e;
  }
}

// A release may hold fused BF16 experts, per-expert FP8 ones, or both in one file.
TEST_F(CheckpointWeightsTest, Qnt07MixedStylesInOneFile) {
  const Checkpoint& checkpoint = Write(
      "l.0.experts.down_proj BF16 [2,4,8]; l.1.experts.0.down_proj.weight F8_E4M3 [4,8]; "
      "l.1.experts.0.down_proj.weight_scale_inv F32 [1,1]; "
      "l.1.experts.1.down_proj.weight F8_E4M3 [4,8]; "
      "l.1.experts.1.down_proj.weight_scale_inv F32 [1,1]");
  TensorLedger ledger(checkpoint);
  EXPECT_TRUE(HasWeight(checkpoint, "l.0.experts.down_proj"));
  EXPECT_FALSE(HasWeight(checkpoint, "l.1.experts.down_proj"));
  EXPECT_TRUE(ReadFused(ledger, "l.0.experts.down_proj", 2, 4, 8).ok());
  EXPECT_THAT(ledger.Finish().message(), HasSubstr("4 of 5 tensors have no use in this model"));
  EXPECT_TRUE(ReadMatrix(ledger, "l.1.experts.0.down_proj", 4, 8).ok());
  EXPECT_TRUE(ReadMatrix(ledger, "l.1.experts.1.down_proj", 4, 8).ok());
  EXPECT_TRUE(ledger.Finish().ok());
}

// A rank's slices of data and scales must stay together: what the ranks hold, side by side, is the
// whole matrix; a cut through a scale group is refused.
TEST_F(CheckpointWeightsTest, Shp03SlicesConcatenateToTheWhole) {
  std::vector<uint8_t> codes(96UL * 48), scales(96UL * 3), f8(96UL * 96);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 37 + i / 48);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<uint8_t>(120 + i % 11);
  for (size_t i = 0; i < f8.size(); ++i) f8[i] = static_cast<uint8_t>(i * 29 % 0x7e);
  TensorLedger ledger(
      Write("m.weight U8 [96,48]; m.weight_scale U8 [96,3]; f.weight F8_E4M3 "
            "[96,96]; f.weight_scale_inv F32 [1,1]",
            {{"m.weight", codes},
             {"m.weight_scale", scales},
             {"f.weight", f8},
             {"f.weight_scale_inv", {0, 0, 0, 63}}}));
  for (const std::string name : {"m", "f"}) {
    const MatrixView whole = *ReadMatrix(ledger, name, 96, 96);
    const std::vector<float> expected = Decode(whole);
    for (const int64_t ranks : {2, 3, 4}) {
      std::vector<float> by_rows;
      std::vector<float> by_cols(expected.size());
      const int64_t width = 96 / ranks;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const std::vector<float> part = Decode(*whole.Rows(rank * width, (rank + 1) * width));
        by_rows.insert(by_rows.end(), part.begin(), part.end());
        const Result<MatrixView> cols = whole.Cols(rank * width, (rank + 1) * width);
        ASSERT_EQ(cols.ok(), name == "f" || ranks == 3) << name << ranks;
        if (!cols.ok()) continue;
        const std::vector<float> slice = Decode(*cols);
        for (int64_t r = 0; r < 96; ++r) {
          std::copy_n(slice.begin() + r * width, width, by_cols.begin() + r * 96 + rank * width);
        }
      }
      EXPECT_EQ(by_rows, expected) << name << ranks;
      if (name == "f" || ranks == 3) {
        EXPECT_EQ(by_cols, expected) << name << ranks;
      }
    }
  }
}

// One NaN block in a rarely used expert goes unnoticed until a prompt meets it.
TEST_F(CheckpointWeightsTest, Qnt15NanScaleIsFound) {
  std::vector<uint8_t> scales(64, 254);
  scales[5 * 8 + 2 * 2 + 1] = 255;  // expert 5, row 2, block 1
  TensorLedger ledger(
      Write("e U8 [8,4,32]; e_scale U8 [8,4,2]; f.weight F8_E4M3 [130,130]; "
            "f.weight_scale_inv F32 [2,2]; p.weight BF16 [1,1]",
            {{"e_scale", scales},
             {"f.weight_scale_inv", {0, 0, 128, 63, 0, 0, 128, 63, 0, 0, 128, 127, 0, 0, 192, 127}},
             {"p.weight", {0xc0, 0x7f}}}));
  const std::vector<MatrixView> experts = *ReadFused(ledger, "e", 8, 4, 64);
  for (int e = 0; e < 8; ++e) {
    const std::optional<ScalePosition> nan = FindNanScale(experts[e]);
    ASSERT_EQ(nan.has_value(), e == 5) << e;
    if (nan) {
      EXPECT_THAT((std::array{nan->row, nan->block}), ElementsAre(2, 1));
    }
  }
  EXPECT_FALSE(FindNanScale(*experts[5].Rows(0, 2)).has_value());
  EXPECT_FALSE(FindNanScale(*experts[5].Cols(0, 32)).has_value());
  EXPECT_EQ(FindNanScale(*experts[5].Cols(32, 64))->block, 0);

  const MatrixView f = *ReadMatrix(ledger, "f", 130, 130);
  EXPECT_EQ(FindNanScale(f)->row, 1);  // infinity, before the NaN
  EXPECT_EQ(FindNanScale(f)->block, 0);
  EXPECT_FALSE(FindNanScale(*f.Rows(0, 128)).has_value());
  EXPECT_EQ(FindNanScale(*f.Rows(127, 129))->row, 1);
  EXPECT_FALSE(FindNanScale(*ReadMatrix(ledger, "p", 1, 1)).has_value());
}

TEST_F(CheckpointWeightsTest, VectorsAndTensorsAreCopiedAsFloat) {
  TensorLedger ledger(
      Write("norm.weight BF16 [3]; A_log F32 [2]; bias F16 [1]; conv.weight BF16 "
            "[2,1,2]; ids I32 [1]",
            {{"norm.weight", {0x80, 0x3f, 0x00, 0xc0, 0x00, 0x00}},
             {"A_log", {0, 0, 128, 63, 0, 0, 0, 192}},
             {"bias", {0x00, 0x3c}},
             {"conv.weight", {0x80, 0x3f, 0, 0x40, 0x40, 0x40, 0x80, 0x40}}}));
  EXPECT_THAT(*ReadVector(ledger, "norm.weight", 3), ElementsAre(1.f, -2.f, 0.f));
  EXPECT_THAT(*ReadVector(ledger, "A_log", 2), ElementsAre(1.f, -2.f));
  EXPECT_THAT(*ReadVector(ledger, "bias", 1), ElementsAre(1.f));
  const std::array<int64_t, 3> conv = {2, 1, 2};
  EXPECT_THAT(*ReadTensor(ledger, "conv.weight", conv), ElementsAre(1.f, 2.f, 3.f, 4.f));

  EXPECT_THAT(ReadVector(ledger, "conv.weight", 4).status().message(),
              StartsWith("tensor has another shape than the model"));
  EXPECT_THAT(ReadVector(ledger, "ids", 1).status().message(),
              HasSubstr("found I32 [1], expected F32, BF16 or F16"));
  EXPECT_THAT(ReadVector(ledger, "norm", 3).status().message(),
              HasSubstr("tensor 'norm'): found none of this name; next in order is 'norm.weight'"));
}

TEST(CheckpointWeights, UnalignedDataIsCopiedOrRefused) {
  // A header of odd length, as some writers leave it, puts every element across a boundary.
  std::string header = R"({"a.weight":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}})";
  if (header.size() % 2 == 0) header += ' ';
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  bytes += header;
  bytes += std::string("\0\0\x80\x3f", 4);
  alignas(8) std::array<char, 128> buffer;
  std::memcpy(buffer.data(), bytes.data(), bytes.size());
  Result<SafetensorsFile> file =
      SafetensorsFile::FromBytes(std::as_bytes(std::span(buffer).first(bytes.size())), "x");
  ASSERT_TRUE(file.ok()) << file.status().message();
  std::vector<SafetensorsFile> files;
  files.push_back(std::move(file).value());
  Result<Checkpoint> checkpoint = Checkpoint::FromFiles("x", std::move(files));
  TensorLedger ledger(*checkpoint);
  const std::array<int64_t, 2> shape = {1, 1};
  EXPECT_THAT(*ReadTensor(ledger, "a.weight", shape), ElementsAre(1.f));
  EXPECT_THAT(
      ReadMatrix(ledger, "a", 1, 1).status().message(),
      StartsWith("tensor is not aligned to its elements (x, tensor 'a.weight'): found F32"));
}

// Every tensor of the models that come with the repository, by its own stored shape.
TEST(CheckpointWeights, BundledModelsAreAccountedFor) {
  struct Counts {
    std::string model;
    size_t tensors, mxfp4, bf16, other;
  };
  for (const auto& [model, tensors, mxfp4, bf16, other] :
       {Counts{"tiny-qwen3.5-moe-mxfp4", 1006, 432, 90, 52},
        Counts{"random/qwen3.5-moe", 160, 0, 137, 23}}) {
    SCOPED_TRACE(model);
    Result<Checkpoint> checkpoint = Checkpoint::Open(SIGNALBOX_SOURCE_DIR "/models/" + model);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    EXPECT_EQ(checkpoint->tensors().size(), tensors);
    ASSERT_EQ(checkpoint->files().size(), 1u);
    TensorLedger ledger(*checkpoint);
    std::map<WeightFormat, size_t> matrices;
    size_t others = 0;
    for (const TensorRef& ref : checkpoint->tensors()) {
      const std::vector<int64_t>& shape = ref.info->shape;
      if (ref.name().ends_with("_scale")) continue;
      if (shape.size() == 2 && ref.name().ends_with(".weight")) {
        const int64_t cols = shape[1] * (ref.info->dtype == DType::kU8 ? 2 : 1);
        const std::string name = ref.name().substr(0, ref.name().size() - 7);
        Result<MatrixView> view = ReadMatrix(ledger, name, shape[0], cols);
        ASSERT_TRUE(view.ok()) << view.status().message();
        ++matrices[view->format];
        EXPECT_FALSE(FindNanScale(*view).has_value()) << name;
      } else {
        Result<std::vector<float>> values = ReadTensor(ledger, ref.name(), shape);
        ASSERT_TRUE(values.ok()) << values.status().message();
        for (const float v : *values) ASSERT_TRUE(std::isfinite(v)) << ref.name();
        ++others;
      }
    }
    EXPECT_TRUE(ledger.Finish().ok()) << ledger.Finish().message();
    EXPECT_EQ(matrices[WeightFormat::kMxfp4], mxfp4);
    EXPECT_EQ(matrices[WeightFormat::kBf16], bf16);
    EXPECT_EQ(others, other);
  }
}

}  // namespace
}  // namespace signalbox
