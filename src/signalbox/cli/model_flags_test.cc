// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cli/model_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace signalbox::model_flags_test {
namespace {

using testing::HasSubstr;

const std::string kQwen = SIGNALBOX_SOURCE_DIR "/models/tiny-qwen3.5-moe-mxfp4";
const std::string kKimi = SIGNALBOX_SOURCE_DIR "/models/tiny-kimi-k3-mxfp4";

Status Check(const std::string& model, std::vector<std::string> flags) {
  flags.insert(flags.begin(), {"signalbox", "plan", model});
  std::vector<const char*> arguments;
  for (const std::string& flag : flags) arguments.push_back(flag.c_str());
  const auto i = ParseCommandLine(static_cast<int>(arguments.size()), arguments.data());
  return i.ok() ? CheckModelFlags(i->flags, model) : i.status();
}

TEST(ModelFlags, ParsersOfTheModelAreTaken) {
  for (const char* parser : {"kimi_k3", "kimi-k3", "auto"}) {
    EXPECT_TRUE(Check(kKimi, {"--reasoning-parser", parser, "--tool-call-parser", parser}).ok());
  }
  for (const char* parser : {"qwen3", "qwen3-thinking", "deepseek_r1", "auto"})
    EXPECT_TRUE(Check(kQwen, {"--reasoning-parser", parser}).ok()) << parser;
  for (const char* parser : {"qwen3_coder", "qwen3_xml", "auto"})
    EXPECT_TRUE(Check(kQwen, {"--tool-call-parser", parser}).ok()) << parser;
}

TEST(ModelFlags, ParsersOfOtherModelsAreRefusedWithThoseThatFit) {
  const Status kimi = Check(kQwen, {"--reasoning-parser", "kimi_k3"});
  EXPECT_EQ(ExitCode(kimi.code()), 3);
  EXPECT_THAT(kimi.message(), HasSubstr("Qwen3.5's format"));
  EXPECT_THAT(kimi.message(), HasSubstr("one of auto, qwen3, qwen3-thinking, deepseek-r1"));
  EXPECT_THAT(Check(kQwen, {"--tool-call-parser", "hermes"}).message(),
              HasSubstr("one of auto, qwen3-coder, qwen3-xml"));
  EXPECT_EQ(ExitCode(Check(kKimi, {"--tool-call-parser", "glm45"}).code()), 3);
  EXPECT_THAT(Check(kKimi, {"--reasoning-parser", "deepseek-r1"}).message(), HasSubstr("XTML"));
  const Status unknown = Check(kQwen, {"--reasoning-parser", "qwem3"});
  EXPECT_EQ(ExitCode(unknown.code()), 2);
  EXPECT_THAT(unknown.message(), HasSubstr("one of auto, qwen3"));
  EXPECT_EQ(Check("/nonexistent", {"--reasoning-parser", "qwen3"}).code(),
            StatusCode::kBadCheckpoint);
}

TEST(ModelFlags, TokenizerTemplateAndDraftHeadAreTheModelsOwn) {
  EXPECT_TRUE(Check(kQwen, {"--chat-template", kQwen + "/chat_template.jinja"}).ok());
  EXPECT_EQ(ExitCode(Check(kQwen, {"--chat-template", "chatml"}).code()), 3);
  EXPECT_TRUE(Check(kQwen, {"--tokenizer-path", kQwen + "/."}).ok());
  EXPECT_TRUE(Check(kQwen, {"--speculative-config.model", kQwen}).ok());
  EXPECT_EQ(ExitCode(Check(kQwen, {"--tokenizer", kKimi}).code()), 3);
  EXPECT_THAT(Check(kQwen, {"--speculative-draft-model-path", "/nonexistent"}).message(),
              HasSubstr("only the model's own draft head"));
}

}  // namespace
}  // namespace signalbox::model_flags_test
