// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/generator.h"

#include "signalbox/engine/run_requests_test.h"

namespace signalbox::generator_test {
namespace {

std::unique_ptr<Engine> LoadTiny(const EngineOptions& options) {
  return LoadEngine(kTinyQwen, options);
}

std::vector<GenerationRequest> Requests(Engine& engine, const SamplingParams& sampling = {}) {
  std::vector<GenerationRequest> requests;
  for (const auto& prompt : ReferencePrompts(engine, kTinyQwen)) {
    requests.push_back({.prompt = prompt,
                        .max_new_tokens = 12,
                        .sampling = sampling,
                        .stop_ids = engine.config().stop_ids});
  }
  return requests;
}

TEST(Generator, TextDoesNotDependOnBatchMatesOrChunks) {
  auto engine = LoadTiny({.threads = 2, .budget = {.tokens = 4096, .sequences = 8}});
  const SamplingParams drawn{.temperature = 8.f,
                             .seed = 5,
                             .top_k = 200,
                             .top_p = 0.95f,
                             .repetition_penalty = 1.2f,
                             .frequency_penalty = 0.5f};
  std::vector<std::vector<TokenId>> greedy;
  for (const SamplingParams& sampling : {SamplingParams(), drawn}) {
    const auto requests = Requests(*engine, sampling);
    const auto alone = TokensOf(RunRequests(*engine, {.parallel = 1}, requests));
    EXPECT_NE(alone, greedy);
    EXPECT_EQ(TokensOf(RunRequests(*engine, {.parallel = 8}, requests)), alone);
    EXPECT_EQ(TokensOf(RunRequests(*engine, {.parallel = 3, .prefill_chunk = 5}, requests)), alone);
    EXPECT_EQ(TokensOf(RunRequests(*engine, {.parallel = 8, .prefix_cache = false}, requests)),
              alone);
    greedy = alone;
  }
}

Outcome RunOne(Engine& engine, GenerationRequest request) {
  request.prompt = ReferencePrompts(engine, kTinyQwen)[0];
  return RunRequests(engine, {}, {request})[0];
}

TEST(Generator, NoStopIdBeforeTheLeastNumberOfTokens) {
  auto engine = LoadTiny({.threads = 1});
  const Outcome free = RunOne(*engine, {.max_new_tokens = 6});
  ASSERT_EQ(free.tokens.size(), 6u);
  const std::vector<TokenId> stops = {free.tokens[0]};
  const Outcome stopped = RunOne(*engine, {.max_new_tokens = 6, .stop_ids = stops});
  EXPECT_TRUE(stopped.tokens.empty());
  EXPECT_EQ(stopped.stop_id, stops[0]);
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  for (const int64_t least : {1, 4, 6}) {
    const Outcome run =
        RunOne(*engine, {.max_new_tokens = 6, .stop_ids = stops, .min_new_tokens = least});
    EXPECT_GE(std::ssize(run.tokens), least);
    EXPECT_EQ(std::count(run.tokens.begin(), run.tokens.end(), stops[0]), 0);
  }
}

TEST(Generator, EndTokensMayBeIgnoredAndOthersStillStop) {
  auto engine = LoadTiny({.threads = 1});
  const std::vector<TokenId> eos = engine->config().stop_ids;
  ASSERT_FALSE(eos.empty());
  // A bias that makes the end token win every draw.
  const SamplingParams always{.logit_bias = {{eos[0], 100.f}}};
  const Outcome ended = RunOne(*engine, {.max_new_tokens = 5, .sampling = always, .stop_ids = eos});
  EXPECT_EQ(ended.finish, FinishReason::kStop);
  EXPECT_TRUE(ended.tokens.empty());
  const Outcome ignored = RunOne(
      *engine, {.max_new_tokens = 5, .sampling = always, .stop_ids = eos, .ignore_eos = true});
  EXPECT_EQ(ignored.finish, FinishReason::kLength);
  EXPECT_EQ(ignored.tokens, std::vector<TokenId>(5, eos[0]));
  const SamplingParams other{.logit_bias = {{7, 100.f}}};
  const Outcome stopped = RunOne(
      *engine, {.max_new_tokens = 5, .sampling = other, .stop_ids = {7}, .ignore_eos = true});
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
}

TEST(Generator, PenaltiesSeeWhatWasGenerated) {
  auto engine = LoadTiny({.threads = 1});
  // Token 7 wins until its penalty outweighs the bias it has over token 9.
  const SamplingParams p{.frequency_penalty = 1.f, .logit_bias = {{7, 100.f}, {9, 100.f}}};
  const Outcome run = RunOne(*engine, {.max_new_tokens = 40, .sampling = p});
  EXPECT_GT(std::count(run.tokens.begin(), run.tokens.end(), 7), 5);
  EXPECT_GT(std::count(run.tokens.begin(), run.tokens.end(), 9), 5);
}

TEST(Generator, LogprobsComeWithEverySampledToken) {
  auto engine = LoadTiny({.threads = 1});
  const Outcome run = RunOne(*engine, {.max_new_tokens = 6, .sampling = {.logprobs = 3}});
  ASSERT_EQ(run.sampled.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(run.sampled[i].token, run.tokens[i]);
    ASSERT_EQ(run.sampled[i].top.size(), 3u);
    EXPECT_EQ(run.sampled[i].top[0].token, run.tokens[i]);  // greedy
    EXPECT_EQ(run.sampled[i].top[0].logprob, run.sampled[i].logprob);
    EXPECT_LE(run.sampled[i].logprob, 0);
    EXPECT_GE(run.sampled[i].top[0].logprob, run.sampled[i].top[2].logprob);
  }
}

TEST(Generator, LogprobsOfThePromptAreThoseOfItsLogits) {
  auto engine = LoadTiny({.threads = 1});
  const std::vector<TokenId> ids = ReferencePrompts(*engine, kTinyQwen)[0];
  const std::vector<float> logits = *AllLogits(*engine, ids, 64);
  // The second one would hit the prefix cache; it is computed whole all the same.
  const GenerationRequest plain{.prompt = ids, .max_new_tokens = 1};
  GenerationRequest asking = plain;
  asking.prompt_logprobs = 2;
  const auto runs = RunRequests(*engine, {.prefill_chunk = 7}, {plain, asking});
  EXPECT_TRUE(runs[0].prompt.empty());
  ASSERT_EQ(runs[1].prompt.size(), ids.size() - 1);
  EXPECT_EQ(runs[1].stats.cached_tokens, 0);
  const size_t vocab = static_cast<size_t>(engine->config().facts.vocab);
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    const SampledToken want = LogprobOf(std::span(logits).subspan(i * vocab, vocab), ids[i + 1], 2);
    EXPECT_EQ(runs[1].prompt[i].token, ids[i + 1]);
    EXPECT_EQ(runs[1].prompt[i].logprob, want.logprob);
    ASSERT_EQ(runs[1].prompt[i].top.size(), 2u);
    EXPECT_EQ(runs[1].prompt[i].top[1].token, want.top[1].token);
  }
}

TEST(Generator, EverythingIsGivenBack) {
  auto engine = LoadTiny({.threads = 1, .budget = {.tokens = 1024, .sequences = 3}});
  RunRequests(*engine, {.parallel = 3}, Requests(*engine));
  ExpectAllFree(*engine);
}

TEST(Generator, ACancelledRequestIsNotInTheNextStep) {
  auto engine = LoadTiny({.threads = 1});
  Generator generator(*engine, {.parallel = 2, .prefix_cache = false});
  const auto requests = Requests(*engine);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(generator.Submit(requests[0]).ok());
  Outcomes outcomes;
  const auto on_tokens = [&](const Generated& g) {
    outcomes[g.request].Add(g);
    return true;
  };
  ASSERT_TRUE(generator.Step(on_tokens).ok());
  ASSERT_EQ(outcomes[0].tokens.size(), 1u);
  generator.Cancel(0);  // running
  generator.Cancel(2);  // waiting
  generator.Cancel(7);  // nobody
  ASSERT_TRUE(generator.Step(on_tokens).ok());
  EXPECT_EQ(outcomes[0].tokens.size(), 1u);
  EXPECT_EQ(outcomes[0].finish, FinishReason::kCancelled);
  EXPECT_EQ(outcomes[2].finish, FinishReason::kCancelled);
  EXPECT_EQ(outcomes[1].tokens.size(), 2u);
  // And of the pages, only the other one's are left.
  EXPECT_EQ(engine->accounts()[0].size().pages - engine->accounts()[0].free_pages(),
            CacheBudget::PagesFor(std::ssize(requests[0].prompt) + 2));
}

TEST(Generator, ACallerWhoHadEnoughEndsItsRequest) {
  auto engine = LoadTiny({.threads = 1});
  Generator generator(*engine, {.parallel = 2});
  const auto requests = Requests(*engine);
  ASSERT_TRUE(generator.Submit(requests[0]).ok());
  ASSERT_TRUE(generator.Submit(requests[1]).ok());
  std::map<int64_t, int> calls;
  while (!generator.idle()) {
    ASSERT_TRUE(
        generator.Step([&](const Generated& g) { return ++calls[g.request] < 3 || g.request == 1; })
            .ok());
  }
  EXPECT_EQ(calls[0], 3);
  EXPECT_GT(calls[1], 3);
}

// A constraint that says one thing and then forbids everything.
class Dictation final : public TokenConstraint {
 public:
  explicit Dictation(std::vector<TokenId> text) : text_(std::move(text)) {}
  Status Allowed(std::span<uint32_t> mask) override {
    std::fill(mask.begin(), mask.end(), 0u);
    if (at_ == text_.size()) return OkStatus();
    const size_t id = static_cast<size_t>(text_[at_]);
    mask[id / 32] = 1u << id % 32;
    return OkStatus();
  }
  Status Accept(TokenId token) override {
    if (at_ < text_.size() && token == text_[at_++]) return OkStatus();
    return InvalidArgument({.what = "not dictated"});
  }

 private:
  std::vector<TokenId> text_;
  size_t at_ = 0;
};

TEST(Generator, AConstraintDecidesAndAFailedRequestEndsAlone) {
  auto engine = LoadTiny({.threads = 1});
  auto requests = Requests(*engine);
  const auto free = RunRequests(*engine, {.parallel = 2}, {requests[0], requests[1]});
  requests[0].constraint = std::make_shared<Dictation>(std::vector<TokenId>{5, 40, 31, 7});
  const auto runs = RunRequests(*engine, {.parallel = 2}, {requests[0], requests[1]});
  EXPECT_EQ(runs[0].tokens, (std::vector<TokenId>{5, 40, 31, 7}));
  EXPECT_EQ(runs[0].finish, FinishReason::kFailed);
  EXPECT_EQ(runs[0].status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(runs[1].tokens, free[1].tokens);
  ExpectAllFree(*engine);
}

TEST(Generator, RefusesWhatCannotRun) {
  auto engine = LoadTiny({.threads = 1});
  Generator generator(*engine, {});
  EXPECT_EQ(generator.Submit({.prompt = {}}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(generator.Submit({.prompt = std::vector<TokenId>(5000, 1)}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(generator.Submit({.prompt = {1}, .sampling = {.top_p = 2.f}}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(
      generator.Submit({.prompt = {1}, .max_new_tokens = 3, .min_new_tokens = 4}).status().code(),
      StatusCode::kInvalidArgument);
  EXPECT_TRUE(generator.idle());
  auto out = engine->Run({.sequences = {{.sequence = 1, .tokens = {1, 99999}}}});
  EXPECT_EQ(out.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(engine->Run({.sequences = {{.sequence = 1, .tokens = {-1}}}}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(Engine, MoreSequencesThanSlotsIsAnErrorNotACrash) {
  auto engine = LoadTiny({.threads = 1, .budget = {.tokens = 64, .sequences = 1, .snapshots = 1}});
  for (int64_t name = 3; name < 3 + engine->budget().size().slots - 1; ++name)
    ASSERT_TRUE(engine->Run({.sequences = {{.sequence = name, .tokens = {1, 2}}}}).ok());
  ASSERT_TRUE(engine->Run({.sequences = {{.sequence = 1, .tokens = {1, 2}}}}).ok());
  EXPECT_EQ(engine->Run({.sequences = {{.sequence = 2, .tokens = {1, 2}}}}).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_TRUE(engine->Run({.release = {1}, .sequences = {{.sequence = 2, .tokens = {1, 2}}}}).ok());
}

TEST(Engine, EmptyBatchIsLegal) {
  auto engine = LoadTiny({.threads = 1});
  auto out = engine->Run({});
  ASSERT_TRUE(out.ok());
  EXPECT_TRUE(out->logits.empty());
}

TEST(Engine, MissingDirectoryIsABadCheckpoint) {
  EXPECT_EQ(Engine::Load("/nonexistent", {}).status().code(), StatusCode::kBadCheckpoint);
}

}  // namespace
}  // namespace signalbox::generator_test
