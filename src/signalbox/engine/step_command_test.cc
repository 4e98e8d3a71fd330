// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/step_command.h"

#include <gtest/gtest.h>

namespace signalbox::step_command_test {
namespace {

const StepCommand kCommand = {.kind = StepCommand::Kind::kDraft,
                              .phase = Phase::kVerify,
                              .return_hidden = true,
                              .trace = true,
                              .layers = 2,
                              .copies = {{.part = 1, .from = 3, .to = 2}},
                              .windows = {{.part = 1,
                                           .past = 40,
                                           .tokens = {1, 2, 3},
                                           .pages = {5, 0, 7},
                                           .slot = 4,
                                           .after = {1, 4, 2},
                                           .logits = LogitRows::kAll},
                                          {.tokens = {8}, .pages = {9}, .hidden = 6}}};

TEST(StepCommand, DecodeIsTheInverseOfEncode) {
  auto decoded = Decode(Encode(kCommand));
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(*decoded, kCommand);
}

TEST(StepCommand, DamagedBytesAreErrors) {
  const std::vector<std::byte> bytes = Encode(kCommand);
  for (size_t n = 0; n < bytes.size(); ++n)
    EXPECT_FALSE(Decode(std::span(bytes).first(n)).ok()) << n;
  std::vector<std::byte> longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(Decode(longer).ok());
  // A size that claims more than there is must not be believed.
  std::vector<std::byte> huge = bytes;
  // Behind kind, phase, three switches and layers: the number of copies.
  for (size_t i = 13; i < 21; ++i) huge[i] = std::byte{0x7f};
  EXPECT_FALSE(Decode(huge).ok());
}

TEST(StepCommand, TracesTravel) {
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
}  // namespace signalbox::step_command_test
