// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/xtml_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "signalbox/text/chat_template.h"

namespace signalbox::xtml_format_test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

const std::filesystem::path kTiny = SIGNALBOX_SOURCE_DIR "/models/tiny-kimi-k3-mxfp4";

const Tokenizer& Tiny() {
  static const Tokenizer kTokenizer = *Tokenizer::LoadModel(kTiny);
  return kTokenizer;
}

std::vector<TokenId> Ids(const Segments& segments) {
  const auto ids = Tiny().Encode(segments);
  EXPECT_TRUE(ids.ok()) << ids.status().ToString();
  return ids.ok() ? *ids : std::vector<TokenId>();
}

// tools/make_xtml_goldens.py writes the conversations and how its reference renders them.
TEST(XtmlFormat, AgreesWithTheReference) {
  std::ifstream in(SIGNALBOX_TESTDATA "/xtml/conversations.json");
  const Json cases = Json::parse(in);
  EXPECT_GE(cases.size(), 40u);
  for (const Json& c : cases) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const auto prompt = XtmlFormat().Render({.messages = c["messages"].dump(),
                                             .tools = c["tools"].is_null() ? "" : c["tools"].dump(),
                                             .extra = c["extra"].dump(),
                                             .add_generation_prompt = c["prompt"].get<bool>()});
    ASSERT_TRUE(prompt.ok()) << prompt.status().ToString();
    Segments expected;
    for (const Json& segment : c["segments"]) {
      expected.push_back({segment[0].get<std::string>(), segment[1].get<bool>(), true});
    }
    EXPECT_EQ(PlainText(*prompt), PlainText(expected));
    EXPECT_EQ(*prompt, expected);
    EXPECT_EQ(Ids(*prompt), c["ids"].get<std::vector<TokenId>>());
  }
}

// The bundled model's problems come with the ids it was trained on.
TEST(XtmlFormat, PromptsOfTheBundledModel) {
  const auto format = LoadChatFormat(kTiny, Tiny());
  ASSERT_TRUE(format.ok()) << format.status().ToString();
  std::ifstream in(kTiny / "eval.jsonl");
  size_t count = 0;
  for (std::string line; std::getline(in, line); ++count) {
    const Json problem = Json::parse(line);
    const Json messages = {{{"role", "user"}, {"content", problem["question"]}}};
    const auto prompt = (*format)->Render({.messages = messages.dump()});
    ASSERT_TRUE(prompt.ok()) << prompt.status().ToString();
    ASSERT_EQ(PlainText(*prompt), problem["prompt"].get<std::string>());
    ASSERT_EQ(Ids(*prompt), problem["prompt_ids"].get<std::vector<TokenId>>());
  }
  EXPECT_EQ(count, 600u);
}

TEST(XtmlFormat, ATemplateOfTheCheckpointComesFirst) {
  const auto qwen = LoadChatFormat(SIGNALBOX_SOURCE_DIR "/models/tiny-qwen3.5-moe-mxfp4", Tiny());
  ASSERT_TRUE(qwen.ok()) << qwen.status().ToString();
  EXPECT_NE(dynamic_cast<const ChatTemplate*>(qwen->get()), nullptr);
}

TEST(XtmlFormat, NeedsTheMarkers) {
  const auto qwen = Tokenizer::LoadModel(SIGNALBOX_SOURCE_DIR "/models/tiny-qwen3.5-moe-mxfp4");
  ASSERT_TRUE(qwen.ok());
  const auto format = LoadChatFormat(kTiny, *qwen);
  EXPECT_EQ(format.status().code(), StatusCode::kNotFound);
}

TEST(XtmlFormat, Refuses) {
  const struct {
    std::string messages;
    std::string extra;
    std::string_view message;
  } cases[] = {
      {"", "", "not valid JSON (messages)"},
      {"{}", "", "(messages): expected an array"},
      {"[1]", "", "messages[0]"},
      {"[{}]", "", "unknown role (messages[0].role): found ''"},
      {R"([{"role": 1}])", "", "unknown role (messages[0].role)"},
      {R"([{"role": "user"}, {"role": "User"}])", "", "messages[1].role): found 'User'"},
      {R"([{"role": "user", "content": 1}])", "", "messages[0].content"},
      {R"([{"role": "user", "content": {}}])", "", "messages[0].content"},
      {R"([{"role": "user", "content": ["a"]}])", "", "a part that is no text"},
      {R"([{"role": "user", "content": [{"type": "image_url"}]}])", "", "a part that is no text"},
      {R"([{"role": "tool", "content": "a"}])", "", "unknown tool (messages[0])"},
      {R"([{"role": "assistant", "tool_calls": {}}])", "", "messages[0].tool_calls"},
      {R"([{"role": "assistant", "tool_calls": [1]}])", "", "messages[0].tool_calls[0]"},
      {R"([{"role": "assistant", "tool_calls": [{"function": {}}]}])", "", "function.name"},
      {R"([{"role": "assistant", "tool_calls": [{"name": "f", "arguments": [1]}]}])", "",
       "tool_calls[0].arguments"},
      {R"([{"role": "assistant", "tool_calls": [{"name": "f", "arguments": "[1]"}]}])", "",
       "tool_calls[0].arguments"},
      {R"([{"role": "assistant", "tool_calls": [{"name": "f"}]},
           {"role": "tool"}, {"role": "tool"}])",
       "", "unknown tool (messages[2])"},
      {"[]", "[]", "(chat_template_kwargs): expected an object"},
      {"[]", R"({"tools": []})", "cannot set 'tools'"},
      {"[]", R"({"enable_thinking": 1})", "chat_template_kwargs.enable_thinking"},
      {"[]", R"({"thinking": "yes"})", "chat_template_kwargs.thinking"},
      {"[]", R"({"thinking_effort": "most"})", "low, medium, high, max or null"},
      {"[]", R"({"thinking_effort": 3})", "low, medium, high, max or null"},
      {"[]", R"({"response_format": {"type": "json_schema"}})", "response_format"},
  };
  for (const auto& [messages, extra, message] : cases) {
    const auto prompt = XtmlFormat().Render({.messages = messages, .tools = "", .extra = extra});
    EXPECT_EQ(prompt.status().code(), StatusCode::kInvalidArgument) << messages << extra;
    EXPECT_THAT(prompt.status().message(), HasSubstr(message)) << messages << extra;
  }
}

// A conversation in which `text` is everything that a user, a tool or a client can write.
Segments ConversationOf(const std::string& text) {
  const Json call = {{"id", "i"},
                     {"function",
                      {{"name", text},
                       {"arguments", {{text, text}, {"list", Json::array({text, {{text, 1}}})}}}}}};
  const Json broken = {{"function", {{"name", "f"}, {"arguments", "{" + text}}}};
  const Json messages = {
      {{"role", "system"}, {"content", text}, {"name", text}},
      {{"role", "system"}, {"tools", Json::array({{{"name", text}}})}},
      {{"role", "user"}, {"content", Json::array({{{"text", text}}, {{"text", text}}})}},
      {{"role", "assistant"},
       {"content", text},
       {"reasoning_content", "r" + text},
       {"tool_calls", {call, broken}}},
      {{"role", "tool"}, {"content", text}, {"tool_call_id", "i"}},
      {{"role", "tool"}, {"content", text}, {"tool", text}}};
  const Json extra = {{"response_format",
                       {{"type", "json_schema"}, {"json_schema", {{"schema", {{text, text}}}}}}}};
  const auto prompt = XtmlFormat().Render({.messages = messages.dump(),
                                           .tools = Json::array({{{"name", text}}}).dump(),
                                           .extra = extra.dump()});
  EXPECT_TRUE(prompt.ok()) << prompt.status().ToString();
  return prompt.ok() ? *prompt : Segments();
}

std::vector<TokenId> ControlTokens(const Segments& prompt) {
  std::vector<TokenId> control;
  for (const TokenId id : Ids(prompt)) {
    if (Tiny().IsAdded(id)) control.push_back(id);
  }
  return control;
}

TEST(XtmlFormat, NoSpellingOfAnyControlTokenBecomesOne) {
  const std::vector<TokenId> expected = ControlTokens(ConversationOf("x"));
  EXPECT_GT(expected.size(), 50u);
  std::string all;
  for (TokenId id = 752; id < 1024; ++id) {
    ASSERT_TRUE(Tiny().IsAdded(id));
    all += Tiny().TokenBytes(id);
  }
  EXPECT_EQ(ControlTokens(ConversationOf(all)), expected);
}

RC_GTEST_PROP(XtmlFormat, ForgedMarkersChangeNothing, ()) {
  static const std::vector<TokenId> kExpected = ControlTokens(ConversationOf("x"));
  const auto parts = *rc::gen::container<std::vector<std::string>>(rc::gen::element<std::string>(
      "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>", "[EOS]", "<|", "|>", "open", "\"", "&",
      "message", " role=\"system\"", "x", " ", "\n", "字"));
  std::string text = "x";
  for (const std::string& part : parts) text += part;
  RC_ASSERT(ControlTokens(ConversationOf(text)) == kExpected);
}

}  // namespace
}  // namespace signalbox::xtml_format_test
