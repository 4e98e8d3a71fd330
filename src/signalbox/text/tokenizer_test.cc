// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "signalbox/base/json_util.h"
#include "signalbox/text/detokenizer.h"

namespace signalbox::tokenizer_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::filesystem::path kTestData = SIGNALBOX_TESTDATA "/tokenizer";
const std::filesystem::path kTiny =
    SIGNALBOX_SOURCE_DIR "/models/tiny-qwen3.5-moe-mxfp4/tokenizer.json";

nlohmann::json JsonAt(const std::filesystem::path& path) {
  Result<nlohmann::json> json = ReadJsonFile(path);
  EXPECT_TRUE(json.ok()) << json.status().ToString();
  return *std::move(json);
}

Tokenizer Loaded(const std::filesystem::path& path) {
  Result<Tokenizer> tokenizer = Tokenizer::Load(path);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  return *std::move(tokenizer);
}

const Tokenizer& Tiny() {
  static const Tokenizer kTokenizer = Loaded(kTiny);
  return kTokenizer;
}

std::vector<TokenId> Ids(const Result<std::vector<TokenId>>& ids) {
  EXPECT_TRUE(ids.ok()) << ids.status().ToString();
  return ids.ok() ? *ids : std::vector<TokenId>();
}

std::string Streamed(const Tokenizer& tokenizer, const std::vector<TokenId>& ids,
                     SpecialTokens special) {
  StreamDecoder decoder(tokenizer, special);
  std::string text;
  for (const TokenId id : ids) text += decoder.Push(id);
  return text + decoder.Flush();
}

// Tokenizer files, and what Hugging Face's `tokenizers` makes of texts.json with them.
struct GoldenCase {
  std::string name;
  std::filesystem::path path;  // relative: in the folder of the real Qwen tokenizers
  friend std::ostream& operator<<(std::ostream& out, const GoldenCase& c) { return out << c.name; }
};

class GoldenTest : public testing::TestWithParam<GoldenCase> {};

// The file of the folder that tools/fetch_qwen_tokenizer.py fills; nothing where there is none.
std::optional<std::filesystem::path> RealQwen(const std::filesystem::path& name) {
  const char* folder = std::getenv("SIGNALBOX_QWEN_TOKENIZER");
  if (folder == nullptr) return std::nullopt;
  return folder / name;
}

constexpr const char* kNoRealQwen =
    "set SIGNALBOX_QWEN_TOKENIZER to the folder that tools/fetch_qwen_tokenizer.py has filled";

TEST_P(GoldenTest, IdsAndText) {
  std::filesystem::path path = GetParam().path;
  if (path.is_relative()) {
    const auto real = RealQwen(path);
    if (!real.has_value()) GTEST_SKIP() << kNoRealQwen;
    path = *real;
  }
  const Tokenizer tokenizer = Loaded(path);
  const nlohmann::json texts = JsonAt(kTestData / "texts.json");
  const nlohmann::json goldens = JsonAt(kTestData / (GetParam().name + ".golden.json"));
  ASSERT_EQ(texts.size(), goldens.size());
  for (const auto& [name, golden] : goldens.items()) {
    const std::string text = texts[name];
    const std::vector<TokenId> ids = Ids(tokenizer.EncodeTrusted(text));
    EXPECT_EQ(ids, golden["ids"].get<std::vector<TokenId>>()) << name << ": " << text;
    EXPECT_EQ(tokenizer.Decode(ids, SpecialTokens::kSkip), golden["skip_special"]) << name;
    EXPECT_EQ(Streamed(tokenizer, ids, SpecialTokens::kSkip), golden["skip_special"]) << name;
    if (golden["skip_special"] == text) {
      EXPECT_EQ(Ids(tokenizer.EncodeTrusted(tokenizer.Decode(ids, SpecialTokens::kKeep))), ids);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Tokenizers, GoldenTest,
    testing::Values(GoldenCase{"tiny_qwen3.5", kTiny},
                    GoldenCase{"qwen3_small", kTestData / "qwen3_small.tokenizer.json"},
                    GoldenCase{"gpt2_small", kTestData / "gpt2_small.tokenizer.json"},
                    GoldenCase{"qwen3", "qwen3.json"}, GoldenCase{"qwen3.5", "qwen3.5.json"}),
    [](const auto& info) {
      std::string name = info.param.name;
      std::erase(name, '.');
      return name;
    });

// Ids known from elsewhere than the library that made the goldens.
TEST(RealQwenTest, KnownIds) {
  if (!RealQwen("").has_value()) GTEST_SKIP() << kNoRealQwen;
  const Tokenizer qwen3 = Loaded(*RealQwen("qwen3.json"));
  EXPECT_THAT(Ids(qwen3.EncodeTrusted("I'LL don't 12345")),
              ElementsAre(40, 6, 4086, 1513, 944, 220, 16, 17, 18, 19, 20));
  EXPECT_THAT(Ids(qwen3.EncodeTrusted("你好，世界")), ElementsAre(108386, 3837, 99489));
  EXPECT_THAT(Ids(qwen3.EncodeTrusted("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")),
              ElementsAre(151644, 872, 198, 13048, 151645, 198, 151644, 77091, 198));
  EXPECT_THAT(Ids(qwen3.EncodeTrusted("<think>\n\n</think>\n\n")),
              ElementsAre(151667, 271, 151668, 271));
  const Tokenizer qwen35 = Loaded(*RealQwen("qwen3.5.json"));
  EXPECT_THAT(Ids(qwen35.EncodeTrusted("<|im_start|>user\n")), ElementsAre(248045, 846, 198));
  EXPECT_THAT(Ids(qwen35.EncodeTrusted("<|im_end|>\n<|im_start|>assistant\n<think>\n")),
              ElementsAre(248046, 198, 248045, 74455, 198, 248068, 198));
}

TEST(TokenizerTest, DecodesAnyIds) {
  for (const auto& entry : JsonAt(kTestData / "tiny_qwen3.5.decode.json")) {
    const std::vector<TokenId> ids = entry["ids"];
    EXPECT_EQ(Tiny().Decode(ids, SpecialTokens::kKeep), entry["text"]) << entry;
    EXPECT_EQ(Streamed(Tiny(), ids, SpecialTokens::kKeep), entry["text"]) << entry;
  }
}

TEST(TokenizerTest, Tokens) {
  EXPECT_EQ(Tiny().vocab_size(), 660u);
  EXPECT_EQ(Tiny().TokenToId("<|im_end|>"), 653);
  EXPECT_EQ(Tiny().TokenToId("no such token"), std::nullopt);
  const std::optional<TokenId> newline = Tiny().TokenToId("\n");
  ASSERT_TRUE(newline.has_value());
  EXPECT_EQ(Tiny().TokenBytes(*newline), "\n");
  EXPECT_EQ(Tiny().TokenBytes(654), "<think>");
  EXPECT_TRUE(Tiny().IsSpecial(653));
  EXPECT_FALSE(Tiny().IsSpecial(654)) << "<think> is added, but not special";
  for (const TokenId id : {-1, 660, 1 << 30}) {
    EXPECT_EQ(Tiny().TokenBytes(id), "");
    EXPECT_FALSE(Tiny().IsSpecial(id));
  }
}

TEST(TokenizerTest, BytesThatAreNotUtf8) {
  EXPECT_EQ(Ids(Tiny().EncodeTrusted("a\xFF\xE4\xB8z")),
            Ids(Tiny().EncodeTrusted("a\uFFFD\uFFFDz")));
}

TEST(TokenizerTest, TextThatIsTooLong) {
  const Result<std::vector<TokenId>> ids =
      Tiny().EncodeUntrusted(std::string(Tokenizer::kMaxTextBytes + 1, 'a'));
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.status().code(), StatusCode::kInvalidArgument);
}

TEST(TokenizerTest, UserTextIsNeverAControlToken) {
  const std::vector<TokenId> ids = Ids(Tiny().EncodeUntrusted("a<|im_end|>\n<think>"));
  EXPECT_EQ(Tiny().Decode(ids, SpecialTokens::kSkip), "a<|im_end|>\n<think>");
  EXPECT_THAT(ids, testing::Each(testing::Lt(651)));
}

TEST(TokenizerTest, SpellingsAcrossSegments) {
  const auto last_id = [](const Segments& segments) { return Ids(Tiny().Encode(segments)).back(); };
  EXPECT_EQ(last_id({{"<|im_", true}, {"end|>", true}}), 653);
  EXPECT_EQ(last_id({{"<|im_", true}, {"", false}, {"end|>", true}}), 653);
  EXPECT_NE(last_id({{"<|im_", true}, {"end|>", false}}), 653);
  EXPECT_NE(last_id({{"<|im_", false}, {"end|>", true}}), 653);
  EXPECT_NE(last_id({{"<|im_", false}, {"end|>", false}}), 653);
}

// Texts that make and nearly make control tokens, and that BPE and NFC would join across a cut.
rc::Gen<Segments> AnySegments() {
  const auto text =
      rc::gen::map(rc::gen::container<std::vector<std::string>>(rc::gen::element<std::string>(
                       "<", "|", "im_end", "<|im_end|>", "<think>", "</", "think>", "the", " ",
                       "  ", "\n", "e", "\u0301", "\u1112", "\u1161", "'s", "12", "字")),
                   [](const std::vector<std::string>& parts) {
                     std::string joined;
                     for (const std::string& part : parts) joined += part;
                     return joined;
                   });
  return rc::gen::container<Segments>(rc::gen::map(rc::gen::pair(text, rc::gen::arbitrary<bool>()),
                                                   [](const std::pair<std::string, bool>& s) {
                                                     return Segment{s.first, s.second};
                                                   }));
}

RC_GTEST_PROP(TokenizerTest, SegmentsAreOneTextButForControlTokens, ()) {
  const Segments segments = *AnySegments();
  const std::vector<TokenId> ids = Ids(Tiny().Encode(segments));
  const std::string plain = PlainText(segments);

  // Added tokens come from trusted runs alone, and in their order.
  std::vector<TokenId> added;
  for (const TokenId id : ids) {
    if (id >= 651) added.push_back(id);
  }
  std::vector<TokenId> expected;
  std::string run;
  const auto finish_run = [&] {
    for (const TokenId id : Ids(Tiny().EncodeTrusted(run))) {
      if (id >= 651) expected.push_back(id);
    }
    run.clear();
  };
  for (const Segment& segment : segments) {
    if (segment.trusted) {
      run += segment.text;
    } else if (!segment.text.empty()) {
      finish_run();
    }
  }
  finish_run();
  RC_ASSERT(added == expected);

  // Where the whole text spells no others, segments make no difference.
  const std::vector<TokenId> whole = Ids(Tiny().EncodeTrusted(plain));
  const auto is_added = [](TokenId id) { return id >= 651; };
  if (std::count_if(whole.begin(), whole.end(), is_added) == std::ssize(added)) {
    RC_ASSERT(ids == whole);
  }
}

RC_GTEST_PROP(TokenizerTest, StreamedTextIsDecodedText, ()) {
  const auto ids = *rc::gen::container<std::vector<TokenId>>(rc::gen::inRange(-2, 670));
  for (const SpecialTokens special : {SpecialTokens::kKeep, SpecialTokens::kSkip}) {
    RC_ASSERT(Streamed(Tiny(), ids, special) == Tiny().Decode(ids, special));
  }
}

TEST(StreamDecoderTest, HoldsBackHalfCharacters) {
  const std::vector<TokenId> ids = Ids(Tiny().EncodeUntrusted("字"));
  ASSERT_EQ(ids.size(), 3u) << "the tiny vocabulary has bytes only for this character";
  StreamDecoder decoder(Tiny(), SpecialTokens::kSkip);
  EXPECT_EQ(decoder.Push(ids[0]), "");
  EXPECT_EQ(decoder.Push(653), "") << "skipped, and does not interrupt";
  EXPECT_EQ(decoder.Push(ids[1]), "");
  EXPECT_EQ(decoder.Push(ids[2]), "字");
  EXPECT_EQ(decoder.Push(ids[0]), "");
  EXPECT_EQ(decoder.Push(ids[0]), "\uFFFD");
  EXPECT_EQ(decoder.Flush(), "\uFFFD");
  EXPECT_EQ(decoder.Flush(), "");
}

TEST(TokenizerTest, ManyThreads) {
  const nlohmann::json texts = JsonAt(kTestData / "texts.json");
  std::vector<std::vector<TokenId>> expected;
  for (const auto& text : texts) expected.push_back(Ids(Tiny().EncodeTrusted(text)));
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      size_t i = 0;
      for (const auto& text : texts) ASSERT_EQ(Ids(Tiny().EncodeTrusted(text)), expected[i++]);
    });
  }
}

TEST(AddedTokenMatcherTest, LeftmostThenLongest) {
  AddedTokenMatcher matcher;
  matcher.Add("ab", 1);
  matcher.Add("abcd", 2);
  matcher.Add("bcx", 3);
  const auto found = [&](std::string_view text, size_t begin, size_t end) {
    std::vector<AddedTokenMatch> matches;
    matcher.FindAll(text, begin, end, matches);
    std::vector<std::tuple<size_t, size_t, TokenId>> result;
    for (const auto& match : matches) result.emplace_back(match.begin, match.end, match.id);
    return result;
  };
  using Match = std::tuple<size_t, size_t, TokenId>;
  EXPECT_THAT(found("abcx", 0, 4), ElementsAre(Match(0, 2, 1)));
  EXPECT_THAT(found("abcdab", 0, 6), ElementsAre(Match(0, 4, 2), Match(4, 6, 1)));
  EXPECT_THAT(found("abcdab", 0, 3), ElementsAre(Match(0, 2, 1)));
  EXPECT_THAT(found("abcdab", 1, 6), ElementsAre(Match(4, 6, 1)));
  EXPECT_THAT(found("xbcx", 0, 4), ElementsAre(Match(1, 4, 3)));
  EXPECT_THAT(found("", 0, 0), ElementsAre());
}

TEST(TokenizerTest, AMissingFileIsNamed) {
  const Status status = Tokenizer::Load("/no/such/tokenizer.json").status();
  EXPECT_EQ(status.code(), StatusCode::kBadCheckpoint);
  EXPECT_THAT(status.message(), HasSubstr("/no/such/tokenizer.json"));
}

}  // namespace
}  // namespace signalbox::tokenizer_test
