// SPDX-License-Identifier: Apache-2.0
#include "signalbox/tensor/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "signalbox/tensor/safetensors_writer.h"

namespace signalbox {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  // A file of F32 [2] tensors.
  void Shard(const std::string& file, const std::vector<std::string>& tensors) {
    std::vector<TensorSpec> specs;
    for (const std::string& name : tensors) specs.push_back({name, DType::kF32, {2}});
    Result<SafetensorsWriter> writer = SafetensorsWriter::Create(dir_ / file, specs);
    ASSERT_TRUE(writer.ok() && writer->Close().ok());
  }

  void Index(const std::string& weight_map) {
    std::ofstream(dir_ / "model.safetensors.index.json")
        << R"({"metadata": {"total_size": 0}, "weight_map": {)" << weight_map << "}}";
  }

  std::string OpenError() {
    const Status status = Checkpoint::Open(dir_).status();
    EXPECT_EQ(status.code(), StatusCode::kBadCheckpoint);
    EXPECT_THAT(status.detail().where, StartsWith(dir_.string()));
    return status.message();
  }

  std::vector<std::string> Names() {
    Result<Checkpoint> checkpoint = Checkpoint::Open(dir_);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    std::vector<std::string> names;
    if (!checkpoint.ok()) return names;
    for (const TensorRef& ref : checkpoint->tensors()) {
      names.push_back(ref.name() + "@" + fs::path(ref.file->path()).filename().string());
    }
    return names;
  }

  const fs::path dir_ = fs::path(testing::TempDir()) / "checkpoint_test";
};

TEST_F(CheckpointTest, SingleFileByDirectoryOrByName) {
  Shard("model.safetensors", {"b", "a"});
  Shard("reference_logits.safetensors", {"c"});  // not part of the weights
  EXPECT_THAT(Names(), ElementsAre("a@model.safetensors", "b@model.safetensors"));
  Result<Checkpoint> other = Checkpoint::Open(dir_ / "reference_logits.safetensors");
  ASSERT_TRUE(other.ok());
  EXPECT_NE(other->Find("c"), nullptr);
  EXPECT_EQ(other->Find("a"), nullptr);
  EXPECT_EQ(other->total_bytes(), 8);
}

TEST_F(CheckpointTest, ShardsWithIndex) {
  Shard("model-00001-of-00002.safetensors", {"b", "d"});
  Shard("model-00002-of-00002.safetensors", {"a", "c"});
  Shard("consolidated.safetensors", {"x"});  // the index does not name it
  Index(R"("a": "model-00002-of-00002.safetensors", "b": "model-00001-of-00002.safetensors",)"
        R"("c": "model-00002-of-00002.safetensors", "d": "model-00001-of-00002.safetensors")");
  EXPECT_THAT(
      Names(),
      ElementsAre("a@model-00002-of-00002.safetensors", "b@model-00001-of-00002.safetensors",
                  "c@model-00002-of-00002.safetensors", "d@model-00001-of-00002.safetensors"));
  Result<Checkpoint> moved = Checkpoint::Open(dir_);
  const Checkpoint checkpoint = std::move(moved).value();  // references survive a move
  EXPECT_EQ(checkpoint.Find("a")->data().size(), 8u);
  EXPECT_EQ(checkpoint.total_bytes(), 32);
}

// The ledger looks for names near the last one; where that was must not matter.
TEST_F(CheckpointTest, TakingNamesInAnyOrderFindsThem) {
  std::vector<std::string> names;
  for (int i = 0; i < 70; ++i) names.push_back("layer." + std::to_string(i) + ".weight");
  Shard("model.safetensors", names);
  const Checkpoint checkpoint = *Checkpoint::Open(dir_);
  TensorLedger ledger(checkpoint);
  uint32_t random = 1;
  for (int i = 0; i < 2000; ++i) {
    random = random * 1664525 + 1013904223;
    const auto number = static_cast<int>(random >> 24) - 60;  // some are not there
    const std::string name = "layer." + std::to_string(number) + (i % 5 == 0 ? "" : ".weight");
    ASSERT_EQ(ledger.Take(name), checkpoint.Find(name)) << name;
  }
  for (const std::string& name : names) EXPECT_NE(ledger.Take(name), nullptr) << name;
  EXPECT_TRUE(ledger.Unread().empty());
}

TEST_F(CheckpointTest, ShardsWithoutIndexWhenTheSetIsComplete) {
  Shard("m-00001-of-00002.safetensors", {"a"});
  EXPECT_EQ(Names().size(), 1u) << "one file alone is taken";
  Shard("m-00002-of-00002.safetensors", {"b"});
  EXPECT_EQ(Names().size(), 2u);
  Shard("extra.safetensors", {"c"});
  EXPECT_THAT(OpenError(),
              StartsWith("cannot tell which files of the model directory are the weights (" +
                         dir_.string() + "): found 3 files: 'extra.safetensors', "));
}

TEST_F(CheckpointTest, IncompleteSetsAreRefused) {
  Shard("m-00001-of-00003.safetensors", {"a"});
  Shard("m-00003-of-00003.safetensors", {"b"});
  EXPECT_THAT(OpenError(), HasSubstr("finish the download"));
  Shard("n-00002-of-00003.safetensors", {"c"});
  EXPECT_THAT(OpenError(), HasSubstr("found 3 files"));
}

TEST_F(CheckpointTest, NothingToRead) {
  EXPECT_THAT(OpenError(), StartsWith("no weights in model directory"));
  EXPECT_THAT(Checkpoint::Open(dir_ / "none").status().message(), StartsWith("no such model"));
  std::ofstream(dir_ / "model.safetensors") << "short";
  EXPECT_THAT(OpenError(), StartsWith("file is too short to be safetensors"));
}

TEST_F(CheckpointTest, IndexAndFilesMustAgree) {
  Shard("x.safetensors", {"a", "b"});
  Shard("y.safetensors", {"c"});
  Index(R"("a": "x.safetensors", "b": "x.safetensors", "c": "x.safetensors")");
  EXPECT_THAT(OpenError(), StartsWith("index and weight files disagree (" + dir_.string() +
                                      "): found 1 only in the index: 'c', expected"));
  Index(R"("a": "x.safetensors", "c": "y.safetensors")");
  EXPECT_THAT(OpenError(), HasSubstr("found 1 only in the files: 'b'"));
  Index(R"("a": "y.safetensors", "b": "x.safetensors", "c": "y.safetensors")");
  EXPECT_THAT(OpenError(),
              StartsWith("tensor lies in another file than the index says (" + dir_.string() +
                         ", tensor 'a'): found 'x.safetensors', expected 'y.safetensors'"));
  Index(R"("a": "x.safetensors", "b": "x.safetensors", "c": "z.safetensors")");
  EXPECT_THAT(OpenError(), StartsWith("weight files are missing (" + dir_.string() +
                                      "): found 1 of 2 not there: 'z.safetensors'"));
}

TEST_F(CheckpointTest, TensorInTwoFiles) {
  Shard("x.safetensors", {"a"});
  Shard("y.safetensors", {"a", "b"});
  Index(R"("a": "x.safetensors", "b": "y.safetensors")");
  EXPECT_THAT(OpenError(), StartsWith("tensor is stored twice (" + dir_.string() +
                                      ", tensor 'a'): found x.safetensors and y.safetensors"));
}

TEST_F(CheckpointTest, TwoSetsOfWeights) {
  Shard("model.safetensors", {"a"});
  Shard("x.safetensors", {"a"});
  Index(R"("a": "x.safetensors")");
  EXPECT_THAT(OpenError(), StartsWith("model directory holds two sets of weights"));
  Index(R"("a": "model.safetensors")");
  EXPECT_THAT(Names(), ElementsAre("a@model.safetensors"));
}

TEST_F(CheckpointTest, IndexNamesFilesOfItsOwnDirectoryOnly) {
  for (const std::string name :
       {"../x.safetensors", "/x", "sub/x", "..", ".", "", "a\\\\b", "a\\u0000b"}) {
    Index("\"a\": \"" + name + "\"");
    EXPECT_THAT(OpenError(), StartsWith("index names no file in its own directory")) << name;
  }
  Index(R"("a": 5)");
  EXPECT_THAT(OpenError(), HasSubstr("tensor 'a'): found number, expected a file name"));
}

TEST_F(CheckpointTest, IndexThatIsNone) {
  for (const std::string text :
       {"", "[]", "{}", R"({"weight_map": []})", R"({"weight_map": {"a": "x", "a": "y"}})",
        "{\"weight_map\": {}} trailing"}) {
    std::ofstream(dir_ / "model.safetensors.index.json") << text;
    EXPECT_THAT(OpenError(), HasSubstr("model.safetensors.index.json")) << text;
  }
}

TEST_F(CheckpointTest, LedgerAccountsForEveryTensor) {
  Shard("model.safetensors", {"model.norm.weight", "model.visual.a", "model.visual.b", "lm_head"});
  const Checkpoint checkpoint = *Checkpoint::Open(dir_);
  TensorLedger ledger(checkpoint);
  EXPECT_EQ(ledger.Take("nothing"), nullptr);
  EXPECT_EQ(ledger.Take("lm_head")->name(), "lm_head");
  EXPECT_EQ(ledger.Take("lm_head")->name(), "lm_head") << "tied weights are read twice";
  EXPECT_EQ(ledger.Unread().size(), 3u);
  ledger.Skip("model.visual.*", "vision is not used for text");
  ledger.Skip("*.rotary_emb.inv_freq", "computed");
  ASSERT_EQ(ledger.skipped().size(), 1u);
  EXPECT_EQ(ledger.skipped()[0].tensors, 2);
  EXPECT_EQ(ledger.skipped()[0].bytes, 16);
  EXPECT_EQ(ledger.skipped()[0].reason, "vision is not used for text");
  EXPECT_EQ(ledger.Finish().detail().found, "1 like 'model.norm.weight' F32 [2]");
  ASSERT_NE(ledger.Take("model.norm.weight"), nullptr);
  EXPECT_TRUE(ledger.Finish().ok());
  EXPECT_EQ(TensorLedger(checkpoint).Unread().size(), 4u) << "each reader has its own ledger";
}

// Thousands of unknown keys must come out as a count and a few examples, one of each kind.
TEST_F(CheckpointTest, Qnt07UnreadTensorsAreCountedByKind) {
  std::vector<std::string> names = {"odd", "model.x.weight_shape", "model.x.bias"};
  for (int layer = 0; layer < 20; ++layer) {
    for (int expert = 0; expert < 50; ++expert) {
      const std::string at = "l." + std::to_string(layer) + ".e." + std::to_string(expert);
      names.push_back(at + ".weight");
      if (layer > 0) names.push_back(at + ".weight_scale_inv");
    }
  }
  Shard("model.safetensors", names);
  const Checkpoint checkpoint = *Checkpoint::Open(dir_);
  const Status status = TensorLedger(checkpoint).Finish();
  EXPECT_EQ(status.code(), StatusCode::kBadCheckpoint);
  EXPECT_EQ(status.detail().what, "1953 of 1953 tensors have no use in this model");
  EXPECT_EQ(status.detail().found,
            "1000 like 'l.0.e.0.weight' F32 [2], 950 like 'l.1.e.0.weight_scale_inv' F32 [2], "
            "1 like 'model.x.bias' F32 [2] and 2 other kinds");
}

}  // namespace
}  // namespace signalbox
