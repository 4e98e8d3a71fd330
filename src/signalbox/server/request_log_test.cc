// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/request_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include <nlohmann/json.hpp>

namespace signalbox::request_log_test {
namespace {

// What was written to the log.
std::string Logged(LogFormat format, const std::function<void(EventLog&)>& write) {
  std::FILE* file = std::tmpfile();
  EventLog log(format, file);
  write(log);
  std::string text(static_cast<size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  return text;
}

TEST(EventLog, LinesAreOneLineWhateverTheValues) {
  const auto write = [](EventLog& log) {
    log.Write("ready", {{"model", "tiny"},
                        {"empty", ""},
                        {"odd", "a b\n\"c\"\xff"},
                        {"count", int64_t{-3}},
                        {"seconds", 1.5}});
  };
  const std::string text = Logged(LogFormat::kText, write);
  EXPECT_THAT(text, testing::MatchesRegex(
                        "[0-9-]+T[0-9:]+\\.[0-9][0-9][0-9]Z ready model=tiny empty=\"\" "
                        "odd=\"a b\\\\n\\\\\"c\\\\\"\xef\xbf\xbd\" count=-3 seconds=1.5\n"));
  const auto json = nlohmann::json::parse(Logged(LogFormat::kJson, write));
  EXPECT_EQ(json["event"], "ready");
  EXPECT_EQ(json["odd"], "a b\n\"c\"\xef\xbf\xbd");
  EXPECT_EQ(json["count"], -3);
  EXPECT_EQ(json["seconds"], 1.5);
}

TEST(EventLog, ThreadsDoNotMixTheirLines) {
  const std::string text = Logged(LogFormat::kJson, [](EventLog& log) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 50; ++i) log.Write("line", {{"text", std::string(300, 'x')}});
      });
    }
    for (std::thread& t : threads) t.join();
  });
  size_t lines = 0;
  for (size_t from = 0; from < text.size(); ++lines) {
    const size_t end = text.find('\n', from);
    EXPECT_TRUE(nlohmann::json::accept(text.substr(from, end - from)));
    from = end + 1;
  }
  EXPECT_EQ(lines, 200u);
}

nlohmann::json LineOf(int level) {
  TextRequest asked{.choices = 2, .max_new_tokens = 7, .sampling = {.temperature = 0.5f}};
  const std::vector<TextResult> results = {
      {.text = std::string(3000, 'a'),
       .prompt_tokens = 11,
       .new_tokens = 5,
       .finish = FinishReason::kLength,
       .stats = {.cached_tokens = 4, .decode_steps = 2, .decode_tokens = 4},
       .times = {.queue = 0.25, .prefill = 0.5, .decode = 1}},
      {.text = "secret answer",
       .prompt_tokens = 11,
       .new_tokens = 1,
       .finish = FinishReason::kCancelled,
       .cause = CancelCause::kTimeout,
       .times = {.decode = 4}}};
  return nlohmann::json::parse(Logged(LogFormat::kJson, [&](EventLog& events) {
    const RequestLog log(events, level);
    log.Write({.id = "cmpl-1",
               .route = "/v1/completions",
               .asked = &asked,
               .results = results,
               .prompt = log.wants_text() ? "secret prompt" : ""});
  }));
}

TEST(RequestLog, SaysWhatBecameOfARequest) {
  const nlohmann::json line = LineOf(0);
  EXPECT_EQ(line["event"], "request");
  EXPECT_EQ(line["id"], "cmpl-1");
  EXPECT_EQ(line["route"], "/v1/completions");
  EXPECT_EQ(line["status"], 200);
  EXPECT_EQ(line["finish"], "length,cancelled:timeout");
  EXPECT_EQ(line["prompt_tokens"], 11);
  EXPECT_EQ(line["cached_tokens"], 4);
  EXPECT_EQ(line["new_tokens"], 6);
  EXPECT_EQ(line["first_token_seconds"], 0.75);
  EXPECT_EQ(line["end_to_end_seconds"], 4);
  EXPECT_EQ(line["accept_length"], 2);
}

TEST(RequestLog, WhatAUserWroteIsSaidOnlyWhenAskedFor) {
  for (const int level : {0, 1}) {
    const nlohmann::json line = LineOf(level);
    EXPECT_EQ(line.contains("temperature"), level == 1);
    EXPECT_EQ(line.dump().find("secret"), std::string::npos) << level;
    EXPECT_EQ(line.dump().find("aaaa"), std::string::npos) << level;
  }
  EXPECT_EQ(LineOf(2)["prompt"], "secret prompt");
  EXPECT_EQ(LineOf(2)["answer_1"], "secret answer");
  EXPECT_EQ(LineOf(2)["answer"].get<std::string>().size(), 2048u);
  EXPECT_EQ(LineOf(3)["answer"].get<std::string>().size(), 3000u);
}

TEST(RequestLog, OneThatWasRefusedHasAnErrorAndNoNumbers) {
  const std::string text = Logged(LogFormat::kText, [](EventLog& events) {
    RequestLog(events, 1).Write(
        {.id = "r", .route = "/generate", .status = 400, .error = "context_length_exceeded"});
  });
  EXPECT_THAT(text,
              testing::EndsWith(
                  " request id=r route=/generate status=400 error=context_length_exceeded\n"));
}

}  // namespace
}  // namespace signalbox::request_log_test
