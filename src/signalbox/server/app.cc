// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/app.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <random>
#include <utility>

#include <nlohmann/json.hpp>

#include "signalbox/base/json_util.h"
#include "signalbox/base/text_util.h"
#include "signalbox/plan/print.h"
#include "signalbox/server/expert_load_report.h"
#include "signalbox/server/http_text.h"
#include "signalbox/server/page.h"
#include "signalbox/server/signalbox.h"

namespace signalbox {
namespace {

using Json = nlohmann::ordered_json;

// A health check that computes something gives up after this.
constexpr std::chrono::seconds kHealthLimit{30};

// A token of its own, so that what computes is seen to work.
class HealthReply final : public ApiReply {
 public:
  std::string Events(size_t /*prompt*/, const TextUpdate& update) override {
    if (!update.result) return "";
    complete_ = true;
    if (!update.result->status.ok()) error_ = ApiErrorOf(update.result->status);
    return "";
  }
  bool complete() const override { return complete_; }
  std::string Body() override { return R"({"status":"ok"})"; }
  std::optional<ApiError> error() const override { return error_; }

 private:
  bool complete_ = false;
  std::optional<ApiError> error_;
};

std::optional<ApiError> ParseHealth(std::string_view /*body*/, const ApiContext& context,
                                    ApiCall* call) {
  const auto prompt = context.model->EncodePlain("1");
  if (!prompt.ok()) return ApiErrorOf(prompt.status());
  call->requests.push_back({.prompt = *prompt, .max_new_tokens = 1});
  call->reply = std::make_unique<HealthReply>();
  return std::nullopt;
}

ApiError NotFoundError(std::string message, std::string code) {
  return {.status = 404, .code = std::move(code), .message = std::move(message)};
}

HttpResponse JsonAnswer(const ApiAnswer& answer) {
  return answer.error ? ResponseOf(*answer.error) : HttpResponse{.body = answer.body};
}

// Text that a client may choose, and that goes back to it in a header.
bool IsPlainId(std::string_view id) {
  return !id.empty() && id.size() <= 128 &&
         std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c <= '~'; });
}

std::string NewId() {
  static const uint32_t kProcess = std::random_device()();
  static std::atomic<uint32_t> count = 0;
  return fmt::format("req-{:08x}{:08x}", kProcess, count++);
}

bool IsJson(std::string_view type) {
  const std::string_view kind = type.substr(0, type.find(';'));
  const size_t end = kind.find_last_not_of(' ');
  return SameWord(kind.substr(0, end == std::string_view::npos ? 0 : end + 1), "application/json");
}

bool HasWord(std::string_view words, std::string_view word) {
  while (!words.empty()) {
    const std::string_view first = words.substr(0, words.find(' '));
    if (first == word) return true;
    words.remove_prefix(std::min(words.size(), first.size() + 1));
  }
  return false;
}

std::string Joined(std::string_view words) {
  std::string text(words);
  for (size_t at = 0; (at = text.find(' ', at)) != std::string::npos; at += 2)
    text.replace(at, 1, ", ");
  return text;
}

}  // namespace

// What a route must wait for.
enum class Needs : uint8_t {
  kNothing,  // answered at any time
  kModel,    // loaded
  kService,  // ready, and not draining
};

struct App::Route {
  std::string_view path;  // "*" at its end stands for anything
  std::string_view methods;
  Access access;
  Needs needs;
  HttpResponse (App::*answer)(const HttpRequest& request) = nullptr;
  ParseCall parse = nullptr;  // instead of an answer: the model writes it
  std::chrono::milliseconds limit{0};
};

const App::Route* App::FindRoute(std::string_view path) {
  using A = Access;
  using N = Needs;
  static constexpr Route kRoutes[] = {
      {"/", "GET", A::kOpen, N::kNothing, &App::Page},
      {"/live", "GET", A::kOpen, N::kNothing, &App::Live},
      {"/ready", "GET", A::kOpen, N::kNothing, &App::Health},
      {"/health", "GET", A::kOpen, N::kNothing, &App::Health},
      {"/ping", "GET POST", A::kOpen, N::kNothing, &App::Health},
      {"/version", "GET", A::kOpen, N::kNothing, &App::VersionOf},
      {"/health_generate", "GET", A::kUser, N::kService, nullptr, ParseHealth, kHealthLimit},
      {"/metrics", "GET", A::kScrape, N::kModel, &App::MetricsText},
      {"/v1/chat/completions", "POST", A::kUser, N::kService, nullptr, ParseChat},
      {"/v1/completions", "POST", A::kUser, N::kService, nullptr, ParseCompletion},
      {"/generate", "POST PUT", A::kUser, N::kService, nullptr, ParseGenerate},
      {"/v1/models", "GET", A::kUser, N::kModel, &App::Models},
      {"/v1/models/*", "GET", A::kUser, N::kModel, &App::Model},
      {"/tokenize", "POST", A::kUser, N::kModel, &App::TokenizeText},
      {"/v1/tokenize", "POST", A::kUser, N::kModel, &App::TokenizeText},
      {"/detokenize", "POST", A::kUser, N::kModel, &App::DetokenizeIds},
      {"/v1/detokenize", "POST", A::kUser, N::kModel, &App::DetokenizeIds},
      {"/tokenizer_info", "GET", A::kUser, N::kModel, &App::TokenizerFacts},
      {"/server_info", "GET", A::kUser, N::kModel, &App::ServerInfo},
      {"/get_server_info", "GET", A::kUser, N::kModel, &App::ServerInfo},
      {"/model_info", "GET", A::kUser, N::kModel, &App::ModelInfo},
      {"/get_model_info", "GET", A::kUser, N::kModel, &App::ModelInfo},
      {"/load", "GET", A::kUser, N::kModel, &App::Load},
      {"/get_load", "GET", A::kUser, N::kModel, &App::Load},
      {"/expert_load", "GET", A::kUser, N::kModel, &App::Experts},
      {"/plan", "GET", A::kUser, N::kModel, &App::Plan},
      {"/plan.svg", "GET", A::kUser, N::kModel, &App::PlanSvg},
      {"/flush_cache", "GET POST", A::kAdmin, N::kModel, &App::FlushCache},
      {"/reset_prefix_cache", "GET POST", A::kAdmin, N::kModel, &App::FlushCache},
      {"/abort_request", "POST", A::kUser, N::kModel, &App::AbortRequest},
      {"/v1/embeddings", "POST", A::kUser, N::kNothing, &App::NotOffered},
      {"/v1/rerank", "POST", A::kUser, N::kNothing, &App::NotOffered},
      {"/v1/score", "POST", A::kUser, N::kNothing, &App::NotOffered},
      {"/v1/classify", "POST", A::kUser, N::kNothing, &App::NotOffered},
      {"/v1/responses", "POST", A::kUser, N::kNothing, &App::NotOffered},
      {"/v1/messages", "POST", A::kUser, N::kNothing, &App::NotOffered},
      {"/v1/audio/*", "POST", A::kUser, N::kNothing, &App::NotOffered},
      {"/v1/images/*", "POST", A::kUser, N::kNothing, &App::NotOffered},
      {"/start_profile", "GET POST", A::kAdmin, N::kNothing, &App::NotOffered},
      {"/stop_profile", "GET POST", A::kAdmin, N::kNothing, &App::NotOffered},
  };
  if (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  const auto* found = std::find_if(std::begin(kRoutes), std::end(kRoutes), [&](const Route& r) {
    if (!r.path.ends_with('*')) return r.path == path;
    const std::string_view stem = r.path.substr(0, r.path.size() - 1);
    return path.size() > stem.size() && path.starts_with(stem);
  });
  return found == std::end(kRoutes) ? nullptr : found;
}

App::App(AppOptions options, Metrics& metrics, EventLog& events)
    : options_(std::move(options)),
      metrics_(metrics),
      events_(events),
      log_(options_.log_requests < 0
               ? std::nullopt
               : std::optional<RequestLog>(std::in_place, events, options_.log_requests)),
      queue_(options_.threads) {}

void App::Open(std::unique_ptr<Service> service) {
  service_ = std::move(service);
  calls_ = std::make_unique<Calls>(*service_, queue_, events_, log_ ? &*log_ : nullptr,
                                   [this](const std::string& name) { OnIgnoredField(name); });
  ready_ = true;
  lifecycle_.SetReady();
}

void App::OnIgnoredField(const std::string& name) {
  if (metrics_.FieldIgnored(name)) events_.Write("ignored_field", {{"name", name}});
}

void App::Drain(std::chrono::milliseconds limit) {
  lifecycle_.SetDraining();
  if (!ready_ || calls_->WaitUntilDone(limit)) return;
  calls_->AbortAll(CancelCause::kDrain);
  // They end within a step, unless the engine hangs, and then they are cut off.
  calls_->WaitUntilDone(std::chrono::seconds(2));
}

const std::string* App::AllowedOrigin(const HttpRequest& request) const {
  const std::string_view origin = request.Header("Origin");
  if (origin.empty()) return nullptr;
  const auto allowed =
      std::find_if(options_.cors_origins.begin(), options_.cors_origins.end(),
                   [&](const std::string& o) { return o == "*" || SameWord(o, origin); });
  return allowed == options_.cors_origins.end() ? nullptr : &*allowed;
}

std::vector<HttpHeader> App::CommonHeaders(const HttpRequest& request, std::string_view id) const {
  std::vector<HttpHeader> headers = {{"X-Request-Id", std::string(id)},
                                     {"X-Content-Type-Options", "nosniff"}};
  if (const std::string* origin = AllowedOrigin(request)) {
    headers.push_back({"Access-Control-Allow-Origin", *origin});
    headers.push_back({"Access-Control-Expose-Headers", "X-Request-Id, Retry-After"});
  }
  if (!options_.cors_origins.empty()) headers.push_back({"Vary", "Origin"});
  return headers;
}

std::optional<HttpResponse> App::Unready(const Route& route) const {
  if (route.needs == Needs::kNothing) return std::nullopt;
  if (route.needs == Needs::kModel && ready_) return std::nullopt;
  if (auto refusal = lifecycle_.Refusal()) return refusal;
  if (!service_->health().ok()) return ResponseOf(EngineStopped());
  return std::nullopt;
}

ApiContext App::ContextOf(const HttpRequest& request) const {
  const std::string_view id = request.Header("X-Request-Id");
  return {.model = &std::as_const(*service_).model(),
          .served_names = options_.identity.served_names,
          .max_context = std::as_const(*service_).model().max_context(),
          .request_id = IsPlainId(id) ? std::string(id) : "",
          .strict = options_.strict,
          .reasoning_content = options_.reasoning_content,
          .reasoning = options_.reasoning,
          .sampling = options_.sampling};
}

void App::Handle(const std::shared_ptr<HttpExchange>& exchange) {
  const HttpRequest& request = exchange->request();
  const Route* route = FindRoute(request.path);
  const std::string_view given_id = request.Header("X-Request-Id");
  const std::string id = IsPlainId(given_id) ? std::string(given_id) : NewId();
  const std::string_view counted_as = route == nullptr ? "unknown" : route->path;
  const Responder responder(exchange, CommonHeaders(request, id), [this, counted_as](int status) {
    metrics_.HttpAnswered(counted_as, status);
  });

  if (route != nullptr && request.method == "OPTIONS" && AllowedOrigin(request) != nullptr) {
    return responder.Send({.status = 204,
                           .content_type = "",
                           .headers = {{"Access-Control-Allow-Methods", Joined(route->methods)},
                                       {"Access-Control-Allow-Headers",
                                        "Authorization, Content-Type, X-Api-Key, X-Request-Id"},
                                       {"Access-Control-Max-Age", "600"}}});
  }
  const Access access = route == nullptr ? Access::kUser : route->access;
  if (const auto error = Authorize(options_.auth, access, request)) return responder.Send(*error);
  if (route == nullptr) {
    return responder.Send(
        NotFoundError("there is no " + Quoted(request.path) + " here", "not_found"));
  }
  const std::string_view given = request.method;
  const std::string_view method = given == "HEAD" ? "GET" : given;
  if (!HasWord(route->methods, method)) {
    HttpResponse refusal = ResponseOf(
        {.status = 405, .code = "method_not_allowed", .message = "use " + Joined(route->methods)});
    refusal.headers.push_back({"Allow", Joined(route->methods)});
    return responder.Send(std::move(refusal));
  }
  const std::string_view type = request.Header("Content-Type");
  if (!request.body.empty() && !type.empty() && !IsJson(type)) {
    return responder.Send(ApiError{.status = 415,
                                   .code = "unsupported_media_type",
                                   .message = "the body must be application/json"});
  }
  if (auto unready = Unready(*route)) return responder.Send(std::move(*unready));
  if (route->parse != nullptr) {
    return calls_->Start({.route = route->path,
                          .id = id,
                          .parse = route->parse,
                          .context = ContextOf(request),
                          .limit = route->limit},
                         responder);
  }
  // Probes are answered at once, however much there is to do.
  if (route->needs == Needs::kNothing) return responder.Send((this->*route->answer)(request));
  queue_.Post(
      [this, route, responder] { responder.Send((this->*route->answer)(responder.request())); });
}

HttpResponse App::Page(const HttpRequest& /*request*/) {
  return {.content_type = "text/html; charset=utf-8",
          .headers = {{"Content-Security-Policy", PagePolicy()}},
          .body = PageHtml()};
}

// Says no only where nothing but a new start helps.
HttpResponse App::Live(const HttpRequest& /*request*/) {
  if (ready_ && !service_->health().ok()) return ResponseOf(EngineStopped());
  return {.body = R"({"status":"ok"})"};
}

HttpResponse App::Health(const HttpRequest& /*request*/) {
  if (auto refusal = lifecycle_.Refusal()) return *refusal;
  if (!service_->health().ok()) return ResponseOf(EngineStopped());
  return {.body = R"({"status":"ok"})"};
}

HttpResponse App::VersionOf(const HttpRequest& /*request*/) {
  return {.body = Json{{"version", Version()}}.dump()};
}

HttpResponse App::MetricsText(const HttpRequest& /*request*/) {
  return {.content_type = std::string(Exposition::kContentType),
          .body = metrics_.Text(service_->stats())};
}

HttpResponse App::Models(const HttpRequest& /*request*/) {
  return {.body = ModelsJson(options_.identity, service_->model())};
}

HttpResponse App::Model(const HttpRequest& request) {
  constexpr std::string_view kPrefix = "/v1/models/";
  const std::string name = request.path.substr(kPrefix.size());
  std::string body = ModelJson(options_.identity, service_->model(), name);
  if (!body.empty()) return {.body = std::move(body)};
  return ResponseOf(
      NotFoundError("the model " + Quoted(name) + " does not exist", "model_not_found"));
}

HttpResponse App::ServerInfo(const HttpRequest& /*request*/) {
  return {.body = ServerInfoJson(options_.identity, *service_, metrics_)};
}

HttpResponse App::ModelInfo(const HttpRequest& /*request*/) {
  return {.body = ModelInfoJson(options_.identity)};
}

HttpResponse App::Load(const HttpRequest& /*request*/) {
  return {.body = LoadJson(service_->stats())};
}

HttpResponse App::Experts(const HttpRequest& request) {
  const std::string window = request.Query("window");
  std::optional<double> seconds;
  if (!window.empty()) {
    double value = 0;
    const char* end = window.data() + window.size();
    const auto parsed = std::from_chars(window.data(), end, value);
    if (parsed.ec != std::errc() || parsed.ptr != end || !(value > 0)) {
      return ResponseOf({.status = 400,
                         .param = "window",
                         .message = "the window is a number of seconds above 0"});
    }
    seconds = value;
  }
  const ExpertLoadWindow load = metrics_.ExpertLoadOver(service_->stats(), seconds);
  const std::string format = request.Query("format");
  if (format == "csv") return {.content_type = "text/csv", .body = ExpertLoadCsv(load)};
  if (format.empty() || format == "json") return {.body = ExpertLoadJson(load)};
  return ResponseOf({.status = 400, .param = "format", .message = "the format is json or csv"});
}

HttpResponse App::Plan(const HttpRequest& /*request*/) {
  return {.body = LayoutToJson(service_->model().engine().planned().layout)};
}

HttpResponse App::PlanSvg(const HttpRequest& /*request*/) {
  return {.content_type = "image/svg+xml",
          .body = UsualLayerSvg(service_->model().engine().planned().layout)};
}

HttpResponse App::TokenizeText(const HttpRequest& request) {
  return JsonAnswer(Tokenize(request.body, ContextOf(request)));
}

HttpResponse App::DetokenizeIds(const HttpRequest& request) {
  return JsonAnswer(Detokenize(request.body, ContextOf(request)));
}

HttpResponse App::TokenizerFacts(const HttpRequest& request) {
  return JsonAnswer(TokenizerInfo(ContextOf(request)));
}

HttpResponse App::FlushCache(const HttpRequest& /*request*/) {
  const Status flushed = service_->FlushPrefixes();
  if (flushed.ok()) return {.body = R"({"success":true})"};
  // Other servers say 400 where they are busy, and clients look for that.
  ApiError error = ApiErrorOf(flushed);
  if (flushed.code() == StatusCode::kResourceExhausted) error.status = 400;
  return ResponseOf(error);
}

// {"rid": "..."} or {"abort_all": true}, which ends other people's requests.
HttpResponse App::AbortRequest(const HttpRequest& request) {
  const auto body = ParseJson(request.body);
  if (!body.ok()) return ResponseOf(ApiErrorOf(body.status()));
  const auto all = body->is_object() ? body->value("abort_all", Json(nullptr)) : Json(nullptr);
  const auto rid = body->is_object() ? body->value("rid", Json(nullptr)) : Json(nullptr);
  if (all.is_boolean() && all.get<bool>()) {
    if (const auto error = Authorize(options_.auth, Access::kAdmin, request))
      return ResponseOf(*error);
    return {.body = Json{{"aborted", calls_->AbortAll(CancelCause::kAdmin)}}.dump()};
  }
  if (!rid.is_string()) {
    return ResponseOf({.status = 400,
                       .param = "rid",
                       .message = "rid must be the id of a request, or abort_all true"});
  }
  const int64_t aborted = calls_->Abort(rid.get<std::string>(), CancelCause::kAdmin);
  return {.body = Json{{"aborted", aborted}}.dump()};
}

HttpResponse App::NotOffered(const HttpRequest& request) {
  return ResponseOf({.status = 501,
                     .type = "not_supported_error",
                     .code = "not_supported",
                     .message = Quoted(request.path) + " is not offered by this server"});
}

}  // namespace signalbox
