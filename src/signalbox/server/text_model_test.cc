// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/text_model.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "signalbox/server/service.h"

namespace signalbox::text_model_test {
namespace {

std::unique_ptr<Service> Loaded(int drafts) {
  EngineOptions options{.threads = 1, .budget = {.tokens = 1024, .sequences = 2}};
  options.layout.limits = {.max_running_requests = 2, .draft_tokens = drafts};
  auto model = TextModel::Load(SIGNALBOX_SOURCE_DIR "/models/tiny-qwen3.5-moe-mxfp4", options);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return *Service::Start(std::move(model).value(), {.parallel = 2});
}

Service& Tiny() {
  static const std::unique_ptr<Service> kService = Loaded(0);
  return *kService;
}

struct Outcome {
  TextResult result;
  std::string shown;
  int ends = 0;
};

std::vector<Outcome> Answers(const std::vector<TextRequest>& requests, Service& service = Tiny()) {
  std::vector<Outcome> outcomes(requests.size());
  const Status s = service.GenerateAll(
      requests, [&](size_t i, std::string_view text) { outcomes[i].shown += text; },
      [&](size_t i, const TextResult& result) {
        outcomes[i].result = result;
        ++outcomes[i].ends;
      });
  EXPECT_TRUE(s.ok()) << s.ToString();
  return outcomes;
}

TextRequest Question(std::string_view text) {
  const auto prompt = Tiny().model().EncodeChat({{.role = "user", .content = std::string(text)}},
                                                /*thinking=*/true);
  EXPECT_TRUE(prompt.ok()) << prompt.status().ToString();
  return {.prompt = prompt->ids, .max_new_tokens = 96, .chat = true};
}

TEST(TextModel, AStopEndsItsRequestAndNoOther) {
  const TextRequest free = Question("What is 12 plus 7?");
  const Outcome whole = Answers({free})[0];
  ASSERT_GT(whole.result.answer.content.size(), 4u) << whole.shown;
  ASSERT_GT(whole.result.reasoning_tokens, 0);
  ASSERT_LT(whole.result.reasoning_tokens, whole.result.new_tokens);
  EXPECT_EQ(whole.result.finish, FinishReason::kStop);
  EXPECT_EQ(whole.result.stop, "");
  EXPECT_EQ(whole.shown, whole.result.answer.reasoning + "\n\n" + whole.result.answer.content);

  TextRequest stopped = free;
  const std::string& text = whole.result.text;
  const std::string stop = text.substr(text.find(whole.result.answer.content) + 2, 2);
  stopped.stop = {"no such text", stop};
  const std::vector<Outcome> outcomes = Answers({stopped, free, stopped});
  for (const size_t i : {0u, 2u}) {
    const TextResult& r = outcomes[i].result;
    EXPECT_EQ(r.text, text.substr(0, text.find(stop)));
    EXPECT_EQ(r.stop, stop);
    EXPECT_EQ(r.finish, FinishReason::kStop);
    EXPECT_LT(r.new_tokens, whole.result.new_tokens);
    EXPECT_LE(r.reasoning_tokens, r.new_tokens);
  }
  EXPECT_EQ(outcomes[1].shown, whole.shown);
  EXPECT_EQ(outcomes[1].result.text, text);
  for (const Outcome& o : outcomes) EXPECT_EQ(o.ends, 1);

  stopped.include_stop = true;
  EXPECT_EQ(Answers({stopped})[0].result.text, text.substr(0, text.find(stop) + stop.size()));
}

TEST(TextModel, AStopWithTheLastTokenEndsOnce) {
  TextRequest request = Question("What is 12 plus 7?");
  request.max_new_tokens = 8;
  const Outcome whole = Answers({request})[0];
  ASSERT_EQ(whole.result.finish, FinishReason::kLength);
  request.stop = {whole.result.text.substr(whole.result.text.size() - 1)};
  const Outcome stopped = Answers({request})[0];
  EXPECT_EQ(stopped.ends, 1);
  EXPECT_EQ(stopped.result.finish, FinishReason::kStop);
  EXPECT_EQ(stopped.result.stop, request.stop[0]);
}

// A step gives up to five tokens; a stop is anywhere among them.
TEST(TextModel, DraftsChangeNothingBehindTheSampler) {
  const auto drafting = Loaded(4);
  const TextRequest free = Question("What is 12 plus 7?");
  const std::string text = Answers({free})[0].result.text;
  std::vector<TextRequest> requests = {free};
  for (size_t at = 0; at + 2 < text.size(); ++at) {
    requests.push_back(free);
    requests.back().stop = {text.substr(at + 1, 2), text.substr(at, 2)};
    requests.back().include_stop = at % 2 == 0;
  }
  const std::vector<Outcome> want = Answers(requests);
  const std::vector<Outcome> got = Answers(requests, *drafting);
  EXPECT_GT(got[0].result.stats.accept_length(), 1.5);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(got[i].shown, want[i].shown);
    EXPECT_EQ(got[i].result.text, want[i].result.text);
    EXPECT_EQ(got[i].result.answer, want[i].result.answer);
    EXPECT_EQ(got[i].result.stop, want[i].result.stop);
    EXPECT_EQ(got[i].result.finish, want[i].result.finish);
    EXPECT_EQ(got[i].result.new_tokens, want[i].result.new_tokens);
    EXPECT_EQ(got[i].result.reasoning_tokens, want[i].result.reasoning_tokens);
    EXPECT_EQ(got[i].ends, 1);
  }
}

TEST(TextModel, StopsOutOfTheirLimitsAreRefused) {
  TextRequest request = Question("What is 12 plus 7?");
  request.stop = {""};
  const Status s = Tiny().GenerateAll(
      {request}, [](size_t, std::string_view) {}, [](size_t, const TextResult&) {});
  EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace signalbox::text_model_test
