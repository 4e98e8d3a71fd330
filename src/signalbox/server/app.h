// SPDX-License-Identifier: Apache-2.0
//
// App: what the server answers, route by route. It takes requests from its first moment on, and
// says how far loading is until it has a service.
//
//   App app({.identity = identity}, metrics, events);
//   auto server = HttpServer::Listen({.port = 30000}, [&](auto exchange) { app.Handle(exchange);
//   }); app.lifecycle().SetLoading("reading weights", done, total); app.Open(std::move(service));
//   // ready app.Drain(std::chrono::seconds(60));          // 503 for new requests, until the last
//   has ended
//
// The HTTP server goes before the app does.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "signalbox/server/api.h"
#include "signalbox/server/auth.h"
#include "signalbox/server/calls.h"
#include "signalbox/server/event_log.h"
#include "signalbox/server/http_server.h"
#include "signalbox/server/lifecycle.h"
#include "signalbox/server/metrics.h"
#include "signalbox/server/request_log.h"
#include "signalbox/server/server_info.h"
#include "signalbox/server/service.h"
#include "signalbox/server/task_queue.h"

namespace signalbox {

struct AppOptions {
  ServerIdentity identity;
  AuthOptions auth;
  std::vector<std::string> cors_origins;  // that pages may be of; "*" is any
  bool strict = false;                    // as ApiContext's
  bool reasoning_content = true;
  bool reasoning = true;
  SamplingParams sampling;  // of requests that do not say
  int threads = 2;          // that parse requests
  int log_requests = -1;    // RequestLog's level; -1: requests are not logged
};

class App {
 public:
  // `metrics`, which observes the service, and `events` outlive it.
  App(AppOptions options, Metrics& metrics, EventLog& events);

  Lifecycle& lifecycle() { return lifecycle_; }
  void Handle(const std::shared_ptr<HttpExchange>& exchange);
  // Requests are taken from now on. Once.
  void Open(std::unique_ptr<Service> service);
  // None are taken any more. Returns when no call is open; those that are after the limit are
  // ended.
  void Drain(std::chrono::milliseconds limit);
  // Null before Open.
  Service* service() const { return ready_ ? service_.get() : nullptr; }
  int64_t open_calls() const { return ready_ ? calls_->open() : 0; }

 private:
  struct Route;
  static const Route* FindRoute(std::string_view path);

  // Answers of routes. Those that take JSON are called by the queue, the rest by anybody.
  HttpResponse Page(const HttpRequest& request);
  HttpResponse Live(const HttpRequest& request);
  HttpResponse Health(const HttpRequest& request);
  HttpResponse VersionOf(const HttpRequest& request);
  HttpResponse MetricsText(const HttpRequest& request);
  HttpResponse Models(const HttpRequest& request);
  HttpResponse Model(const HttpRequest& request);
  HttpResponse ServerInfo(const HttpRequest& request);
  HttpResponse ModelInfo(const HttpRequest& request);
  HttpResponse Load(const HttpRequest& request);
  HttpResponse Experts(const HttpRequest& request);
  HttpResponse Plan(const HttpRequest& request);
  HttpResponse PlanSvg(const HttpRequest& request);
  HttpResponse TokenizeText(const HttpRequest& request);
  HttpResponse DetokenizeIds(const HttpRequest& request);
  HttpResponse TokenizerFacts(const HttpRequest& request);
  HttpResponse FlushCache(const HttpRequest& request);
  HttpResponse AbortRequest(const HttpRequest& request);
  HttpResponse NotOffered(const HttpRequest& request);

  std::vector<HttpHeader> CommonHeaders(const HttpRequest& request, std::string_view id) const;
  const std::string* AllowedOrigin(const HttpRequest& request) const;
  // Why a route that needs so much cannot answer now.
  std::optional<HttpResponse> Unready(const Route& route) const;
  void OnIgnoredField(const std::string& name);
  ApiContext ContextOf(const HttpRequest& request) const;

  const AppOptions options_;
  Metrics& metrics_;
  EventLog& events_;
  const std::optional<RequestLog> log_;
  Lifecycle lifecycle_;
  std::atomic<bool> ready_ = false;  // what follows is there
  std::unique_ptr<Calls> calls_;
  std::unique_ptr<Service> service_;
  TaskQueue queue_;  // last: its threads use all above
};

}  // namespace signalbox
