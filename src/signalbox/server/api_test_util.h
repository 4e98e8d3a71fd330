// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the API share: the bundled models, and a context to parse with.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "signalbox/server/api.h"

namespace signalbox {

inline constexpr const char* kTestQwen = "tiny-qwen3.5-moe-mxfp4";
inline constexpr const char* kTestKimi = "tiny-kimi-k3-mxfp4";

inline std::unique_ptr<TextModel> LoadTestModel(const std::string& name, int drafts = 0) {
  EngineOptions options{.threads = 1, .budget = {.tokens = 4096, .sequences = 4}};
  options.layout.limits = {.max_running_requests = 4, .draft_tokens = drafts};
  auto model = TextModel::Load(SIGNALBOX_SOURCE_DIR "/models/" + name, options);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return *std::move(model);
}

inline ApiContext TestContext(const TextModel& model) {
  return {.model = &model,
          .served_names = {"tiny"},
          .max_context = 498,
          .sampling = {.temperature = 0.5f}};
}

}  // namespace signalbox
