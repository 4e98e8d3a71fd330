// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <future>
#include <numeric>
#include <set>
#include <sstream>
#include <thread>

namespace signalbox::metrics_test {
namespace {

const std::string kTiny = std::string(SIGNALBOX_SOURCE_DIR) + "/models/tiny-qwen3.5-moe-mxfp4";

// Samples of a scrape by name and labels, without the label of all.
std::map<std::string, double> Parse(const std::string& text) {
  std::map<std::string, double> samples;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#')) continue;
    const size_t space = line.rfind(' ');
    std::string key = line.substr(0, space);
    const std::string common = "model_name=\"m\"";
    const size_t at = key.find(common);
    EXPECT_NE(at, std::string::npos) << line;
    const size_t comma = key[at + common.size()] == ',' ? 1 : 0;
    key.erase(at, common.size() + comma);
    if (key.ends_with("{}")) key.resize(key.size() - 2);
    EXPECT_TRUE(samples.emplace(key, std::stod(line.substr(space + 1))).second) << line;
  }
  return samples;
}

// A clock that the test turns.
struct Clock {
  std::chrono::steady_clock::time_point now{std::chrono::hours(1)};
  MetricsOptions Options() {
    return {.model_name = "m", .now = [this] { return now; }};
  }
  void Pass(double seconds) {
    now += std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::duration<double>(seconds));
  }
};

TEST(Metrics, HeadersComeOnceAndOtherNamesSayTheSame) {
  Metrics metrics({.model_name = "m"});
  const std::string text = metrics.Text({.running = 3, .waiting = 2});
  std::set<std::string> types;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("# TYPE ")) continue;
    EXPECT_TRUE(types.insert(line).second) << line;
  }
  const auto samples = Parse(text);
  EXPECT_EQ(samples.at("signalbox_requests_running"), 3);
  EXPECT_EQ(samples.at("sglang:num_running_reqs"), 3);
  EXPECT_EQ(samples.at("vllm:num_requests_waiting"), 2);

  Metrics own({.model_name = "m", .aliases = {"vllm"}});
  const auto fewer = Parse(own.Text({}));
  EXPECT_TRUE(fewer.contains("vllm:num_requests_running"));
  EXPECT_FALSE(fewer.contains("sglang:num_running_reqs"));
}

TEST(Metrics, WrongOptionsAreNamed) {
  EXPECT_TRUE(CheckMetricsOptions({}).ok());
  EXPECT_EQ(CheckMetricsOptions({.aliases = {"tgi"}}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckMetricsOptions({.request_buckets = {}}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckMetricsOptions({.inter_token_buckets = {1, 1}}).code(),
            StatusCode::kInvalidArgument);
  EXPECT_THAT(*ParseBuckets("0.01,0.1,1"), testing::ElementsAre(0.01, 0.1, 1));
  for (const char* wrong : {"", "1,", "a", "2,1", "1,inf", "0.1 0.2"})
    EXPECT_FALSE(ParseBuckets(wrong).ok()) << wrong;
}

TEST(Metrics, EveryEndHasItsReasonAndEveryAbortItsCause) {
  Metrics metrics({.model_name = "m"});
  metrics.OnEnd(0, {.prompt_tokens = 10, .new_tokens = 4, .finish = FinishReason::kStop});
  metrics.OnEnd(1, {.prompt_tokens = 10, .new_tokens = 4, .finish = FinishReason::kLength});
  metrics.OnEnd(0, {.finish = FinishReason::kCancelled, .cause = CancelCause::kDrain});
  metrics.OnEnd(0, {.finish = FinishReason::kCancelled});
  metrics.OnEnd(0, {.finish = FinishReason::kFailed});
  const auto samples = Parse(metrics.Text({}));
  const auto ended = [&](const std::string& reason) {
    return samples.at("signalbox_requests_ended_total{finished_reason=\"" + reason + "\"}");
  };
  EXPECT_EQ(ended("stop"), 1);
  EXPECT_EQ(ended("length"), 1);
  EXPECT_EQ(ended("abort"), 2);
  EXPECT_EQ(ended("error"), 1);
  const auto aborted = [&](const std::string& cause) {
    return samples.at("signalbox_requests_aborted_total{cause=\"" + cause + "\"}");
  };
  EXPECT_EQ(aborted("client"), 1);
  EXPECT_EQ(aborted("drain"), 1);
  EXPECT_EQ(aborted("timeout"), 0);
  EXPECT_EQ(aborted("admin"), 0);
  // A prompt counts once, however many answers it gets.
  EXPECT_EQ(samples.at("signalbox_prompt_tokens_total"), 10);
  // Those that never got a token have no first one.
  EXPECT_EQ(samples.at("signalbox_time_to_first_token_seconds_count"), 2);
  EXPECT_EQ(samples.at("signalbox_request_seconds_count"), 5);
}

TEST(Metrics, LatenciesGoIntoTheirBuckets) {
  Metrics metrics({.model_name = "m",
                   .first_token_buckets = {0.5, 1},
                   .inter_token_buckets = {0.01, 0.1},
                   .request_buckets = {1, 10}});
  metrics.OnTokens(1, std::nullopt);
  metrics.OnTokens(4, 0.08);  // 20 ms each
  metrics.OnEnd(0, {.new_tokens = 5, .times = {.queue = 0.25, .prefill = 0.5, .decode = 8}});
  const auto samples = Parse(metrics.Text({}));
  EXPECT_EQ(samples.at("signalbox_inter_token_latency_seconds_bucket{le=\"0.01\"}"), 0);
  EXPECT_EQ(samples.at("signalbox_inter_token_latency_seconds_bucket{le=\"0.1\"}"), 4);
  EXPECT_NEAR(samples.at("signalbox_inter_token_latency_seconds_sum"), 0.08, 1e-12);
  EXPECT_EQ(samples.at("signalbox_time_to_first_token_seconds_bucket{le=\"0.5\"}"), 0);
  EXPECT_EQ(samples.at("signalbox_time_to_first_token_seconds_sum"), 0.75);
  EXPECT_EQ(samples.at("vllm:request_inference_time_seconds_sum"), 8.5);
  EXPECT_EQ(samples.at("sglang:e2e_request_latency_seconds_sum"), 8.75);
  EXPECT_EQ(samples.at("signalbox_generation_tokens_total"), 5);
}

// A gauge that every rank sets would show the last rank alone.
TEST(Metrics, RanksAreToldApartAndSummed) {
  Metrics metrics({.model_name = "m"});
  const auto samples = Parse(metrics.Text({.running = 8,
                                           .running_of = {3, 5},
                                           .total = {{100, 10}, {100, 10}},
                                           .used = {{20, 1}, {60, 3}}}));
  EXPECT_EQ(samples.at("signalbox_rank_requests_running{dp_rank=\"0\"}"), 3);
  EXPECT_EQ(samples.at("signalbox_rank_requests_running{dp_rank=\"1\"}"), 5);
  EXPECT_EQ(samples.at("sglang:num_running_reqs"), 8);
  EXPECT_EQ(samples.at("signalbox_rank_kv_cache_usage_ratio{dp_rank=\"0\"}"), 0.2);
  EXPECT_EQ(samples.at("signalbox_rank_state_slots_usage_ratio{dp_rank=\"1\"}"), 0.3);
  EXPECT_EQ(samples.at("vllm:kv_cache_usage_perc"), 0.4);
  EXPECT_EQ(samples.at("sglang:num_used_tokens"), 80 * kBlockTokens);
  EXPECT_EQ(samples.at("sglang:max_total_num_tokens"), 200 * kBlockTokens);
}

TEST(Metrics, RatesAreThoseOfTheLastTenSeconds) {
  Clock clock;
  Metrics metrics(clock.Options());
  ServiceStats stats;
  const auto step = [&](int64_t tokens) {
    metrics.OnTokens(tokens, std::nullopt);
    stats.generator.decode_steps += 10;
    stats.generator.decode_tokens += tokens;
    stats.generator.scheduler.lookup_tokens += 100;
    stats.generator.scheduler.cached_tokens += tokens;
    metrics.OnStep(stats);
  };
  clock.Pass(2);
  step(20);
  EXPECT_DOUBLE_EQ(metrics.Rates(stats).tokens_per_second, 10);  // of the two seconds there were
  for (int second = 0; second < 20; ++second) {
    clock.Pass(0.25);
    step(10);
    clock.Pass(0.5);
    step(20);
    clock.Pass(0.25);
  }
  const MetricsRates rates = metrics.Rates(stats);
  EXPECT_NEAR(rates.tokens_per_second, 30, 1e-9);
  EXPECT_NEAR(rates.accept_length, 1.5, 1e-9);
  EXPECT_NEAR(rates.prefix_hit_rate, 0.15, 1e-9);
  EXPECT_EQ(Parse(metrics.Text(stats)).at("sglang:gen_throughput"), rates.tokens_per_second);
  // What happened before a pause is not counted after it.
  clock.Pass(100);
  EXPECT_EQ(metrics.Rates(stats).tokens_per_second, 0);
  EXPECT_EQ(metrics.Rates(stats).accept_length, 0);
  step(40);
  EXPECT_DOUBLE_EQ(metrics.Rates(stats).tokens_per_second, 4);
}

TEST(Metrics, IgnoredFieldsAreBounded) {
  Metrics metrics({.model_name = "m"});
  EXPECT_TRUE(metrics.FieldIgnored("frob"));
  EXPECT_FALSE(metrics.FieldIgnored("frob"));
  EXPECT_FALSE(metrics.FieldIgnored(std::string(1 << 20, 'x')));
  int first = 0;
  for (int i = 0; i < 1000; ++i) first += metrics.FieldIgnored("f" + std::to_string(i));
  const auto samples = Parse(metrics.Text({}));
  EXPECT_EQ(samples.at("signalbox_ignored_fields_total{field=\"frob\"}"), 2);
  EXPECT_EQ(samples.at("signalbox_ignored_fields_total{field=\"(other)\"}"), 1001 - first);
  EXPECT_LT(first, 64);
}

TEST(Metrics, AnswersAndPhasesAreCounted) {
  Metrics metrics({.model_name = "m", .layout = "tp 2, ep 2"});
  metrics.HttpAnswered("/v1/chat/completions", 200);
  metrics.HttpAnswered("/v1/chat/completions", 200);
  metrics.HttpAnswered("/v1/chat/completions", 429);
  metrics.PhaseTook("read", 1.5);
  metrics.PhaseTook("warm", 0.5);
  const auto samples = Parse(metrics.Text({}));
  const std::string chat = "signalbox_http_answers_total{route=\"/v1/chat/completions\",status=";
  EXPECT_EQ(samples.at(chat + "\"200\"}"), 2);
  EXPECT_EQ(samples.at(chat + "\"429\"}"), 1);
  EXPECT_EQ(samples.at("signalbox_startup_phase_seconds{phase=\"read\"}"), 1.5);
  EXPECT_EQ(samples.at("sglang:engine_startup_time"), 2);
  EXPECT_TRUE(
      samples.contains("signalbox_info{version=\"" SIGNALBOX_VERSION "\",layout=\"tp 2, ep 2\"}"));
}

// What was routed is what is shown: exact totals by rank, and the window's share of them.
TEST(Metrics, Obs01ExpertLoadIsExact) {
  Clock clock;
  Metrics metrics(clock.Options());
  EXPECT_EQ(metrics.Text({}).find("expert"), std::string::npos);  // nothing known, nothing said
  const auto at = [](std::vector<std::vector<int64_t>> experts,
                     std::vector<std::vector<int64_t>> ranks) {
    return std::make_shared<const ExpertLoad>(
        ExpertLoad{.layers = {0, 1}, .experts = std::move(experts), .ranks = std::move(ranks)});
  };
  ServiceStats stats;
  clock.Pass(1);
  stats.experts = at({{8, 0, 0, 0}, {2, 2, 2, 2}}, {{8, 0}, {4, 4}});
  metrics.OnStep(stats);
  clock.Pass(70);
  stats.experts = at({{8, 0, 4, 4}, {5, 3, 4, 4}}, {{8, 8}, {8, 8}});
  metrics.OnStep(stats);
  auto samples = Parse(metrics.Text(stats));
  EXPECT_EQ(samples.at("signalbox_expert_pairs_total{rank=\"0\"}"), 16);
  EXPECT_EQ(samples.at("signalbox_expert_pairs_total{rank=\"1\"}"), 16);
  // In the last minute: {0, 8} and {4, 4} by rank, {0, 0, 4, 4} and {3, 1, 2, 2} by expert.
  EXPECT_EQ(samples.at("signalbox_expert_imbalance{layers=\"p50\"}"), 0);
  EXPECT_EQ(samples.at("signalbox_expert_imbalance{layers=\"max\"}"), 1);
  EXPECT_EQ(samples.at("signalbox_hot_expert_share"), 0.5);
  const ExpertLoadWindow minute = metrics.ExpertLoadOver(stats, 60);
  EXPECT_EQ(minute.seconds, 60);
  EXPECT_THAT(minute.load.experts[1], testing::ElementsAre(3, 1, 2, 2));
  // A window longer than what is remembered is the whole life, and says so.
  for (const std::optional<double> seconds : {std::optional<double>(), std::optional(65.)}) {
    const ExpertLoadWindow all = metrics.ExpertLoadOver(stats, seconds);
    EXPECT_EQ(all.seconds, 71);
    EXPECT_EQ(all.load.experts, stats.experts->experts);
  }
}

TEST(Metrics, Obs04ADraftLayerThatGuessesWrongIsReportedOnce) {
  std::vector<std::string> warnings;
  Metrics metrics({.model_name = "m",
                   .draft_alarm = {.bound = 0.2, .guesses = 100},
                   .warn = [&](const std::string& w) { warnings.push_back(w); }});
  ServiceStats stats;
  const auto guess = [&](int64_t guesses, int64_t right) {
    stats.generator.drafted[0] += guesses;
    stats.generator.accepted[0] += right;
    metrics.OnStep(stats);
  };
  metrics.OnStep(stats);  // without drafts
  stats.generator.drafted = {0, 0};
  stats.generator.accepted = {0, 0};
  guess(50, 0);  // too few to tell
  EXPECT_TRUE(warnings.empty());
  guess(50, 20);  // just enough right
  EXPECT_TRUE(warnings.empty());
  guess(110, 3);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], testing::HasSubstr("3 of its last 110 first guesses"));
  guess(1000, 0);
  EXPECT_EQ(warnings.size(), 1u);
}

TEST(Metrics, TheCommittedPageIsThatOfTheTable) {
  std::ifstream file(std::string(SIGNALBOX_SOURCE_DIR) + "/docs/metrics.md");
  const std::string committed((std::istreambuf_iterator<char>(file)), {});
  const std::string page = MetricsPage();
  if (committed == page) return;
  const std::string fresh = testing::TempDir() + "metrics.md";
  std::ofstream(fresh) << page;
  FAIL() << "docs/metrics.md is out of date: cp " << fresh << " docs/metrics.md";
}

// What clients are told they used, added up, is what the counters grew by; and everything between,
// scraped from another thread, is sound.
TEST(Metrics, CountersAgreeWithWhatClientsAreTold) {
  Metrics metrics({.model_name = "m"});
  EngineOptions engine{.budget = {.tokens = 8192, .sequences = 4}};
  engine.layout.limits.max_running_requests = 4;
  engine.layout.limits.draft_tokens = 2;
  auto model = TextModel::Load(kTiny, engine);
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  auto service = Service::Start(std::move(*model), {.parallel = 4, .observer = &metrics});
  ASSERT_TRUE(service.ok());
  std::atomic<bool> stop = false;
  std::thread scraper([&] {
    for (double last = 0; !stop;) {
      const auto samples = Parse(metrics.Text((*service)->stats()));
      const double now = samples.at("signalbox_generation_tokens_total");
      EXPECT_GE(now, last);
      last = now;
    }
  });
  const auto chat = (*service)->model().EncodeChat(
      {{"user", "Tom has 12 apples. Then Tom buys 7 more. How many apples does Tom have now?"}},
      /*thinking=*/true);
  std::vector<std::future<std::vector<TextResult>>> answers;
  for (int i = 0; i < 9; ++i) {
    TextRequest request{.prompt = chat->ids,
                        .turn_ends = chat->turn_ends,
                        .choices = 1 + i % 3,
                        .max_new_tokens = 10 + 20 * i,
                        .chat = true};
    if (i % 2 == 1) request.stop = {" a"};
    answers.push_back(
        std::async(std::launch::async, [&, request] { return *(*service)->Generate(request); }));
  }
  int64_t new_tokens = 0;
  int64_t prompt_tokens = 0;
  int64_t ended = 0;
  for (auto& answer : answers) {
    const std::vector<TextResult> results = answer.get();
    prompt_tokens += results[0].prompt_tokens;
    for (const TextResult& r : results) {
      new_tokens += r.new_tokens;
      ++ended;
      EXPECT_GT(r.times.first_token(), 0);
      EXPECT_GE(r.times.queue, 0);
      EXPECT_GE(r.times.decode, 0);
    }
  }
  stop = true;
  scraper.join();
  const auto samples = Parse(metrics.Text((*service)->stats()));
  EXPECT_EQ(samples.at("signalbox_generation_tokens_total"), new_tokens);
  EXPECT_EQ(samples.at("signalbox_prompt_tokens_total"), prompt_tokens);
  EXPECT_EQ(samples.at("signalbox_time_to_first_token_seconds_count"), ended);
  // Every token but the first of an answer has one before it.
  EXPECT_EQ(samples.at("signalbox_inter_token_latency_seconds_count"), new_tokens - ended);
  EXPECT_EQ(samples.at("signalbox_kv_cache_usage_ratio"), 0);
  EXPECT_EQ(samples.at("signalbox_state_slots_usage_ratio"), 0);
  // OBS-01: every row of a layer went to so many experts. The draft layer comes last.
  const ServiceStats stats = (*service)->stats();
  ASSERT_NE(stats.experts, nullptr);
  const GeneratorStats& generator = stats.generator;
  const int64_t rows =
      generator.scheduler.prefill_tokens + generator.decode_steps + generator.drafted_tokens;
  const auto& layers = (*service)->model().engine().config().facts.layers;
  for (size_t l = 0; l < layers.size(); ++l) {
    const auto& experts = stats.experts->experts[l];
    EXPECT_EQ(std::accumulate(experts.begin(), experts.end(), int64_t{0}),
              rows * std::get<MoeFacts>(layers[l].ffn).top_k);
  }
  EXPECT_GT(samples.at("signalbox_spec_accept_length"), 1);
  EXPECT_GT(samples.at("vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"}"), 0);
  EXPECT_GE(samples.at("vllm:spec_decode_num_draft_tokens_total"),
            samples.at("vllm:spec_decode_num_accepted_tokens_total"));
}

}  // namespace
}  // namespace signalbox::metrics_test
