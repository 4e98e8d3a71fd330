// SPDX-License-Identifier: Apache-2.0
//
// Shapes that no release has, synthesised, against an independent reference
// (tools/make_shape_goldens.sh): one KV head, odd head counts, full attention first, rotary
// fractions of 0.25, 0.5 and 1, tied embeddings.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "signalbox/engine/reference.h"
#include "signalbox/model/synth.h"

namespace signalbox {
namespace {

class Shapes : public testing::TestWithParam<const char*> {};

TEST_P(Shapes, MatchTheReferenceHoweverThePromptIsCut) {
  const std::string base = std::string(SIGNALBOX_TESTDATA) + "/shapes/" + GetParam();
  const auto dir = std::filesystem::temp_directory_path() /
                   ("signalbox_" + std::to_string(getpid()) + GetParam());
  const Status written =
      WriteSynthetic(base + ".json", dir.string(), {.experts_mxfp4 = true, .seed = 3});
  ASSERT_TRUE(written.ok()) << written.ToString();
  for (bool chunked : {false, true}) {
    auto engine = Engine::Load(dir.string(), {.threads = 2, .chunked_delta = chunked});
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    const auto want = ReadReference(base + ".safetensors", (*engine)->config().facts.vocab);
    ASSERT_TRUE(want.ok()) << want.status().ToString();
    for (int64_t chunk : {100, 1, 5}) {
      const auto logits = AllLogits(**engine, want->front().ids, chunk);
      ASSERT_TRUE(logits.ok()) << logits.status().ToString();
      EXPECT_LE(RelativeError(*logits, want->front().logits), 1e-5) << "chunks of " << chunk;
    }
  }
  std::filesystem::remove_all(dir);
}

INSTANTIATE_TEST_SUITE_P(Models, Shapes,
                         testing::Values("full_attention_first_one_kv_head", "odd_heads_tied",
                                         "plain_rotary_wide_experts"));

}  // namespace
}  // namespace signalbox
