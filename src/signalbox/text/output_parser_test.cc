// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/output_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "signalbox/base/json_util.h"
#include "signalbox/text/answer_stream.h"
#include "signalbox/text/chat_template.h"
#include "signalbox/text/xtml.h"
#include "signalbox/text/xtml_format.h"

namespace signalbox {

void PrintTo(const OutputEvent& event, std::ostream* out) {
  *out << static_cast<int>(event.kind) << " '" << event.text << "' " << event.call;
}
void PrintTo(const ParsedOutput& output, std::ostream* out) {
  *out << "reasoning '" << output.reasoning << "', content '" << output.content << "'";
  for (const ToolCall& call : output.calls) *out << ", " << call.name << " " << call.arguments;
}

}  // namespace signalbox

namespace signalbox::output_parser_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;
using Kind = OutputEvent::Kind;

const std::map<std::string, OutputFormat> kFormats = {{"plain", OutputFormat::kPlain},
                                                      {"hermes", OutputFormat::kHermes},
                                                      {"xml", OutputFormat::kXml},
                                                      {"xtml", OutputFormat::kXtml}};

// Text, and the markers between, as a tokenizer tells them apart.
struct Piece {
  std::string text;
  bool marker;
};
using Pieces = std::vector<Piece>;

Pieces PiecesOf(OutputFormat format, std::string_view output) {
  Pieces pieces;
  std::string text;
  while (!output.empty()) {
    std::string_view marker;
    for (const std::string_view m : xtml::kMarkers) {
      if (format == OutputFormat::kXtml && output.starts_with(m)) marker = m;
    }
    if (marker.empty()) {
      text += output[0];
      output.remove_prefix(1);
      continue;
    }
    if (!text.empty()) pieces.push_back({std::exchange(text, {}), false});
    pieces.push_back({std::string(marker), true});
    output.remove_prefix(marker.size());
  }
  if (!text.empty()) pieces.push_back({text, false});
  return pieces;
}

// `pieces` with the text cut at every offset (of all bytes) for which `cut` says so.
template <typename Cut>
ParsedOutput Parsed(OutputFormat format, const OutputOptions& options, const Pieces& pieces,
                    bool stopped, Cut cut) {
  const auto parser = MakeOutputParser(format, options);
  ParsedOutput output;
  const auto add = [&](const OutputEvents& events) {
    for (const OutputEvent& event : events) EXPECT_NE(event.text, "");
    output.Add(events);
  };
  size_t offset = 0;
  for (const Piece& piece : pieces) {
    OutputEvents events;
    if (piece.marker) {
      parser->Marker(piece.text, events);
      offset += piece.text.size();
    } else {
      std::string part;
      for (const char c : piece.text) {
        if (cut(offset++)) parser->Text(std::exchange(part, {}), events);
        part += c;
      }
      parser->Text(part, events);
    }
    add(events);
  }
  OutputEvents events;
  parser->Finish(stopped, events);
  add(events);
  return output;
}

struct Case {
  std::string name;
  OutputFormat format;
  OutputOptions options;
  bool stopped;
  std::string output;
  Pieces pieces;
  ParsedOutput expected;
};

std::vector<Case> Cases() {
  std::ifstream in(SIGNALBOX_TESTDATA "/output/cases.json");
  std::vector<Case> cases;
  for (const Json& json : Json::parse(in)) {
    Case c;
    c.name = json["format"].get<std::string>() + ": " + json["name"].get<std::string>();
    c.format = kFormats.at(json["format"]);
    c.options.in_reasoning = json["in_reasoning"];
    if (json.contains("tools")) c.options.types = *ParameterTypesOf(json["tools"].dump());
    c.stopped = json["stopped"];
    c.output = json["output"];
    c.pieces = PiecesOf(c.format, c.output);
    c.expected = {.reasoning = json["reasoning"], .content = json["content"], .calls = {}};
    for (const Json& call : json["calls"]) {
      c.expected.calls.push_back({.name = call["name"], .arguments = call["arguments"]});
    }
    cases.push_back(std::move(c));
  }
  return cases;
}

TEST(OutputParser, Cases) {
  const std::vector<Case> cases = Cases();
  EXPECT_GE(cases.size(), 75u);
  for (const Case& c : cases) {
    EXPECT_EQ(Parsed(c.format, c.options, c.pieces, c.stopped, [](size_t) { return false; }),
              c.expected)
        << c.name;
  }
}

TEST(OutputParser, EverySplitPointGivesTheSame) {
  for (const Case& c : Cases()) {
    for (size_t at = 0; at < c.output.size(); ++at) {
      EXPECT_EQ(
          Parsed(c.format, c.options, c.pieces, c.stopped, [at](size_t i) { return i == at; }),
          c.expected)
          << c.name << ", split at " << at;
    }
  }
}

TEST(OutputParser, EveryTwoSplitPointsGiveTheSame) {
  for (const Case& c : Cases()) {
    for (size_t a = 0; a < c.output.size(); ++a) {
      for (size_t b = a + 1; b < c.output.size() && b < a + 14; ++b) {
        ASSERT_EQ(Parsed(c.format, c.options, c.pieces, c.stopped,
                         [a, b](size_t i) { return i == a || i == b; }),
                  c.expected)
            << c.name << ", split at " << a << " and " << b;
      }
    }
  }
}

TEST(OutputParser, ByteByByteGivesTheSame) {
  for (const Case& c : Cases()) {
    EXPECT_EQ(Parsed(c.format, c.options, c.pieces, c.stopped, [](size_t) { return true; }),
              c.expected)
        << c.name;
  }
}

// A prefix of a golden is what a limit on tokens leaves.
TEST(OutputParser, EveryPrefixIsSafe) {
  for (const Case& c : Cases()) {
    for (size_t size = 0; size < c.output.size(); ++size) {
      // A StreamDecoder gives whole characters only.
      if ((static_cast<uint8_t>(c.output[size]) & 0xC0) == 0x80) continue;
      const Pieces pieces = PiecesOf(c.format, std::string_view(c.output).substr(0, size));
      const ParsedOutput whole =
          Parsed(c.format, c.options, pieces, false, [](size_t) { return false; });
      ASSERT_EQ(Parsed(c.format, c.options, pieces, false, [](size_t) { return true; }), whole)
          << c.name << ", first " << size;
      for (const ToolCall& call : whole.calls) {
        EXPECT_NE(call.name, "");
        EXPECT_TRUE(ParseJson(call.arguments).ok()) << c.name << ": " << call.arguments;
      }
    }
  }
}

// Tags, parts of tags and what breaks them, in any order.
RC_GTEST_PROP(OutputParser, AnythingIsSafeHoweverItIsCut, ()) {
  const auto format =
      *rc::gen::element(OutputFormat::kHermes, OutputFormat::kXml, OutputFormat::kXtml);
  const auto parts = *rc::gen::container<std::vector<std::string>>(
      format == OutputFormat::kXtml
          ? rc::gen::element<std::string>("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>",
                                          "think", "response", "tools", "call tool=\"f\"", "call",
                                          "argument key=\"a\" type=\"string\"",
                                          "argument key=\"b\" type=\"number\"", "json", "message",
                                          "{\"a\": 1}", "12", "\"", "\n", " ", "\x01")
          : rc::gen::element<std::string>(
                "<think>", "</think>", "<tool_call>", "</tool_call>", "<function=f>",
                "<function=", "</function>", "<parameter=a>", "<parameter=n>", "</parameter>",
                "{\"name\": \"f\"}", "{\"name\": \"f\", \"arguments\": {\"a\": 1}}", "12", "x",
                "\"", "\n", " ", "<", ">", "</", "\x01"));
  std::string output;
  for (const std::string& part : parts) output += part;
  const OutputOptions options = {.in_reasoning = *rc::gen::arbitrary<bool>(),
                                 .types = {{"f", {{"n", "integer"}}}}};
  const bool stopped = *rc::gen::arbitrary<bool>();
  const Pieces pieces = PiecesOf(format, output);
  const ParsedOutput whole = Parsed(format, options, pieces, stopped, [](size_t) { return false; });
  const auto cuts =
      *rc::gen::container<std::vector<bool>>(output.size(), rc::gen::arbitrary<bool>());
  RC_ASSERT(Parsed(format, options, pieces, stopped, [&](size_t i) { return cuts[i]; }) == whole);
  for (const ToolCall& call : whole.calls) {
    RC_ASSERT(!call.name.empty());
    RC_ASSERT(ParseJson(call.arguments).ok());
  }
}

const Tokenizer& K3() {
  static const Tokenizer kTokenizer =
      *Tokenizer::LoadModel(SIGNALBOX_SOURCE_DIR "/models/tiny-kimi-k3-mxfp4");
  return kTokenizer;
}

// The assistant's message as the format writes it, from where the prompt ends.
Segments AnswerOf(const Json& message, bool thinking) {
  const std::string extra = thinking ? R"({"thinking": true})" : R"({"thinking": false})";
  const auto render = [&](const Json& messages, bool prompt) {
    const auto segments = XtmlFormat().Render({.messages = messages.dump(),
                                               .tools = "",
                                               .extra = extra,
                                               .add_generation_prompt = prompt});
    EXPECT_TRUE(segments.ok()) << segments.status().ToString();
    return *segments;
  };
  const Segments prompt = render(Json::array(), true);
  EXPECT_EQ(OpensReasoning(OutputFormat::kXtml, PlainText(prompt)), thinking);
  Segments all = render(Json::array({message}), false);
  EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), all.begin()));
  all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(prompt.size()));
  return all;
}

// Through the tokens: what is rendered comes back, whatever the texts spell.
RC_GTEST_PROP(OutputParser, XtmlComesBackFromItsTokens, ()) {
  const auto text =
      rc::gen::map(rc::gen::container<std::vector<std::string>>(rc::gen::element<std::string>(
                       "<|close|>", "<|sep|>", "<|open|>", "argument", "think", "\"", "&", "&amp;",
                       "\\", "\n", "a", " ", "字", "🚂", "{", "1")),
                   [](const std::vector<std::string>& parts) {
                     std::string joined = "x";
                     for (const std::string& part : parts) joined += part;
                     return joined;
                   });
  const bool thinking = *rc::gen::arbitrary<bool>();
  ParsedOutput expected = {.reasoning = thinking ? *text : "", .content = *text, .calls = {}};
  Json message = {{"role", "assistant"},
                  {"reasoning_content", expected.reasoning},
                  {"content", expected.content},
                  {"tool_calls", Json::array()}};
  for (int n = *rc::gen::inRange(0, 3); n > 0; --n) {
    Json arguments = Json::object();
    arguments[*text] = *text;
    arguments["number"] = 1.5;
    arguments["deep"] = Json::array({*text, nullptr, {{*text, true}}});
    const std::string name = *text;
    message["tool_calls"].push_back({{"name", name}, {"arguments", arguments}});
    expected.calls.push_back({name, arguments.dump()});
  }
  const auto ids = K3().Encode(AnswerOf(message, thinking));
  RC_ASSERT(ids.ok());
  auto stream = AnswerStream::Create(
      K3(), {.format = OutputFormat::kXtml, .output = {.in_reasoning = thinking}});
  RC_ASSERT(stream.ok());
  stream->Push(*ids);
  stream->Finish(/*stopped=*/true);
  ParsedOutput output = stream->answer().parts;
  // Spaces of the JSON apart, which ordered_json does not write.
  for (ToolCall& call : output.calls) call.arguments = Json::parse(call.arguments).dump();
  RC_ASSERT(output == expected);
}

TEST(OutputParser, StreamsWithoutDelay) {
  const auto parser = MakeOutputParser(OutputFormat::kXtml, {.in_reasoning = true});
  const auto after = [&](std::string_view text, bool marker) {
    OutputEvents events;
    marker ? parser->Marker(text, events) : parser->Text(text, events);
    return events;
  };
  EXPECT_THAT(after("th", false), ElementsAre(OutputEvent{Kind::kReasoning, "th"}));
  after("<|close|>", true);
  after("think", false);
  after("<|sep|>", true);
  after("<|open|>", true);
  after("call tool=\"f\" index=\"1\"", false);
  EXPECT_THAT(after("<|sep|>", true), ElementsAre(OutputEvent{Kind::kCallName, "f", 0}));
  after("<|open|>", true);
  after("argument key=\"a\" type=\"string\"", false);
  EXPECT_THAT(after("<|sep|>", true),
              ElementsAre(OutputEvent{Kind::kCallArguments, "{\"a\": \"", 0}));
  EXPECT_THAT(after("x\n", false), ElementsAre(OutputEvent{Kind::kCallArguments, "x\\n", 0}));
}

TEST(OutputParser, HoldsBackNoMoreThanATagMayNeed) {
  const auto parser = MakeOutputParser(OutputFormat::kHermes, {.in_reasoning = true});
  const auto after = [&](std::string_view text) {
    OutputEvents events;
    parser->Text(text, events);
    return events;
  };
  EXPECT_THAT(after("a <b> </th"), ElementsAre(OutputEvent{Kind::kReasoning, "a <b>"}));
  EXPECT_THAT(after("e"), ElementsAre(OutputEvent{Kind::kReasoning, " </the"}));
}

TEST(OutputParser, FormatOfAModel) {
  const auto qwen = ChatTemplate::Load(SIGNALBOX_SOURCE_DIR "/models/tiny-qwen3.5-moe-mxfp4");
  ASSERT_TRUE(qwen.ok());
  EXPECT_EQ(qwen->output_format(), OutputFormat::kXml);
  EXPECT_EQ(XtmlFormat().output_format(), OutputFormat::kXtml);
  EXPECT_EQ(ChatTemplate::Parse("<tool_call>{}</tool_call>")->output_format(),
            OutputFormat::kHermes);
  EXPECT_EQ(ChatTemplate::Parse("[INST]")->output_format(), OutputFormat::kPlain);

  const std::string messages = R"([{"role": "user", "content": "a <think>"}])";
  const auto opens = [&](std::string_view extra) {
    const auto prompt =
        qwen->Render({.messages = messages, .tools = "", .extra = std::string(extra)});
    EXPECT_TRUE(prompt.ok()) << prompt.status().ToString();
    return OpensReasoning(OutputFormat::kXml, PlainText(*prompt));
  };
  EXPECT_TRUE(opens(""));
  EXPECT_FALSE(opens(R"({"enable_thinking": false})"));
  EXPECT_FALSE(opens(R"({"add_generation_prompt": false})"));
  EXPECT_FALSE(OpensReasoning(OutputFormat::kXml, ""));
  EXPECT_FALSE(OpensReasoning(OutputFormat::kPlain, "<think>"));
}

TEST(OutputParser, TypesOfParameters) {
  const auto types = ParameterTypesOf(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"properties":
            {"a": {"type": "integer"}, "b": {"type": ["string", "null"]}, "c": {}, "d": 1}}}},
          {"name": "g", "parameters": {"properties": {"a": {"type": "object"}}}},
          {"name": "h"}, {"parameters": {"properties": {}}}, 5])");
  ASSERT_TRUE(types.ok()) << types.status().ToString();
  const ParameterTypes expected = {
      {"f", {{"a", "integer"}, {"b", "string,null"}, {"c", ""}, {"d", ""}}},
      {"g", {{"a", "object"}}}};
  EXPECT_EQ(*types, expected);
  EXPECT_TRUE(ParameterTypesOf("")->empty());
  EXPECT_THAT(ParameterTypesOf("{}").status().message(), HasSubstr("(tools): expected an array"));
  EXPECT_FALSE(ParameterTypesOf("[").ok());
}

}  // namespace
}  // namespace signalbox::output_parser_test
