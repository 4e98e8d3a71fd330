// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/app.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

#include <nlohmann/json.hpp>

namespace signalbox::app_test {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

const std::string kTiny = std::string(SIGNALBOX_SOURCE_DIR) + "/models/tiny-qwen3.5-moe-mxfp4";

// A client without a network.
class FakeExchange final : public HttpExchange {
 public:
  explicit FakeExchange(HttpRequest request) : request_(std::move(request)) {}

  const HttpRequest& request() const override { return request_; }
  void Send(HttpResponse response) override {
    std::lock_guard lock(mutex_);
    EXPECT_FALSE(begun_);
    response_ = std::move(response);
    begun_ = ended_ = true;
    on_gone_ = nullptr;
    changed_.notify_all();
  }
  void BeginStream(HttpResponse head) override {
    std::lock_guard lock(mutex_);
    EXPECT_FALSE(begun_);
    response_ = std::move(head);
    begun_ = true;
    changed_.notify_all();
  }
  bool Write(std::string piece) override {
    std::lock_guard lock(mutex_);
    EXPECT_TRUE(begun_ && !ended_);
    if (gone_) return false;
    response_.body += piece;
    changed_.notify_all();
    return true;
  }
  void EndStream() override {
    std::lock_guard lock(mutex_);
    ended_ = true;
    on_gone_ = nullptr;
    changed_.notify_all();
  }
  void OnGone(std::function<void()> gone) override {
    std::lock_guard lock(mutex_);
    on_gone_ = std::move(gone);
  }

  // The client leaves.
  void Leave() {
    std::function<void()> told;
    {
      std::lock_guard lock(mutex_);
      gone_ = true;
      told.swap(on_gone_);
    }
    if (told) told();
  }
  HttpResponse Answer() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, seconds(60), [&] { return ended_; })) << request_.path;
    return response_;
  }
  // Until the first piece of a stream.
  void WaitForPiece() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, seconds(60), [&] { return begun_; }));
  }

 private:
  const HttpRequest request_;
  std::mutex mutex_;
  std::condition_variable changed_;
  HttpResponse response_;
  bool begun_ = false;
  bool ended_ = false;
  bool gone_ = false;
  std::function<void()> on_gone_;
};

HttpRequest Get(const std::string& path) {
  const size_t question = path.find('?');
  return {.method = "GET",
          .path = path.substr(0, question),
          .query = question == std::string::npos ? "" : path.substr(question + 1),
          .loopback = true};
}

HttpRequest Post(const std::string& path, const std::string& body) {
  return {.method = "POST",
          .path = path,
          .headers = {{"Content-Type", "application/json"}},
          .body = body,
          .loopback = true};
}

std::string HeaderOf(const HttpResponse& response, const std::string& name) {
  for (const HttpHeader& header : response.headers) {
    if (header.name == name) return header.value;
  }
  return "";
}

Json ErrorOf(const HttpResponse& response) {
  const Json body = Json::parse(response.body);
  EXPECT_TRUE(body.contains("error")) << response.body;
  return body.at("error");
}

struct NoEvents {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> nowhere{std::fopen("/dev/null", "w"),
                                                          std::fclose};
  EventLog log{LogFormat::kText, nowhere.get()};
};

// An app with the tiny model.
struct Served {
  explicit Served(AppOptions options = {}, const ServiceOptions& service = {}) {
    options.identity.served_names = {"tiny"};
    options.identity.model_path = kTiny;
    app = std::make_unique<App>(options, metrics, events.log);
    EngineOptions engine{.budget = {.tokens = 8192, .sequences = service.parallel}};
    engine.layout.limits.max_running_requests = service.parallel;
    auto model = TextModel::Load(kTiny, engine);
    EXPECT_TRUE(model.ok()) << model.status().ToString();
    ServiceOptions observed = service;
    observed.observer = &metrics;
    auto started = Service::Start(std::move(*model), observed);
    EXPECT_TRUE(started.ok()) << started.status().ToString();
    app->Open(std::move(*started));
  }

  std::shared_ptr<FakeExchange> Ask(const HttpRequest& request) const {
    auto exchange = std::make_shared<FakeExchange>(request);
    app->Handle(exchange);
    return exchange;
  }
  HttpResponse Answer(const HttpRequest& request) const { return Ask(request)->Answer(); }
  void WaitUntilIdle() const {
    for (int i = 0; i < 6000; ++i) {
      const ServiceStats stats = app->service()->stats();
      if (stats.running + stats.waiting == 0 && app->open_calls() == 0) return;
      std::this_thread::sleep_for(milliseconds(1));
    }
    FAIL() << "requests go on";
  }

  Metrics metrics{MetricsOptions{.model_name = "tiny"}};
  NoEvents events;
  std::unique_ptr<App> app;
};

// A request of each endpoint at which the model writes.
struct Generating {
  std::string path;
  Json body;
};

std::vector<Generating> EveryGenerating(int tokens, bool stream) {
  return {{"/v1/chat/completions",
           {{"model", "tiny"},
            {"messages", {{{"role", "user"}, {"content", "Count."}}}},
            {"max_tokens", tokens},
            {"ignore_eos", true},
            {"stream", stream}}},
          {"/v1/completions",
           {{"model", "tiny"},
            {"prompt", "One two"},
            {"max_tokens", tokens},
            {"ignore_eos", true},
            {"stream", stream}}},
          {"/generate",
           {{"text", "One two"},
            {"sampling_params", {{"max_new_tokens", tokens}, {"ignore_eos", true}}},
            {"stream", stream}}}};
}

TEST(App, Rob09NothingIsReadyWhileTheModelLoads) {
  Metrics metrics{MetricsOptions{.model_name = "tiny"}};
  NoEvents events;
  App app({.identity = {.served_names = {"tiny"}}}, metrics, events.log);
  app.lifecycle().SetLoading("reading weights", 1, 4);
  const auto answer = [&](const HttpRequest& request) {
    const auto exchange = std::make_shared<FakeExchange>(request);
    app.Handle(exchange);
    return exchange->Answer();
  };
  for (const char* path : {"/live", "/version", "/"}) EXPECT_EQ(answer(Get(path)).status, 200);
  for (const char* path :
       {"/health", "/ready", "/ping", "/v1/models", "/server_info", "/metrics", "/plan"}) {
    const HttpResponse response = answer(Get(path));
    EXPECT_EQ(response.status, 503) << path;
    EXPECT_EQ(ErrorOf(response).at("percent"), 25.) << path;
    EXPECT_NE(HeaderOf(response, "Retry-After"), "") << path;
  }
  for (const Generating& g : EveryGenerating(1, false))
    EXPECT_EQ(answer(Post(g.path, g.body.dump())).status, 503) << g.path;
}

TEST(App, EveryRouteAnswersAndRefusesOtherMethods) {
  const Served served;
  for (const char* path : {"/",
                           "/live",
                           "/ready",
                           "/health",
                           "/ping",
                           "/version",
                           "/metrics",
                           "/v1/models",
                           "/v1/models/tiny",
                           "/v1/models/default",
                           "/tokenizer_info",
                           "/server_info",
                           "/get_server_info",
                           "/model_info",
                           "/get_model_info",
                           "/load",
                           "/get_load",
                           "/expert_load",
                           "/expert_load?window=10",
                           "/expert_load?format=csv",
                           "/plan",
                           "/plan.svg",
                           "/flush_cache",
                           "/reset_prefix_cache",
                           "/health_generate",
                           "/v1/models/"}) {
    EXPECT_EQ(served.Answer(Get(path)).status, 200) << path;
    HttpRequest wrong = Get(path);
    wrong.method = "DELETE";
    const HttpResponse refused = served.Answer(wrong);
    EXPECT_EQ(refused.status, 405) << path;
    EXPECT_THAT(HeaderOf(refused, "Allow"), HasSubstr("GET")) << path;
    wrong.method = "HEAD";
    EXPECT_EQ(served.Answer(wrong).status, 200) << path;
  }
  EXPECT_EQ(served.Answer(Post("/tokenize", R"({"prompt": "One two"})")).status, 200);
  EXPECT_EQ(served.Answer(Post("/v1/detokenize", R"({"tokens": [5, 6]})")).status, 200);
  EXPECT_EQ(served.Answer(Get("/v1/chat/completions")).status, 405);
  for (const char* path : {"/nothing", "/v1", "/v1/modelsx", "/*", "*"})
    EXPECT_EQ(served.Answer(Get(path)).status, 404) << path;
  const HttpResponse unknown = served.Answer(Get("/v1/models/gpt"));
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(ErrorOf(unknown).at("code"), "model_not_found");
  for (const char* path : {"/v1/embeddings", "/v1/rerank", "/v1/responses", "/v1/audio/speech"}) {
    const HttpResponse response = served.Answer(Post(path, "{}"));
    EXPECT_EQ(response.status, 501) << path;
    EXPECT_EQ(ErrorOf(response).at("type"), "not_supported_error") << path;
  }
  for (const char* path :
       {"/expert_load?window=x", "/expert_load?window=-1", "/expert_load?format=xml"})
    EXPECT_EQ(served.Answer(Get(path)).status, 400) << path;
}

TEST(App, EveryGeneratingEndpointAnswersStreamedAndNot) {
  const Served served;
  for (const bool stream : {false, true}) {
    for (const Generating& g : EveryGenerating(4, stream)) {
      const HttpResponse response = served.Answer(Post(g.path, g.body.dump()));
      EXPECT_EQ(response.status, 200) << g.path << response.body;
      EXPECT_EQ(response.content_type, stream ? "text/event-stream" : "application/json");
      if (stream) {
        EXPECT_THAT(response.body, testing::EndsWith("data: [DONE]\n\n")) << g.path;
      }
    }
  }
  HttpRequest put = Post("/generate", EveryGenerating(1, false)[2].body.dump());
  put.method = "PUT";
  EXPECT_EQ(served.Answer(put).status, 200);
  served.WaitUntilIdle();
}

// Whoever leaves, before the first token or later, is computed for two more steps at most.
TEST(App, Rob07AClientThatLeavesFreesItsBlocksWithinTwoSteps) {
  const Served served({}, {.parallel = 2, .prefix_cache = false});
  const CacheSize free = served.app->service()->stats().free.at(0);
  for (const bool stream : {false, true}) {
    for (const Generating& g : EveryGenerating(2000, stream)) {
      const auto exchange = served.Ask(Post(g.path, g.body.dump()));
      if (stream) exchange->WaitForPiece();
      while (served.app->service()->stats().generator.new_tokens == 0) std::this_thread::yield();
      const int64_t before = served.app->service()->stats().generator.scheduler.steps;
      exchange->Leave();
      served.WaitUntilIdle();
      const ServiceStats after = served.app->service()->stats();
      EXPECT_LE(after.generator.scheduler.steps - before, 2) << g.path;
      EXPECT_EQ(after.free.at(0), free) << g.path;
    }
  }
  EXPECT_THAT(served.Answer(Get("/metrics")).body, HasSubstr("client"));
}

TEST(App, AClientThatLeavesAtOnceIsNotComputedFor) {
  const Served served;
  for (const Generating& g : EveryGenerating(2000, false)) {
    served.Ask(Post(g.path, g.body.dump()))->Leave();
    served.WaitUntilIdle();
  }
  EXPECT_LE(served.app->service()->stats().generator.new_tokens, 6);
}

// Wrong bytes are answered with clean JSON, and the next request works.
TEST(App, Rob05BodiesThatAreNoJsonAre400) {
  const Served served;
  for (const char* path : {"/v1/chat/completions", "/v1/completions", "/generate", "/tokenize",
                           "/detokenize", "/abort_request"}) {
    for (const std::string& body :
         std::vector<std::string>{"", "{", "[]", "null", "\"text\"", "{\"prompt\": \"\xff\xfe\"}",
                                  R"({"prompt": "\ud800"})", "{\"text\": \"\xb0\xa1\"}",
                                  std::string("{}\0{}", 5), std::string(1000, '[')}) {
      const HttpResponse response = served.Answer(Post(path, body));
      EXPECT_EQ(response.status, 400) << path << " " << body;
      EXPECT_TRUE(ErrorOf(response).at("message").is_string()) << path << " " << body;
    }
  }
  for (const Generating& g : EveryGenerating(1, false))
    EXPECT_EQ(served.Answer(Post(g.path, g.body.dump())).status, 200) << g.path;
}

TEST(App, BodiesOfAnotherKindAre415) {
  const Served served;
  HttpRequest request = Post("/generate", EveryGenerating(1, false)[2].body.dump());
  const auto status = [&](const std::string& type) {
    request.headers = {{"Content-Type", type}};
    return served.Answer(request).status;
  };
  EXPECT_EQ(status("application/json; charset=utf-8"), 200);
  EXPECT_EQ(status("Application/JSON"), 200);
  EXPECT_EQ(status(""), 200);
  EXPECT_EQ(status("text/plain"), 415);
  EXPECT_EQ(status("application/x-www-form-urlencoded"), 415);
}

TEST(App, DeniesByDefault) {
  const Served served({.auth = {.api_keys = {"secret"}}});
  for (const char* open : {"/live", "/ready", "/health", "/version", "/"})
    EXPECT_EQ(served.Answer(Get(open)).status, 200) << open;
  for (const char* path : {"/v1/models", "/server_info", "/metrics", "/plan", "/expert_load",
                           "/flush_cache", "/load", "/health_generate", "/unknown"}) {
    EXPECT_EQ(served.Answer(Get(path)).status, 401) << path;
  }
  for (const Generating& g : EveryGenerating(1, false)) {
    HttpRequest request = Post(g.path, g.body.dump());
    const HttpResponse refused = served.Answer(request);
    EXPECT_EQ(refused.status, 401) << g.path;
    EXPECT_EQ(ErrorOf(refused).at("type"), "authentication_error");
    request.headers.push_back({"Authorization", "Bearer secret"});
    EXPECT_EQ(served.Answer(request).status, 200) << g.path;
  }
}

TEST(App, TooManyThatWaitAre429) {
  const Served served({}, {.parallel = 1, .max_waiting = 2});
  const std::string body = EveryGenerating(200, false)[1].body.dump();
  std::vector<std::shared_ptr<FakeExchange>> exchanges;
  for (int i = 0; i < 12; ++i) exchanges.push_back(served.Ask(Post("/v1/completions", body)));
  int answered = 0;
  int refused = 0;
  for (const auto& exchange : exchanges) {
    const HttpResponse response = exchange->Answer();
    if (response.status == 200) ++answered;
    if (response.status != 429) continue;
    ++refused;
    EXPECT_EQ(ErrorOf(response).at("type"), "rate_limit_error");
    EXPECT_NE(HeaderOf(response, "Retry-After"), "");
  }
  EXPECT_EQ(answered + refused, 12);
  EXPECT_GE(answered, 3);
  EXPECT_GE(refused, 1);
}

TEST(App, DrainingFinishesWhatIsOpenAndRefusesTheRest) {
  const Served served;
  const auto open = served.Ask(Post("/generate", EveryGenerating(40, true)[2].body.dump()));
  open->WaitForPiece();
  served.app->Drain(seconds(60));
  EXPECT_THAT(open->Answer().body, testing::EndsWith("data: [DONE]\n\n"));
  EXPECT_THAT(open->Answer().body, HasSubstr("length"));
  EXPECT_EQ(served.Answer(Get("/live")).status, 200);
  EXPECT_EQ(served.Answer(Get("/ready")).status, 503);
  const HttpResponse refused =
      served.Answer(Post("/generate", EveryGenerating(1, false)[2].body.dump()));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(ErrorOf(refused).at("code"), "draining");
  EXPECT_NE(HeaderOf(refused, "Retry-After"), "");
}

TEST(App, DrainingEndsWhatTakesTooLong) {
  const Served served;
  const auto open = served.Ask(Post("/generate", EveryGenerating(3000, true)[2].body.dump()));
  open->WaitForPiece();
  served.app->Drain(milliseconds(1));
  EXPECT_THAT(open->Answer().body, HasSubstr("abort"));
  EXPECT_EQ(served.app->open_calls(), 0);
}

TEST(App, RequestsAreAbortedByTheirIdOrAllByAnAdmin) {
  const Served served({.auth = {.admin_key = "admin"}});
  const auto begin = [&](const std::string& rid) {
    Json body = EveryGenerating(3000, true)[2].body;
    body["rid"] = rid;
    auto exchange = served.Ask(Post("/generate", body.dump()));
    exchange->WaitForPiece();
    return exchange;
  };
  const auto one = begin("one");
  const auto two = begin("two");
  const auto abort = [&](const std::string& body, const std::string& key = "") {
    HttpRequest request = Post("/abort_request", body);
    request.headers.push_back({"Authorization", key});
    return served.Answer(request);
  };
  EXPECT_EQ(Json::parse(abort(R"({"rid": "one"})").body).at("aborted"), 1);
  EXPECT_THAT(one->Answer().body, HasSubstr("abort"));
  EXPECT_EQ(Json::parse(abort(R"({"rid": "nobody"})").body).at("aborted"), 0);
  EXPECT_EQ(abort(R"({"rid": 5})").status, 400);
  EXPECT_EQ(abort(R"({"abort_all": true})").status, 401);
  EXPECT_EQ(Json::parse(abort(R"({"abort_all": true})", "admin").body).at("aborted"), 1);
  EXPECT_THAT(two->Answer().body, HasSubstr("abort"));
}

TEST(App, TheCacheIsFlushedWhenNobodyRuns) {
  const Served served;
  const std::string body = EveryGenerating(1, false)[1].body.dump();
  served.Answer(Post("/v1/completions", body));
  const auto busy = served.Ask(Post("/generate", EveryGenerating(3000, true)[2].body.dump()));
  busy->WaitForPiece();
  EXPECT_EQ(served.Answer(Get("/flush_cache")).status, 400);
  busy->Leave();
  served.WaitUntilIdle();
  EXPECT_EQ(served.Answer(Post("/flush_cache", "")).status, 200);
  EXPECT_EQ(served.app->service()->stats().prefixes.at(0).pages, 0);
}

TEST(App, ServerInfoHasWhatBenchmarksRead) {
  const Served served({}, {.parallel = 6});
  served.Answer(Post("/v1/completions", EveryGenerating(8, false)[1].body.dump()));
  const Json info = Json::parse(served.Answer(Get("/get_server_info")).body);
  EXPECT_EQ(info.at("tokenizer_path"), kTiny);
  EXPECT_EQ(info.at("model_path"), kTiny);
  EXPECT_EQ(info.at("dp_size"), 1);
  const Json& state = info.at("internal_states").at(0);
  EXPECT_EQ(state.at("effective_max_running_requests_per_dp"), 6);
  EXPECT_GE(state.at("memory_usage").at("token_capacity"), 8192);
  EXPECT_GE(state.at("last_gen_throughput"), 0);
  EXPECT_TRUE(state.contains("avg_spec_accept_length"));
  const Json models = Json::parse(served.Answer(Get("/v1/models")).body);
  EXPECT_EQ(models.at("data").at(0).at("id"), "tiny");
  EXPECT_GT(models.at("data").at(0).at("max_model_len"), 0);
}

TEST(App, EchoesRequestIdsThatAreHarmless) {
  const Served served;
  const auto echoed = [&](const std::string& id) {
    HttpRequest request = Get("/health");
    request.headers = {{"x-request-id", id}};
    return HeaderOf(served.Answer(request), "X-Request-Id");
  };
  EXPECT_EQ(echoed("abc-123"), "abc-123");
  for (const std::string& bad : {std::string(), std::string("a b"), std::string(200, 'x')}) {
    EXPECT_THAT(echoed(bad), testing::StartsWith("req-"));
  }
  EXPECT_NE(echoed(""), echoed(""));
}

TEST(App, PagesOfOtherOriginsAskOnlyWhereAllowed) {
  const auto preflight = [](const Served& served, const std::string& origin) {
    HttpRequest request = Get("/v1/chat/completions");
    request.method = "OPTIONS";
    request.headers = {{"Origin", origin}};
    return served.Answer(request);
  };
  EXPECT_EQ(preflight(Served(), "https://a.example").status, 405);
  const Served served({.auth = {.api_keys = {"k"}}, .cors_origins = {"https://a.example"}});
  const HttpResponse allowed = preflight(served, "https://a.example");
  EXPECT_EQ(allowed.status, 204);
  EXPECT_EQ(HeaderOf(allowed, "Access-Control-Allow-Origin"), "https://a.example");
  EXPECT_EQ(HeaderOf(allowed, "Access-Control-Allow-Methods"), "POST");
  const HttpResponse other = preflight(served, "https://b.example");
  EXPECT_EQ(other.status, 401);
  EXPECT_EQ(HeaderOf(other, "Access-Control-Allow-Origin"), "");
  EXPECT_EQ(HeaderOf(other, "Vary"), "Origin");
}

}  // namespace
}  // namespace signalbox::app_test
