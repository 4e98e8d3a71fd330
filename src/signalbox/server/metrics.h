// SPDX-License-Identifier: Apache-2.0
//
// Metrics: counts what the service and the HTTP server do, and says it in the words of Prometheus
// (docs/metrics.md is the list). Every function may be called from any thread; a scrape copies
// counters under a lock and never waits for the engine.
//
// A gauge of the whole and those of its parts have different names, so that no query adds them up
// twice. What is said of a time window is taken between two states of the counters.
//
//   Metrics metrics({.model_name = "tiny"});
//   auto service = Service::Start(std::move(model), {.observer = &metrics});
//   exchange->Send({.content_type = std::string(Exposition::kContentType),
//                   .body = metrics.Text((*service)->stats())});
#pragma once

#include <array>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "signalbox/base/status.h"
#include "signalbox/server/draft_alarm.h"
#include "signalbox/server/expert_load_report.h"
#include "signalbox/server/exposition.h"
#include "signalbox/server/service.h"

namespace signalbox {

struct MetricsOptions {
  std::string model_name;
  std::string layout;                                     // for signalbox_info: "tp 2, ep 2"
  std::vector<std::string> aliases = {"sglang", "vllm"};  // whose names are understood as well
  // Bounds of the histograms, in seconds, ascending.
  std::vector<double> first_token_buckets = {0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                             1,     2.5,   5,    10,    30,   60,  120,  300};
  std::vector<double> inter_token_buckets = {0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075,
                                             0.1,   0.15,   0.2,   0.3,  0.5,  1,    2.5,  5};
  std::vector<double> request_buckets = {0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1,
                                         2.5,   5,     10,   30,   60,  120,  300, 600};
  DraftAlarmOptions draft_alarm;
  std::function<void(const std::string& warning)> warn = {};  // from the service's thread
  std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;
};
// kInvalidArgument for an alias that is none, and for bounds that do not ascend.
Status CheckMetricsOptions(const MetricsOptions& options);
// "0.01,0.1,1" as bounds.
Result<std::vector<double>> ParseBuckets(std::string_view text);

// What is counted beside ServiceStats.
struct MetricsCounts {
  explicit MetricsCounts(const MetricsOptions& options);

  Histogram first_token;
  Histogram inter_token;
  Histogram end_to_end;
  Histogram queue;
  Histogram prefill;
  Histogram decode;
  Histogram inference;
  int64_t prompt_tokens = 0;  // of requests that have ended, whatever their number of choices
  int64_t cached_tokens = 0;
  int64_t generation_tokens = 0;
  std::array<int64_t, 4> ended = {};                       // by FinishReason
  std::array<int64_t, 4> cancelled = {};                   // by CancelCause
  std::map<std::pair<std::string, int>, int64_t> answers;  // by route and status
  std::map<std::string, int64_t, std::less<>> ignored_fields;
  std::vector<std::pair<std::string, double>> startup;  // seconds by phase, in order
};

// Over the last ten seconds, and what there was of the one before.
struct MetricsRates {
  double tokens_per_second = 0;
  double accept_length = 0;    // tokens of a decode step of a request; 0 without any
  double accept_rate = 0;      // of drafted tokens; 0 without any
  double prefix_hit_rate = 0;  // of tokens that were looked up; 0 without any
};

class Metrics final : public ServiceObserver {
 public:
  // REQUIRES: CheckMetricsOptions() is OK.
  explicit Metrics(MetricsOptions options);

  void OnStep(const ServiceStats& now) override;
  void OnTokens(int64_t tokens, std::optional<double> gap) override;
  void OnEnd(int32_t choice, const TextResult& result) override;

  // An answer of the HTTP server; `route` as in its table, so that there are few.
  void HttpAnswered(std::string_view route, int status);
  // A field of a request that nobody reads. True for the first one of its name, which is worth a
  // line in the log; names beyond the first 64 are counted together.
  bool FieldIgnored(std::string_view name);
  // A phase of the start has ended.
  void PhaseTook(std::string_view phase, double seconds);

  // What a scrape gets.
  std::string Text(const ServiceStats& stats) const;
  MetricsRates Rates(const ServiceStats& stats) const;
  // Of the last `seconds`, 60 at most, and what there was of the one before; else, or where nothing
  // is given, since the start.
  ExpertLoadWindow ExpertLoadOver(const ServiceStats& stats, std::optional<double> seconds) const;

 private:
  using Clock = std::chrono::steady_clock;
  // All that had been counted at a moment.
  struct Totals {
    Clock::time_point at;
    int64_t generation_tokens = 0;
    int64_t decode_steps = 0;
    int64_t decode_tokens = 0;
    int64_t drafted_tokens = 0;
    int64_t accepted_tokens = 0;
    int64_t lookup_tokens = 0;
    int64_t hit_tokens = 0;
    std::shared_ptr<const ExpertLoad> experts;
  };
  struct Window {
    double seconds;
    const Totals& before;
  };
  struct ExpertSpan {
    double seconds;
    std::shared_ptr<const ExpertLoad> now;     // null: nothing is known yet
    std::shared_ptr<const ExpertLoad> before;  // null: nothing had been counted
  };
  static ExpertLoadWindow WindowOf(const ExpertSpan& span);
  std::chrono::seconds SecondOf(Clock::time_point at) const;
  // For callers that hold the mutex.
  Totals TotalsOf(const ServiceStats& stats) const;
  Window Since(Clock::time_point now, std::chrono::duration<double> length) const;
  MetricsRates RatesOf(const Totals& now) const;
  ExpertSpan ExpertsOver(const Totals& now, std::optional<double> seconds) const;

  const MetricsOptions options_;
  mutable std::mutex mutex_;
  MetricsCounts counts_;
  DraftAlarm draft_alarm_;
  const Clock::time_point start_;
  // The start, then how each second of the last minute ended that had steps.
  std::deque<Totals> history_;
};

// docs/metrics.md, made of the same table as Text().
std::string MetricsPage();

}  // namespace signalbox
