// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/grammar.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace signalbox::grammar_test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;
using Kind = GrammarSpec::Kind;

const Tokenizer& Tiny() {
  static const Tokenizer kTokenizer =
      *Tokenizer::LoadModel(SIGNALBOX_SOURCE_DIR "/models/tiny-qwen3.5-moe-mxfp4");
  return kTokenizer;
}

TokenId IdOf(std::string_view spelling) {
  return *Tiny().TokenToId(spelling);
}

std::vector<TokenId> Stops() {
  return {IdOf("<|im_end|>"), IdOf("<|endoftext|>")};
}

// A build without the library has nothing to test but that it says so.
class Grammar : public testing::Test {
 protected:
  void SetUp() override {
    auto compiler = MakeGrammarCompiler(Tiny(), Stops());
    if (compiler.status().code() == StatusCode::kRefused)
      GTEST_SKIP() << compiler.status().message();
    ASSERT_TRUE(compiler.ok()) << compiler.status().ToString();
    compiler_ = *std::move(compiler);
  }

  std::unique_ptr<GrammarMatcher> Compiled(const GrammarSpec& spec) {
    auto matcher = compiler_->Compile(spec);
    EXPECT_TRUE(matcher.ok()) << spec.source << ": " << matcher.status().ToString();
    return matcher.ok() ? *std::move(matcher) : nullptr;
  }

  std::unique_ptr<GrammarCompiler> compiler_;
};

std::vector<uint32_t> Words() {
  return std::vector<uint32_t>((Tiny().vocab_size() + 31) / 32);
}

bool In(TokenId id, const std::vector<uint32_t>& mask) {
  const auto i = static_cast<size_t>(id);
  return (mask[i / 32] >> (i % 32) & 1) != 0;
}

std::vector<TokenId> Allowed(GrammarMatcher& matcher) {
  std::vector<uint32_t> mask = Words();
  const Status filled = matcher.FillMask(mask);
  EXPECT_TRUE(filled.ok()) << filled.ToString();
  std::vector<TokenId> ids;
  for (size_t i = 0; i < mask.size() * 32; ++i)
    if (In(static_cast<TokenId>(i), mask)) ids.push_back(static_cast<TokenId>(i));
  return ids;
}

// Whether the tokens of `text`, then a stop token, are each allowed and accepted.
bool Fits(GrammarMatcher& matcher, std::string_view text) {
  std::vector<TokenId> ids = *Tiny().EncodeUntrusted(std::string(text));
  ids.push_back(IdOf("<|im_end|>"));
  for (const TokenId id : ids) {
    std::vector<uint32_t> mask = Words();
    EXPECT_TRUE(matcher.FillMask(mask).ok());
    const bool allowed = In(id, mask);
    EXPECT_EQ(matcher.Accept(id).ok(), allowed) << text;
    if (!allowed) return false;
  }
  return matcher.Ended();
}

struct Case {
  int line;
  GrammarSpec spec;
  std::vector<std::string> fits;
  std::vector<std::string> fits_not;
  std::string refused;
};

std::vector<Case> Cases() {
  static const std::map<std::string, Kind> kKinds = {{"json_object", Kind::kJsonObject},
                                                     {"json_schema", Kind::kJsonSchema},
                                                     {"regex", Kind::kRegex},
                                                     {"ebnf", Kind::kEbnf}};
  std::ifstream file(SIGNALBOX_TESTDATA "/grammar/cases.txt");
  std::vector<Case> cases;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.empty() || line[0] == '#') continue;
    const std::string rest = line.substr(std::min<size_t>(2, line.size()));
    if (line.starts_with("+ ")) {
      cases.back().fits.push_back(rest);
    } else if (line.starts_with("- ")) {
      cases.back().fits_not.push_back(rest);
    } else if (line.starts_with("! ")) {
      cases.back().refused = rest;
    } else {
      const size_t space = std::min(line.find(' '), line.size());
      Case c{.line = number, .spec = {.kind = kKinds.at(line.substr(0, space))}};
      c.spec.source = line.substr(std::min(space + 1, line.size()));
      for (size_t at = 0;
           c.spec.kind == Kind::kEbnf && (at = c.spec.source.find("\\n")) != std::string::npos;)
        c.spec.source.replace(at, 2, "\n");
      cases.push_back(std::move(c));
    }
  }
  return cases;
}

TEST_F(Grammar, TheTableOfSourcesAndTexts) {
  const std::vector<Case> cases = Cases();
  ASSERT_GT(cases.size(), 70u);
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::Message() << "cases.txt line " << c.line << ": " << c.spec.source);
    auto matcher = compiler_->Compile(c.spec);
    if (!c.refused.empty()) {
      ASSERT_FALSE(matcher.ok());
      EXPECT_EQ(matcher.status().code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(matcher.status().message(), HasSubstr(c.refused));
      continue;
    }
    ASSERT_TRUE(matcher.ok()) << matcher.status().ToString();
    for (const std::string& text : c.fits) {
      EXPECT_TRUE(Fits(**matcher, text)) << text;
      (*matcher)->Reset();
    }
    for (const std::string& text : c.fits_not) {
      EXPECT_FALSE(Fits(**matcher, text)) << text;
      (*matcher)->Reset();
    }
  }
}

std::string Hex(const std::string& text) {
  std::string hex;
  for (const char c : text) hex += fmt::format("{:02x} ", static_cast<unsigned char>(c));
  return hex;
}

// A text that takes any allowed token, but a stop token as soon as there is one after `most`.
std::string RandomText(GrammarMatcher& matcher, size_t most) {
  std::string text;
  for (size_t step = 0; step < most + 200; ++step) {
    const std::vector<TokenId> allowed = Allowed(matcher);
    RC_ASSERT(!allowed.empty());
    RC_ASSERT(matcher.CanEnd() == (std::count(allowed.begin(), allowed.end(), Stops()[0]) == 1));
    TokenId id = allowed[*rc::gen::inRange<size_t>(0, allowed.size())];
    if (step >= most && matcher.CanEnd()) id = Stops()[1];
    // Past `most`, what brings an end nearer where there is such a thing: a bracket or a quote.
    if (step >= most && !matcher.CanEnd()) {
      const auto take = [&](std::string_view bytes) {
        const TokenId token = IdOf(bytes);
        const bool may = std::binary_search(allowed.begin(), allowed.end(), token);
        if (may) id = token;
        return may;
      };
      const TokenId letter = IdOf("z");  // within a text
      if (std::binary_search(allowed.begin(), allowed.end(), letter)) {
        take("\"");
      } else {
        take("}") || take("]") || take("\"");
      }
    }
    const Status accepted = matcher.Accept(id);
    if (!accepted.ok()) RC_FAIL(fmt::format("{} after {}: {}", id, Hex(text), accepted.ToString()));
    if (matcher.Ended()) return text;
    RC_ASSERT(!Tiny().IsAdded(id));
    text += Tiny().TokenBytes(id);
  }
  return "unfinished";
}

bool Matches(const std::string& regex, const std::string& text) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::string whole = "^(?:" + regex + ")\\z";
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(whole.data()), whole.size(),
                                   PCRE2_UTF | PCRE2_DOTALL, &error, &offset, nullptr);
  EXPECT_NE(code, nullptr) << regex;
  pcre2_match_data* data = pcre2_match_data_create_from_pattern(code, nullptr);
  const int found = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0,
                                data, nullptr);
  pcre2_match_data_free(data);
  pcre2_code_free(code);
  return found > 0;
}

// Another reading of the schemas that the walks use.
bool Obeys(const Json& schema, const Json& value) {
  if (schema.contains("enum")) {
    return std::find(schema["enum"].begin(), schema["enum"].end(), value) != schema["enum"].end();
  }
  const std::string type = schema.value("type", "any");
  if (type == "integer") return value.is_number_integer() || value.is_number_float();
  if (type == "boolean") return value.is_boolean();
  if (type == "string") return value.is_string();
  if (type == "array") {
    if (!value.is_array() || value.size() > schema.value("maxItems", size_t{1000})) return false;
    return std::all_of(value.begin(), value.end(),
                       [&](const Json& item) { return Obeys(schema["items"], item); });
  }
  if (!value.is_object()) return false;
  for (const auto& name : schema.value("required", Json::array()))
    if (!value.contains(name.get<std::string>())) return false;
  for (const auto& [name, inner] : value.items())
    if (!schema["properties"].contains(name) || !Obeys(schema["properties"][name], inner))
      return false;
  return true;
}

Json AnySchema(int depth) {
  switch (*rc::gen::inRange(0, depth > 0 ? 6 : 4)) {
    case 0:
      return {{"type", "integer"}};
    case 1:
      return {{"type", "boolean"}};
    case 2:
      return {{"type", "string"}};
    case 3:
      return {{"enum", {"red", 5, nullptr, "gr\"een"}}};
    case 4:
      return {{"type", "array"}, {"items", AnySchema(depth - 1)}, {"maxItems", 3}};
    default: {
      Json schema = {{"type", "object"}, {"properties", Json::object()}};
      Json required = Json::array();
      const int count = *rc::gen::inRange(1, 4);
      for (int i = 0; i < count; ++i) {
        const std::string name(1, static_cast<char>('a' + i));
        schema["properties"][name] = AnySchema(depth - 1);
        if (*rc::gen::arbitrary<bool>()) required.push_back(name);
      }
      schema["required"] = required;
      return schema;
    }
  }
}

// Every walk under the mask that ends is a text of the grammar: never one that another reader of
// the same grammar refuses.
TEST_F(Grammar, RandomWalksUnderASchemaObeyIt) {
  EXPECT_TRUE(rc::check("walks", [this] {
    const Json schema = AnySchema(2);
    auto matcher = compiler_->Compile({Kind::kJsonSchema, schema.dump()});
    RC_ASSERT(matcher.ok());
    const std::string text = RandomText(**matcher, 30);
    if (text == "unfinished") RC_DISCARD("no end in sight");
    RC_LOG() << schema << " -> " << text;
    const Json value = Json::parse(text, nullptr, false);
    RC_ASSERT(!value.is_discarded());
    RC_ASSERT(Obeys(schema, value));
  }));
}

TEST_F(Grammar, RandomWalksOfJsonObjectsAreObjects) {
  EXPECT_TRUE(rc::check("walks", [this] {
    const std::string text = RandomText(*Compiled({.kind = Kind::kJsonObject}), 20);
    RC_LOG() << Hex(text);
    if (text == "unfinished") RC_DISCARD("no end in sight");
    RC_ASSERT(Json::parse(text, nullptr, false).is_object());
  }));
}

TEST_F(Grammar, RandomWalksUnderARegexMatchIt) {
  static const std::vector<std::string> kRegexes = {"[0-9]{3}-(ab|c)+",
                                                    "(yes|no|perhaps), [a-z]{1,5}\\.",
                                                    "a?b*c+d{2,3}",
                                                    "(\\w+@\\w+\\.com ?){1,3}",
                                                    "\"[^\"]{0,5}\"",
                                                    ".{1,4}x",
                                                    "(é|日本)+|-?[1-9][0-9]{0,3}"};
  EXPECT_TRUE(rc::check("walks", [this] {
    const std::string regex = *rc::gen::elementOf(kRegexes);
    const std::string text = RandomText(*Compiled({Kind::kRegex, regex}), 8);
    RC_LOG() << Hex(text);
    if (text == "unfinished") RC_DISCARD("no end in sight");
    RC_ASSERT(Matches(regex, text));
  }));
}

TEST_F(Grammar, OnlyAStopTokenFollowsTheEnd) {
  const auto matcher = Compiled({Kind::kRegex, "ab"});
  EXPECT_FALSE(matcher->CanEnd());
  const std::vector<TokenId> ab = *Tiny().EncodeUntrusted("ab");
  for (const TokenId id : ab) EXPECT_TRUE(matcher->Accept(id).ok());
  EXPECT_TRUE(matcher->CanEnd());
  EXPECT_THAT(Allowed(*matcher), testing::UnorderedElementsAreArray(Stops()));
  EXPECT_FALSE(matcher->Accept(IdOf("a")).ok());
  EXPECT_TRUE(matcher->Accept(Stops()[0]).ok());
  EXPECT_TRUE(matcher->Ended());
  EXPECT_THAT(Allowed(*matcher), testing::UnorderedElementsAreArray(Stops()));
  EXPECT_TRUE(matcher->Accept(Stops()[1]).ok());
  EXPECT_FALSE(matcher->Accept(IdOf("a")).ok());
}

// SPC-12: a token is accepted exactly where the mask before it allows it, also for ids that are no
// tokens; and one that is not leaves everything as it was.
TEST_F(Grammar, Spc12ATokenIsAcceptedExactlyWhereTheMaskAllowsIt) {
  EXPECT_TRUE(rc::check("mask and acceptance agree", [this] {
    const auto matcher = Compiled({Kind::kJsonSchema, AnySchema(2).dump()});
    for (int step = 0; step < 12 && !matcher->Ended(); ++step) {
      const std::vector<TokenId> allowed = Allowed(*matcher);
      const auto vocab = static_cast<TokenId>(Tiny().vocab_size());
      for (TokenId id = -1; id <= vocab; ++id) {
        const bool in = std::binary_search(allowed.begin(), allowed.end(), id);
        if (in) continue;
        RC_ASSERT(matcher->Accept(id).code() == StatusCode::kInvalidArgument);
      }
      RC_ASSERT(Allowed(*matcher) == allowed);
      RC_ASSERT(allowed.empty() || allowed.back() < vocab);
      const TokenId chosen = allowed[*rc::gen::inRange<size_t>(0, allowed.size())];
      const auto other = matcher->Fork();
      RC_ASSERT(matcher->Accept(chosen).ok());
      RC_ASSERT(Allowed(*other) == allowed);
    }
  }));
}

// ED A0 80 to ED BF BF would be surrogates, which are no UTF-8: to a reader, three characters.
TEST_F(Grammar, SurrogatesNeverComeAndTheirNeighboursDo) {
  const auto matcher = Compiled({Kind::kRegex, ".x"});
  ASSERT_TRUE(matcher->Accept(IdOf("\xed")).ok());
  for (const TokenId id : Allowed(*matcher))
    EXPECT_LT(static_cast<unsigned char>(Tiny().TokenBytes(id)[0]), 0xa0);
  EXPECT_FALSE(matcher->Accept(IdOf("\xa0")).ok());
  for (const char* bytes : {"\x9f", "\xbf", "x"}) EXPECT_TRUE(matcher->Accept(IdOf(bytes)).ok());
}

TEST_F(Grammar, AMaskOfAnotherSizeIsFilledToItsEnd) {
  const auto matcher = Compiled({Kind::kRegex, "a+"});
  std::vector<uint32_t> small(2, ~uint32_t{0});
  ASSERT_TRUE(matcher->FillMask(small).ok());
  std::vector<uint32_t> large(100, ~uint32_t{0});
  ASSERT_TRUE(matcher->FillMask(large).ok());
  EXPECT_TRUE(std::equal(small.begin(), small.end(), large.begin()));
  for (size_t i = Words().size(); i < large.size(); ++i) EXPECT_EQ(large[i], 0u);
}

TEST_F(Grammar, StopIdsThatAreNoTokensAreLeftOut) {
  EXPECT_TRUE(MakeGrammarCompiler(Tiny(), {-1, 100000, Stops()[0]}).ok());
  EXPECT_EQ(MakeGrammarCompiler(Tiny(), {-1, 100000}).status().code(),
            StatusCode::kInvalidArgument);
}

std::string Times(int count, const std::string& text) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

// What would take the library minutes, gigabytes or its stack: an answer within seconds.
TEST_F(Grammar, HostileSourcesEndInBoundedTime) {
  Json many = {{"type", "object"}, {"properties", Json::object()}};
  for (int i = 0; i < 1000; ++i) many["properties"]["p" + std::to_string(i)] = Json::object();
  Json counted = {{"type", "object"}, {"minProperties", 5}, {"properties", Json::object()}};
  for (int i = 0; i < 200; ++i) counted["properties"]["p" + std::to_string(i)] = Json::object();
  std::string doubling = "root ::= r0\n";
  for (int i = 0; i < 40; ++i)
    doubling +=
        "r" + std::to_string(i) + " ::= " + Times(2, "r" + std::to_string(i + 1) + " ") + "\n";
  const std::vector<GrammarSpec> sources = {
      {Kind::kJsonSchema, Times(100000, "[")},
      {Kind::kJsonSchema, Times(5000, R"({"items":)")},
      {Kind::kJsonSchema, std::string("{\"type\"\0: 1}", 12)},
      {Kind::kJsonSchema, "{\"type\": \"\xff\"}"},
      {Kind::kJsonSchema, R"({"$ref": "#"})"},
      {Kind::kJsonSchema, R"({"allOf": [{"$ref": "#"}]})"},
      {Kind::kJsonSchema, R"({"type": "array", "minItems": 1, "items": {"$ref": "#"}})"},
      {Kind::kJsonSchema, many.dump()},
      {Kind::kJsonSchema, counted.dump()},
      {Kind::kJsonSchema, R"({"type": "integer", "minimum": -1e308, "maximum": 1e308})"},
      {Kind::kJsonSchema, R"({"type": "string", "pattern": ")" + Times(1000, "(a*)*") + "\"}"},
      {Kind::kRegex, Times(70000, "a")},
      {Kind::kRegex, Times(2000, "(") + "a" + Times(2000, ")")},
      {Kind::kRegex, "(.*){1000}"},
      {Kind::kRegex, "((.?){10}){10}"},
      {Kind::kRegex, "(.{0,100}){100}"},
      {Kind::kRegex, "(a|b)*a(a|b){1000}"},
      {Kind::kRegex, Times(1500, "a?") + Times(1000, "a")},
      {Kind::kRegex, Times(500, "(a*b*)*")},
      {Kind::kRegex, Times(1300, ".*a")},
      {Kind::kEbnf, doubling},
      {Kind::kEbnf, "root ::= root root | \"\" | [a-z]\n"},
      {Kind::kEbnf, "root ::= root\n"},
      {Kind::kEbnf, "root ::= a\na ::= b\nb ::= a | \"\"\n"},
      {Kind::kEbnf, "root ::= " + Times(3000, "(") + "\"a\"" + Times(3000, ")")},
      {Kind::kEbnf, "root ::= " + Times(4000, "\"a\"? ")},
  };
  for (const GrammarSpec& spec : sources) {
    SCOPED_TRACE(spec.source.substr(0, 60));
    const auto start = std::chrono::steady_clock::now();
    auto matcher = compiler_->Compile(spec);
    std::vector<uint32_t> mask = Words();
    if (matcher.ok()) {
      Status status;
      for (int step = 0; step < 50 && status.ok() && !(*matcher)->Ended(); ++step) {
        status = (*matcher)->FillMask(mask);
        TokenId id = 0;
        while (id < static_cast<TokenId>(Tiny().vocab_size()) && !In(id, mask)) ++id;
        if (status.ok()) status = (*matcher)->Accept(id);
      }
      if (!status.ok()) {
        EXPECT_THAT(status.code(),
                    testing::AnyOf(StatusCode::kResourceExhausted, StatusCode::kInvalidArgument));
      }
    } else {
      EXPECT_THAT(matcher.status().code(),
                  testing::AnyOf(StatusCode::kInvalidArgument, StatusCode::kResourceExhausted));
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    EXPECT_LT(took.count(), 60);
  }
}

TEST_F(Grammar, ACompilerServesManyThreadsAndForgetsTheOldest) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (size_t i = 0; i < GrammarCompiler::kCached; ++i) {
        const std::string text = "x" + std::to_string((i * 7 + static_cast<size_t>(t)) % 100);
        const auto matcher = compiler_->Compile({Kind::kRegex, text + "+"});
        ASSERT_TRUE(matcher.ok());
        EXPECT_TRUE(Fits(**matcher, text));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(GrammarWithoutLibrary, SaysHowToGetIt) {
  const auto compiler = MakeGrammarCompiler(Tiny(), Stops());
  if (compiler.ok()) GTEST_SKIP() << "this build has the library";
  EXPECT_EQ(compiler.status().code(), StatusCode::kRefused);
  EXPECT_THAT(compiler.status().message(), HasSubstr("scripts/setup.sh build"));
}

}  // namespace
}  // namespace signalbox::grammar_test
