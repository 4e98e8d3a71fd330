// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/step_batch.h"

#include <gtest/gtest.h>

namespace signalbox {
namespace {

const StepCommand kCommand = {
    .kind = StepCommand::Kind::kDraft,
    .trace = true,
    .layers = 2,
    .batch = {.release = {3, -1},
              .sequences = {{.sequence = 7, .tokens = {1, 2, 3}, .logits = LogitRows::kAll},
                            {.sequence = 8}},
              .want_hidden = true},
    .drafts = {{.sequence = 9, .slot = 4, .tokens = {5}, .hidden = {0.5f, -1.f}}}};

TEST(StepBatch, DecodeIsTheInverseOfEncode) {
  auto decoded = Decode(Encode(kCommand));
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(*decoded, kCommand);
}

TEST(StepBatch, DamagedBytesAreErrors) {
  const std::vector<std::byte> bytes = Encode(kCommand);
  for (size_t n = 0; n < bytes.size(); ++n)
    EXPECT_FALSE(Decode(std::span(bytes).first(n)).ok()) << n;
  std::vector<std::byte> longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(Decode(longer).ok());
  // A size that claims more than there is must not be believed.
  std::vector<std::byte> huge = bytes;
  // Behind kind, trace, layers and want_hidden: the number of sequences to release.
  for (size_t i = 11; i < 19; ++i) huge[i] = std::byte{0x7f};
  EXPECT_FALSE(Decode(huge).ok());
}

TEST(StepBatch, TracesTravel) {
  const std::vector<AddendTrace> trace = {
      {.rank = 1, .layer = 3, .addend = "mixer", .tokens = {0, 4}, .data = {1.f, 2.f, 3.f, 4.f}},
      {.layer = 4}};
  const std::vector<std::byte> bytes = EncodeTrace(trace);
  const auto decoded = DecodeTrace(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(*decoded, trace);
  for (size_t n = 0; n < bytes.size(); ++n)
    EXPECT_FALSE(DecodeTrace(std::span(bytes).first(n)).ok()) << n;
}

}  // namespace
}  // namespace signalbox
