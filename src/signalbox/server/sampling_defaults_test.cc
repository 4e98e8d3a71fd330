// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/sampling_defaults.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace signalbox::sampling_defaults_test {
namespace {

Result<SamplingParams> Read(const std::string& text) {
  const std::filesystem::path directory =
      std::filesystem::path(testing::TempDir()) / "sampling_defaults";
  std::filesystem::create_directories(directory);
  std::ofstream(directory / "generation_config.json") << text;
  return ModelSamplingDefaults(directory.string());
}

TEST(SamplingDefaults, AreOfTheModelWhereItSaysThem) {
  const auto some = Read(R"({"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": null,
                             "repetition_penalty": 1.05, "do_sample": true})");
  ASSERT_TRUE(some.ok()) << some.status().ToString();
  EXPECT_EQ(some->temperature, 0.6f);
  EXPECT_EQ(some->top_p, 0.95f);
  EXPECT_EQ(some->top_k, 20);
  EXPECT_EQ(some->min_p, 0.f);
  EXPECT_EQ(some->repetition_penalty, 1.05f);
  EXPECT_EQ(Read(R"({"temperature": 0.6, "do_sample": false})")->temperature, 0.f);
}

TEST(SamplingDefaults, AreOpenAisWhereTheModelIsSilent) {
  for (const auto& silent : {Read("{}"), ModelSamplingDefaults("/no/such/directory")}) {
    ASSERT_TRUE(silent.ok());
    EXPECT_EQ(silent->temperature, 1.f);
    EXPECT_EQ(silent->top_p, 1.f);
    EXPECT_EQ(silent->top_k, 0);
  }
}

TEST(SamplingDefaults, WrongValuesAreTheModelsFault) {
  for (const char* wrong : {"[]", "{", R"({"temperature": "hot"})", R"({"temperature": -1})",
                            R"({"top_p": 0})", R"({"top_k": 1.5})", R"({"do_sample": 1})"}) {
    EXPECT_EQ(Read(wrong).status().code(), StatusCode::kBadCheckpoint) << wrong;
  }
}

}  // namespace
}  // namespace signalbox::sampling_defaults_test
