// SPDX-License-Identifier: Apache-2.0
//
// The API end to end, but for HTTP: the bundled models answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <sstream>

#include <nlohmann/json.hpp>

#include "signalbox/server/api_test_util.h"

namespace signalbox::api_service_test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

class Served {
 public:
  explicit Served(const char* name, int drafts = 0)
      : service_(*Service::Start(LoadTestModel(name, drafts), {.parallel = 4})) {}

  TextModel& model() { return service_->model(); }

  // The body of the answer, or its stream; of a refusal, the error.
  std::string Ask(const std::string& endpoint, const Json& body) {
    ApiContext context = TestContext(service_->model());
    context.max_context = 0;
    context.sampling = {};
    ApiCall call;
    const std::string text = body.dump();
    const auto error = endpoint == "chat"       ? ParseChat(text, context, &call)
                       : endpoint == "complete" ? ParseCompletion(text, context, &call)
                                                : ParseGenerate(text, context, &call);
    if (error) return error->Body();
    std::mutex mutex;
    std::condition_variable done;
    std::string events;
    for (size_t i = 0; i < call.requests.size(); ++i) {
      const auto id = service_->Submit(call.requests[i], [&, i](const TextUpdate& update) {
        const std::scoped_lock lock(mutex);
        events += call.reply->Events(i, update);
        if (call.reply->complete()) done.notify_all();
        return true;
      });
      EXPECT_TRUE(id.ok()) << id.status().ToString();
    }
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return call.reply->complete(); });
    if (call.reply->error()) return call.reply->error()->Body();
    return call.stream ? events : call.reply->Body();
  }

  Json AskJson(const std::string& endpoint, const Json& body) {
    return Json::parse(Ask(endpoint, body));
  }

 private:
  std::unique_ptr<Service> service_;
};

Served& Qwen() {
  static Served served(kTestQwen);
  return served;
}
Served& Kimi() {
  static Served served(kTestKimi);
  return served;
}

std::vector<Json> EventsOf(const std::string& stream) {
  std::vector<Json> events;
  std::istringstream in(stream);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("data: {")) events.push_back(Json::parse(line.substr(6)));
  return events;
}

constexpr const char* kApples =
    "Tom has 12 apples. Then Tom buys 7 more. How many apples does Tom have now?";

constexpr const char* kTickets =
    "Sam finds 70 tickets on Monday and 5 on Tuesday. Sam splits them equally among 5 friends and "
    "counts one share. How many tickets are there in the end?";

Json Chat(const char* text, const Json& more) {
  Json body = {{"messages", {{{"role", "user"}, {"content", text}}}}, {"temperature", 0}};
  body.update(more);
  return body;
}

TEST(ApiService, AChatIsAnsweredTheSameStreamedAndNot) {
  for (Served* served : {&Qwen(), &Kimi()}) {
    const char* question = served == &Qwen() ? kApples : kTickets;
    const Json answer = served->AskJson("chat", Chat(question, Json::object()));
    const Json& message = answer["choices"][0]["message"];
    EXPECT_THAT(message["content"].get<std::string>(), HasSubstr(served == &Qwen() ? "19" : "15"));
    EXPECT_FALSE(message["reasoning_content"].get<std::string>().empty());
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
    EXPECT_GT(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
    const std::vector<Json> events = EventsOf(served->Ask(
        "chat", Chat(question, {{"stream", true}, {"stream_options", {{"include_usage", true}}}})));
    std::string content;
    for (const Json& event : events)
      for (const Json& choice : event["choices"]) content += choice["delta"].value("content", "");
    EXPECT_EQ(content, message["content"]);
    EXPECT_EQ(events.back()["usage"]["completion_tokens"], answer["usage"]["completion_tokens"]);
  }
}

// A client that scores: one log-probability for each token of the prompt, none for the first, and
// one for the token behind it. What the model would have said itself is the likeliest, exactly.
TEST(ApiService, PromptsAreScored) {
  const Json said = Qwen().AskJson(
      "generate",
      {{"text", "Tom has 12"}, {"sampling_params", {{"max_new_tokens", 5}, {"temperature", 0}}}});
  std::vector<TokenId> ids = *Qwen().model().EncodePlain("Tom has 12");
  const size_t given = ids.size();
  for (const Json& id : said["output_ids"]) ids.push_back(id);
  for (const int most : {0, 1, 3}) {
    const Json answer = Qwen().AskJson("complete", {{"prompt", {ids, ids}},
                                                    {"max_tokens", most},
                                                    {"echo", true},
                                                    {"logprobs", 1},
                                                    {"temperature", 0},
                                                    {"ignore_eos", true},
                                                    {"seed", 1}});
    ASSERT_EQ(answer["choices"].size(), 2u);
    const Json& choice = answer["choices"][1];
    EXPECT_EQ(choice["index"], 1);
    const Json& logprobs = choice["logprobs"];
    for (const char* name : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
      EXPECT_EQ(logprobs[name].size(), ids.size() + static_cast<size_t>(most)) << name;
    EXPECT_EQ(logprobs["token_logprobs"][0], nullptr);
    EXPECT_EQ(logprobs["top_logprobs"][0], nullptr);
    bool all_greedy = true;
    for (size_t i = 1; i < ids.size(); ++i) {
      double most_likely = -1e9;
      for (const auto& [token, logprob] : logprobs["top_logprobs"][i].items())
        most_likely = std::max(most_likely, logprob.get<double>());
      const bool greedy = logprobs["token_logprobs"][i].get<double>() == most_likely;
      if (i >= given) all_greedy = all_greedy && greedy;
    }
    EXPECT_TRUE(all_greedy);
    EXPECT_THAT(choice["text"].get<std::string>(), testing::StartsWith("Tom has 12"));
    EXPECT_EQ(answer["usage"]["completion_tokens"], 2 * most);
    EXPECT_EQ(answer["usage"]["prompt_tokens"], 2 * ids.size());
  }
}

TEST(ApiService, BenchmarksGetExactlyTheTokensTheyAskFor) {
  const Json answer = Qwen().AskJson(
      "complete", {{"prompt", kApples}, {"max_tokens", 70}, {"ignore_eos", true}, {"best_of", 1}});
  EXPECT_EQ(answer["usage"]["completion_tokens"], 70);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  const Json least =
      Qwen().AskJson("chat", Chat(kApples, {{"min_tokens", 90}, {"max_tokens", 100}}));
  EXPECT_GE(least["usage"]["completion_tokens"], 90);
}

// However many tokens a step gives, the first event of each request has one.
TEST(ApiService, TheFirstEventHasOneTokenWithSpeculation) {
  Served fast(kTestQwen, /*drafts=*/3);
  const auto ids = *fast.model().EncodePlain(kApples);
  const std::vector<Json> events = EventsOf(fast.Ask(
      "generate",
      {{"input_ids", {ids, ids}},
       {"stream", true},
       {"sampling_params", {{"max_new_tokens", 16}, {"temperature", 0}, {"ignore_eos", true}}}}));
  for (const int index : {0, 1}) {
    std::vector<int> counts;
    for (const Json& event : events)
      if (event["index"] == index) counts.push_back(event["meta_info"]["completion_tokens"]);
    ASSERT_FALSE(counts.empty());
    EXPECT_EQ(counts.front(), 1);
    EXPECT_EQ(counts.back(), 16);
    EXPECT_TRUE(std::is_sorted(counts.begin(), counts.end()));
  }
  const Json& last = events.back()["meta_info"];
  EXPECT_EQ(last["finish_reason"], Json::parse(R"({"type": "length", "length": 16})"));
  EXPECT_GT(last["spec_accept_length"], 1.0);
}

TEST(ApiService, Api07ChoicesDifferAndStreamsEndWithTheLast) {
  const std::vector<Json> events = EventsOf(Qwen().Ask(
      "chat",
      Chat(kApples,
           {{"n", 3}, {"temperature", 3}, {"seed", 5}, {"max_tokens", 20}, {"stream", true}})));
  std::map<int, std::string> texts;
  std::map<int, int> ends;
  for (const Json& event : events) {
    const Json& choice = event["choices"][0];
    texts[choice["index"]] += choice["delta"].value("reasoning", "");
    ends[choice["index"]] += choice["finish_reason"].is_null() ? 0 : 1;
  }
  EXPECT_EQ(texts.size(), 3u);
  EXPECT_NE(texts[0], texts[1]);
  EXPECT_EQ(ends, (std::map<int, int>{{0, 1}, {1, 1}, {2, 1}}));
}

class ApiGrammar : public testing::Test {
 protected:
  void SetUp() override {
    const auto compiler =
        MakeGrammarCompiler(Qwen().model().tokenizer(), Qwen().model().engine().config().stop_ids);
    if (!compiler.ok()) GTEST_SKIP() << compiler.status().message();
  }

  static Json Tools() {
    return Json::parse(R"([
      {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
        "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo \"x\""]},
                       "days": {"type": "integer", "minimum": 1, "maximum": 9},
                       "fine": {"type": "boolean"}}, "required": ["city", "days"]}}},
      {"type": "function", "function": {"name": "stop"}}])");
  }
};

// Whatever is drawn, the calls are well-formed, of known tools, and their arguments fit.
TEST_F(ApiGrammar, RequiredCallsAreMade) {
  for (Served* served : {&Qwen(), &Kimi()}) {
    int weather = 0;
    for (int seed = 0; seed < 6; ++seed) {
      const bool named = seed % 2 == 0;
      const Json choice = named
                              ? Json{{"type", "function"}, {"function", {{"name", "get_weather"}}}}
                              : Json("required");
      const Json answer = served->AskJson(
          "chat", Chat("Weather?", {{"tools", Tools()},
                                    {"tool_choice", choice},
                                    {"parallel_tool_calls", seed % 4 == 0},
                                    {"temperature", 1},
                                    {"seed", seed},
                                    {"max_tokens", 200},
                                    {"chat_template_kwargs", {{"enable_thinking", seed == 0}}}}));
      ASSERT_TRUE(answer.contains("choices")) << answer;
      const Json& first = answer["choices"][0];
      if (first["finish_reason"] == "length") continue;
      EXPECT_EQ(first["finish_reason"], "tool_calls") << answer;
      EXPECT_EQ(first["message"]["content"], nullptr) << answer;
      const Json& calls = first["message"]["tool_calls"];
      EXPECT_TRUE(seed % 4 == 0 || calls.size() == 1) << answer;
      for (const Json& call : calls) {
        const Json arguments = Json::parse(call["function"]["arguments"].get<std::string>());
        if (call["function"]["name"] == "stop") {
          EXPECT_FALSE(named);
          EXPECT_EQ(arguments, Json::object());
          continue;
        }
        ++weather;
        EXPECT_TRUE(arguments["city"] == "Rome" || arguments["city"] == "Oslo \"x\"") << answer;
        EXPECT_TRUE(arguments["days"].is_number_integer() && arguments["days"] >= 1 &&
                    arguments["days"] <= 9)
            << answer;
        EXPECT_TRUE(!arguments.contains("fine") || arguments["fine"].is_boolean()) << answer;
      }
    }
    EXPECT_GT(weather, 0);
  }
}

TEST_F(ApiGrammar, NoCallIsMadeWhereNoneMayBe) {
  for (Served* served : {&Qwen(), &Kimi()}) {
    const Json answer =
        served->AskJson("chat", Chat(kApples, {{"tools", Tools()}, {"tool_choice", "none"}}));
    EXPECT_NE(answer["choices"][0]["message"]["content"], "");
    EXPECT_FALSE(answer["choices"][0]["message"].contains("tool_calls"));
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  }
}

TEST_F(ApiGrammar, Api09BadGrammarsAreRefused) {
  for (const Json& more :
       {Json{{"ebnf", "root ::= "}}, Json{{"regex", "(?<=a)b"}}, Json{{"regex", "["}},
        Json{{"json_schema", "{"}},
        Json{{"response_format",
              {{"type", "json_schema"}, {"json_schema", {{"schema", {{"not", true}}}}}}}}}) {
    const Json answer = Qwen().AskJson("chat", Chat(kApples, more));
    ASSERT_TRUE(answer.contains("error")) << more;
    EXPECT_EQ(answer["error"]["type"], "invalid_request_error");
  }
}

TEST_F(ApiGrammar, AnAnswerFitsItsSchema) {
  const Json schema = Json::parse(
      R"({"type": "object", "properties": {"z": {"type": "integer", "minimum": 0, "maximum": 99}, "a": {"type": "boolean"}}, "required": ["z", "a"]})");
  const Json answer = Qwen().AskJson(
      "chat",
      Chat(kApples,
           {{"response_format",
             {{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"schema", schema}}}}}}));
  const Json content = Json::parse(answer["choices"][0]["message"]["content"].get<std::string>());
  EXPECT_EQ(content.begin().key(), "z");
  EXPECT_TRUE(content["a"].is_boolean());
}

}  // namespace
}  // namespace signalbox::api_service_test
