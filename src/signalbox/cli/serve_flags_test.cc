// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cli/serve_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

namespace signalbox::serve_flags_test {
namespace {

const std::string kTiny = std::string(SIGNALBOX_SOURCE_DIR) + "/models/tiny-qwen3.5-moe-mxfp4";

Result<ServeOptions> Parse(std::vector<std::string> flags, const std::string& model = kTiny) {
  std::vector<const char*> argv = {"signalbox", "serve", model.c_str()};
  for (const std::string& flag : flags) argv.push_back(flag.c_str());
  SB_ASSIGN_OR_RETURN(const Invocation invocation,
                      ParseCommandLine(static_cast<int>(argv.size()), argv.data()));
  return ServeOptionsOf(invocation.flags, invocation.positionals[0]);
}

TEST(ServeFlags, DefaultsAreThisMachineAndTheModelsPath) {
  const auto options = Parse({}, kTiny + "/");
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_EQ(options->http.host, "127.0.0.1");
  EXPECT_EQ(options->http.port, 30000);
  EXPECT_EQ(options->app.identity.served_names, std::vector<std::string>{kTiny});
  EXPECT_EQ(options->app.identity.layout, "tp 1");
  EXPECT_TRUE(options->app.auth.api_keys.empty());
  EXPECT_TRUE(options->app.reasoning && options->app.reasoning_content);
  EXPECT_EQ(options->app.sampling.temperature, 0.f);  // of generation_config.json
  EXPECT_EQ(options->metrics.aliases, (std::vector<std::string>{"sglang", "vllm"}));
  EXPECT_GT(options->parallel, 1);
  EXPECT_EQ(options->app.log_requests, -1);
}

TEST(ServeFlags, SayWhatIsServedAndHow) {
  const auto options = Parse({"--served-model-name",
                              "a",
                              "--served-model-name",
                              "b",
                              "--tp",
                              "2",
                              "--ep",
                              "2",
                              "--max-num-seqs",
                              "7",
                              "--max-queued-requests",
                              "9",
                              "--reasoning-field",
                              "reasoning",
                              "--sampling-defaults",
                              "openai",
                              "--log-requests",
                              "--log-requests-level",
                              "2",
                              "--log-format",
                              "json",
                              "--metrics-alias",
                              "none",
                              "--bucket-first-token",
                              "0.1,2",
                              "--shutdown-timeout",
                              "5"});
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_EQ(options->app.identity.served_names, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(options->app.identity.layout, "tp 2, ep 2");
  EXPECT_EQ(options->metrics.model_name, "a");
  EXPECT_EQ(options->parallel, 7);
  EXPECT_EQ(options->max_queued, 9);
  EXPECT_FALSE(options->app.reasoning_content);
  EXPECT_EQ(options->app.sampling.temperature, 1.f);
  EXPECT_EQ(options->app.log_requests, 2);
  EXPECT_EQ(options->log_format, LogFormat::kJson);
  EXPECT_TRUE(options->metrics.aliases.empty());
  EXPECT_EQ(options->metrics.first_token_buckets, (std::vector<double>{0.1, 2}));
  EXPECT_EQ(options->shutdown_timeout.count(), 5);
}

TEST(ServeFlags, KeysComeFromFlagsAndAFileAndAreNeverTold) {
  const std::string path = testing::TempDir() + "/keys";
  std::ofstream(path) << "first\n\n  second \r\n";
  const auto options =
      Parse({"--api-key", "given", "--api-key-file", path, "--admin-api-key", "admin-secret"});
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_EQ(options->app.auth.api_keys, (std::vector<std::string>{"given", "first", "second"}));
  EXPECT_EQ(options->app.auth.admin_key, "admin-secret");
  for (const auto& [name, value] : options->app.identity.settings) {
    EXPECT_THAT(name, testing::Not(testing::HasSubstr("key")));
    EXPECT_NE(value, "given");
    EXPECT_NE(value, "admin-secret");
  }
}

TEST(ServeFlags, WhatCannotBeIsRefused) {
  std::ofstream(testing::TempDir() + "/no_keys") << "\n\n";
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{{"--port", "65536"},
                                             {"--api-key", ""},
                                             {"--api-key-file", "/no/such/file"},
                                             {"--api-key-file", testing::TempDir() + "/no_keys"},
                                             {"--log-requests-level", "4"},
                                             {"--metrics-alias", "somebody"},
                                             {"--bucket-request", "2,1"},
                                             {"--reasoning-field", "thoughts"}}) {
    EXPECT_EQ(ExitCode(Parse(flags).status().code()), 2) << flags[0] << " " << flags[1];
  }
}

}  // namespace
}  // namespace signalbox::serve_flags_test
