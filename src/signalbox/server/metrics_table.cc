// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/metrics_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <numeric>

#include "signalbox/base/check.h"

namespace signalbox {
namespace {

constexpr MetricType kCounter = MetricType::kCounter;
constexpr MetricType kGauge = MetricType::kGauge;
constexpr MetricType kHistogram = MetricType::kHistogram;

using Snapshot = MetricsSnapshot;

std::vector<std::string_view> Words(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

// What a row has to say, with values for the labels that it declares.
class Values {
 public:
  explicit Values(std::string_view label_names) : names_(Words(label_names)) {}

  template <typename Number>
  void Add(Number value, std::initializer_list<std::string> label_values = {}) {
    SB_CHECK(label_values.size() == names_.size());
    MetricLabels labels;
    for (const std::string& label : label_values)
      labels.push_back({std::string(names_[labels.size()]), label});
    values_.emplace_back(std::move(labels), static_cast<double>(value));
  }
  void Add(const Histogram& histogram) { histogram_ = &histogram; }

  bool empty() const { return values_.empty() && histogram_ == nullptr; }
  void Write(std::string_view name, Exposition* out) const {
    for (const auto& [labels, value] : values_) out->Sample(name, labels, value);
    if (histogram_ != nullptr) out->Samples(name, {}, *histogram_);
  }

 private:
  std::vector<std::string_view> names_;
  std::vector<std::pair<MetricLabels, double>> values_;
  const Histogram* histogram_ = nullptr;
};

int64_t Pages(const std::vector<CacheSize>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0},
                         [](int64_t sum, const CacheSize& s) { return sum + s.pages; });
}

int64_t Slots(const std::vector<CacheSize>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0},
                         [](int64_t sum, const CacheSize& s) { return sum + s.slots; });
}

double Share(int64_t part, int64_t whole) {
  return whole == 0 ? 0. : static_cast<double>(part) / static_cast<double>(whole);
}

int64_t Sum(const std::vector<int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
}

// Of each rank, over all layers.
std::vector<int64_t> PairsOfRanks(const ExpertLoad& load) {
  std::vector<int64_t> pairs;
  for (const auto& ranks : load.ranks) {
    pairs.resize(ranks.size());
    for (size_t r = 0; r < ranks.size(); ++r) pairs[r] += ranks[r];
  }
  return pairs;
}

struct Row {
  std::string_view name;
  MetricType type;
  std::string_view labels;   // beside model_name
  std::string_view aliases;  // names that other engines have for it
  std::string_view help;
  void (*collect)(const Snapshot& s, Values* v);
};

// What requests are about.
const Row kRequestRows[] = {
    {"signalbox_info", kGauge, "version layout", "", "Always 1; what is served, as labels.",
     [](const Snapshot& s, Values* v) {
       v->Add(1, {SIGNALBOX_VERSION, s.options.layout});
     }},
    {"signalbox_requests_running", kGauge, "", "sglang:num_running_reqs vllm:num_requests_running",
     "Answers that are being computed, over all ranks.",
     [](const Snapshot& s, Values* v) { v->Add(s.stats.running); }},
    {"signalbox_requests_waiting", kGauge, "", "sglang:num_queue_reqs vllm:num_requests_waiting",
     "Answers that wait for a place. There is one queue for all ranks.",
     [](const Snapshot& s, Values* v) { v->Add(s.stats.waiting); }},
    {"signalbox_rank_requests_running", kGauge, "dp_rank", "",
     "Answers that are being computed, by rank of attention data parallelism.",
     [](const Snapshot& s, Values* v) {
       for (size_t p = 0; p < s.stats.running_of.size(); ++p)
         v->Add(s.stats.running_of[p], {fmt::format("{}", p)});
     }},
    {"signalbox_requests_ended_total", kCounter, "finished_reason", "vllm:request_success_total",
     "Answers that have ended, by reason: stop, length, abort (see "
     "signalbox_requests_aborted_total) or error.",
     [](const Snapshot& s, Values* v) {
       static constexpr std::string_view kReasons[] = {"stop", "length", "abort", "error"};
       for (size_t r = 0; r < s.counts.ended.size(); ++r)
         v->Add(s.counts.ended[r], {std::string(kReasons[r])});
     }},
    {"signalbox_requests_aborted_total", kCounter, "cause", "",
     "Answers that were cut off, by cause: the client left, a time limit, the server going down "
     "(drain), an administrator.",
     [](const Snapshot& s, Values* v) {
       for (size_t c = 0; c < s.counts.cancelled.size(); ++c)
         v->Add(s.counts.cancelled[c], {std::string(ToString(static_cast<CancelCause>(c)))});
     }},
    {"signalbox_http_answers_total", kCounter, "route status", "",
     "Answers of the HTTP server, by route and status.",
     [](const Snapshot& s, Values* v) {
       for (const auto& [answer, count] : s.counts.answers)
         v->Add(count, {answer.first, fmt::format("{}", answer.second)});
     }},
    {"signalbox_ignored_fields_total", kCounter, "field", "",
     "Request fields that nothing here knows, by name; beyond 64 names they are counted under "
     "(other).",
     [](const Snapshot& s, Values* v) {
       for (const auto& [field, count] : s.counts.ignored_fields) v->Add(count, {field});
     }},
};

const Row kTokenRows[] = {
    {"signalbox_prompt_tokens_total", kCounter, "",
     "sglang:prompt_tokens_total vllm:prompt_tokens_total",
     "Prompt tokens of requests that have ended, as their usage says: once a request, those from "
     "the prefix cache included.",
     [](const Snapshot& s, Values* v) { v->Add(s.counts.prompt_tokens); }},
    {"signalbox_cached_tokens_total", kCounter, "", "sglang:cached_tokens_total",
     "Of signalbox_prompt_tokens_total, those that the prefix cache had.",
     [](const Snapshot& s, Values* v) { v->Add(s.counts.cached_tokens); }},
    {"signalbox_generation_tokens_total", kCounter, "",
     "sglang:generation_tokens_total vllm:generation_tokens_total",
     "Tokens that answers are made of, as they come; the sum of completion_tokens of all usage.",
     [](const Snapshot& s, Values* v) { v->Add(s.counts.generation_tokens); }},
    {"signalbox_prefill_tokens_total", kCounter, "", "",
     "Tokens computed of prompts, and of answers that go on after a pre-emption.",
     [](const Snapshot& s, Values* v) { v->Add(s.stats.generator.scheduler.prefill_tokens); }},
    {"signalbox_generation_tokens_per_second", kGauge, "", "sglang:gen_throughput",
     "Growth of signalbox_generation_tokens_total over the last 10 s, of all ranks.",
     [](const Snapshot& s, Values* v) { v->Add(s.rates.tokens_per_second); }},
    {"signalbox_steps_total", kCounter, "", "", "Steps of the engine.",
     [](const Snapshot& s, Values* v) { v->Add(s.stats.generator.scheduler.steps); }},
    {"signalbox_preemptions_total", kCounter, "",
     "sglang:num_retracted_requests_total vllm:num_preemptions_total",
     "Times that an answer gave its cache to an older one and was computed again.",
     [](const Snapshot& s, Values* v) { v->Add(s.stats.generator.scheduler.preemptions); }},
};

const Row kCacheRows[] = {
    {"signalbox_kv_cache_usage_ratio", kGauge, "", "sglang:token_usage vllm:kv_cache_usage_perc",
     "Share of the pages of keys and values that answers hold, from 0 to 1, over all ranks. What "
     "the prefix cache alone keeps gives way, and is not counted.",
     [](const Snapshot& s, Values* v) {
       v->Add(Share(Pages(s.stats.used), Pages(s.stats.total)));
     }},
    {"signalbox_kv_cache_used_tokens", kGauge, "", "sglang:num_used_tokens",
     "Tokens that the pages held by answers have room for.",
     [](const Snapshot& s, Values* v) { v->Add(Pages(s.stats.used) * kBlockTokens); }},
    {"signalbox_kv_cache_capacity_tokens", kGauge, "", "sglang:max_total_num_tokens",
     "Tokens that all pages have room for.",
     [](const Snapshot& s, Values* v) { v->Add(Pages(s.stats.total) * kBlockTokens); }},
    {"signalbox_state_slots_usage_ratio", kGauge, "", "",
     "Share of the slots for recurrent states that answers hold, from 0 to 1; 0 where the model "
     "has none.",
     [](const Snapshot& s, Values* v) {
       v->Add(Share(Slots(s.stats.used), Slots(s.stats.total)));
     }},
    {"signalbox_rank_kv_cache_usage_ratio", kGauge, "dp_rank", "",
     "signalbox_kv_cache_usage_ratio, by rank of attention data parallelism.",
     [](const Snapshot& s, Values* v) {
       for (size_t p = 0; p < s.stats.used.size(); ++p)
         v->Add(Share(s.stats.used[p].pages, s.stats.total[p].pages), {fmt::format("{}", p)});
     }},
    {"signalbox_rank_state_slots_usage_ratio", kGauge, "dp_rank", "",
     "signalbox_state_slots_usage_ratio, by rank of attention data parallelism.",
     [](const Snapshot& s, Values* v) {
       for (size_t p = 0; p < s.stats.used.size(); ++p)
         v->Add(Share(s.stats.used[p].slots, s.stats.total[p].slots), {fmt::format("{}", p)});
     }},
    {"signalbox_cache_config_info", kGauge, "block_size num_gpu_blocks", "vllm:cache_config_info",
     "Always 1; tokens of a page and pages of all ranks, under the labels that dashboards look "
     "for.",
     [](const Snapshot& s, Values* v) {
       v->Add(1, {fmt::format("{}", kBlockTokens), fmt::format("{}", Pages(s.stats.total))});
     }},
    {"signalbox_prefix_lookups_total", kCounter, "", "",
     "Starts of an answer for which the prefix cache was asked.",
     [](const Snapshot& s, Values* v) { v->Add(s.stats.generator.scheduler.prefix_lookups); }},
    {"signalbox_prefix_hits_total", kCounter, "", "",
     "Of these, those that started behind something found.",
     [](const Snapshot& s, Values* v) { v->Add(s.stats.generator.scheduler.prefix_hits); }},
    {"signalbox_prefix_lookup_tokens_total", kCounter, "", "vllm:prefix_cache_queries_total",
     "Tokens that were looked up in the prefix cache.",
     [](const Snapshot& s, Values* v) { v->Add(s.stats.generator.scheduler.lookup_tokens); }},
    {"signalbox_prefix_hit_tokens_total", kCounter, "", "vllm:prefix_cache_hits_total",
     "Tokens that were found there.",
     [](const Snapshot& s, Values* v) { v->Add(s.stats.generator.scheduler.cached_tokens); }},
    {"signalbox_prefix_hit_ratio", kGauge, "", "sglang:cache_hit_rate",
     "Share of the tokens looked up that were found, over the last 10 s; 0 without any.",
     [](const Snapshot& s, Values* v) { v->Add(s.rates.prefix_hit_rate); }},
};

const Row kLatencyRows[] = {
    {"signalbox_time_to_first_token_seconds", kHistogram, "",
     "sglang:time_to_first_token_seconds vllm:time_to_first_token_seconds",
     "From a request's arrival to its first token.",
     [](const Snapshot& s, Values* v) { v->Add(s.counts.first_token); }},
    {"signalbox_inter_token_latency_seconds", kHistogram, "",
     "sglang:inter_token_latency_seconds vllm:inter_token_latency_seconds",
     "Between tokens of an answer. Where a step gives several, each counts with its share.",
     [](const Snapshot& s, Values* v) { v->Add(s.counts.inter_token); }},
    {"signalbox_request_seconds", kHistogram, "",
     "sglang:e2e_request_latency_seconds vllm:e2e_request_latency_seconds",
     "From a request's arrival to the end of its answer, however it ended.",
     [](const Snapshot& s, Values* v) { v->Add(s.counts.end_to_end); }},
    {"signalbox_request_queue_seconds", kHistogram, "",
     "sglang:queue_time_seconds vllm:request_queue_time_seconds",
     "From a request's arrival to its first step, however it ended.",
     [](const Snapshot& s, Values* v) { v->Add(s.counts.queue); }},
    {"signalbox_request_prefill_seconds", kHistogram, "", "vllm:request_prefill_time_seconds",
     "From the first step of a request to its first token.",
     [](const Snapshot& s, Values* v) { v->Add(s.counts.prefill); }},
    {"signalbox_request_decode_seconds", kHistogram, "", "vllm:request_decode_time_seconds",
     "From the first token of an answer to its end.",
     [](const Snapshot& s, Values* v) { v->Add(s.counts.decode); }},
    {"signalbox_request_inference_seconds", kHistogram, "", "vllm:request_inference_time_seconds",
     "From the first step of a request to the end of its answer.",
     [](const Snapshot& s, Values* v) { v->Add(s.counts.inference); }},
    {"signalbox_startup_seconds", kGauge, "", "sglang:engine_startup_time",
     "What the start took, over the phases that have ended.",
     [](const Snapshot& s, Values* v) {
       double sum = 0;
       for (const auto& [phase, seconds] : s.counts.startup) sum += seconds;
       v->Add(sum);
     }},
    {"signalbox_startup_phase_seconds", kGauge, "phase", "", "What each phase of the start took.",
     [](const Snapshot& s, Values* v) {
       for (const auto& [phase, seconds] : s.counts.startup) v->Add(seconds, {phase});
     }},
};

const Row kDraftRows[] = {
    {"signalbox_spec_drafts_total", kCounter, "", "vllm:spec_decode_num_drafts_total",
     "Steps of an answer that had drafts to verify.",
     [](const Snapshot& s, Values* v) {
       const auto& drafted = s.stats.generator.drafted;
       v->Add(drafted.empty() ? 0 : drafted[0]);
     }},
    {"signalbox_spec_draft_tokens_total", kCounter, "", "vllm:spec_decode_num_draft_tokens_total",
     "Tokens of these drafts.",
     [](const Snapshot& s, Values* v) { v->Add(s.stats.generator.drafted_tokens); }},
    {"signalbox_spec_accepted_tokens_total", kCounter, "",
     "vllm:spec_decode_num_accepted_tokens_total", "Draft tokens that were right.",
     [](const Snapshot& s, Values* v) { v->Add(Sum(s.stats.generator.accepted)); }},
    {"signalbox_spec_accepted_tokens_per_pos_total", kCounter, "position",
     "vllm:spec_decode_num_accepted_tokens_per_pos_total",
     "Draft tokens that were right, by position in the draft.",
     [](const Snapshot& s, Values* v) {
       const auto& accepted = s.stats.generator.accepted;
       for (size_t p = 0; p < accepted.size(); ++p) v->Add(accepted[p], {fmt::format("{}", p)});
     }},
    {"signalbox_spec_accept_length", kGauge, "", "sglang:spec_accept_length",
     "Tokens that a decode step gives an answer, over the last 10 s: 1 without drafts, 0 without "
     "steps.",
     [](const Snapshot& s, Values* v) { v->Add(s.rates.accept_length); }},
    {"signalbox_spec_accept_ratio", kGauge, "", "sglang:spec_accept_rate",
     "Share of draft tokens that were right, over the last 10 s; 0 without any.",
     [](const Snapshot& s, Values* v) { v->Add(s.rates.accept_rate); }},
};

const Row kExpertRows[] = {
    {"signalbox_expert_imbalance", kGauge, "layers", "",
     "How uneven the ranks' shares of expert work are: max/mean - 1 of (token, expert) pairs over "
     "ranks, in each layer, over the last 60 s; of all layers, counted alike, the median (p50), "
     "the 95th percentile (p95) and the worst (max).",
     [](const Snapshot& s, Values* v) {
       if (s.stats.experts == nullptr) return;
       v->Add(s.balance.imbalance_p50, {"p50"});
       v->Add(s.balance.imbalance_p95, {"p95"});
       v->Add(s.balance.imbalance_max, {"max"});
     }},
    {"signalbox_hot_expert_share", kGauge, "", "",
     "The largest share of a layer's pairs that one expert got, over the last 60 s.",
     [](const Snapshot& s, Values* v) {
       if (s.stats.experts != nullptr) v->Add(s.balance.hot_expert_share);
     }},
    {"signalbox_expert_pairs_total", kCounter, "rank", "",
     "(token, expert) pairs computed on a rank, over all layers. Where ranks share an expert, each "
     "of them counts.",
     [](const Snapshot& s, Values* v) {
       if (s.stats.experts == nullptr) return;
       const std::vector<int64_t> pairs = PairsOfRanks(*s.stats.experts);
       for (size_t r = 0; r < pairs.size(); ++r) v->Add(pairs[r], {fmt::format("{}", r)});
     }},
};

struct Section {
  std::string_view title;
  std::span<const Row> rows;
};
const Section kSections[] = {
    {"Requests", kRequestRows}, {"Tokens and steps", kTokenRows}, {"Cache", kCacheRows},
    {"Time", kLatencyRows},     {"Speculation", kDraftRows},      {"Expert load", kExpertRows},
};

bool Wanted(std::string_view alias, const MetricsOptions& options) {
  return std::any_of(options.aliases.begin(), options.aliases.end(), [&](const std::string& a) {
    return alias.starts_with(a) && alias.substr(a.size()).starts_with(':');
  });
}

std::string CodeList(const std::vector<std::string_view>& words) {
  std::string text;
  for (std::string_view w : words) text += fmt::format("{}`{}`", text.empty() ? "" : ", ", w);
  return text;
}

}  // namespace

std::string MetricsText(const MetricsSnapshot& snapshot) {
  Exposition out(MetricLabels{{"model_name", snapshot.options.model_name}});
  for (const Section& section : kSections) {
    for (const Row& row : section.rows) {
      Values values(row.labels);
      row.collect(snapshot, &values);
      if (values.empty()) continue;
      std::vector<std::string_view> names = {row.name};
      for (std::string_view alias : Words(row.aliases)) {
        if (Wanted(alias, snapshot.options)) names.push_back(alias);
      }
      for (std::string_view name : names) {
        out.Family(name, row.type, row.help);
        values.Write(name, &out);
      }
    }
  }
  return out.text();
}

std::string MetricsPage() {
  std::string page = R"(# Metrics

`GET /metrics` answers in the text format of Prometheus. Every sample has the label `model_name`;
the other labels are in the table. Where a metric has a name in another engine, it is there under
that name as well, with the same labels; `--metrics-alias` chooses whose names are given
(`sglang,vllm`). A metric of one rank has a name of its own (`signalbox_rank_...`), so a query that
adds up one name never counts anything twice.

A name is removed one release after the one whose change log gives it up.

Dashboards for Grafana are in `deploy/grafana`; `scripts/check_dashboards.py` holds them to a live
scrape. This page is made of the table in `src/signalbox/server/metrics_table.cc`.
)";
  const auto out = std::back_inserter(page);
  for (const Section& section : kSections) {
    fmt::format_to(out, "\n## {}\n\n| metric | type | labels | meaning | also known as |\n",
                   section.title);
    page += "|---|---|---|---|---|\n";
    for (const Row& row : section.rows) {
      fmt::format_to(out, "| `{}` | {} | {} | {} | {} |\n", row.name, ToString(row.type),
                     CodeList(Words(row.labels)), row.help, CodeList(Words(row.aliases)));
    }
  }
  return page;
}

}  // namespace signalbox
