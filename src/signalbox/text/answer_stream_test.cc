// SPDX-License-Identifier: Apache-2.0
//
// The laws of an answer against the plain definition: decode everything, look for the first stop,
// parse what is before it.
#include "signalbox/text/answer_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "signalbox/text/unicode.h"

namespace signalbox {

void PrintTo(const Answer& answer, std::ostream* out) {
  *out << "text '" << answer.text << "', reasoning '" << answer.parts.reasoning << "', content '"
       << answer.parts.content << "'";
  for (const ToolCall& call : answer.parts.calls) *out << ", " << call.name << call.arguments;
  *out << ", " << answer.reasoning_tokens << " of " << answer.tokens.size() << " tokens:";
  for (const AnswerToken& token : answer.tokens)
    *out << " " << token.id << "@" << token.text_offset;
  *out << ", stop '" << answer.stop << "'";
}

}  // namespace signalbox

namespace signalbox::answer_stream_test {
namespace {

using ::testing::ElementsAre;
using Ids = std::vector<TokenId>;
using Kind = OutputEvent::Kind;

Tokenizer Loaded(const char* model) {
  auto tokenizer =
      Tokenizer::LoadModel(std::filesystem::path(SIGNALBOX_SOURCE_DIR "/models") / model);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  return *std::move(tokenizer);
}

const Tokenizer& Qwen() {
  static const Tokenizer kTokenizer = Loaded("tiny-qwen3.5-moe-mxfp4");
  return kTokenizer;
}

const Tokenizer& K3() {
  static const Tokenizer kTokenizer = Loaded("tiny-kimi-k3-mxfp4");
  return kTokenizer;
}

Ids Encoded(const Tokenizer& tokenizer, std::string text) {
  const auto ids = tokenizer.EncodeTrusted(std::move(text));
  EXPECT_TRUE(ids.ok()) << ids.status().ToString();
  return *ids;
}

AnswerStream Stream(const Tokenizer& tokenizer, const AnswerOptions& options) {
  auto stream = AnswerStream::Create(tokenizer, options);
  EXPECT_TRUE(stream.ok()) << stream.status().ToString();
  return *std::move(stream);
}

// --- The definition. ---

// Text of the first tokens of a stream of which more may come.
std::string TextOf(const Tokenizer& tokenizer, std::span<const TokenId> ids,
                   SpecialTokens special) {
  std::string bytes;
  for (const TokenId id : ids) {
    if (special == SpecialTokens::kKeep || !tokenizer.IsSpecial(id)) {
      bytes += tokenizer.TokenBytes(id);
    }
  }
  std::string text;
  AppendUtf8(bytes, Utf8End::kMore, text);
  return text;
}

struct Span {
  size_t begin;
  size_t end;
  bool special;
};

// A parser that has read the first `end` bytes of `text`, in which `added` tokens lie.
std::unique_ptr<OutputParser> ParserAt(const AnswerOptions& options, const std::string& text,
                                       const std::vector<Span>& added, size_t end,
                                       OutputEvents& events) {
  auto parser = MakeOutputParser(options.format, options.output);
  size_t at = 0;
  for (const Span& token : added) {
    if (token.end > end && !token.special) break;
    if (token.begin >= end) break;
    parser->Text(text.substr(at, token.begin - at), events);
    at = std::min(token.end, end);
    if (!token.special) parser->Marker(text.substr(token.begin, at - token.begin), events);
  }
  parser->Text(text.substr(at, end - at), events);
  return parser;
}

Answer Defined(const Tokenizer& tokenizer, const AnswerOptions& options, const Ids& ids,
               bool stopped) {
  const auto before = [&](size_t n) { return std::span(ids).first(n); };
  const std::string all = tokenizer.Decode(ids, options.special);
  std::vector<size_t> read(1, 0);  // bytes of text after so many tokens
  std::vector<Span> added;
  for (size_t n = 1; n <= ids.size(); ++n) {
    read.push_back(TextOf(tokenizer, before(n), options.special).size());
    const TokenId id = ids[n - 1];
    const bool special = tokenizer.IsSpecial(id);
    if (!tokenizer.IsAdded(id) || (special && options.special == SpecialTokens::kSkip)) continue;
    added.push_back({read[n] - tokenizer.TokenBytes(id).size(), read[n], special});
  }
  // The first stop in the text of the tokens from min_tokens on.
  const auto least = static_cast<size_t>(options.min_tokens);
  const size_t from = ids.size() > least ? read[least] : all.size();
  size_t text_end = all.size();
  size_t kept = ids.size();
  Answer answer;
  for (size_t end = from + 1; end <= all.size() && answer.stop.empty(); ++end) {
    const std::string_view searched = std::string_view(all).substr(from, end - from);
    for (const std::string& stop : options.stops) {
      if (searched.ends_with(stop) && stop.size() > answer.stop.size()) answer.stop = stop;
    }
    if (answer.stop.empty()) continue;
    text_end = options.include_stop ? end : end - answer.stop.size();
    const auto completes =
        std::find_if(read.begin(), read.end(), [&](size_t n) { return n >= end; });
    kept = std::min(kept, static_cast<size_t>(completes - read.begin()));
  }
  answer.text = all.substr(0, text_end);
  for (size_t i = 0; i < kept; ++i) {
    answer.tokens.push_back({ids[i], std::min(read[i], text_end)});
    OutputEvents events;
    const auto parser = ParserAt(options, all, added, std::min(read[i], text_end), events);
    answer.reasoning_tokens += parser->in_reasoning();
  }
  OutputEvents events;
  ParserAt(options, all, added, text_end, events)->Finish(stopped && answer.stop.empty(), events);
  answer.parts.Add(events);
  return answer;
}

// --- Streams. ---

// `cut(i)`: a block begins at token i. Holds the deltas to the answer on the way.
template <typename Cut>
Answer Streamed(const Tokenizer& tokenizer, const AnswerOptions& options, const Ids& ids,
                bool stopped, Cut cut) {
  AnswerStream stream = Stream(tokenizer, options);
  std::string text;
  ParsedOutput parts;
  size_t kept = 0;
  const auto add = [&](const AnswerDelta& delta, size_t block) {
    text += delta.text;
    parts.Add(delta.events);
    kept += static_cast<size_t>(delta.tokens);
    EXPECT_LE(delta.tokens, static_cast<int64_t>(block));
    EXPECT_EQ(delta.stopped, !stream.answer().stop.empty());
    EXPECT_EQ(text, stream.answer().text);
    EXPECT_EQ(parts, stream.answer().parts);
    EXPECT_EQ(kept, stream.answer().tokens.size());
    EXPECT_LE(stream.answer().reasoning_tokens, static_cast<int64_t>(kept));
    std::string repaired;
    AppendUtf8(text, Utf8End::kFinal, repaired);
    EXPECT_EQ(repaired, text);  // whole characters
  };
  for (size_t begin = 0; begin < ids.size() && !stream.finished();) {
    size_t end = begin + 1;
    while (end < ids.size() && !cut(end)) ++end;
    add(stream.Push(std::span(ids).subspan(begin, end - begin)), end - begin);
    begin = end;
  }
  if (!stream.finished()) add(stream.Finish(stopped), 0);
  EXPECT_TRUE(stream.finished());
  return stream.answer();
}

Answer OneByOne(const Tokenizer& tokenizer, const AnswerOptions& options, const Ids& ids,
                bool stopped) {
  return Streamed(tokenizer, options, ids, stopped, [](size_t) { return true; });
}

Answer AtOnce(const Tokenizer& tokenizer, const AnswerOptions& options, const Ids& ids,
              bool stopped) {
  return Streamed(tokenizer, options, ids, stopped, [](size_t) { return false; });
}

// Answers as models write them.
std::vector<std::string> Outputs(bool xtml) {
  std::ifstream in(SIGNALBOX_TESTDATA "/output/cases.json");
  std::vector<std::string> outputs;
  for (const auto& json : nlohmann::json::parse(in)) {
    if ((json["format"] == "xtml") == xtml) outputs.push_back(json["output"]);
  }
  return outputs;
}

// Written by a model, with tokens of any kind strewn in; or nothing but those.
rc::Gen<Ids> IdsOf(const Tokenizer& tokenizer, bool xtml) {
  std::vector<Ids> written;
  for (const std::string& output : Outputs(xtml)) written.push_back(Encoded(tokenizer, output));
  Ids bytes;
  Ids added;
  for (TokenId id = 0; id < static_cast<TokenId>(tokenizer.vocab_size()); ++id) {
    if (tokenizer.IsAdded(id)) added.push_back(id);
    // Parts of characters.
    if (tokenizer.TokenBytes(id).size() == 1 && tokenizer.TokenBytes(id)[0] < 0) {
      bytes.push_back(id);
    }
  }
  const auto any = rc::gen::oneOf(
      rc::gen::elementOf(bytes), rc::gen::elementOf(added),
      rc::gen::inRange<TokenId>(0, static_cast<TokenId>(tokenizer.vocab_size()) + 2));
  const auto strewn = rc::gen::resize(12, rc::gen::container<Ids>(any));
  return rc::gen::oneOf(
      strewn, rc::gen::apply(
                  [](Ids ids, const Ids& more, size_t at) {
                    for (const TokenId id : more) {
                      const size_t place = at++ * 7 % (ids.size() + 1);
                      ids.insert(ids.begin() + static_cast<std::ptrdiff_t>(place), id);
                    }
                    return ids;
                  },
                  rc::gen::elementOf(written), rc::gen::resize(3, rc::gen::container<Ids>(any)),
                  rc::gen::arbitrary<size_t>()));
}

// A piece of whole characters out of the text, now and then with something behind it that is not.
rc::Gen<std::string> StopOf(const std::string& text) {
  std::vector<size_t> begins;  // of characters
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80)
      begins.push_back(i);
  }
  return rc::gen::map(
      rc::gen::tuple(rc::gen::inRange<size_t>(0, begins.size()), rc::gen::inRange<size_t>(1, 9),
                     rc::gen::element<std::string>("", "", "", "~", "\xEF\xBF\xBD")),
      [text, begins](const std::tuple<size_t, size_t, std::string>& t) {
        const auto& [at, size, more] = t;
        const size_t end = std::min(at + size, begins.size() - 1);
        const std::string stop = text.substr(begins[at], begins[end] - begins[at]) + more;
        return stop.empty() ? std::string("?") : stop;
      });
}

void CheckLaws(const Tokenizer& tokenizer, OutputFormat format, bool xtml) {
  const Ids ids = *IdsOf(tokenizer, xtml);
  AnswerOptions options;
  options.include_stop = *rc::gen::arbitrary<bool>();
  options.min_tokens = *rc::gen::element<int64_t>(0, 0, 1, 5);
  options.special = *rc::gen::element(SpecialTokens::kSkip, SpecialTokens::kKeep);
  options.format = format;
  options.output.in_reasoning = *rc::gen::arbitrary<bool>();
  const std::string text = tokenizer.Decode(ids, options.special);
  options.stops = *rc::gen::resize(4, rc::gen::container<std::vector<std::string>>(StopOf(text)));
  const bool stopped = *rc::gen::arbitrary<bool>();
  const auto cuts = *rc::gen::container<std::vector<bool>>(ids.size(), rc::gen::arbitrary<bool>());

  const Answer expected = Defined(tokenizer, options, ids, stopped);
  RC_CLASSIFY(!expected.stop.empty(), "stopped");
  RC_CLASSIFY(expected.reasoning_tokens > 0, "reasoned");
  RC_ASSERT(OneByOne(tokenizer, options, ids, stopped) == expected);
  RC_ASSERT(AtOnce(tokenizer, options, ids, stopped) == expected);
  RC_ASSERT(Streamed(tokenizer, options, ids, stopped, [&](size_t i) { return cuts[i]; }) ==
            expected);
  std::reverse(options.stops.begin(), options.stops.end());
  RC_ASSERT(AtOnce(tokenizer, options, ids, stopped) == expected);
  RC_ASSERT(!::testing::Test::HasFailure());
}

RC_GTEST_PROP(AnswerStreamTest, QwenIsTheSameHoweverItIsCut, ()) {
  CheckLaws(Qwen(),
            *rc::gen::element(OutputFormat::kPlain, OutputFormat::kHermes, OutputFormat::kXml),
            /*xtml=*/false);
}

RC_GTEST_PROP(AnswerStreamTest, KimiIsTheSameHoweverItIsCut, ()) {
  CheckLaws(K3(), *rc::gen::element(OutputFormat::kPlain, OutputFormat::kXtml), /*xtml=*/true);
}

// --- By example. ---

// In other engines: the stop that comes first in the list wins over the one that comes first in the
// text, or ids and log-probabilities behind the stop stay in the result.
TEST(AnswerStreamTest, Spc13SeveralStopsInOneBlock) {
  const Ids ids = Encoded(Qwen(), "it is a cat.");
  for (const auto& stops : {std::vector<std::string>{"a", "is"}, {"is", "a"}}) {
    AnswerStream stream = Stream(Qwen(), {.stops = stops});
    const AnswerDelta delta = stream.Push(ids);
    EXPECT_TRUE(delta.stopped);
    EXPECT_EQ(delta.text, "it ");
    EXPECT_EQ(stream.answer().stop, "is");
    std::vector<double> logprobs(ids.size(), -1.0);
    logprobs.resize(static_cast<size_t>(delta.tokens));
    EXPECT_EQ(stream.answer().tokens.size(), logprobs.size());
    // The token that completes the stop is the last.
    EXPECT_LT(logprobs.size(), ids.size());
    const auto kept = std::span(ids).first(logprobs.size());
    EXPECT_THAT(Qwen().Decode(kept, SpecialTokens::kSkip), ::testing::HasSubstr("is"));
    EXPECT_EQ(Qwen().Decode(kept.first(kept.size() - 1), SpecialTokens::kSkip).find("is"),
              std::string::npos);
    EXPECT_EQ(OneByOne(Qwen(), {.stops = stops}, ids, true), stream.answer());
  }
}

// In other engines: tokens of the block behind the stop count as reasoning.
TEST(AnswerStreamTest, Spc15StopInsideABlockOfReasoning) {
  const Ids ids = Encoded(Qwen(), "6*7=42, so it is 42. Or not?</think>42");
  AnswerStream stream = Stream(
      Qwen(), {.stops = {"so"}, .format = OutputFormat::kXml, .output = {.in_reasoning = true}});
  const AnswerDelta delta = stream.Push(ids);
  EXPECT_TRUE(delta.stopped);
  const Answer& answer = stream.answer();
  EXPECT_EQ(delta.tokens, std::ssize(answer.tokens));
  EXPECT_LT(answer.tokens.size(), ids.size());
  EXPECT_EQ(answer.reasoning_tokens, std::ssize(answer.tokens));
  EXPECT_EQ(answer.text, "6*7=42, ");
}

TEST(AnswerStreamTest, ReasoningCountsUpToItsClosingTag) {
  Ids ids = Encoded(Qwen(), "6*7=42</think>");
  const int64_t reasoning = std::ssize(ids);
  const Ids rest = Encoded(Qwen(), "\n\nThe answer is 42.");
  ids.insert(ids.end(), rest.begin(), rest.end());
  const AnswerOptions options{.format = OutputFormat::kXml, .output = {.in_reasoning = true}};
  const Answer answer = AtOnce(Qwen(), options, ids, true);
  EXPECT_EQ(answer.reasoning_tokens, reasoning);
  EXPECT_EQ(answer.tokens.size(), ids.size());
  EXPECT_EQ(answer.parts.reasoning, "6*7=42");
  EXPECT_EQ(answer.parts.content, "The answer is 42.");
}

// In other engines: text waits for a stop while ids do not, so words vanish or the end of the
// reasoning lands in the answer.
TEST(AnswerStreamTest, Spc17TextAndPartsStayInStep) {
  const std::string text = "He said \"so\"</think>\n\nShe said \"no\".";
  const Ids ids = Encoded(Qwen(), text);
  const AnswerOptions options{
      .stops = {"\"\n", "</think>\n\nHe"}, .format = OutputFormat::kXml, .output = {true, {}}};
  AnswerStream stream = Stream(Qwen(), options);
  const auto marker = std::find(ids.begin(), ids.end(), *Qwen().TokenToId("</think>"));
  ASSERT_NE(marker, ids.end());
  // Block by block: the marker waits, so the parser is still in the reasoning, as is the text.
  stream.Push({ids.begin(), marker});
  EXPECT_EQ(stream.answer().text, "He said \"so");
  EXPECT_EQ(stream.answer().parts.reasoning, "He said \"so");
  const AnswerDelta closed = stream.Push({marker, marker + 1});
  EXPECT_EQ(closed.text, "\"");
  EXPECT_THAT(closed.events, ElementsAre(OutputEvent{Kind::kReasoning, "\""}));
  stream.Push({marker + 1, ids.end()});
  stream.Finish(true);
  EXPECT_EQ(stream.answer().text, text);
  EXPECT_EQ(stream.answer().parts.reasoning, "He said \"so\"");
  EXPECT_EQ(stream.answer().parts.content, "She said \"no\".");
  EXPECT_EQ(stream.answer(), AtOnce(Qwen(), options, ids, true));
}

TEST(AnswerStreamTest, AStopStringIsNotTheModelsEnd) {
  const Ids ids = Encoded(Qwen(), "I think. END");
  AnswerOptions options{.format = OutputFormat::kXml, .output = {.in_reasoning = true}};
  EXPECT_EQ(AtOnce(Qwen(), options, ids, true).parts.content, "I think. END");
  options.stops = {"END"};
  const Answer answer = AtOnce(Qwen(), options, ids, true);
  EXPECT_EQ(answer.parts.content, "");
  EXPECT_EQ(answer.text, "I think. ");
}

TEST(AnswerStreamTest, AStopMayEndInsideAMarker) {
  const Ids ids = Encoded(Qwen(), "so</think>42");
  const AnswerOptions options{
      .stops = {"think"}, .format = OutputFormat::kXml, .output = {true, {}}};
  const Answer answer = AtOnce(Qwen(), options, ids, true);
  EXPECT_EQ(answer.text, "so</");
  EXPECT_EQ(answer.parts.reasoning, "so</");
}

TEST(AnswerStreamTest, ACallThatAStopCutsIsClosed) {
  const Ids ids = Encoded(
      Qwen(), "<tool_call>\n<function=f>\n<parameter=a>\n12 STOP 3\n</parameter>\n</function>");
  const Answer answer =
      AtOnce(Qwen(), {.stops = {" STOP"}, .format = OutputFormat::kXml}, ids, false);
  EXPECT_EQ(answer.parts.calls, (std::vector<ToolCall>{{"f", R"({"a": "12"})"}}));
}

TEST(AnswerStreamTest, SpecialTokensAreNoPartOfAStop) {
  Ids ids = Encoded(Qwen(), "a");
  ids.push_back(*Qwen().TokenToId("<|im_end|>"));
  const Ids b = Encoded(Qwen(), "b");
  ids.insert(ids.end(), b.begin(), b.end());
  EXPECT_EQ(AtOnce(Qwen(), {.stops = {"ab"}}, ids, true).stop, "ab");
  const SpecialTokens keep = SpecialTokens::kKeep;
  EXPECT_EQ(AtOnce(Qwen(), {.stops = {"ab"}, .special = keep}, ids, true).stop, "");
  EXPECT_EQ(AtOnce(Qwen(), {.stops = {"end|>"}, .special = keep}, ids, true).text, "a<|im_");
}

TEST(AnswerStreamTest, OffsetsOfTokensInTheText) {
  const Ids train = Encoded(Qwen(), "🚂");
  ASSERT_GE(train.size(), 2u);
  Ids ids = Encoded(Qwen(), "x");
  ids.insert(ids.end(), train.begin(), train.end());
  const Ids y = Encoded(Qwen(), "y");
  ids.insert(ids.end(), y.begin(), y.end());
  const Answer answer = AtOnce(Qwen(), {.stops = {"y"}}, ids, true);
  EXPECT_EQ(answer.text, "x🚂");
  ASSERT_EQ(answer.tokens.size(), train.size() + 2);
  EXPECT_EQ(answer.tokens[0].text_offset, 0u);
  for (size_t i = 1; i <= train.size(); ++i) EXPECT_EQ(answer.tokens[i].text_offset, 1u);
  EXPECT_EQ(answer.tokens.back().text_offset, 5u);
}

TEST(AnswerStreamTest, StopsOutOfTheirLimitsAreRefused) {
  EXPECT_EQ(AnswerStream::Create(Qwen(), {.stops = {""}}).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace signalbox::answer_stream_test
