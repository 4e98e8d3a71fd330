// SPDX-License-Identifier: Apache-2.0
//
// What asks a server, against a server of our own that answers as it is told.
#include "signalbox/cli/remote.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <mutex>

#include <nlohmann/json.hpp>

#include "signalbox/cli/bench.h"
#include "signalbox/cli/commands.h"

namespace signalbox::remote_test {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

constexpr const char* kStream =
    "data: {\"choices\": [{\"text\": \"a\"}]}\n\n"
    "data: {\"choices\": [{\"text\": \"b\"}]}\n\n"
    "data: {\"choices\": [], \"usage\": {\"completion_tokens\": 7}}\n\ndata: [DONE]\n\n";

// Says that "1 + 1" is 2 and everything else is 0.
class FakeServer {
 public:
  FakeServer() {
    auto server = HttpServer::Listen({}, [this](std::shared_ptr<HttpExchange> exchange) {
      const HttpRequest& request = exchange->request();
      key = request.Header("authorization");
      if (request.path == "/v1/models") {
        exchange->Send({.body = models});
      } else if (request.path == "/tokenize") {
        exchange->Send({.body = R"({"tokens": [3, 5, 7]})"});
      } else if (request.path == "/metrics") {
        exchange->Send({.content_type = "text/plain", .body = Metrics()});
      } else {
        const std::lock_guard lock(mutex);
        bodies.push_back(Json::parse(request.body));
        const size_t number = bodies.size() - 1;
        if (refuse_from <= number && number < refuse_until) {
          exchange->Send({.status = 429, .body = R"({"error": {"message": "too many"}})"});
        } else if (bodies.back().value("stream", false)) {
          exchange->BeginStream({.content_type = "text/event-stream"});
          exchange->Write(stream.substr(0, 5));
          exchange->Write(stream.substr(5));
          exchange->EndStream();
        } else {
          const std::string question = bodies.back()["messages"][0]["content"];
          exchange->Send({.body = Json{{"choices",
                                        {{{"finish_reason", "stop"},
                                          {"message",
                                           {{"reasoning_content", "one 1"},
                                            {"content", question == "1 + 1" ? "2" : "0"}}}}}},
                                       {"usage", {{"completion_tokens", 10}}}}
                                      .dump()});
        }
      }
    });
    EXPECT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(*server);
  }
  std::string url() const { return fmt::format("http://127.0.0.1:{}", server_->port()); }

  std::string models = R"({"data": [{"id": "tiny"}]})";
  std::string stream = kStream;
  std::string key;  // of the last request
  size_t refuse_from = 0;
  size_t refuse_until = 0;
  std::mutex mutex;
  std::vector<Json> bodies;

 private:
  // Each scrape sees ten more drafts and twenty more tokens.
  std::string Metrics() {
    ++scrapes_;
    return fmt::format(
        "# TYPE vllm:spec_decode_num_drafts_total counter\n"
        "vllm:spec_decode_num_drafts_total{{model_name=\"a b\"}} {}\n"
        "vllm:spec_decode_num_accepted_tokens_total{{model_name=\"a b\"}} {}\n"
        "vllm:spec_decode_num_accepted_tokens_total_other 5\n",
        10 * scrapes_, 20 * scrapes_);
  }
  int scrapes_ = 0;
  std::unique_ptr<HttpServer> server_;  // last: it uses all above
};

Invocation Of(std::vector<std::string> words) {
  words.insert(words.begin(), "signalbox");
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  const auto i = ParseCommandLine(static_cast<int>(arguments.size()), arguments.data());
  EXPECT_TRUE(i.ok()) << i.status().ToString();
  return i.ok() ? *i : Invocation();
}

BenchCell Cell(const BenchTable& table, size_t row, std::string_view column) {
  return table.rows[row][std::ranges::find(table.columns, column) - table.columns.begin()];
}

TEST(BenchServe, HasARowForEachNumberAtATime) {
  FakeServer server;
  const std::string plot = testing::TempDir() + "/plot.svg";
  const auto table =
      BenchServe(Of({"bench", "serve", "--url", server.url(), "--parallel", "1,4", "--num-prompts",
                     "6", "--input-tokens", "5", "--output-tokens", "7", "--plot", plot}));
  ASSERT_TRUE(table.ok()) << table.status().ToString();
  EXPECT_TRUE(table->verdict.ok());
  ASSERT_EQ(table->rows.size(), 2u);
  for (size_t row = 0; row < 2; ++row) {
    EXPECT_EQ(Cell(*table, row, "requests"), BenchCell(int64_t{6}));
    EXPECT_EQ(Cell(*table, row, "errors"), BenchCell(int64_t{0}));
    EXPECT_EQ(Cell(*table, row, "accept length"), BenchCell(3.0));
    const double seconds = std::get<double>(Cell(*table, row, "seconds"));
    EXPECT_NEAR(std::get<double>(Cell(*table, row, "tok/s")) * seconds, 42, 1e-6);
    EXPECT_LE(std::get<double>(Cell(*table, row, "TTFT p50 ms")),
              std::get<double>(Cell(*table, row, "TTFT p99 ms")));
    EXPECT_LE(std::get<double>(Cell(*table, row, "TTFT mean ms")),
              std::get<double>(Cell(*table, row, "E2E mean ms")));
  }
  ASSERT_EQ(server.bodies.size(), 13u);  // one to warm up
  for (const Json& body : server.bodies) {
    EXPECT_EQ(body["model"], "tiny");
    EXPECT_EQ(body["prompt"].size(), 5u);
    EXPECT_EQ(body["max_tokens"], 7);
    EXPECT_EQ(body["ignore_eos"], true);
    EXPECT_EQ(body["stream_options"]["include_usage"], true);
    for (const Json& id : body["prompt"]) EXPECT_THAT(id.get<int>(), testing::AnyOf(3, 5, 7));
  }
  EXPECT_THAT(BenchToText(*table), HasSubstr("\nparallel"));
  std::ifstream file(plot);
  const std::string svg((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(svg, HasSubstr("Time to first token"));
}

TEST(BenchServe, ErrorsAreCountedAndNothingIsAskedTwice) {
  FakeServer server;
  server.refuse_from = 1;  // behind the one to warm up
  server.refuse_until = 3;
  const auto table = BenchServe(Of({"bench", "serve", "--url", server.url(), "--parallel", "2",
                                    "--num-prompts", "5", "--request-rate", "500"}));
  ASSERT_TRUE(table.ok()) << table.status().ToString();
  EXPECT_EQ(Cell(*table, 0, "errors"), BenchCell(int64_t{2}));
  EXPECT_EQ(table->verdict.code(), StatusCode::kUnavailable);
  EXPECT_THAT(table->notes[0], HasSubstr("429: too many"));
  EXPECT_EQ(server.bodies.size(), 6u);
}

TEST(BenchServe, AStreamThatIsNoneIsAnError) {
  for (const auto& [stream, part] : std::vector<std::pair<std::string, std::string>>{
           {"data: {\"choices\": [{\"text\": \"a\"}]}\n\n", "breaks off before [DONE]"},
           {"data: {\"choices\": [1]}\n\ndata: [DONE]\n\n", "no usage"},
           {"data: {\"usage\": {\"completion_tokens\": \"x\"}}\n\ndata: [DONE]\n\n", "no usage"},
           {"data: {\"error\": {\"message\": \"too hot\"}}\n\ndata: [DONE]\n\n", "too hot"},
           {"data: nonsense\n\ndata: [DONE]\n\n", "nonsense"}}) {
    FakeServer server;
    server.stream = stream;
    const auto table = BenchServe(Of({"bench", "serve", "--url", server.url()}));
    ASSERT_FALSE(table.ok());
    EXPECT_EQ(table.status().code(), StatusCode::kUnavailable);
    EXPECT_THAT(table.status().message(), HasSubstr(part));
  }
}

TEST(Remote, SaysWhatIsMissing) {
  EXPECT_THAT(BenchServe(Of({"bench", "serve"})).status().message(), HasSubstr("--url"));
  const auto connect = [](const std::string& url) {
    return Remote::Connect(Of({"bench", "serve", "--url", url, "--api-key", "k"}).flags).status();
  };
  EXPECT_EQ(connect("http://127.0.0.1:1").code(), StatusCode::kUnavailable);
  EXPECT_EQ(ExitCode(connect("ftp://x").code()), 2);
  FakeServer server;
  for (const char* models : {"[]", "{}", R"({"data": []})", R"({"data": [{"id": 1}]})"}) {
    server.models = models;
    EXPECT_THAT(connect(server.url()).message(), HasSubstr("names no model"));
  }
  EXPECT_EQ(server.key, "Bearer k");
}

std::string Problems() {
  const std::string path = testing::TempDir() + "/problems.jsonl";
  std::ofstream(path) << "{\"question\": \"1 + 1\", \"answer\": 2}\n"
                         "{\"question\": \"2 + 2\", \"answer\": 4}\n";
  return path;
}

TEST(EvalUrl, CountsRightAnswers) {
  FakeServer server;
  testing::internal::CaptureStdout();
  const Status status = RunEval(
      Of({"eval", "--url", server.url(), "--data", Problems(), "--no-thinking", "--quiet"}));
  EXPECT_THAT(testing::internal::GetCapturedStdout(),
              testing::MatchesRegex("accuracy 0.500 \\(1 of 2\\) \\| [0-9]+ tok/s \\| accept "
                                    "3.00\n"));
  EXPECT_TRUE(status.ok()) << status.ToString();
  ASSERT_EQ(server.bodies.size(), 2u);
  EXPECT_EQ(server.bodies[0]["chat_template_kwargs"]["enable_thinking"], false);
  EXPECT_EQ(server.bodies[0]["temperature"], 0);
}

TEST(EvalUrl, ErrorsAreCountedAndEndInAnError) {
  FakeServer server;
  server.refuse_until = 1;
  const std::string output = testing::TempDir() + "/answers.jsonl";
  testing::internal::CaptureStdout();
  const Status status = RunEval(Of({"eval", "--url", server.url(), "--data", Problems(), "--quiet",
                                    "--parallel", "1", "--output", output}));
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("| 1 errors\n"));
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("1 of 2 requests failed"));
  EXPECT_THAT(status.message(), HasSubstr("too many"));
  EXPECT_EQ(server.bodies.size(), 2u);
  std::ifstream file(output);
  std::string line;
  std::getline(file, line);
  EXPECT_THAT(Json::parse(line)["error"].get<std::string>(), HasSubstr("429"));
  std::getline(file, line);
  EXPECT_EQ(Json::parse(line)["text"], "one 1\n\n0");
}

TEST(EvalUrl, WhoIsAskedMustBeClear) {
  for (const auto& [words, part] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"eval"}, "nobody to ask"},
           {{"eval", "m", "--url", "http://127.0.0.1:1", "--data", "x"}, "leave one of them out"},
           {{"eval", "--url", "http://127.0.0.1:1"}, "--data FILE.jsonl"}}) {
    const Status status = RunEval(Of(words));
    EXPECT_EQ(ExitCode(status.code()), 2);
    EXPECT_THAT(status.message(), HasSubstr(part));
  }
}

TEST(Metrics, AreSummedOverLabels) {
  constexpr std::string_view kText =
      "# HELP a b\na{x=\"} 7\"} 1\na{x=\"2\"} 2.5\na 4\nab 8\na_total 16\na{ 32\n";
  EXPECT_EQ(SumOfMetric(kText, "a"), 7.5);
  EXPECT_EQ(SumOfMetric(kText, "none"), 0);
  EXPECT_EQ(AcceptLength({10, 20}, {10, 20}), std::nullopt);
  EXPECT_EQ(AcceptLength({10, 20}, {20, 35}), 2.5);
}

}  // namespace
}  // namespace signalbox::remote_test
