// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/pretokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <vector>

#include "signalbox/base/text_util.h"

namespace signalbox::pretokenizer_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::string_view kQwen3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

Pretokenizer Compiled(std::string_view pattern) {
  Result<Pretokenizer> result = Pretokenizer::Compile(pattern);
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  return *std::move(result);
}

std::vector<std::string_view> Pieces(const Pretokenizer& pre, std::string_view text) {
  std::vector<std::string_view> pieces;
  const Status status = pre.Split(text, pieces);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return pieces;
}

TEST(PretokenizerTest, MatchesAndTheTextBetweenThemArePieces) {
  EXPECT_THAT(Pieces(Compiled(R"(\d+|b)"), "a12bé3"), ElementsAre("a", "12", "b", "é", "3"));
  EXPECT_THAT(Pieces(Compiled("x"), "abc"), ElementsAre("abc"));
  EXPECT_THAT(Pieces(Compiled("x"), ""), ElementsAre());
}

TEST(PretokenizerTest, EmptyMatchesPart) {
  EXPECT_THAT(Pieces(Compiled("x*"), "axxé"), ElementsAre("a", "xx", "é"));
  EXPECT_THAT(Pieces(Compiled("(?=b)"), "abab"), ElementsAre("a", "ba", "b"));
}

TEST(PretokenizerTest, QwenPattern) {
  const Pretokenizer pre = Compiled(kQwen3);
  EXPECT_THAT(Pieces(pre, "I'LL don't 123"),
              ElementsAre("I", "'LL", " don", "'t", " ", "1", "2", "3"));
  EXPECT_THAT(Pieces(pre, "a  b\n\n  c  "), ElementsAre("a", " ", " b", "\n\n", " ", " c", "  "));
}

TEST(PretokenizerTest, WhiteSpaceIsUnicodes) {
  // U+180E is no White_Space; PCRE2 itself would say so.
  EXPECT_THAT(Pieces(Compiled(R"(\s+)"), "a\u180E\u00A0\u3000b\u0085"),
              ElementsAre("a\u180E", "\u00A0\u3000", "b", "\u0085"));
  EXPECT_THAT(Pieces(Compiled(R"(\S+)"), "a\u180Eb c"), ElementsAre("a\u180Eb", " ", "c"));
  EXPECT_THAT(Pieces(Compiled(R"([^\sx]+)"), "a\u180E x"), ElementsAre("a\u180E", " x"));
  EXPECT_THAT(Pieces(Compiled(R"([]\s]+|\[)"), "a] []"), ElementsAre("a", "] ", "[", "]"));
}

TEST(PretokenizerTest, LongMatchesAndLookaheads) {
  const Pretokenizer pre = Compiled(kQwen3);
  for (const size_t size : {63, 64, 65, 127, 128, 129, 130, 5000}) {
    const std::string letters(size, 'a');
    const std::string spaces(size, ' ');
    EXPECT_THAT(Pieces(pre, letters + "1" + spaces), ElementsAre(letters, "1", spaces));
    EXPECT_THAT(Pieces(pre, spaces + "b"), ElementsAre(std::string_view(spaces).substr(1), " b"));
    EXPECT_THAT(Pieces(pre, spaces + "\n" + spaces + "b"),
                ElementsAre(spaces + "\n", std::string_view(spaces).substr(1), " b"));
  }
  std::string wide;
  for (int i = 0; i < 1000; ++i) wide += "字";
  EXPECT_THAT(Pieces(pre, "x" + wide), ElementsAre("x" + wide));
}

TEST(PretokenizerTest, PatternsThatAreRefused) {
  const struct {
    std::string_view pattern;
    std::string_view message;
  } cases[] = {
      {"(", "does not compile"},
      {"[a", "does not compile"},
      {R"(\p{Nonsense})", "does not compile"},
      {R"(a\Cb)", "does not compile"},
      {"[[:alpha", "does not compile"},
      {R"([\p{L}&&[^\p{Han}]])", "intersection"},
      {"[a[bc]]", "nested"},
      {R"(\h)", "\\h"},
      {R"(a\Kb)", "\\K"},
      {R"((a+)\1)", "back reference"},
  };
  for (const auto& [pattern, message] : cases) {
    const Result<Pretokenizer> result = Pretokenizer::Compile(pattern);
    ASSERT_FALSE(result.ok()) << pattern;
    EXPECT_EQ(result.status().code(), StatusCode::kBadCheckpoint);
    EXPECT_THAT(result.status().message(), HasSubstr(message));
    EXPECT_THAT(result.status().message(), HasSubstr(Quoted(pattern)));
  }
  EXPECT_FALSE(Pretokenizer::Compile(std::string(5000, 'a')).ok());
}

TEST(PretokenizerTest, ATextWithoutEndIsLinear) {
  const Pretokenizer pre = Compiled(kQwen3);
  for (const char c : {'a', ' ', '\n', '1', '!', '\''}) {
    const std::string text(1 << 20, c);
    EXPECT_EQ(Pieces(pre, text).size(), c == '1' ? text.size() : 1) << c;
  }
}

TEST(PretokenizerTest, PatternsThatTakeTooLong) {
  const std::string text(100'000, 'a');
  // Exponential; quadratic over all attempts, and within one; too deep for a stack.
  for (const std::string_view pattern :
       {"(a+)+c|.", "(?:a|aa)*c|.", "a*+b|.", "a+(?=.*z)|.", R"((?:a|\w)*x|.)", R"((a(?1)?b)|.)"}) {
    std::vector<std::string_view> pieces;
    const Status status = Compiled(pattern).Split(text, pieces);
    ASSERT_FALSE(status.ok()) << pattern;
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(status.message(), HasSubstr(Quoted(pattern)));
  }
}

RC_GTEST_PROP(PretokenizerTest, PiecesMakeTheText, ()) {
  const std::vector<std::string> parts = *rc::gen::container<std::vector<std::string>>(
      rc::gen::element<std::string>("a", "B", " ", "  ", "\n", "\r\n", "'s", "1", "é", "字", "!",
                                    "\u0301", "\u180E", "\u3000"));
  std::string text;
  for (const std::string& part : parts) text += part;
  for (const std::string_view pattern :
       {kQwen3, std::string_view("[a-z]+"), std::string_view("a*")}) {
    std::string joined;
    for (const std::string_view piece : Pieces(Compiled(pattern), text)) {
      RC_ASSERT(!piece.empty());
      joined += piece;
    }
    RC_ASSERT(joined == text);
  }
}

}  // namespace
}  // namespace signalbox::pretokenizer_test
