// SPDX-License-Identifier: Apache-2.0
//
// bench serve: how fast a server answers, at several numbers of requests at a time.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <random>

#include <nlohmann/json.hpp>

#include "signalbox/base/json_util.h"
#include "signalbox/base/progress.h"
#include "signalbox/base/text_util.h"
#include "signalbox/cli/answer.h"
#include "signalbox/cli/bench.h"
#include "signalbox/cli/line_chart.h"
#include "signalbox/cli/remote.h"

namespace signalbox {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

double Ms(Clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

// One streamed answer, as it came.
class Exchange {
 public:
  void Begin() { begin_ = Clock::now(); }

  void Take(std::string_view piece) {
    received_ += piece;
    for (size_t end; (end = received_.find("\n\n")) != received_.npos;) {
      TakeEvent(std::string_view(received_).substr(0, end));
      received_.erase(0, end + 2);
    }
  }

  void End(const Result<HttpResponse>& response) {
    end_ = Clock::now();
    if (!response.ok()) {
      error_ = response.status().message();
    } else if (response->status != 200) {
      error_ = fmt::format("{}: {}", response->status, ServerMessage(received_));
    } else if (error_.empty() && !done_) {
      error_ = "the stream breaks off before [DONE]";
    } else if (error_.empty() && tokens_ < 0) {
      error_ = "the stream has no usage";
    }
  }

  const std::string& error() const { return error_; }
  int64_t tokens() const { return tokens_; }
  double whole() const { return Ms(end_ - begin_); }
  // Until the first text; the whole time for an answer without any.
  double first() const { return pieces_.empty() ? whole() : Ms(pieces_.front() - begin_); }
  // Between pieces of text.
  void AppendGaps(std::vector<double>* gaps) const {
    for (size_t i = 1; i < pieces_.size(); ++i) gaps->push_back(Ms(pieces_[i] - pieces_[i - 1]));
  }

 private:
  void TakeEvent(std::string_view event) {
    constexpr std::string_view kData = "data: ";
    if (!event.starts_with(kData)) return;
    event.remove_prefix(kData.size());
    if (event == "[DONE]") {
      done_ = true;
      return;
    }
    const auto json = ParseJson(event);
    if (!json.ok() || !json->is_object() || json->contains("error")) {
      error_ = ServerMessage(event);
      return;
    }
    if (HasText(*json)) pieces_.push_back(Clock::now());
    const Json usage = json->value("usage", Json());
    if (usage.is_object() && usage.contains("completion_tokens") &&
        usage.at("completion_tokens").is_number_integer())
      tokens_ = usage.at("completion_tokens").get<int64_t>();
  }

  static bool HasText(const Json& event) {
    if (!event.contains("choices") || !event.at("choices").is_array()) return false;
    for (const Json& choice : event.at("choices")) {
      if (!choice.is_object()) continue;
      const Json& at = choice.contains("delta") ? choice.at("delta") : choice;
      for (const char* name : {"text", "content", "reasoning_content"}) {
        if (at.is_object() && at.contains(name) && at.at(name).is_string() &&
            !at.at(name).get_ref<const std::string&>().empty())
          return true;
      }
    }
    return false;
  }

  Clock::time_point begin_;
  Clock::time_point end_;
  std::string received_;  // and not taken yet
  std::vector<Clock::time_point> pieces_;
  int64_t tokens_ = -1;
  bool done_ = false;
  std::string error_;
};

// Nearest rank; 0 of nothing.
double Percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
  const size_t at = std::max<size_t>(rank, 1) - 1;
  std::ranges::nth_element(values, values.begin() + static_cast<ptrdiff_t>(at));
  return values[at];
}

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (double v : values) sum += v;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

// Token ids that text is made of, to draw random prompts from: of made-up words, cut by the
// server's own tokenizer.
Result<std::vector<int64_t>> TokenPool(const Remote& remote, std::mt19937_64& random) {
  constexpr int kWords = 4000;
  std::string text;
  for (int i = 0; i < kWords; ++i) {
    for (uint64_t n = 1 + random() % 8; n > 0; --n)
      text += static_cast<char>('a' + static_cast<char>(random() % 26));
    text += ' ';
  }
  SB_ASSIGN_OR_RETURN(
      const Json answer,
      remote.Ask(remote.Post("/tokenize", {{"model", remote.model()}, {"prompt", text}})));
  std::vector<int64_t> pool;
  for (const Json& token : answer.is_object() ? answer.value("tokens", Json::array()) : Json()) {
    if (token.is_number_integer()) pool.push_back(token.get<int64_t>());
  }
  if (!pool.empty()) return pool;
  return Unavailable({.what = "the server cuts no text into tokens",
                      .where = "/tokenize",
                      .found = Quoted(answer.dump()),
                      .expected = "token ids in \"tokens\"",
                      .remedy = "ask questions of a file instead: --data FILE.jsonl"});
}

// What is asked, one after another; all of it again where more is wanted.
class Prompts {
 public:
  static Result<Prompts> Of(const FlagValues& flags, const Remote& remote) {
    Prompts prompts(remote);
    SB_ASSIGN_OR_RETURN(prompts.output_, NumberOf(flags, "output-tokens", 1, 1 << 20));
    SB_ASSIGN_OR_RETURN(prompts.input_, NumberOf(flags, "input-tokens", 1, 1 << 20));
    prompts.random_.seed(static_cast<uint64_t>(flags.Int("seed")));
    if (flags.Has("data")) {
      SB_ASSIGN_OR_RETURN(prompts.problems_, ReadProblems(flags.Text("data"), 0));
    } else {
      SB_ASSIGN_OR_RETURN(prompts.pool_, TokenPool(remote, prompts.random_));
    }
    return prompts;
  }

  HttpCall Next() {
    Json body{{"model", remote_.model()},
              {"stream", true},
              {"stream_options", {{"include_usage", true}}},
              {"temperature", 0},
              {"max_tokens", output_}};
    if (!problems_.empty()) {
      const Problem& problem = problems_[next_++ % problems_.size()];
      body["messages"] = {{{"role", "user"}, {"content", problem.question}}};
      return remote_.Post("/v1/chat/completions", body);
    }
    Json& prompt = body["prompt"] = Json::array();
    for (int64_t i = 0; i < input_; ++i) prompt.push_back(pool_[random_() % pool_.size()]);
    body["ignore_eos"] = true;
    return remote_.Post("/v1/completions", body);
  }

  std::string text() const {
    if (!problems_.empty())
      return fmt::format("{} questions, answers of at most {} tokens", problems_.size(), output_);
    return fmt::format("random prompts of {} tokens, answers of {}", input_, output_);
  }

 private:
  explicit Prompts(const Remote& remote) : remote_(remote) {}

  const Remote& remote_;
  int64_t input_ = 0;
  int64_t output_ = 0;
  std::vector<Problem> problems_;
  std::vector<int64_t> pool_;
  std::mt19937_64 random_;
  size_t next_ = 0;
};

struct Row {
  std::vector<BenchCell> cells;
  std::string error;  // the first
};

std::vector<std::string> Columns() {
  std::vector<std::string> columns = {"parallel",   "requests", "errors",       "seconds",
                                      "requests/s", "tok/s",    "accept length"};
  for (const char* time : {"TTFT", "ITL", "E2E"}) {
    for (const char* statistic : {"mean", "p50", "p95", "p99"})
      columns.push_back(fmt::format("{} {} ms", time, statistic));
  }
  return columns;
}

Row Measure(const Remote& remote, const std::vector<HttpCall>& calls, const LoadShape& shape,
            bool quiet) {
  std::vector<Exchange> exchanges(calls.size());
  Progress progress({.label = fmt::format("parallel {}", shape.parallel),
                     .total = static_cast<int64_t>(calls.size()),
                     .quiet = quiet});
  int64_t ended = 0;
  const DraftCounts before = remote.drafts();
  const auto start = Clock::now();
  remote.Run(calls, shape,
             {.begun = [&](size_t i) { exchanges[i].Begin(); },
              .piece = [&](size_t i, std::string_view piece) { exchanges[i].Take(piece); },
              .done =
                  [&](size_t i, const Result<HttpResponse>& response) {
                    exchanges[i].End(response);
                    progress.Update(++ended);
                  }});
  const double seconds = Ms(Clock::now() - start) / 1000;
  progress.Finish();
  const auto accept = AcceptLength(before, remote.drafts());

  Row row;
  int64_t errors = 0;
  int64_t tokens = 0;
  std::vector<double> first;
  std::vector<double> gaps;
  std::vector<double> whole;
  for (const Exchange& exchange : exchanges) {
    if (!exchange.error().empty()) {
      if (errors++ == 0) row.error = exchange.error();
      continue;
    }
    tokens += exchange.tokens();
    first.push_back(exchange.first());
    whole.push_back(exchange.whole());
    exchange.AppendGaps(&gaps);
  }
  const auto answered = static_cast<double>(std::ssize(exchanges) - errors);
  row.cells = {shape.parallel, std::ssize(exchanges), errors,
               seconds,        answered / seconds,    static_cast<double>(tokens) / seconds};
  if (accept) {
    row.cells.emplace_back(*accept);
  } else {
    row.cells.emplace_back();
  }
  for (const auto& times : {first, gaps, whole}) {
    row.cells.emplace_back(Mean(times));
    for (double share : {0.5, 0.95, 0.99}) row.cells.emplace_back(Percentile(times, share));
  }
  return row;
}

std::vector<double> Numbers(const BenchTable& table, std::string_view column) {
  const size_t at = std::ranges::find(table.columns, column) - table.columns.begin();
  std::vector<double> numbers;
  for (const auto& row : table.rows) {
    const auto* whole = std::get_if<int64_t>(&row[at]);
    numbers.push_back(whole != nullptr ? static_cast<double>(*whole) : std::get<double>(row[at]));
  }
  return numbers;
}

Status WritePlot(const BenchTable& table, const std::string& path) {
  const auto series = [&](const std::string& column, const std::string& name) {
    return LineSeries{.name = name, .values = Numbers(table, column)};
  };
  const std::vector<LineChart> charts = {
      {.title = "Throughput",
       .x_label = "requests at a time",
       .y_label = "output tokens per second",
       .x = Numbers(table, "parallel"),
       .series = {series("tok/s", "")}},
      {.title = "Time to first token",
       .x_label = "requests at a time",
       .y_label = "milliseconds",
       .x = Numbers(table, "parallel"),
       .series = {series("TTFT p50 ms", "p50"), series("TTFT p95 ms", "p95"),
                  series("TTFT p99 ms", "p99")},
       .logarithmic = true},
  };
  std::ofstream file(path);
  file << LineChartsToSvg(table.title, charts);
  if (file.flush()) return OkStatus();
  return InvalidArgument({.what = "cannot write the plot", .where = "--plot " + path});
}

}  // namespace

Result<BenchTable> BenchServe(const Invocation& invocation) {
  const FlagValues& flags = invocation.flags;
  if (!flags.Has("url")) {
    return InvalidArgument({.what = "no server to measure",
                            .where = "bench serve",
                            .remedy = "start one with signalbox serve and give its --url"});
  }
  SB_ASSIGN_OR_RETURN(const std::vector<int64_t> parallel,
                      NumbersOf(flags, "parallel", 1, 1 << 16));
  SB_ASSIGN_OR_RETURN(const int64_t count, NumberOf(flags, "num-prompts", 0, 1 << 20));
  SB_ASSIGN_OR_RETURN(const Remote remote, Remote::Connect(flags));
  SB_ASSIGN_OR_RETURN(Prompts prompts, Prompts::Of(flags, remote));
  BenchTable table{
      .title = remote.model() + ": " + prompts.text(),
      .facts = {{"server", flags.Text("url")}, {"seed", flags.Int("seed")}, {"temperature", 0.0}},
      .columns = Columns(),
      .upright = true};
  const double rate = flags.Number("request-rate");
  if (rate > 0) table.facts.emplace_back("requests/s asked for", rate);
  // The first request finds nothing warm.
  const Row warm_up = Measure(remote, {prompts.Next()}, {}, true);
  if (!warm_up.error.empty()) {
    return Unavailable(
        {.what = "the server does not answer", .where = "--url", .found = warm_up.error});
  }
  for (int64_t p : parallel) {
    constexpr int64_t kEach = 4;
    constexpr int64_t kFewest = 16;
    std::vector<HttpCall> calls(count > 0 ? count : std::max(kEach * p, kFewest));
    std::ranges::generate(calls, [&] { return prompts.Next(); });
    Row row =
        Measure(remote, calls, {.parallel = p, .rate = rate, .seed = static_cast<uint64_t>(p)},
                flags.Switch("quiet"));
    table.rows.push_back(std::move(row.cells));
    if (row.error.empty()) continue;
    table.notes.push_back(fmt::format("an error at {} at a time: {}", p, row.error));
    table.verdict = Unavailable({.what = "requests have failed", .found = row.error});
  }
  table.notes.emplace_back(
      "TTFT: until the first text; ITL: between pieces of text, which may be several tokens with "
      "drafts; E2E: the whole answer. Errors count in none of them.");
  if (flags.Has("plot")) SB_RETURN_IF_ERROR(WritePlot(table, flags.Text("plot")));
  return table;
}

}  // namespace signalbox
