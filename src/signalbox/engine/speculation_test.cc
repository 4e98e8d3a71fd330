// SPDX-License-Identifier: Apache-2.0
//
// Drafts change how many tokens a step gives, never which.
#include "signalbox/engine/run_requests_test.h"

namespace signalbox::speculation_test {
namespace {

EngineOptions WithDrafts(int drafts, ParallelConfig parallel = {}) {
  EngineOptions options{.threads = 2, .budget = {.tokens = 4096, .sequences = 8}};
  options.layout.parallel = parallel;
  options.layout.limits = {.max_running_requests = 8, .draft_tokens = drafts};
  return options;
}

std::vector<GenerationRequest> Requests(Engine& engine) {
  std::vector<GenerationRequest> requests;
  for (const auto& prompt : ReferencePrompts(engine, kTinyQwen)) {
    requests.push_back(
        {.prompt = prompt, .max_new_tokens = 40, .stop_ids = engine.config().stop_ids});
  }
  return requests;
}

double AcceptLength(const std::vector<Outcome>& outcomes) {
  double steps = 0;
  double tokens = 0;
  for (const Outcome& o : outcomes) {
    steps += static_cast<double>(o.stats.decode_steps);
    tokens += static_cast<double>(o.stats.decode_tokens);
  }
  return tokens / steps;
}

TEST(Speculation, TextAndLogprobsAreThoseWithoutDrafts) {
  auto plain = LoadEngine(kTinyQwen, WithDrafts(0));
  auto requests = Requests(*plain);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].sampling.logprobs = 2;
    if (i % 2 == 0) continue;
    requests[i].sampling.temperature = 1.5f;
    requests[i].sampling.seed = i;
    requests[i].sampling.frequency_penalty = 0.3f;
    requests[i].sampling.repetition_penalty = 1.1f;
  }
  const auto want = RunRequests(*plain, {.parallel = 1}, requests);
  for (const int drafts : {1, 3, 4}) {
    auto engine = LoadEngine(kTinyQwen, WithDrafts(drafts));
    for (const GeneratorOptions& options :
         {GeneratorOptions{.parallel = 1}, GeneratorOptions{.parallel = 8},
          GeneratorOptions{.parallel = 3, .prefill_chunk = 20}}) {
      const auto got = RunRequests(*engine, options, requests);
      EXPECT_EQ(TokensOf(got), TokensOf(want)) << drafts << " at " << options.parallel;
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].finish, want[i].finish);
        ASSERT_EQ(got[i].sampled.size(), want[i].sampled.size());
        for (size_t t = 0; t < got[i].sampled.size(); ++t) {
          EXPECT_EQ(got[i].sampled[t].logprob, want[i].sampled[t].logprob);  // Spc09
          EXPECT_EQ(got[i].sampled[t].top[1].token, want[i].sampled[t].top[1].token);
        }
      }
    }
    ExpectAllFree(*engine);
  }
}

// The head was trained on this model's own text.
TEST(Speculation, DraftsAreMostlyRight) {
  auto engine = LoadEngine(kTinyQwen, WithDrafts(3));
  const auto got = RunRequests(*engine, {.parallel = 4}, Requests(*engine));
  EXPECT_GT(AcceptLength(got), 2.);
  for (const Outcome& o : got) {
    EXPECT_LE(o.stats.accepted_tokens, o.stats.drafted_tokens);
    EXPECT_LE(o.stats.decode_tokens, o.stats.decode_steps * 4);
  }
}

TEST(Speculation, SlotsOfRejectedDraftsDoNotLeak) {
  EngineOptions options = WithDrafts(4);
  options.budget = {.tokens = 300, .sequences = 2, .snapshots = 1};
  auto engine = LoadEngine(kTinyQwen, options);
  auto requests = Requests(*engine);
  for (auto& r : requests) r.sampling.temperature = 5.f;  // most drafts are wrong
  RunRequests(*engine, {.parallel = 2}, requests);
  ExpectAllFree(*engine);
}

TEST(Speculation, LayoutsGiveTheTextOfOneRank) {
  auto one = LoadEngine(kTinyQwen, WithDrafts(0));
  const auto requests = Requests(*one);
  const auto want = TokensOf(RunRequests(*one, {.parallel = 8}, requests));
  for (const ParallelConfig& parallel :
       {ParallelConfig{.tp = 2, .ep = 2}, ParallelConfig{.tp = 2, .dp = 2, .ep = 2}}) {
    auto engine = LoadEngine(kTinyQwen, WithDrafts(3, parallel));
    const auto got = RunRequests(*engine, {.parallel = 8}, requests);
    EXPECT_EQ(TokensOf(got), want);
    EXPECT_GT(AcceptLength(got), 2.);
    // One request: a rank of another part has no row in any step.
    EXPECT_EQ(TokensOf(RunRequests(*engine, {}, {requests[1]}))[0], want[1]);  // Cap04, Cap06
  }
}

}  // namespace
}  // namespace signalbox::speculation_test
