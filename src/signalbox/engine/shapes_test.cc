// SPDX-License-Identifier: Apache-2.0
//
// Shapes and formats that no release has, synthesised, against an independent reference
// (tools/make_shape_goldens.sh): one KV head, odd head counts, full attention first, rotary
// fractions of 0.25, 0.5 and 1, YaRN, tied embeddings, dense layers between sparse ones; BF16, FP8
// and MXFP4. testdata/shapes/cases.txt has a line for each: config and format.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "signalbox/engine/reference.h"
#include "signalbox/model/synth.h"

namespace signalbox::shapes_test {
namespace {

const std::string kFolder = std::string(SIGNALBOX_TESTDATA) + "/shapes/";

struct ShapeCase {
  std::string config;
  std::string format;
};

void PrintTo(const ShapeCase& c, std::ostream* os) {
  *os << c.config << " " << c.format;
}

std::vector<ShapeCase> Cases() {
  std::ifstream file(kFolder + "cases.txt");
  std::vector<ShapeCase> cases;
  for (ShapeCase c; file >> c.config >> c.format;) cases.push_back(c);
  return cases;
}

SynthFormat FormatOf(const std::string& name) {
  if (name == "bf16") return SynthFormat::kBf16;
  return name == "fp8" ? SynthFormat::kFp8 : SynthFormat::kMxfp4;
}

TEST(ShapeCases, AreRead) {
  EXPECT_GE(Cases().size(), 14u);
}

class Shapes : public testing::TestWithParam<ShapeCase> {};

TEST_P(Shapes, MatchTheReferenceHoweverThePromptIsCut) {
  const ShapeCase& c = GetParam();
  const auto dir = std::filesystem::temp_directory_path() /
                   ("signalbox_" + std::to_string(getpid()) + c.config + c.format);
  const Status written = WriteSynthetic(kFolder + c.config + ".json", dir.string(),
                                        {.format = FormatOf(c.format), .seed = 3});
  ASSERT_TRUE(written.ok()) << written.ToString();
  for (bool chunked : {false, true}) {
    auto engine = Engine::Load(dir.string(), {.threads = 2, .chunked_delta = chunked});
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    const auto want = ReadReference(kFolder + c.config + "." + c.format + ".safetensors",
                                    (*engine)->config().facts.vocab);
    ASSERT_TRUE(want.ok()) << want.status().ToString();
    for (int64_t chunk : {100, 1, 5}) {
      const auto logits = AllLogits(**engine, want->front().ids, chunk);
      ASSERT_TRUE(logits.ok()) << logits.status().ToString();
      EXPECT_LE(RelativeError(*logits, want->front().logits), 1e-5) << "chunks of " << chunk;
    }
  }
  std::filesystem::remove_all(dir);
}

INSTANTIATE_TEST_SUITE_P(Models, Shapes, testing::ValuesIn(Cases()));

}  // namespace
}  // namespace signalbox::shapes_test
