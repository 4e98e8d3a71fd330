// SPDX-License-Identifier: Apache-2.0
//
// serve: an HTTP server that answers from its first moment on, and a model that is loaded beside
// it.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <optional>
#include <thread>
#include <utility>

#include "signalbox/cli/commands.h"
#include "signalbox/cli/serve_flags.h"
#include "signalbox/cli/signals.h"
#include "signalbox/comm/communicator.h"
#include "signalbox/server/expert_load_report.h"

namespace signalbox {
namespace {

using Clock = std::chrono::steady_clock;

// Connections of the busiest clients that we know, and our own files.
constexpr rlim_t kWantedFiles = 8192;
constexpr auto kLook = std::chrono::milliseconds(200);
// How long the last answers may take to reach their clients.
constexpr auto kLastAnswers = std::chrono::seconds(2);

void RaiseFileLimit() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= kWantedFiles) return;
  files.rlim_cur = std::min(files.rlim_max, kWantedFiles);
  if (::setrlimit(RLIMIT_NOFILE, &files) != 0) ::getrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur >= kWantedFiles) return;
  fmt::print(stderr,
             "signalbox: note: this process may open {} files, so that many clients at a time are "
             "refused; ulimit -n {} raises it\n",
             files.rlim_cur, kWantedFiles);
}

// As many requests at a time as there may be, from prompt to a drafted token: what they need is
// there, or the server is not ready (and says why).
Status WarmUp(Service& service) {
  SB_ASSIGN_OR_RETURN(const std::vector<TokenId> prompt,
                      service.model().EncodePlain("The quick brown fox jumps over the lazy dog."));
  const TextRequest request{.prompt = prompt,
                            .max_new_tokens = 2 + service.model().engine().drafts(),
                            .ignore_eos = true};
  const std::vector<TextRequest> all(static_cast<size_t>(service.options().parallel), request);
  SB_RETURN_IF_ERROR(service.GenerateAll(
      all, [](size_t, std::string_view) {}, [](size_t, const TextResult&) {}));
  return service.FlushPrefixes();
}

// What the server does to itself before it is ready is no request that anybody asks metrics about.
class FromReadyOn final : public ServiceObserver {
 public:
  explicit FromReadyOn(Metrics& metrics) : metrics_(metrics) {}

  void SetReady() { ready_ = true; }
  void OnStep(const ServiceStats& now) override {
    if (ready_) metrics_.OnStep(now);
  }
  void OnTokens(int64_t tokens, std::optional<double> gap) override {
    if (ready_) metrics_.OnTokens(tokens, gap);
  }
  void OnEnd(int32_t choice, const TextResult& result) override {
    if (ready_) metrics_.OnEnd(choice, result);
  }

 private:
  Metrics& metrics_;
  std::atomic<bool> ready_ = false;
};

// Loads the model and opens the app. From a thread of its own.
Status LoadAndOpen(const Invocation& invocation, const ServeOptions& options, Metrics& metrics,
                   FromReadyOn& observer, App& app) {
  auto began = Clock::now();
  std::string phase;
  const auto on_phase = [&](std::string_view name, int64_t done, int64_t total) {
    app.lifecycle().SetLoading(name, done, total);
    if (name == phase) return;
    const auto now = Clock::now();
    if (!phase.empty())
      metrics.PhaseTook(phase, std::chrono::duration<double>(now - began).count());
    phase = name;
    began = now;
  };
  SB_ASSIGN_OR_RETURN(auto service, LoadService(invocation,
                                                {.parallel = options.parallel,
                                                 .max_waiting = options.max_queued,
                                                 .observer = &observer},
                                                on_phase));
  on_phase("warming up", 0, 0);
  SB_RETURN_IF_ERROR(WarmUp(*service));
  on_phase("", 0, 0);
  observer.SetReady();
  app.Open(std::move(service));
  return OkStatus();
}

double Share(int64_t part, int64_t whole) {
  return whole > 0 ? 100. * static_cast<double>(part) / static_cast<double>(whole) : 0;
}

// The steady line while there is work.
class WorkLog {
 public:
  WorkLog(EventLog& log, const Metrics& metrics, std::chrono::seconds interval)
      : log_(log), metrics_(metrics), interval_(interval), last_(Clock::now()) {}

  void Look(const Service& service) {
    const auto now = Clock::now();
    if (interval_.count() == 0 || now - last_ < interval_) return;
    const ServiceStats stats = service.stats();
    const int64_t steps = stats.generator.scheduler.steps;
    const bool worked = steps != std::exchange(steps_, steps);
    if (!worked) return;
    const double seconds = std::chrono::duration<double>(now - std::exchange(last_, now)).count();
    const MetricsRates rates = metrics_.Rates(stats);
    CacheSize used, total;
    for (const CacheSize& part : stats.used) used.pages += part.pages;
    for (const CacheSize& part : stats.total) total.pages += part.pages;
    std::vector<LogField> fields = {{"running", stats.running},
                                    {"queued", stats.waiting},
                                    {"tokens_per_second", Rounded(rates.tokens_per_second, 1)},
                                    {"kv_percent", Rounded(Share(used.pages, total.pages), 1)},
                                    {"cache_hit_percent", Rounded(100 * rates.prefix_hit_rate, 1)}};
    if (rates.accept_length > 0)
      fields.push_back({"accept_length", Rounded(rates.accept_length, 2)});
    const ExpertLoadWindow experts = metrics_.ExpertLoadOver(stats, seconds);
    if (!experts.load.layers.empty())
      fields.push_back({"imbalance_p50", Rounded(BalanceOf(experts.load).imbalance_p50, 3)});
    log_.Write("working", fields);
  }

 private:
  static double Rounded(double value, int digits) {
    const double scale = std::pow(10., digits);
    return std::round(value * scale) / scale;
  }

  EventLog& log_;
  const Metrics& metrics_;
  const std::chrono::seconds interval_;
  Clock::time_point last_;
  int64_t steps_ = 0;
};

// Until a signal comes, or loading has failed.
Status Watch(const Signals& signals, std::future<Status>& loading, App& app, EventLog& log,
             WorkLog& work) {
  bool loaded = false;
  bool stopped = false;
  while (!signals.Wait(kLook)) {
    if (!loaded && loading.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
      SB_RETURN_IF_ERROR(loading.get());
      loaded = true;
      log.Write("ready", {});
    }
    if (!loaded) continue;
    work.Look(*app.service());
    if (const Status health = app.service()->health(); !health.ok() && !stopped) {
      stopped = true;
      log.Write("engine_stopped", {{"reason", health.message()}});
    }
  }
  if (loaded) return OkStatus();
  // What loads cannot be called back, and nobody waits for an answer of it.
  log.Write("stopped", {{"while", "loading"}});
  std::fflush(nullptr);
  std::_Exit(0);
}

}  // namespace

Status RunServe(const Invocation& invocation) {
  SB_ASSIGN_OR_RETURN(ServeOptions options,
                      ServeOptionsOf(invocation.flags, invocation.positionals[0]));
  if (invocation.processes != nullptr && invocation.processes->rank() != RankId(0)) {
    IgnoreSignals();  // the leading process says when it is over
    return LoadService(invocation, {.parallel = options.parallel}).status();
  }
  SB_ASSIGN_OR_RETURN(const auto signals, Signals::Catch());
  RaiseFileLimit();
  EventLog log(options.log_format);
  options.metrics.warn = [&log](const std::string& warning) {
    log.Write("warning", {{"text", warning}});
  };
  Metrics metrics(options.metrics);
  FromReadyOn observer(metrics);
  App app(options.app, metrics, log);
  SB_ASSIGN_OR_RETURN(auto server, HttpServer::Listen(options.http, [&app](const auto& exchange) {
                        app.Handle(exchange);
                      }));
  log.Write("listening", {{"address", server->address()}});
  auto loading = std::async(
      std::launch::async, [&] { return LoadAndOpen(invocation, options, metrics, observer, app); });
  WorkLog work(log, metrics, options.log_interval);
  SB_RETURN_IF_ERROR(Watch(*signals, loading, app, log, work));
  log.Write("draining", {{"open_requests", app.open_calls()}});
  app.Drain(options.shutdown_timeout);
  server->StopAccepting();
  for (const auto until = Clock::now() + kLastAnswers;
       server->connections() > 0 && Clock::now() < until;)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  server.reset();
  log.Write("stopped", {});
  return OkStatus();
}

}  // namespace signalbox
