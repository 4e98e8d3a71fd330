// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/call_grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace signalbox::call_grammar_test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kTools = R"([
  {"type": "function", "function": {"name": "w", "parameters": {"type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]},
                   "days": {"type": "integer", "maximum": 9}, "at": {"type": "array", "items": {"$ref": "#/$defs/place"}}},
    "required": ["city", "days"],
    "$defs": {"place": {"type": "integer"}}}}},
  {"type": "function", "function": {"name": "t"}}])";

class CallGrammarTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto spec = CallGrammar(qwen_, OutputFormat::kHermes, kTools, {});
    ASSERT_TRUE(spec.ok()) << spec.status().message();
    const auto compiler = MakeGrammarCompiler(qwen_, {*qwen_.TokenToId("<|im_end|>")});
    if (!compiler.ok()) GTEST_SKIP() << compiler.status().message();
  }

  // Whether `answer`, in which markers are tokens, is one that the grammar allows.
  bool Fits(OutputFormat format, const std::string& answer, const CallRules& rules = {}) {
    const bool xtml = format == OutputFormat::kXtml;
    const Tokenizer& tokenizer = xtml ? kimi_ : qwen_;
    const auto stop = *tokenizer.TokenToId(xtml ? "<|end_of_msg|>" : "<|im_end|>");
    const auto compiler = *MakeGrammarCompiler(tokenizer, {stop});
    const auto spec = CallGrammar(tokenizer, format, kTools, rules);
    EXPECT_TRUE(spec.ok()) << spec.status().message();
    const auto matcher = compiler->Compile(*spec);
    EXPECT_TRUE(matcher.ok()) << matcher.status().message();
    if (!matcher.ok()) return false;
    const std::vector<TokenId> ids = *tokenizer.EncodeTrusted(answer);
    for (const TokenId id : ids) {
      std::vector<uint32_t> mask((tokenizer.vocab_size() + 31) / 32);
      EXPECT_TRUE((*matcher)->FillMask(mask).ok());
      const auto i = static_cast<size_t>(id);
      const bool allowed = (mask[i / 32] >> (i % 32) & 1) != 0;
      EXPECT_EQ((*matcher)->Accept(id).ok(), allowed) << tokenizer.TokenBytes(id);
      if (!allowed) return false;
    }
    return (*matcher)->CanEnd();
  }

  const Tokenizer qwen_ =
      *Tokenizer::LoadModel(SIGNALBOX_SOURCE_DIR "/models/tiny-qwen3.5-moe-mxfp4");
  const Tokenizer kimi_ = *Tokenizer::LoadModel(SIGNALBOX_SOURCE_DIR "/models/tiny-kimi-k3-mxfp4");
};

TEST_F(CallGrammarTest, Hermes) {
  const auto call = [](const std::string& name, const std::string& arguments) {
    return "<tool_call>\n{\"name\": \"" + name + "\", \"arguments\": " + arguments +
           "}\n</tool_call>";
  };
  const auto fits = [&](const std::string& text, const CallRules& rules = {}) {
    return Fits(OutputFormat::kHermes, text, rules);
  };
  const std::string good = call("w", R"({"city": "R\"m", "unit": "C", "days": 3, "at": [1, 2]})");
  EXPECT_TRUE(fits(good));
  EXPECT_TRUE(fits(call("t", "{}")));
  EXPECT_TRUE(fits(good + "\n" + call("t", "{}")));
  EXPECT_TRUE(fits(good, {.name = "w", .parallel = false}));
  EXPECT_FALSE(fits(good + "\n" + good, {.parallel = false}));
  EXPECT_FALSE(fits(good, {.name = "t"}));
  EXPECT_FALSE(fits("Well, " + good));
  EXPECT_FALSE(fits(""));
  EXPECT_FALSE(fits(call("v", "{}")));
  EXPECT_FALSE(fits(call("w", R"({"city": "R"})")));
  EXPECT_FALSE(fits(call("w", R"({"city": "R", "unit": "K", "days": 3})")));
  EXPECT_FALSE(fits(call("w", R"({"city": "R", "days": 10})")));
}

TEST_F(CallGrammarTest, Xml) {
  const auto call = [](const std::string& name, const std::string& arguments) {
    return "<tool_call>\n<function=" + name + ">\n" + arguments + "</function>\n</tool_call>";
  };
  const auto argument = [](const std::string& key, const std::string& value) {
    return "<parameter=" + key + ">\n" + value + "\n</parameter>\n";
  };
  const auto fits = [&](const std::string& text) { return Fits(OutputFormat::kXml, text); };
  const std::string city = argument("city", "R\"m\n<b>");
  EXPECT_TRUE(fits(call("w", city + argument("days", "3"))));
  EXPECT_TRUE(fits(call("w", city + argument("unit", "F") + argument("days", "3"))));
  EXPECT_TRUE(fits(call("w", city + argument("days", "3") + argument("at", "[1, 2]"))));
  EXPECT_TRUE(fits(call("t", "") + "\n" + call("t", "")));
  EXPECT_FALSE(fits(call("t", argument("a", "b"))));
  EXPECT_FALSE(fits(call("w", city)));
  EXPECT_FALSE(fits(call("w", city + argument("days", "10"))));
  EXPECT_FALSE(fits(call("w", city + argument("unit", "K") + argument("days", "3"))));
  EXPECT_FALSE(fits(call("w", city + argument("days", "3") + argument("at", "[\"a\"]"))));
  EXPECT_FALSE(fits(call("w", argument("city", "a</function>b") + argument("days", "3"))));
  EXPECT_FALSE(fits(call("w", argument("city", "a<tool_call>b") + argument("days", "3"))));
}

TEST_F(CallGrammarTest, Xtml) {
  const auto answer = [](const std::string& calls) {
    return "<|close|>response<|sep|><|open|>tools<|sep|>" + calls +
           "<|close|>tools<|sep|><|close|>message<|sep|>";
  };
  const auto call = [](const std::string& name, const std::string& index,
                       const std::string& arguments) {
    return "<|open|>call tool=\"" + name + "\" index=\"" + index + "\"<|sep|>" + arguments +
           "<|close|>call<|sep|>";
  };
  const auto argument = [](const std::string& key, const std::string& type,
                           const std::string& value) {
    return "<|open|>argument key=\"" + key + "\" type=\"" + type + "\"<|sep|>" + value +
           "<|close|>argument<|sep|>";
  };
  const auto fits = [&](const std::string& text) { return Fits(OutputFormat::kXtml, text); };
  const std::string city = argument("city", "string", "R\"m\n<b>");
  const std::string days = argument("days", "number", "3");
  EXPECT_TRUE(fits(answer(call("w", "1", city + days))));
  EXPECT_TRUE(fits(answer(call("w", "1", city + argument("unit", "string", "F") + days))));
  EXPECT_TRUE(fits(answer(call("t", "1", "") + call("t", "2", ""))));
  EXPECT_FALSE(fits(answer(call("t", "2", ""))));
  EXPECT_FALSE(fits(answer(call("w", "1", city))));
  EXPECT_FALSE(fits(answer(call("w", "1", city + argument("days", "string", "3")))));
  EXPECT_FALSE(fits(answer(call("w", "1", city + argument("days", "number", "x")))));
  EXPECT_FALSE(fits(answer(call("w", "1", argument("city", "string", "a<|open|>b") + days))));
  EXPECT_FALSE(fits(answer("")));
}

TEST_F(CallGrammarTest, WhatCannotBeEnforcedIsRefused) {
  const auto refusal = [&](OutputFormat format, const std::string& parameters) {
    return CallGrammar(qwen_, format,
                       R"([{"function": {"name": "f", "parameters": )" + parameters + "}}]", {})
        .status()
        .message();
  };
  EXPECT_THAT(refusal(OutputFormat::kXml, R"({"$ref": "#/$defs/a"})"), HasSubstr("$ref"));
  EXPECT_THAT(refusal(OutputFormat::kHermes, R"({"not": {}})"), HasSubstr("not"));
  EXPECT_THAT(refusal(OutputFormat::kXml, "[]"), HasSubstr("a list of tools"));
  EXPECT_THAT(refusal(OutputFormat::kXtml, "{}"), HasSubstr("a token <|"));
  EXPECT_THAT(refusal(OutputFormat::kPlain, "{}"), HasSubstr("no calls"));
  EXPECT_THAT(CallGrammar(qwen_, OutputFormat::kXml, kTools, {.name = "x"}).status().message(),
              HasSubstr("no tool to call"));
  EXPECT_FALSE(CallGrammar(qwen_, OutputFormat::kXml, "{", {}).ok());
}

}  // namespace
}  // namespace signalbox::call_grammar_test
