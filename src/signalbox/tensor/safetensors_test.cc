// SPDX-License-Identifier: Apache-2.0
#include "signalbox/tensor/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "signalbox/tensor/safetensors_writer.h"

namespace signalbox {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

std::string FileOf(const std::string& header, size_t data_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return file + header + std::string(data_bytes, '\1');
}

Result<SafetensorsFile> Parse(const std::string& bytes) {
  return SafetensorsFile::FromBytes(std::as_bytes(std::span(bytes)), "x");
}

fs::path TempPath(const std::string& name) {
  return fs::path(testing::TempDir()) / ("safetensors_test_" + name);
}

TEST(Safetensors, ReadsNamesTypesShapesAndBytes) {
  const std::string bytes = FileOf(R"({"__metadata__":{"format":"pt"},)"
                                   R"("b":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]},)"
                                   R"("a":{"dtype":"U8","shape":[],"data_offsets":[8,9]},)"
                                   R"("c":{"shape":[0,7],"data_offsets":[9,9],"dtype":"F32"}}   )",
                                   9);
  Result<SafetensorsFile> file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_EQ(file->tensors().size(), 3u);
  EXPECT_EQ(file->tensors()[0].name, "a");
  EXPECT_EQ(file->metadata().at("format"), "pt");
  const TensorInfo* b = file->Find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->ToString(), "BF16 [2, 2]");
  EXPECT_EQ(static_cast<const void*>(file->Data(*b).data()), bytes.data() + bytes.size() - 9);
  EXPECT_EQ(file->Data(*b).size(), 8u);
  EXPECT_EQ(file->Data(*file->Find("a")).size(), 1u);
  EXPECT_TRUE(file->Data(*file->Find("c")).empty());
  EXPECT_EQ(file->Find("d"), nullptr);
}

TEST(Safetensors, SmallestFiles) {
  EXPECT_TRUE(Parse(FileOf("{}", 0)).ok());
  EXPECT_THAT(Parse("").status().message(), StartsWith("file is too short to be safetensors (x)"));
  EXPECT_FALSE(Parse(FileOf("", 0)).ok());
}

TEST(Safetensors, BadHeaders) {
  std::ifstream in(SIGNALBOX_TESTDATA "/safetensors_bad.txt");
  std::map<std::string, std::string> block;
  int cases = 0;
  for (std::string line; in;) {
    if (std::getline(in, line) && !line.empty()) {
      if (line[0] != '#') block[line.substr(0, line.find(':'))] = line.substr(line.find(':') + 2);
      continue;
    }
    if (block.empty()) continue;
    SCOPED_TRACE(block["case"]);
    const Status status = Parse(FileOf(block["header"], std::stoul(block["data"]))).status();
    EXPECT_EQ(status.code(), StatusCode::kBadCheckpoint);
    const std::string message = status.message();
    EXPECT_EQ(message.substr(0, message.rfind("; ")), block["error"]);
    EXPECT_FALSE(status.detail().remedy.empty());
    block.clear();
    ++cases;
  }
  EXPECT_EQ(cases, 38);
}

TEST(Safetensors, RefusesNulAndWrongUtf8) {
  EXPECT_THAT(Parse(FileOf(std::string("{}\0{", 4), 0)).status().message(),
              StartsWith("header is not valid JSON (x): found '{}\\x00{'"));
  EXPECT_THAT(Parse(FileOf("{\"\xc3\x28\":{}}", 0)).status().message(), HasSubstr("UTF-8"));
  EXPECT_FALSE(Parse(FileOf("\xef\xbb\xbf{}", 0)).ok());
}

TEST(Safetensors, HugeHeadersAreRefusedBeforeTheyAreRead) {
  std::string bytes = FileOf("{}", 0);
  for (const uint64_t length : {uint64_t{3}, uint64_t{100'000'000}, uint64_t{100'000'001},
                                ~uint64_t{0}, uint64_t{1} << 63}) {
    std::memcpy(bytes.data(), &length, 8);
    EXPECT_EQ(Parse(bytes).status().code(), StatusCode::kBadCheckpoint) << length;
  }
}

TEST(Safetensors, DeepNestingAndLongListsStopEarly) {
  for (const std::string piece : {"[", "{\"a\":", "[0,"}) {
    std::string header = "{\"a\":{\"dtype\":\"U8\",\"shape\":";
    for (int i = 0; i < 1'000'000; ++i) header += piece;
    EXPECT_EQ(Parse(FileOf(header, 0)).status().code(), StatusCode::kBadCheckpoint);
  }
}

TEST(Safetensors, TruncatedAnywhere) {
  const std::string bytes = FileOf(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                                   R"("b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})",
                                   11);
  ASSERT_TRUE(Parse(bytes).ok());
  for (size_t size = 0; size < bytes.size(); ++size) {
    const Status status = Parse(bytes.substr(0, size)).status();
    EXPECT_EQ(status.code(), StatusCode::kBadCheckpoint) << size;
    EXPECT_THAT(status.message(), HasSubstr("incomplete or damaged")) << size;
  }
  EXPECT_FALSE(Parse(bytes + "x").ok());
}

TEST(Safetensors, EveryByteFlippedIsReadOrRefused) {
  const std::string bytes = FileOf(
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"U8","shape":[2,3],"data_offsets":[0,6]}})", 6);
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      Result<SafetensorsFile> file = Parse(damaged);
      if (!file.ok()) continue;
      for (const TensorInfo& info : file->tensors()) {
        EXPECT_EQ(file->Data(info).size(), static_cast<size_t>(info.bytes));
      }
    }
  }
}

TEST(Safetensors, AlignmentIsToldByTheRealAddress) {
  // The header decides where the data begins: 8 + 55 is odd.
  const std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}} )";
  alignas(8) char buffer[128];
  for (const size_t pad : {0, 1}) {
    const std::string bytes = FileOf(header + std::string(pad, ' '), 4);
    std::memcpy(buffer, bytes.data(), bytes.size());
    Result<SafetensorsFile> file =
        SafetensorsFile::FromBytes(std::as_bytes(std::span(buffer, bytes.size())), "x");
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_EQ(file->IsAligned(*file->Find("a")), pad == 1);
  }
}

TEST(Safetensors, OpenNamesTheFile) {
  const fs::path path = TempPath("open");
  fs::remove_all(path);
  EXPECT_EQ(SafetensorsFile::Open(path).status().code(), StatusCode::kBadCheckpoint);
  EXPECT_THAT(SafetensorsFile::Open(testing::TempDir()).status().message(),
              HasSubstr("a directory"));
  std::ofstream(path) << "";
  EXPECT_THAT(SafetensorsFile::Open(path).status().message(), HasSubstr(path.string()));
  fs::remove(path);
}

TEST(SafetensorsWriter, RoundTripPlacesWideElementsFirst) {
  const fs::path path = TempPath("round_trip");
  const std::vector<TensorSpec> specs = {{"odd", DType::kU8, {3}},
                                         {"half", DType::kBf16, {5, 1}},
                                         {"name with \"quotes\" \u00fc", DType::kF32, {2, 2}},
                                         {"scalar", DType::kI64, {}},
                                         {"none", DType::kF16, {0, 4}}};
  Result<SafetensorsWriter> writer =
      SafetensorsWriter::Create(path, specs, {{"format", "pt"}, {"by", "test"}});
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  const std::array<float, 4> values = {1.f, -2.f, 3.f, 0.5f};
  const auto bytes = std::as_bytes(std::span(values));
  ASSERT_TRUE(writer->Write(specs[2].name, 8, bytes.subspan(8)).ok());
  ASSERT_TRUE(writer->Write(specs[2].name, 0, bytes.first(8)).ok());
  EXPECT_FALSE(fs::exists(path)) << "the name must not exist before the file is complete";
  ASSERT_TRUE(writer->Close().ok());

  Result<SafetensorsFile> file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->metadata().at("by"), "test");
  ASSERT_EQ(file->tensors().size(), specs.size());
  int64_t data_begin = file->file_bytes();
  for (const TensorSpec& spec : specs) {
    const TensorInfo* info = file->Find(spec.name);
    ASSERT_NE(info, nullptr) << spec.name;
    EXPECT_EQ(info->dtype, spec.dtype);
    EXPECT_EQ(info->shape, spec.shape);
    EXPECT_TRUE(file->IsAligned(*info)) << spec.name;
    data_begin = std::min(data_begin, info->offset);
  }
  EXPECT_EQ(data_begin % 64, 0);
  const auto stored = file->Data(*file->Find(specs[2].name));
  EXPECT_TRUE(std::ranges::equal(stored, bytes));
  EXPECT_THAT(file->Data(*file->Find("odd")),
              ElementsAre(std::byte{0}, std::byte{0}, std::byte{0}));
  EXPECT_FALSE(fs::exists(path.string() + ".partial"));
  fs::remove(path);
}

TEST(SafetensorsWriter, UnwrittenDataTakesNoDisk) {
  const fs::path path = TempPath("sparse");
  const std::vector<TensorSpec> specs = {{"experts", DType::kBf16, {512, 2048, 4096}}};
  Result<SafetensorsWriter> writer = SafetensorsWriter::Create(path, specs);
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  ASSERT_TRUE(writer->Close().ok());
  Result<SafetensorsFile> file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->Find("experts")->bytes, int64_t{512} * 2048 * 4096 * 2);
  EXPECT_EQ(file->Data(*file->Find("experts")).back(), std::byte{0});
  struct stat info;
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_LT(info.st_blocks * 512, 1 << 20);
  fs::remove(path);
}

TEST(SafetensorsWriter, AnUnfinishedFileDisappears) {
  const fs::path path = TempPath("unfinished");
  {
    Result<SafetensorsWriter> writer =
        SafetensorsWriter::Create(path, std::vector<TensorSpec>{{"a", DType::kF32, {4}}});
    ASSERT_TRUE(writer.ok());
    EXPECT_TRUE(fs::exists(path.string() + ".partial"));
  }
  EXPECT_FALSE(fs::exists(path));
  EXPECT_FALSE(fs::exists(path.string() + ".partial"));
}

TEST(SafetensorsWriter, RefusesWhatNoReaderWouldTake) {
  const fs::path path = TempPath("refused");
  const std::vector<std::vector<TensorSpec>> bad = {
      {{"a", DType::kF32, {1}}, {"a", DType::kF32, {1}}},
      {{"__metadata__", DType::kF32, {1}}},
      {{"a", DType::kF32, {-1}}},
      {{"a", DType::kF32, {int64_t{1} << 62}}},
      {{"a", DType::kU8, {int64_t{1} << 62}}, {"b", DType::kU8, {1}}},
      {{"a", DType::kU8, {1, 1, 1, 1, 1, 1, 1, 1, 1}}},
      {{"\xff", DType::kU8, {1}}},
  };
  for (const std::vector<TensorSpec>& specs : bad) {
    EXPECT_EQ(SafetensorsWriter::Create(path, specs).status().code(), StatusCode::kInvalidArgument);
    EXPECT_FALSE(fs::exists(path.string() + ".partial"));
  }
  EXPECT_FALSE(
      SafetensorsWriter::Create("no/such/folder/x", std::vector<TensorSpec>{}).status().ok());
}

RC_GTEST_PROP(SafetensorsWriter, AnyTensorsComeBackAligned, ()) {
  const std::vector<DType> dtypes = {DType::kF64, DType::kF32, DType::kBf16, DType::kF8E4m3,
                                     DType::kU8,  DType::kI32, DType::kBool};
  const auto count = *rc::gen::inRange(0, 8);
  std::vector<TensorSpec> specs;
  for (int i = 0; i < count; ++i) {
    specs.push_back({std::to_string(i) + *rc::gen::string<std::string>(),
                     *rc::gen::elementOf(dtypes),
                     *rc::gen::container<std::vector<int64_t>>(*rc::gen::inRange(0, 4),
                                                               rc::gen::inRange<int64_t>(0, 5))});
    for (char& c : specs.back().name) c &= 0x7f;  // any ASCII, control characters too
  }
  const fs::path path = TempPath("property");
  Result<SafetensorsWriter> writer = SafetensorsWriter::Create(path, specs);
  RC_ASSERT(writer.ok());
  std::map<std::string, std::string> contents;
  for (const TensorSpec& spec : specs) {
    const int64_t bytes = *ElementCount(spec.shape) * ByteSize(spec.dtype);
    std::string& data = contents[spec.name];
    for (int64_t i = 0; i < bytes; ++i) data += static_cast<char>(*rc::gen::arbitrary<uint8_t>());
    RC_ASSERT(writer->Write(spec.name, 0, std::as_bytes(std::span(data))).ok());
  }
  RC_ASSERT(writer->Close().ok());
  Result<SafetensorsFile> file = SafetensorsFile::Open(path);
  RC_ASSERT(file.ok());
  RC_ASSERT(file->tensors().size() == specs.size());
  for (const TensorSpec& spec : specs) {
    const TensorInfo* info = file->Find(spec.name);
    RC_ASSERT(info != nullptr && info->dtype == spec.dtype && info->shape == spec.shape);
    RC_ASSERT(file->IsAligned(*info));
    const auto data = file->Data(*info);
    RC_ASSERT(std::string(reinterpret_cast<const char*>(data.data()), data.size()) ==
              contents[spec.name]);
  }
  fs::remove(path);
}

}  // namespace
}  // namespace signalbox
