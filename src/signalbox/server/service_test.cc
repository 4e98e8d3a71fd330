// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/service.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <random>

namespace signalbox::service_test {
namespace {

const std::string kTiny = std::string(SIGNALBOX_SOURCE_DIR) + "/models/tiny-qwen3.5-moe-mxfp4";

std::unique_ptr<Service> StartTiny(const ServiceOptions& options, EngineOptions engine = {}) {
  if (engine.budget.sequences == 0) engine.budget = {.tokens = 8192, .sequences = options.parallel};
  engine.layout.limits.max_running_requests = options.parallel;
  auto model = TextModel::Load(kTiny, engine);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  auto service = Service::Start(std::move(*model), options);
  EXPECT_TRUE(service.ok()) << service.status().ToString();
  return std::move(*service);
}

TextRequest Question(const Service& service, const std::string& text, int64_t tokens = 300) {
  ChatPrompt chat = *service.model().EncodeChat({{"user", text}}, /*thinking=*/true);
  return {.prompt = chat.ids, .turn_ends = chat.turn_ends, .max_new_tokens = tokens, .chat = true};
}

const std::string kApples =
    "Tom has 12 apples. Then Tom buys 7 more. How many apples does Tom have now?";

TEST(Service, AnswersWhoeverAsks) {
  auto service = StartTiny({.parallel = 4});
  std::vector<std::thread> callers;
  std::atomic<int> right = 0;
  for (int i = 0; i < 6; ++i) {
    callers.emplace_back([&] {
      const auto answer = service->Generate(Question(*service, kApples));
      if (answer.ok() && answer->front().answer.content.find("19") != std::string::npos) ++right;
    });
  }
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(right, 6);
  const ServiceStats stats = service->stats();
  EXPECT_EQ(stats.generator.scheduler.finished, 6);
  EXPECT_EQ(stats.running + stats.waiting, 0);
}

TEST(Service, StreamedTextIsTheTextOfTheResult) {
  auto service = StartTiny({.parallel = 2});
  std::string streamed;
  std::promise<TextResult> done;
  const auto id = service->Submit(Question(*service, kApples), [&](const TextUpdate& update) {
    streamed += update.delta.text;
    if (update.result) done.set_value(*update.result);
    return true;
  });
  ASSERT_TRUE(id.ok()) << id.status().ToString();
  const TextResult result = done.get_future().get();
  EXPECT_EQ(streamed, result.text);
  EXPECT_EQ(result.finish, FinishReason::kStop);
  EXPECT_GT(result.reasoning_tokens, 0);
}

// Five turns through the chat format: what earlier turns computed is not computed again.
TEST(Service, Hyb07AChatPrefillsWhatIsNew) {
  for (const bool thinking : {false, true}) {
    auto service = StartTiny({.parallel = 1});
    std::vector<ChatTurn> turns;
    int64_t history = 0;
    for (int turn = 0; turn < 5; ++turn) {
      turns.push_back({"user", kApples});
      ChatPrompt chat = *service->model().EncodeChat(turns, thinking);
      const int64_t prompt = std::ssize(chat.ids);
      const auto answer = service->Generate(
          {.prompt = chat.ids, .turn_ends = chat.turn_ends, .max_new_tokens = 200, .chat = true});
      ASSERT_TRUE(answer.ok()) << answer.status().ToString();
      const TextResult& result = answer->front();
      // All of the last prompt but its end, and a page at most that was not whole.
      EXPECT_GE(result.stats.cached_tokens, history - kBlockTokens) << thinking << " " << turn;
      history = chat.turn_ends.back();
      EXPECT_LE(history, prompt);
      turns.push_back({"assistant", result.answer.content});
    }
    EXPECT_EQ(service->stats().generator.scheduler.prefix_hits, 4);
  }
}

TEST(Service, ChoicesShareTheirPromptAndDifferInTheirDraws) {
  auto service = StartTiny({.parallel = 4});
  TextRequest request = Question(*service, kApples, 24);
  request.choices = 3;
  request.sampling = {.temperature = 3.f, .seed = 11};
  const auto answers = service->Generate(request);
  ASSERT_TRUE(answers.ok()) << answers.status().ToString();
  ASSERT_EQ(answers->size(), 3u);
  EXPECT_NE((*answers)[0].text, (*answers)[1].text);
  EXPECT_GT((*answers)[2].stats.cached_tokens, 0);
  // Each is what a request of its own with that seed says.
  request.choices = 1;
  request.sampling.seed = 13;
  EXPECT_EQ(service->Generate(request)->front().text, (*answers)[2].text);
}

TEST(Service, CancelledRequestsAreToldAndGiveBackWhatTheyHeld) {
  auto service = StartTiny({.parallel = 2, .prefix_cache = false});
  std::promise<TextResult> done;
  std::promise<void> began;
  bool first = true;
  TextRequest request = Question(*service, kApples, 2000);
  request.ignore_eos = true;
  const auto id = service->Submit(request, [&](const TextUpdate& update) {
    if (std::exchange(first, false)) began.set_value();
    if (update.result) done.set_value(*update.result);
    return true;
  });
  ASSERT_TRUE(id.ok()) << id.status().ToString();
  began.get_future().get();
  service->Cancel(*id);
  EXPECT_EQ(done.get_future().get().finish, FinishReason::kCancelled);
  const ServiceStats stats = service->stats();
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.free[0].pages, stats.total[0].pages);
}

TEST(Service, ManyWaitingAreRefusedAndTheEndIsToldToAll) {
  std::atomic<int> told = 0;
  {
    auto service = StartTiny({.parallel = 1, .max_waiting = 3});
    TextRequest request = Question(*service, kApples, 2000);
    request.ignore_eos = true;
    int taken = 0;
    Status refused;
    for (int i = 0; i < 8; ++i) {
      const auto id = service->Submit(request, [&](const TextUpdate& update) {
        told += update.result.has_value();
        return true;
      });
      taken += id.ok();
      if (!id.ok()) refused = id.status();
    }
    EXPECT_GE(taken, 3);
    EXPECT_LT(taken, 8);
    EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
    service.reset();
    EXPECT_EQ(told, taken);
  }
}

TEST(Service, WhatCannotRunIsSaidAtOnce) {
  auto service = StartTiny({.parallel = 1}, {.budget = {.tokens = 256, .sequences = 1}});
  const auto sink = [](const TextUpdate&) { return true; };
  EXPECT_EQ(service->Submit({}, sink).status().code(), StatusCode::kInvalidArgument);
  TextRequest request = Question(*service, kApples, 2000);
  EXPECT_EQ(service->Submit(request, sink).status().code(), StatusCode::kInvalidArgument);
  request.max_new_tokens = 5;
  request.sampling.top_p = 3.f;
  EXPECT_EQ(service->Submit(request, sink).status().code(), StatusCode::kInvalidArgument);
  request.sampling.top_p = 1.f;
  request.stop = {""};
  EXPECT_EQ(service->Submit(request, sink).status().code(), StatusCode::kInvalidArgument);
  request.stop = {};
  EXPECT_TRUE(service->Generate(request).ok());
}

// Callers of many threads that ask, read a little, and leave, with a pool that is too small for
// all.
TEST(Service, RandomCallers) {
  constexpr int kCallers = 4;
  constexpr int kRequests = 25;
  EngineOptions engine{.budget = {.tokens = 512, .sequences = 4, .snapshots = 3}};
  engine.layout.limits.draft_tokens = 2;
  auto service = StartTiny({.parallel = 6}, engine);
  std::atomic<int> ended = 0;
  std::atomic<int> cancelled = 0;
  std::vector<std::thread> callers;
  for (int c = 0; c < kCallers; ++c) {
    callers.emplace_back([&, c] {
      std::mt19937_64 random(static_cast<uint64_t>(c));
      for (int i = 0; i < kRequests; ++i) {
        TextRequest request{.prompt = {},
                            .max_new_tokens = 1 + static_cast<int64_t>(random() % 24)};
        const int64_t length = 1 + static_cast<int64_t>(random() % 120);
        for (int64_t t = 0; t < length; ++t)
          request.prompt.push_back(static_cast<TokenId>(5 + (t * 7 + c % 2) % 900));
        request.ignore_eos = true;
        const auto done = std::make_shared<std::promise<TextResult>>();
        const auto id = service->Submit(request, [done](const TextUpdate& update) {
          if (update.result) done->set_value(*update.result);
          return true;
        });
        ASSERT_TRUE(id.ok()) << id.status().ToString();
        if (random() % 4 == 0) service->Cancel(*id);
        const TextResult result = done->get_future().get();
        if (result.finish == FinishReason::kCancelled) {
          ++cancelled;
        } else {
          EXPECT_EQ(result.new_tokens, request.max_new_tokens);
        }
        ++ended;
      }
    });
  }
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(ended, kCallers * kRequests);
  EXPECT_GT(cancelled, 0);
  EXPECT_TRUE(service->health().ok());
}

}  // namespace
}  // namespace signalbox::service_test
