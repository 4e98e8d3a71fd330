// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/request_log.h"

#include <fmt/format.h>

#include <algorithm>

namespace signalbox {
namespace {

constexpr size_t kShownBytes = 2048;

void AddResults(std::span<const TextResult> results, std::vector<LogField>* fields) {
  std::string finish;
  int64_t new_tokens = 0;
  int64_t steps = 0;
  int64_t step_tokens = 0;
  double last = 0;
  for (const TextResult& r : results) {
    finish += (finish.empty() ? "" : ",") + std::string(ToString(r.finish));
    if (r.finish == FinishReason::kCancelled) finish += ":" + std::string(ToString(r.cause));
    new_tokens += r.new_tokens;
    steps += r.stats.decode_steps;
    step_tokens += r.stats.decode_tokens;
    last = std::max(last, r.times.end_to_end());
  }
  const TextResult& first = results.front();
  fields->insert(fields->end(), {{"finish", finish},
                                 {"prompt_tokens", first.prompt_tokens},
                                 {"cached_tokens", first.stats.cached_tokens},
                                 {"new_tokens", new_tokens},
                                 {"queue_seconds", first.times.queue},
                                 {"first_token_seconds", first.times.first_token()},
                                 {"end_to_end_seconds", last}});
  if (steps > 0) {
    const double length = static_cast<double>(step_tokens) / static_cast<double>(steps);
    fields->push_back({"accept_length", length});
  }
}

void AddSampling(const TextRequest& asked, std::vector<LogField>* fields) {
  const SamplingParams& s = asked.sampling;
  fields->insert(fields->end(), {{"choices", int64_t{asked.choices}},
                                 {"max_new_tokens", asked.max_new_tokens},
                                 {"temperature", double{s.temperature}},
                                 {"seed", static_cast<int64_t>(s.seed)},
                                 {"top_k", s.top_k},
                                 {"top_p", double{s.top_p}},
                                 {"min_p", double{s.min_p}},
                                 {"repetition_penalty", double{s.repetition_penalty}},
                                 {"presence_penalty", double{s.presence_penalty}},
                                 {"frequency_penalty", double{s.frequency_penalty}}});
}

}  // namespace

void RequestLog::Write(const RequestRecord& record) const {
  std::vector<LogField> fields = {
      {"id", record.id}, {"route", record.route}, {"status", int64_t{record.status}}};
  if (!record.error.empty()) fields.push_back({"error", record.error});
  if (!record.results.empty()) AddResults(record.results, &fields);
  if (level_ >= 1 && record.asked != nullptr) AddSampling(*record.asked, &fields);
  if (wants_text()) {
    const size_t most = level_ >= kMaxLevel ? std::string::npos : kShownBytes;
    fields.push_back({"prompt", record.prompt.substr(0, most)});
    for (size_t i = 0; i < record.results.size(); ++i) {
      const std::string name = i == 0 ? "answer" : fmt::format("answer_{}", i);
      fields.push_back({name, record.results[i].text.substr(0, most)});
    }
  }
  events_.Write("request", fields);
}

}  // namespace signalbox
