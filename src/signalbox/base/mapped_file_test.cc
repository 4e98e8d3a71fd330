// SPDX-License-Identifier: Apache-2.0
#include "signalbox/base/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <string>
#include <utility>

namespace signalbox {
namespace {

class MappedFileTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::path(testing::TempDir()) / "mapped_file_test";
    std::filesystem::remove_all(path_);
  }
  void TearDown() override { std::filesystem::remove_all(path_); }

  std::filesystem::path path_;
};

TEST_F(MappedFileTest, ShowsTheBytesAndSurvivesMoves) {
  std::ofstream(path_) << "signal";
  Result<MappedFile> opened = MappedFile::Open(path_);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const std::byte* address = opened->bytes().data();
  MappedFile moved = std::move(opened).value();
  EXPECT_EQ(moved.bytes().data(), address);
  ASSERT_EQ(moved.bytes().size(), 6u);
  EXPECT_EQ(std::memcmp(moved.bytes().data(), "signal", 6), 0);
  moved.Advise(MappedFile::Access::kSequential);
  moved.Advise(MappedFile::Access::kWillNeed);
}

TEST_F(MappedFileTest, OutlivesTheName) {
  std::ofstream(path_) << "signal";
  Result<MappedFile> file = MappedFile::Open(path_);
  std::filesystem::remove(path_);
  EXPECT_EQ(std::memcmp(file->bytes().data(), "signal", 6), 0);
}

TEST_F(MappedFileTest, EmptyFileHasNoBytes) {
  std::ofstream(path_) << "";
  Result<MappedFile> file = MappedFile::Open(path_);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->bytes().empty());
  file->Advise(MappedFile::Access::kWillNeed);
}

TEST_F(MappedFileTest, RefusesWhatIsNoRegularFile) {
  EXPECT_EQ(MappedFile::Open(path_).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(MappedFile::Open(path_ / "below").status().code(), StatusCode::kNotFound);
  std::filesystem::create_directory(path_);
  EXPECT_EQ(MappedFile::Open(path_).status().message(),
            "cannot map file (" + path_.string() + "): found a directory, expected a regular file");
  std::filesystem::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(MappedFile::Open(path_).status().detail().found, "a pipe or device");
}

}  // namespace
}  // namespace signalbox
