// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "signalbox/base/check.h"
#include "signalbox/base/text_util.h"
#include "signalbox/server/metrics_table.h"

namespace signalbox {
namespace {

constexpr std::string_view kAliases[] = {"sglang", "vllm"};

// Clients choose the names of fields, so there is no end to them.
constexpr size_t kMaxFields = 64;
constexpr size_t kMaxFieldBytes = 64;
constexpr std::string_view kOtherFields = "(other)";

double Ratio(int64_t part, int64_t whole) {
  return whole == 0 ? 0. : static_cast<double>(part) / static_cast<double>(whole);
}

Status CheckBuckets(const std::vector<double>& bounds) {
  const bool ascend =
      std::adjacent_find(bounds.begin(), bounds.end(), std::greater_equal<>()) == bounds.end();
  const bool finite =
      std::all_of(bounds.begin(), bounds.end(), [](double b) { return std::isfinite(b); });
  if (!bounds.empty() && ascend && finite) return OkStatus();
  return InvalidArgument({.what = "bounds of a histogram do not ascend",
                          .found = fmt::format("{}", fmt::join(bounds, ",")),
                          .expected = "seconds in ascending order, such as 0.01,0.1,1"});
}

}  // namespace

Status CheckMetricsOptions(const MetricsOptions& options) {
  for (const std::string& alias : options.aliases) {
    if (std::find(std::begin(kAliases), std::end(kAliases), alias) != std::end(kAliases)) continue;
    return InvalidArgument({.what = "no such names of metrics",
                            .found = Quoted(alias),
                            .expected = fmt::format("{}", fmt::join(kAliases, ", "))});
  }
  SB_RETURN_IF_ERROR(CheckBuckets(options.first_token_buckets));
  SB_RETURN_IF_ERROR(CheckBuckets(options.inter_token_buckets));
  return CheckBuckets(options.request_buckets);
}

Result<std::vector<double>> ParseBuckets(std::string_view text) {
  std::vector<double> bounds;
  for (size_t from = 0; from <= text.size();) {
    const size_t comma = std::min(text.find(',', from), text.size());
    const char* end = text.data() + comma;
    double bound = 0;
    const auto [stop, error] = std::from_chars(text.data() + from, end, bound);
    if (error != std::errc() || stop != end) {
      return InvalidArgument({.what = "not a number of seconds",
                              .found = Quoted(text.substr(from, comma - from)),
                              .expected = "seconds in ascending order, such as 0.01,0.1,1"});
    }
    bounds.push_back(bound);
    from = comma + 1;
  }
  SB_RETURN_IF_ERROR(CheckBuckets(bounds));
  return bounds;
}

MetricsCounts::MetricsCounts(const MetricsOptions& options)
    : first_token(options.first_token_buckets),
      inter_token(options.inter_token_buckets),
      end_to_end(options.request_buckets),
      queue(options.request_buckets),
      prefill(options.request_buckets),
      decode(options.request_buckets),
      inference(options.request_buckets) {}

Metrics::Metrics(MetricsOptions options)
    : options_(std::move(options)),
      counts_(options_),
      draft_alarm_(options_.draft_alarm),
      start_(options_.now()) {
  SB_CHECK(CheckMetricsOptions(options_).ok());
  history_.push_back({.at = start_});
}

void Metrics::OnStep(const ServiceStats& now) {
  std::optional<std::string> warning;
  {
    std::lock_guard lock(mutex_);
    Totals totals = TotalsOf(now);
    if (history_.size() > 1 && SecondOf(history_.back().at) == SecondOf(totals.at))
      history_.pop_back();
    const auto oldest = SecondOf(totals.at - kExpertWindow);
    while (history_.size() > 1 && SecondOf(history_[1].at) < oldest) history_.pop_front();
    history_.push_back(std::move(totals));
    warning = draft_alarm_.Look(now.generator);
  }
  if (warning && options_.warn) options_.warn(*warning);
}

// A step may give several tokens at once; each took its share of the time.
void Metrics::OnTokens(int64_t tokens, std::optional<double> gap) {
  std::lock_guard lock(mutex_);
  counts_.generation_tokens += tokens;
  if (gap) counts_.inter_token.Add(*gap / static_cast<double>(tokens), tokens);
}

void Metrics::OnEnd(int32_t choice, const TextResult& result) {
  std::lock_guard lock(mutex_);
  ++counts_.ended[static_cast<size_t>(result.finish)];
  if (result.finish == FinishReason::kCancelled)
    ++counts_.cancelled[static_cast<size_t>(result.cause)];
  if (choice == 0) {
    counts_.prompt_tokens += result.prompt_tokens;
    counts_.cached_tokens += result.stats.cached_tokens;
  }
  const RequestTimes& times = result.times;
  counts_.queue.Add(times.queue);
  counts_.end_to_end.Add(times.end_to_end());
  if (result.new_tokens == 0) return;
  counts_.first_token.Add(times.first_token());
  counts_.prefill.Add(times.prefill);
  counts_.decode.Add(times.decode);
  counts_.inference.Add(times.prefill + times.decode);
}

void Metrics::HttpAnswered(std::string_view route, int status) {
  std::lock_guard lock(mutex_);
  ++counts_.answers[{std::string(route), status}];
}

bool Metrics::FieldIgnored(std::string_view name) {
  std::lock_guard lock(mutex_);
  auto& fields = counts_.ignored_fields;
  if (const auto it = fields.find(name); it != fields.end()) {
    ++it->second;
    return false;
  }
  const bool counted = fields.size() < kMaxFields && name.size() <= kMaxFieldBytes;
  ++fields[std::string(counted ? name : kOtherFields)];
  return counted;
}

void Metrics::PhaseTook(std::string_view phase, double seconds) {
  std::lock_guard lock(mutex_);
  counts_.startup.emplace_back(phase, seconds);
}

Metrics::Totals Metrics::TotalsOf(const ServiceStats& stats) const {
  const GeneratorStats& generator = stats.generator;
  const std::vector<int64_t>& accepted = generator.accepted;
  return {.at = options_.now(),
          .generation_tokens = counts_.generation_tokens,
          .decode_steps = generator.decode_steps,
          .decode_tokens = generator.decode_tokens,
          .drafted_tokens = generator.drafted_tokens,
          .accepted_tokens = std::accumulate(accepted.begin(), accepted.end(), int64_t{0}),
          .lookup_tokens = generator.scheduler.lookup_tokens,
          .hit_tokens = generator.scheduler.cached_tokens,
          .experts = stats.experts};
}

std::chrono::seconds Metrics::SecondOf(Clock::time_point at) const {
  return std::chrono::floor<std::chrono::seconds>(at - start_);
}

// A window begins with a whole second, or at the start: history says how the second before ended.
Metrics::Window Metrics::Since(Clock::time_point now, std::chrono::duration<double> length) const {
  const auto first = SecondOf(now - std::chrono::ceil<Clock::duration>(length));
  const auto before = std::find_if(history_.rbegin(), history_.rend(),
                                   [&](const Totals& t) { return SecondOf(t.at) < first; });
  const std::chrono::duration<double> lived = now - start_;
  return {.seconds = first.count() < 0 ? lived.count() : (lived - first).count(),
          .before = before == history_.rend() ? history_.front() : *before};
}

MetricsRates Metrics::RatesOf(const Totals& now) const {
  const auto& [seconds, before] = Since(now.at, kRateWindow);
  MetricsRates rates{.accept_length = Ratio(now.decode_tokens - before.decode_tokens,
                                            now.decode_steps - before.decode_steps),
                     .accept_rate = Ratio(now.accepted_tokens - before.accepted_tokens,
                                          now.drafted_tokens - before.drafted_tokens),
                     .prefix_hit_rate = Ratio(now.hit_tokens - before.hit_tokens,
                                              now.lookup_tokens - before.lookup_tokens)};
  if (seconds > 0) {
    rates.tokens_per_second =
        static_cast<double>(now.generation_tokens - before.generation_tokens) / seconds;
  }
  return rates;
}

Metrics::ExpertSpan Metrics::ExpertsOver(const Totals& now, std::optional<double> seconds) const {
  const std::chrono::duration<double> lived = now.at - start_;
  const std::chrono::duration<double> length(seconds.value_or(lived.count()));
  if (length > kExpertWindow || length >= lived)
    return {.seconds = lived.count(), .now = now.experts, .before = nullptr};
  const Window window = Since(now.at, length);
  return {.seconds = window.seconds, .now = now.experts, .before = window.before.experts};
}

ExpertLoadWindow Metrics::WindowOf(const ExpertSpan& span) {
  if (span.now == nullptr) return {.seconds = span.seconds};
  return {.seconds = span.seconds,
          .load = Difference(*span.now, span.before == nullptr ? ExpertLoad{} : *span.before)};
}

MetricsRates Metrics::Rates(const ServiceStats& stats) const {
  std::lock_guard lock(mutex_);
  return RatesOf(TotalsOf(stats));
}

ExpertLoadWindow Metrics::ExpertLoadOver(const ServiceStats& stats,
                                         std::optional<double> seconds) const {
  std::unique_lock lock(mutex_);
  const ExpertSpan span = ExpertsOver(TotalsOf(stats), seconds);
  lock.unlock();
  return WindowOf(span);
}

std::string Metrics::Text(const ServiceStats& stats) const {
  std::unique_lock lock(mutex_);
  const Totals now = TotalsOf(stats);
  const MetricsCounts counts = counts_;
  const MetricsRates rates = RatesOf(now);
  const ExpertSpan experts = ExpertsOver(now, kExpertWindow.count());
  lock.unlock();
  return MetricsText({.options = options_,
                      .stats = stats,
                      .counts = counts,
                      .rates = rates,
                      .balance = BalanceOf(WindowOf(experts).load)});
}

}  // namespace signalbox
