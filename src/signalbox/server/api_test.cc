// SPDX-License-Identifier: Apache-2.0
//
// From bodies to what the service is asked (testdata/api/requests.txt), and from scripted updates
// to streams and bodies.
#include "signalbox/server/api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include <nlohmann/json.hpp>

#include "signalbox/server/api_test_util.h"

namespace signalbox::api_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

const TextModel& Qwen() {
  static const std::unique_ptr<TextModel> kModel = LoadTestModel(kTestQwen);
  return *kModel;
}
const TextModel& Kimi() {
  static const std::unique_ptr<TextModel> kModel = LoadTestModel(kTestKimi);
  return *kModel;
}

std::optional<ApiError> Parse(const std::string& endpoint, const std::string& body,
                              const ApiContext& context, ApiCall* call) {
  if (endpoint == "chat") return ParseChat(body, context, call);
  if (endpoint == "complete") return ParseCompletion(body, context, call);
  return ParseGenerate(body, context, call);
}

// --- Requests -----------------------------------------------------------------------------------

Json GrammarJson(const std::optional<GrammarSpec>& grammar) {
  static constexpr const char* kKinds[] = {"json_object", "json_schema", "regex", "ebnf", "calls"};
  if (!grammar) return nullptr;
  return Json::array({kKinds[static_cast<size_t>(grammar->kind)], grammar->source});
}

// The first request of a call, field by field.
Json Asked(const ApiCall& call, const TextModel& model) {
  const TextRequest& r = call.requests.at(0);
  const SamplingParams& s = r.sampling;
  Json bias = Json::object();
  for (const LogitBias& b : s.logit_bias) bias[std::to_string(b.token)] = b.bias;
  return {{"id", call.id},
          {"stream", call.stream},
          {"ignored", call.ignored},
          {"requests", call.requests.size()},
          {"prompt", model.tokenizer().Decode(r.prompt, SpecialTokens::kKeep)},
          {"ids", r.prompt},
          {"prompt_tokens", r.prompt.size()},
          {"choices", r.choices},
          {"chat", r.chat},
          {"max_new_tokens", r.max_new_tokens},
          {"min_new_tokens", r.min_new_tokens},
          {"ignore_eos", r.ignore_eos},
          {"stop", r.stop},
          {"stop_ids", r.stop_ids},
          {"include_stop", r.include_stop},
          {"skip_special", r.skip_special},
          {"sampling",
           {s.temperature, s.top_p, s.top_k, s.min_p, s.frequency_penalty, s.presence_penalty,
            s.repetition_penalty}},
          {"seed", s.seed},
          {"logit_bias", bias},
          {"logprobs", s.logprobs},
          {"prompt_logprobs", r.prompt_logprobs},
          {"types", r.types},
          {"grammar", GrammarJson(r.grammar)}};
}

TEST(Api, RequestsAskTheServiceForWhatTheySay) {
  std::ifstream file(SIGNALBOX_TESTDATA "/api/requests.txt");
  std::string line;
  ApiCall call;
  std::optional<ApiError> error;
  Json asked;
  bool met = true;
  int cases = 0;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.empty() || line[0] == '#') continue;
    SCOPED_TRACE(testing::Message() << "requests.txt line " << number << ": " << line);
    if (line.starts_with("! ")) {
      std::istringstream words(line.substr(2));
      int status = 0;
      std::string param;
      words >> status >> param >> std::ws;
      std::string text;
      std::getline(words, text);
      ASSERT_TRUE(error.has_value());
      EXPECT_EQ(error->status, status);
      EXPECT_EQ(error->param, param == "-" ? "" : param);
      EXPECT_THAT(error->message, HasSubstr(text));
      met = true;
    } else if (const size_t equals = line.find(" = "); line.find(' ') == equals) {
      ASSERT_FALSE(error.has_value()) << error->message;
      EXPECT_EQ(asked.at(line.substr(0, equals)), Json::parse(line.substr(equals + 3)));
      met = true;
    } else {
      EXPECT_TRUE(std::exchange(met, false)) << "a request of which nothing is expected";
      ++cases;
      std::string endpoint = line.substr(0, line.find(' '));
      const bool kimi = endpoint.starts_with('k');
      if (kimi) endpoint.erase(0, 1);
      const TextModel& model = kimi ? Kimi() : Qwen();
      call = {};
      error = Parse(endpoint, line.substr(line.find(' ') + 1), TestContext(model), &call);
      if (!error) asked = Asked(call, model);
    }
  }
  EXPECT_TRUE(met);
  EXPECT_GT(cases, 100);
}

constexpr const char* kFullChat = R"({
  "model": "tiny", "messages": [{"role": "user", "content": "Hi", "name": "a"}],
  "temperature": 1, "top_p": 1, "top_k": 1, "min_p": 0, "frequency_penalty": 0,
  "presence_penalty": 0, "repetition_penalty": 1, "seed": 1, "stop": ["a"],
  "stop_token_ids": [5], "no_stop_trim": false, "include_stop_str_in_output": false,
  "ignore_eos": false, "min_tokens": 0, "max_tokens": 5, "max_completion_tokens": 5, "n": 1,
  "best_of": 1, "logprobs": true, "top_logprobs": 1, "logit_bias": {"5": 1}, "stream": true,
  "stream_options": {"include_usage": true, "continuous_usage_stats": true},
  "response_format": {"type": "text"}, "tools": [{"type": "function", "function": {"name": "f",
  "description": "d", "parameters": {}, "strict": true}}], "tool_choice": "auto",
  "parallel_tool_calls": true, "chat_template_kwargs": {}, "reasoning_effort": "low",
  "reasoning": {"enabled": true}, "enable_thinking": true, "separate_reasoning": true,
  "stream_reasoning": true, "continue_final_message": false, "add_generation_prompt": true,
  "skip_special_tokens": true, "spaces_between_special_tokens": true, "user": "u",
  "metadata": {}, "rid": "r", "return_token_ids": true})";
constexpr const char* kFullCompletion = R"({
  "model": "tiny", "prompt": "a", "temperature": 1, "top_p": 1, "top_k": 1, "min_p": 0,
  "seed": 1, "stop": ["a"], "stop_token_ids": [5], "ignore_eos": false, "min_tokens": 0,
  "max_tokens": 5, "n": 1, "best_of": 1, "logprobs": 1, "echo": true, "logit_bias": {"5": 1},
  "stream": true, "stream_options": {"include_usage": true}, "response_format": {"type": "text"},
  "suffix": "", "user": "u", "return_token_ids": true})";
constexpr const char* kFullGenerate = R"({
  "text": "a", "sampling_params": {"temperature": 1, "top_p": 1, "top_k": 1, "min_p": 0,
  "frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1, "sampling_seed": 1,
  "stop": ["a"], "stop_token_ids": [5], "no_stop_trim": false, "ignore_eos": false,
  "min_new_tokens": 0, "max_new_tokens": 5, "n": 1, "logit_bias": {"5": 1}, "stream_interval": 1,
  "skip_special_tokens": true, "spaces_between_special_tokens": true},
  "return_logprob": true, "logprob_start_len": 0, "top_logprobs_num": 1, "stream": true,
  "return_text_in_logprobs": true, "rid": "r"})";

// Every value of `json`, at any depth, replaced by `wrong`.
void EachReplaced(Json& json, Json& place, const Json& wrong,
                  const std::function<void(const Json&)>& see) {
  for (auto& [key, value] : place.items()) {
    const Json kept = value;
    value = wrong;
    see(json);
    value = kept;
    if (value.is_structured()) EachReplaced(json, value, wrong, see);
  }
}

TEST(Api, Rob01BadFieldsAre400) {
  const std::pair<const char*, const char*> bodies[] = {
      {"chat", kFullChat}, {"complete", kFullCompletion}, {"generate", kFullGenerate}};
  const Json wrongs[] = {Json::parse("[[[]]]"),
                         Json::parse(R"({"": {"x": []}})"),
                         "\u0000\n\xf4\x8f\xbf\xbf",
                         -1e300,
                         18446744073709551615u,
                         INT64_MIN,
                         true,
                         nullptr,
                         "",
                         Json::array(),
                         0.5};
  for (const auto& [name, text] : bodies) {
    const char* const endpoint = name;
    Json body = Json::parse(text);
    ApiCall call;
    ASSERT_FALSE(Parse(endpoint, text, TestContext(Qwen()), &call)) << endpoint;
    EXPECT_THAT(call.ignored, ElementsAre());
    int refused = 0;
    for (const Json& wrong : wrongs) {
      EachReplaced(body, body, wrong, [&](const Json& replaced) {
        ApiCall other;
        const auto error = Parse(endpoint, replaced.dump(), TestContext(Qwen()), &other);
        if (!error) return;
        ++refused;
        EXPECT_TRUE(error->status == 400 || error->status == 404) << replaced << error->message;
        EXPECT_FALSE(error->param.empty()) << replaced << error->message;
      });
    }
    EXPECT_GT(refused, 100);
  }
}

// No field has a null that means more than its absence.
TEST(Api, NullIsAbsent) {
  const std::pair<const char*, const char*> bodies[] = {
      {"chat", kFullChat}, {"complete", kFullCompletion}, {"generate", kFullGenerate}};
  for (const auto& [endpoint, text] : bodies) {
    const Json body = Json::parse(text);
    for (const auto& [key, value] : body.items()) {
      Json with_null = body;
      with_null[key] = nullptr;
      Json without = body;
      without.erase(key);
      ApiCall a;
      ApiCall b;
      const auto error_a = Parse(endpoint, with_null.dump(), TestContext(Qwen()), &a);
      const auto error_b = Parse(endpoint, without.dump(), TestContext(Qwen()), &b);
      ASSERT_EQ(error_a.has_value(), error_b.has_value()) << key;
      if (error_a) {
        EXPECT_EQ(error_a->message, error_b->message);
        continue;
      }
      Json asked_a = Asked(a, Qwen());
      Json asked_b = Asked(b, Qwen());
      for (const char* drawn : {"seed", "id"}) {
        asked_a.erase(drawn);
        asked_b.erase(drawn);
      }
      EXPECT_EQ(asked_a, asked_b) << key;
    }
  }
}

TEST(Api, Rob05ErrorsOfBadBytesAreJson) {
  for (const std::string& body :
       {std::string("{\"messages\": \"\xff\xfe\"}"), std::string("\xc3"),
        std::string("{\"a\0b\": 1}", 10), std::string("{\"model\": \"\\ud800\"}"), std::string(),
        std::string(100000, '[')}) {
    ApiCall call;
    const auto error = ParseChat(body, TestContext(Qwen()), &call);
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->status, 400);
    const Json told = Json::parse(error->Body());
    EXPECT_EQ(told["error"]["type"], "invalid_request_error");
    EXPECT_EQ(told["error"]["param"], nullptr);
  }
  const Json told = Json::parse(ApiError{.param = "\xff", .message = "a\xf0\x9f"}.Body());
  EXPECT_EQ(told["error"]["message"], "a\xef\xbf\xbd");
}

TEST(Api, Rob03OverlongPromptsAreRefusedWithTheNumbers) {
  std::string words;
  for (int i = 0; i < 500; ++i) words += " 7";
  for (const std::string endpoint : {"chat", "complete", "generate"}) {
    const Json body = {{"messages", {{{"role", "user"}, {"content", words}}}},
                       {endpoint == "generate" ? "text" : "prompt", words}};
    ApiCall call;
    const auto error = Parse(endpoint, body.dump(), TestContext(Qwen()), &call);
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->status, 400);
    EXPECT_EQ(error->code, "context_length_exceeded");
    EXPECT_THAT(error->message, HasSubstr("maximum context length is 498 tokens"));
    EXPECT_THAT(error->message, HasSubstr("in the prompt"));
  }
}

TEST(Api, StrictCallersAreToldOfUnknownFields) {
  ApiContext context = TestContext(Qwen());
  context.strict = true;
  ApiCall call;
  const auto error = ParseCompletion(R"({"prompt": "a", "tempature": 1})", context, &call);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->param, "tempature");
}

TEST(Api, Txt01SystemMessagesComeFirstWhereTheTemplateDemandsIt) {
  const std::string body = R"({"messages": [
    {"role": "system", "content": "One."}, {"role": "user", "content": "Hi"},
    {"role": "developer", "content": [{"type": "text", "text": "Two."}]},
    {"role": "user", "content": "Ho"}]})";
  ApiCall call;
  ASSERT_FALSE(ParseChat(body, TestContext(Qwen()), &call));
  EXPECT_THAT(
      Qwen().tokenizer().Decode(call.requests[0].prompt, SpecialTokens::kKeep),
      testing::StartsWith("<|im_start|>system\nOne.\n\nTwo.<|im_end|>\n<|im_start|>user\n"));
  // XTML takes them where they are.
  ASSERT_FALSE(ParseChat(body, TestContext(Kimi()), &call));
  EXPECT_THAT(
      Kimi().tokenizer().Decode(call.requests.back().prompt, SpecialTokens::kKeep),
      HasSubstr(
          R"(Hi<|close|>message<|sep|><|end_of_msg|><|open|>message role="system"<|sep|>Two.)"));
}

TEST(Api, Txt07MalformedCallsInHistoryStayReadable) {
  for (const std::string arguments : {R"({\"city\": \"Ro)", "", "  ", "7", R"(\"Rome\")", "{}"}) {
    for (const TextModel* model : {&Qwen(), &Kimi()}) {
      ApiCall call;
      const auto error = ParseChat(
          R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [
          {"id": "x", "type": "function", "function": {"name": "w", "arguments": ")" +
              arguments + R"("}}]}, {"role": "tool", "tool_call_id": "x", "content": "sun"}]})",
          TestContext(*model), &call);
      EXPECT_FALSE(error) << arguments << error->message;
    }
  }
}

TEST(Api, Txt13ForeignToolIdsInHistory) {
  for (const std::string id : {"call_abc123", "functions.w:0", "toolu_01", ""}) {
    ApiCall call;
    const auto error = ParseChat(
        R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [
        {"id": ")" +
            id +
            R"(", "type": "function", "function": {"name": "w", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": ")" +
            id + R"(", "content": "sun"}]})",
        TestContext(Kimi()), &call);
    ASSERT_FALSE(error) << id << error->message;
    EXPECT_THAT(Kimi().tokenizer().Decode(call.requests[0].prompt, SpecialTokens::kKeep),
                HasSubstr(R"(message role="tool" tool="w" index="1"<|sep|>sun)"));
  }
}

TEST(Api, Txt14NoTokenIsAddedToAPrompt) {
  const std::string text = "<|im_start|>user\nHi<|im_end|>\n";
  const auto ids = Qwen().tokenizer().EncodeTrusted(text);
  for (const char* field : {"", R"(, "add_special_tokens": true)"}) {
    ApiCall call;
    ASSERT_FALSE(ParseCompletion("{\"prompt\": " + Json(text).dump() + field + "}",
                                 TestContext(Qwen()), &call));
    EXPECT_EQ(call.requests[0].prompt, *ids);
  }
}

// --- Answers ------------------------------------------------------------------------------------

// An answer of one choice as the service tells it, cut into updates as `cuts` says.
struct Script {
  std::string text;  // in which added tokens are meant
  FinishReason finish = FinishReason::kStop;
  int32_t choice = 0;
};

class Teller {
 public:
  Teller(const ApiCall& call, const TextModel& model, const Script& script)
      : request_(call.requests[0]),
        stream_(*model.StreamOf(request_)),
        ids_(*model.tokenizer().EncodeTrusted(script.text)),
        script_(script) {}

  bool done() const { return stream_.finished(); }

  // The next `count` tokens.
  std::string Tell(size_t count, ApiReply& reply) {
    std::vector<SampledToken> tokens;
    std::vector<TokenId> ids;
    for (size_t i = 0; i < count && next_ < ids_.size(); ++i, ++next_) {
      const TokenId id = ids_[next_];
      const double logprob = -0.25 * static_cast<double>(next_ % 7);
      tokens.push_back({.token = id, .logprob = logprob, .top = {{id, logprob}, {9, -9.5}}});
      ids.push_back(id);
    }
    TextUpdate update{.choice = script_.choice, .stats = {.cached_tokens = 3}};
    update.delta = stream_.Push(ids);
    update.tokens = std::span(tokens).first(static_cast<size_t>(update.delta.tokens));
    const Generated last{.finish = script_.finish};
    if (next_ == ids_.size() && !stream_.finished()) {
      AnswerDelta end = stream_.Finish(script_.finish == FinishReason::kStop);
      update.delta.text += end.text;
      update.delta.events.insert(update.delta.events.end(), end.events.begin(), end.events.end());
    }
    if (stream_.finished()) {
      update.result = TextModel::ResultOf(request_, stream_.answer(), last);
    }
    return reply.Events(0, update);
  }

 private:
  TextRequest request_;
  AnswerStream stream_;
  std::vector<TokenId> ids_;
  Script script_;
  size_t next_ = 0;
};

// The whole answer of a request whose choices say these texts, `sizes` tokens at a time.
std::string Told(const std::string& endpoint, const Json& body, const TextModel& model,
                 const std::vector<Script>& scripts, std::vector<size_t> sizes) {
  ApiContext context = TestContext(model);
  context.request_id = "id";
  ApiCall call;
  const auto error = Parse(endpoint, body.dump(), context, &call);
  EXPECT_FALSE(error) << error->message;
  if (error) return "";
  std::vector<Teller> tellers;
  for (const Script& script : scripts) tellers.emplace_back(call, model, script);
  std::string events;
  for (size_t round = 0; !call.reply->complete(); ++round) {
    EXPECT_LT(round, 10000u);
    for (Teller& teller : tellers)
      if (!teller.done()) events += teller.Tell(sizes[round % sizes.size()], *call.reply);
  }
  return call.stream ? events : call.reply->Body();
}

std::vector<Json> EventsOf(const std::string& stream) {
  std::vector<Json> events;
  EXPECT_THAT(stream, testing::EndsWith("data: [DONE]\n\n"));
  std::istringstream in(stream);
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line == "data: [DONE]") continue;
    EXPECT_THAT(line, testing::StartsWith("data: {"));
    EXPECT_LT(line.size(), 64u << 10);
    events.push_back(Json::parse(line.substr(6)));
  }
  return events;
}

// What a client makes of a stream of chunks: the choices of the answer that is not streamed.
Json Summed(const std::vector<Json>& events) {
  Json choices = Json::array();
  for (const Json& event : events) {
    for (const Json& chunk : event["choices"]) {
      const size_t index = chunk["index"];
      while (choices.size() <= index) choices.push_back({{"index", choices.size()}});
      Json& choice = choices[index];
      const auto add = [](Json& to, const Json& from, const char* name) {
        if (!from.contains(name) || from[name].is_null()) return;
        to[name] =
            (to.contains(name) ? to[name].get<std::string>() : "") + from[name].get<std::string>();
      };
      add(choice, chunk, "text");
      for (const char* name : {"content", "reasoning_content", "reasoning"})
        if (chunk.contains("delta")) add(choice["message"], chunk["delta"], name);
      for (const Json& call :
           chunk.value("delta", Json::object()).value("tool_calls", Json::array())) {
        Json& calls = choice["message"]["tool_calls"];
        const size_t at = call["index"];
        if (calls.size() <= at) {
          EXPECT_EQ(calls.size(), at);
          calls.push_back(
              {{"id", call["id"]}, {"type", call["type"]}, {"function", call["function"]}});
        } else {
          add(calls[at]["function"], call["function"], "arguments");
        }
      }
      const Json logprobs = chunk.value("logprobs", Json());
      for (const auto& [name, list] : logprobs.items())
        for (const Json& one : list) choice["logprobs"][name].push_back(one);
      for (const Json& id : chunk.value("token_ids", Json::array()))
        choice["token_ids"].push_back(id);
      if (!chunk["finish_reason"].is_null()) {
        EXPECT_FALSE(choice.contains("finish_reason"));
        choice["finish_reason"] = chunk["finish_reason"];
        choice["matched_stop"] = chunk["matched_stop"];
      }
    }
  }
  return choices;
}

// The same, of an answer that was not streamed: fields that have nothing go.
Json ChoicesOf(Json body) {
  for (Json& choice : body["choices"]) {
    if (choice.contains("message")) {
      choice["message"].erase("role");
      Json& message = choice["message"];
      if (message["content"].is_null()) message["content"] = "";
    }
    for (const char* name : {"logprobs", "prompt_token_ids"})
      if (choice.contains(name) && (choice[name].is_null() || name[0] == 'p')) choice.erase(name);
  }
  return body["choices"];
}

// Objects without the order of their keys.
nlohmann::json Sorted(const Json& json) {
  return nlohmann::json::parse(json.dump());
}

Json Hi(Json more) {
  Json body = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
  if (!more.empty()) body.update(more);
  return body;
}

const std::string kXmlAnswer =
    "Let me see: \xf0\x9f\x98\x80.\n</think>\n\nI "
    "look.\n\n<tool_call>\n<function=w>\n<parameter=city>\n"
    "R\xc3\xb6m \"x\"\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n"
    "<tool_call>\n<function=t>\n</function>\n</tool_call>";
const std::string kXtmlAnswer =
    "Let me see.<|close|>think<|sep|><|open|>response<|sep|>I look.<|close|>response<|sep|>"
    "<|open|>tools<|sep|><|open|>call tool=\"w\" index=\"1\"<|sep|><|open|>argument key=\"city\" "
    "type=\"string\"<|sep|>R\xc3\xb6m<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|"
    "sep|>"
    "<|close|>message<|sep|>";
Json Tools() {
  return Json::parse(R"([{"type": "function", "function": {"name": "w", "parameters": {"type":
    "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}},
    {"type": "function", "function": {"name": "t"}}])");
}

// TXT-09: streamed or not, and whatever the steps, it is one answer.
RC_GTEST_PROP(Api, Txt09AStreamAddsUpToTheBody, ()) {
  const auto sizes =
      *rc::gen::nonEmpty(rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(1, 9)));
  const bool kimi = *rc::gen::arbitrary<bool>();
  Json more = {{"logprobs", *rc::gen::arbitrary<bool>()},
               {"separate_reasoning", *rc::gen::arbitrary<bool>()},
               {"stream_reasoning", *rc::gen::arbitrary<bool>()},
               {"parallel_tool_calls", *rc::gen::arbitrary<bool>()},
               {"return_token_ids", *rc::gen::arbitrary<bool>()},
               {"n", 2},
               {"tools", Tools()}};
  if (*rc::gen::arbitrary<bool>())
    more["stop"] = *rc::gen::element<std::string>("look", "</fun", "m ");
  const TextModel& model = kimi ? Kimi() : Qwen();
  const std::string answer = kimi ? kXtmlAnswer : kXmlAnswer;
  const std::vector<Script> scripts = {
      {answer, FinishReason::kStop, 0},
      {answer.substr(0, answer.size() / 2), FinishReason::kLength, 1}};
  const Json whole = Json::parse(Told("chat", Hi(more), model, scripts, {1}));
  const Json body = Json::parse(Told("chat", Hi(more), model, scripts, sizes));
  more["stream"] = true;
  more["stream_options"] = {{"include_usage", true}};
  const std::vector<Json> events = EventsOf(Told("chat", Hi(more), model, scripts, sizes));
  RC_ASSERT(Sorted(Summed(events)) == Sorted(ChoicesOf(body)));
  RC_ASSERT(events.back()["usage"] == body["usage"]);
  RC_ASSERT(whole["choices"] == body["choices"]);
}

RC_GTEST_PROP(Api, Txt09ACompletionsStreamAddsUpToTheBody, ()) {
  const auto sizes =
      *rc::gen::nonEmpty(rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(1, 9)));
  Json body = {
      {"prompt", "R\xc3\xb6m is"}, {"echo", *rc::gen::arbitrary<bool>()}, {"max_tokens", 100}};
  if (*rc::gen::arbitrary<bool>()) body["logprobs"] = 1;
  if (*rc::gen::arbitrary<bool>()) body["stop"] = "is o";
  if (*rc::gen::arbitrary<bool>()) body["skip_special_tokens"] = false;
  const std::vector<Script> scripts = {
      {" old \xf0\x9f\x98\x80<|im_end|>. It is old.", FinishReason::kStop}};
  const Json whole = Json::parse(Told("complete", body, Qwen(), scripts, sizes));
  body["stream"] = true;
  const std::vector<Json> events = EventsOf(Told("complete", body, Qwen(), scripts, sizes));
  RC_ASSERT(Sorted(Summed(events)) == Sorted(ChoicesOf(whole)));
}

RC_GTEST_PROP(Api, GenerateTellsAllThereIsSoFar, ()) {
  const auto sizes =
      *rc::gen::nonEmpty(rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(1, 9)));
  Json body = {
      {"text", "R\xc3\xb6m is"}, {"return_logprob", true}, {"sampling_params", {{"stop", "is o"}}}};
  const std::vector<Script> scripts = {{" old \xf0\x9f\x98\x80. It is old.", FinishReason::kStop}};
  Json whole = Json::parse(Told("generate", body, Qwen(), scripts, sizes));
  body["stream"] = true;
  std::vector<Json> events = EventsOf(Told("generate", body, Qwen(), scripts, sizes));
  for (Json* last : {&whole, &events.back()}) last->at("meta_info").erase("e2e_latency");
  RC_ASSERT(events.back() == whole);
  RC_ASSERT(whole["text"] == " old \xf0\x9f\x98\x80. It ");
  RC_ASSERT(events[0]["meta_info"]["completion_tokens"] == 1);
  std::string before;
  for (const Json& event : events) {
    RC_ASSERT(event["text"].get<std::string>().starts_with(before));
    before = event["text"];
    RC_ASSERT(event["meta_info"]["finish_reason"].is_null() == (&event != &events.back()));
  }
}

// A stream as a client gets it, to the letter.
TEST(Api, AChatStreamToTheLetter) {
  std::string stream =
      Told("chat", Hi({{"stream", true}, {"stream_options", {{"include_usage", true}}}}), Qwen(),
           {{"So.\n</think>\n\nYes.", FinishReason::kStop}}, {10});
  stream = std::regex_replace(stream, std::regex("\"created\":[0-9]+"), "\"created\":0");
  const std::string head =
      R"(data: {"id":"chatcmpl-id","object":"chat.completion.chunk","created":0,"model":"tiny","choices":[)";
  EXPECT_EQ(
      stream,
      head + R"({"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]})" +
          "\n\n" + head +
          R"({"index":0,"delta":{"reasoning_content":"So.","reasoning":"So."},"finish_reason":null}]})" +
          "\n\n" + head + R"({"index":0,"delta":{"content":"Yes."},"finish_reason":null}]})" +
          "\n\n" + head + R"({"index":0,"delta":{},"finish_reason":"stop","matched_stop":null}]})" +
          "\n\n" + head +
          R"(],"usage":{"prompt_tokens":14,"completion_tokens":10,"total_tokens":24,)"
          R"("prompt_tokens_details":{"cached_tokens":3},"completion_tokens_details":{"reasoning_tokens":5}}})" +
          "\n\n" + "data: [DONE]\n\n");
}

// API-01: usage comes when it is asked for, once, last.
TEST(Api, Api01UsageOnlyWhenAskedFor) {
  const std::vector<Script> scripts = {{"So.\n</think>\n\nYes.", FinishReason::kStop}};
  for (const Json& event : EventsOf(Told("chat", Hi({{"stream", true}}), Qwen(), scripts, {1}))) {
    EXPECT_FALSE(event.contains("usage"));
    EXPECT_EQ(event["choices"].size(), 1u);
  }
  const Json asked = {{"stream", true}, {"stream_options", {{"include_usage", true}}}};
  std::vector<Json> events = EventsOf(Told("chat", Hi(asked), Qwen(), scripts, {1}));
  EXPECT_TRUE(events.back()["choices"].empty());
  EXPECT_TRUE(events.back().contains("usage"));
  events.pop_back();
  for (const Json& event : events) EXPECT_FALSE(event.contains("usage"));
  const Json always = {
      {"stream", true},
      {"stream_options", {{"include_usage", true}, {"continuous_usage_stats", true}}}};
  int64_t tokens = 0;
  for (const Json& event : EventsOf(Told("chat", Hi(always), Qwen(), scripts, {1}))) {
    EXPECT_GE(event["usage"]["completion_tokens"], tokens);
    tokens = event["usage"]["completion_tokens"];
  }
  EXPECT_EQ(tokens, 10);
}

// API-03: each event is whole characters.
TEST(Api, Api03NoCharacterIsCut) {
  for (const char* endpoint : {"chat", "complete", "generate"}) {
    Json body = Hi({{"stream", true}});
    body[std::string(endpoint) == "generate" ? "text" : "prompt"] = "a";
    for (const Json& event : EventsOf(
             Told(endpoint, body, Qwen(),
                  {{"\xed\x95\x9c\xf0\x9f\x98\x80</think>\xc3\xa9", FinishReason::kStop}}, {1}))) {
      EXPECT_EQ(event.dump().find("\xef\xbf\xbd"), std::string::npos) << event;
    }
  }
}

// API-05: what may begin a stop string waits.
TEST(Api, Api05NoPartOfAStopStringIsTold) {
  for (const size_t size : {1, 2, 3, 7}) {
    const std::string stream =
        Told("complete", {{"prompt", "a"}, {"stop", "</answer>"}, {"stream", true}}, Qwen(),
             {{"42</answer> 43", FinishReason::kStop}}, {size});
    const Json choice = Summed(EventsOf(stream))[0];
    EXPECT_EQ(choice["text"], "42");
    EXPECT_EQ(choice["matched_stop"], "</answer>");
    EXPECT_EQ(stream.find("<"), stream.find("</answer>"));
  }
}

// API-07: a stream ends with its last choice, and each has its own end.
TEST(Api, Api07EveryChoiceEndsByItself) {
  const std::vector<Json> events =
      EventsOf(Told("chat", Hi({{"stream", true}, {"n", 3}}), Qwen(),
                    {{"a</think>one", FinishReason::kStop, 0},
                     {"a</think>two and much more", FinishReason::kLength, 1},
                     {"a</think>", FinishReason::kCancelled, 2}},
                    {2}));
  const Json choices = Summed(events);
  ASSERT_EQ(choices.size(), 3u);
  EXPECT_EQ(choices[0]["finish_reason"], "stop");
  EXPECT_EQ(choices[1]["finish_reason"], "length");
  EXPECT_EQ(choices[1]["message"]["content"], "two and much more");
  EXPECT_EQ(choices[2]["finish_reason"], "abort");
}

// TXT-03: an answer without thought is content, TXT-05: a call within the thought is a call.
TEST(Api, Txt03And05WhatIsThoughtAndWhatIsSaid) {
  const Json direct =
      Json::parse(Told("chat", Hi({}), Qwen(), {{"It is 4.", FinishReason::kStop}}, {1}));
  EXPECT_EQ(direct["choices"][0]["message"]["content"], "It is 4.");
  const Json called = Json::parse(Told(
      "chat", Hi({{"tools", Tools()}}), Qwen(),
      {{"Hm.\n<tool_call>\n<function=t>\n</function>\n</tool_call>", FinishReason::kStop}}, {1}));
  const Json& choice = called["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "t");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{}");
}

TEST(Api, ReasoningIsToldAsAskedFor) {
  const std::vector<Script> scripts = {{"So.\n</think>\n\nYes.", FinishReason::kStop}};
  const auto message = [&](const Json& more) {
    return Json::parse(Told("chat", Hi(more), Qwen(), scripts, {1}))["choices"][0]["message"];
  };
  EXPECT_EQ(message({}), Json::parse(R"({"role": "assistant", "content": "Yes.",
                                         "reasoning_content": "So.", "reasoning": "So."})"));
  EXPECT_EQ(message({{"separate_reasoning", false}})["content"], "<think>\nSo.\n</think>\n\nYes.");
  EXPECT_EQ(message({{"reasoning", {{"exclude", true}}}}),
            Json::parse(R"({"role": "assistant", "content": "Yes."})"));
}

TEST(Api, AnAnswerThatFailsEndsItsStreamWithAnError) {
  for (const bool stream : {true, false}) {
    ApiCall call;
    ASSERT_FALSE(ParseChat(Hi({{"stream", stream}, {"n", 2}}).dump(), TestContext(Qwen()), &call));
    Teller teller(call, Qwen(), {"So.\n</think>\n\nYes.", FinishReason::kStop});
    std::string events = teller.Tell(3, *call.reply);
    TextUpdate failed{.choice = 1};
    failed.result = TextResult{.finish = FinishReason::kFailed,
                               .status = Internal({.what = "the engine has stopped"})};
    events += call.reply->Events(0, failed);
    events += teller.Tell(100, *call.reply);
    EXPECT_TRUE(call.reply->complete());
    ASSERT_TRUE(call.reply->error().has_value());
    EXPECT_EQ(call.reply->error()->status, 500);
    if (!stream) continue;
    const std::vector<Json> told = EventsOf(events);
    EXPECT_EQ(told.back()["error"]["message"],
              "the server failed on this request, whose id is " + call.id);
  }
}

// --- Tokens -------------------------------------------------------------------------------------

TEST(Api, TokenizersAreThereAndBack) {
  const ApiContext context = TestContext(Qwen());
  const ApiAnswer info = TokenizerInfo(context);
  EXPECT_EQ(Json::parse(info.body)["eos_token"], "<|im_end|>");
  EXPECT_THAT(Json::parse(info.body)["chat_template"].get<std::string>(), HasSubstr("<think>"));
  const Json eos = Json::parse(
      Tokenize(R"({"prompt": "<|im_end|>", "add_special_tokens": false})", context).body);
  EXPECT_EQ(eos["tokens"], Json::array({653}));
  EXPECT_EQ(eos["count"], 1);
  for (const char* text : {"Hi R\xc3\xb6m", "<think>\n", ""}) {
    const Json tokens = Json::parse(Tokenize(Json{{"prompt", text}}.dump(), context).body);
    const Json back =
        Json::parse(Detokenize(Json{{"tokens", tokens["tokens"]}}.dump(), context).body);
    EXPECT_EQ(back["prompt"], text);
  }
  const Json two =
      Json::parse(Tokenize(R"({"prompt": ["a", "b"], "return_token_strs": true})", context).body);
  EXPECT_EQ(two["count"], Json::array({1, 1}));
  EXPECT_EQ(two["token_strs"], Json::parse(R"([["a"], ["b"]])"));
  const Json chat =
      Json::parse(Tokenize(R"({"messages": [{"role": "user", "content": "Hi"}]})", context).body);
  EXPECT_EQ(chat["count"], 14);
  EXPECT_EQ(Tokenize(R"({"prompt": 5})", context).error->param, "prompt");
  EXPECT_EQ(Tokenize("{}", context).error->status, 400);
  EXPECT_EQ(Detokenize(R"({"tokens": [660]})", context).error->param, "tokens");
  EXPECT_EQ(Detokenize(R"({"tokens": "x"})", context).error->param, "tokens");
}

}  // namespace
}  // namespace signalbox::api_test
