// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/tokenizer_tiktoken.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "signalbox/base/json_util.h"

namespace signalbox::tokenizer_tiktoken_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

const std::filesystem::path kTestData = SIGNALBOX_TESTDATA "/tokenizer";
const std::filesystem::path kTiny = SIGNALBOX_SOURCE_DIR "/models/tiny-kimi-k3-mxfp4";

Json JsonAt(const std::filesystem::path& path) {
  Result<Json> json = ReadJsonFile(path);
  EXPECT_TRUE(json.ok()) << json.status().ToString();
  return *std::move(json);
}

Tokenizer Loaded(const std::filesystem::path& dir) {
  Result<Tokenizer> tokenizer = Tokenizer::LoadModel(dir);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  return *std::move(tokenizer);
}

std::vector<TokenId> Ids(const Result<std::vector<TokenId>>& ids) {
  EXPECT_TRUE(ids.ok()) << ids.status().ToString();
  return ids.ok() ? *ids : std::vector<TokenId>();
}

// What `tiktoken` makes of the texts; the file also says what untrusted text becomes where the two
// differ.
void ExpectGoldens(const Tokenizer& tokenizer, const std::string& name) {
  Json texts = JsonAt(kTestData / "texts.json");
  texts.update(JsonAt(kTestData / "kimi.texts.json"));
  const Json goldens = JsonAt(kTestData / (name + ".golden.json"));
  ASSERT_EQ(texts.size(), goldens.size());
  for (const auto& [key, golden] : goldens.items()) {
    const std::string text = texts[key];
    const auto ids = golden["ids"].get<std::vector<TokenId>>();
    EXPECT_EQ(Ids(tokenizer.EncodeTrusted(text)), ids) << key << ": " << text;
    EXPECT_EQ(Ids(tokenizer.EncodeUntrusted(text)),
              golden.value("untrusted", golden["ids"]).get<std::vector<TokenId>>())
        << key << ": " << text;
    EXPECT_EQ(tokenizer.Decode(ids, SpecialTokens::kSkip), golden["skip_special"]) << key;
    EXPECT_EQ(tokenizer.Decode(ids, SpecialTokens::kKeep), text) << key;
  }
}

TEST(TiktokenTest, GoldensOfTheBundledModel) {
  ExpectGoldens(Loaded(kTiny), "tiny_kimi_k3");
}

TEST(TiktokenTest, GoldensOfAVocabularyWithManySplits) {
  ExpectGoldens(Loaded(kTestData / "kimi_small"), "kimi_small");
}

TEST(TiktokenTest, ControlTokensOfTheBundledModel) {
  const Tokenizer tokenizer = Loaded(kTiny);
  EXPECT_EQ(tokenizer.vocab_size(), 1024u);
  EXPECT_EQ(tokenizer.TokenToId("[BOS]"), 752);
  EXPECT_EQ(tokenizer.TokenToId("<|sep|>"), 757);
  EXPECT_EQ(tokenizer.TokenToId("<|reserved_token_760|>"), 760);
  EXPECT_EQ(tokenizer.TokenToId("[PAD]"), 1023);
  EXPECT_TRUE(tokenizer.IsSpecial(754));
  EXPECT_TRUE(tokenizer.IsSpecial(760));
  EXPECT_FALSE(tokenizer.IsSpecial(755)) << "<|open|> is added, but not special";
}

TEST(TiktokenTest, ATextApartIsEncodedByItself) {
  const Tokenizer tokenizer = Loaded(kTiny);
  const auto plain = [&](std::string text) { return Ids(tokenizer.EncodeUntrusted(text)); };
  const auto joined = [](std::vector<std::vector<TokenId>> parts) {
    std::vector<TokenId> all;
    for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
  };
  ASSERT_NE(plain("message"), joined({plain("mess"), plain("age")}));
  for (const bool trusted : {false, true}) {
    EXPECT_EQ(Ids(tokenizer.Encode(Segments{{"mess", trusted, true}, {"age", trusted, true}})),
              joined({plain("mess"), plain("age")}));
    EXPECT_EQ(Ids(tokenizer.Encode(Segments{{"mess", trusted, true}, {"age", trusted}})),
              joined({plain("mess"), plain("age")}));
    EXPECT_EQ(Ids(tokenizer.Encode(Segments{{"mess", trusted}, {"age", trusted, true}})),
              joined({plain("mess"), plain("age")}));
    EXPECT_EQ(Ids(tokenizer.Encode(Segments{{"mess", trusted}, {"age", trusted}})),
              plain("message"));
  }
  EXPECT_EQ(Ids(tokenizer.Encode(Segments{
                {"<|sep|>", true, true}, {"mess", true, true}, {"age<|sep|>", true, true}})),
            joined({{757}, plain("mess"), plain("age"), {757}}));
  EXPECT_EQ(Ids(tokenizer.Encode(Segments{{"<|", true, true}, {"sep|>", true, true}})),
            joined({plain("<|"), plain("sep|>")}));
}

TEST(TiktokenTest, LongTextsAreCutBeforeTheyAreMerged) {
  const Tokenizer tokenizer = Loaded(kTestData / "kimi_small");
  const std::string text = std::string(25'001, 'a') + " " + std::string(49'999, 'b');
  const std::vector<TokenId> ids = Ids(tokenizer.EncodeUntrusted(text));
  std::vector<TokenId> expected;
  for (const std::string& part :
       {std::string(25'000, 'a'), "a " + std::string(25'000, 'b'), std::string(24'999, 'b')}) {
    for (const TokenId id : Ids(tokenizer.EncodeUntrusted(part))) expected.push_back(id);
  }
  EXPECT_EQ(ids, expected);
}

TEST(LongTextTest, Cuts) {
  const auto cut = [](std::string_view text, LongTextLimits limits) {
    std::vector<std::string_view> parts;
    CutLongText(text, limits, parts);
    return parts;
  };
  EXPECT_THAT(cut("", {}), ElementsAre());
  EXPECT_THAT(cut("aaaaa bb", {}), ElementsAre("aaaaa bb"));
  EXPECT_THAT(cut("aaaaa bb", {.run = 3}), ElementsAre("aaa", "aa bb"));
  EXPECT_THAT(cut("aaa   bbb", {.run = 3}), ElementsAre("aaa   bbb"));
  EXPECT_THAT(cut("a    \u3000b", {.run = 3}), ElementsAre("a   ", " \u3000b"));
  EXPECT_THAT(cut("字字字字", {.run = 2}), ElementsAre("字字", "字字"));
  EXPECT_THAT(cut("abcdefg", {.characters = 3}), ElementsAre("abc", "def", "g"));
  EXPECT_THAT(cut("abcdefg", {.characters = 5, .run = 3}), ElementsAre("abc", "de", "fg"));
  EXPECT_THAT(cut("a b c d e", {.characters = 4, .run = 3}), ElementsAre("a b ", "c d ", "e"));
}

// tiktoken's rule, word for word.
std::vector<TokenId> ReferenceMerge(const std::vector<std::string>& vocab,
                                    std::vector<std::string> parts) {
  const auto id_of = [&](const std::string& bytes) {
    return static_cast<TokenId>(std::find(vocab.begin(), vocab.end(), bytes) - vocab.begin());
  };
  for (;;) {
    auto best = static_cast<TokenId>(vocab.size());
    size_t at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const TokenId id = id_of(parts[i] + parts[i + 1]);
      if (id < best) {
        best = id;
        at = i;
      }
    }
    if (best == static_cast<TokenId>(vocab.size())) break;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  std::vector<TokenId> ids;
  for (const std::string& part : parts) ids.push_back(id_of(part));
  return ids;
}

RC_GTEST_PROP(TiktokenTest, MergesLikeTheRule, ()) {
  std::vector<std::string> vocab;
  std::array<TokenId, 256> bytes;
  std::iota(bytes.begin(), bytes.end(), 0);
  for (int b = 0; b < 256; ++b) vocab.push_back(std::string(1, static_cast<char>(b)));
  const auto letters = rc::gen::container<std::string>(rc::gen::element('a', 'b'));
  for (const std::string& token : *rc::gen::container<std::vector<std::string>>(letters)) {
    if (token.size() > 1 && std::find(vocab.begin(), vocab.end(), token) == vocab.end()) {
      vocab.push_back(token);
    }
  }
  std::vector<BpeMerge> merges;
  for (size_t id = 256; id < vocab.size(); ++id) {
    for (size_t cut = 1; cut < vocab[id].size(); ++cut) {
      const auto left = std::find(vocab.begin(), vocab.end(), vocab[id].substr(0, cut));
      const auto right = std::find(vocab.begin(), vocab.end(), vocab[id].substr(cut));
      if (left == vocab.end() || right == vocab.end()) continue;
      merges.push_back({static_cast<TokenId>(left - vocab.begin()),
                        static_cast<TokenId>(right - vocab.begin()), static_cast<TokenId>(id)});
    }
  }
  const Bpe bpe(bytes, merges, MergeRank::kResult);
  const std::string piece = *letters;
  std::vector<std::string> parts;
  for (const char c : piece) parts.push_back(std::string(1, c));
  std::vector<TokenId> ids;
  if (!piece.empty()) bpe.Encode(piece, ids);
  RC_ASSERT(ids == ReferenceMerge(vocab, parts));
}

std::string SmallRanks() {
  std::ifstream in(kTestData / "kimi_small/tiktoken.model", std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

TEST(TiktokenTest, RefusedRanks) {
  const Json config = JsonAt(kTestData / "kimi_small/tokenizer_config.json");
  const std::string ranks = SmallRanks();
  const size_t lines = static_cast<size_t>(std::count(ranks.begin(), ranks.end(), '\n'));
  ASSERT_TRUE(ParseTiktoken(ranks, config).ok());
  const std::string next = std::to_string(lines);
  const std::string last_line = "line " + std::to_string(lines + 1);
  const std::string long_token = [] {
    std::string base64;
    for (int i = 0; i < 172; ++i) base64 += "YWJj";  // 516 bytes
    return base64;
  }();
  for (const auto& [line, message] : std::vector<std::pair<std::string, std::string>>{
           {"YWJjZGVm", last_line},
           {"YWJjZGVm ", last_line},
           {"YWJjZGVm x", last_line},
           {"YWJjZGVm -1", last_line},
           {"YWJjZGVm 0", last_line},
           {"YWJjZGVm 99999999999", last_line},
           {"YWJjZGV " + next, last_line},
           {"YW=jZGVm " + next, last_line},
           {"YWJj ZGVm " + next, last_line},
           {" " + next, last_line},
           {"==== " + next, last_line},
           {long_token + " " + next, last_line},
           {"YQ== " + next, "bytes of its own"},
           {"YWJjZGVm " + std::to_string(lines + 1), "rank " + next}}) {
    const Status status = ParseTiktoken(ranks + line + "\n", config).status();
    EXPECT_EQ(status.code(), StatusCode::kBadCheckpoint) << line;
    EXPECT_THAT(status.message(), HasSubstr(message)) << line;
  }
  EXPECT_THAT(ParseTiktoken("", config).status().message(), HasSubstr("no token for byte 0x00"));
  std::string crlf;
  for (const char c : ranks) crlf += c == '\n' ? std::string("\r\n") : std::string(1, c);
  EXPECT_TRUE(ParseTiktoken(crlf + "\n\n", config).ok());
}

TEST(TiktokenTest, RefusedNames) {
  const std::string ranks = SmallRanks();
  const std::string list = "/added_tokens_decoder";
  const Json base = JsonAt(kTestData / "kimi_small/tokenizer_config.json");
  const std::string first = base["added_tokens_decoder"].begin().key();
  // The name that an id without a token of its own has already.
  const std::string reserved = "<|reserved_token_" + std::to_string(std::stoi(first) + 8) + "|>";
  const struct {
    std::string pointer;
    Json value;
    std::string_view message;
  } cases[] = {
      {"", Json::array(), "tokenizer_class"},
      {"/tokenizer_class", "QwenTokenizer", "TikTokenTokenizer"},
      {"/tokenizer_class", nullptr, "TikTokenTokenizer"},
      {list, nullptr, "added_tokens_decoder"},
      {list + "/x", {{"content", "a"}}, "token id"},
      {list + "/5", {{"content", "a"}}, "one token for an id"},
      {list + "/9999", {{"content", "a"}}, "one token for an id"},
      {list + "/" + first, 1, "an object"},
      {list + "/" + first, Json::object(), "content"},
      {list + "/" + first, {{"content", ""}}, "content"},
      {list + "/" + first, {{"content", "[EOS]"}}, "one id for a token"},
      {list + "/" + first, {{"content", "a"}, {"special", 1}}, "true or false"},
      {list + "/" + first, {{"content", reserved}}, "without a name"},
  };
  for (const auto& [pointer, value, message] : cases) {
    Json config = base;
    config[Json::json_pointer(pointer)] = value;
    const Status status = ParseTiktoken(ranks, config).status();
    EXPECT_EQ(status.code(), StatusCode::kBadCheckpoint) << pointer << " " << value;
    EXPECT_THAT(status.message(), HasSubstr(message)) << pointer << " " << value;
  }
}

TEST(TiktokenTest, ADirectoryWithoutATokenizer) {
  const Status status = Tokenizer::LoadModel(kTestData / "..").status();
  EXPECT_EQ(status.code(), StatusCode::kBadCheckpoint);
  EXPECT_THAT(status.message(), HasSubstr("tokenizer.json or tiktoken.model"));
}

TEST(TiktokenTest, ATextWithoutEndIsLinear) {
  const Tokenizer tokenizer = Loaded(kTiny);
  for (const char* unit : {"a", "A", "aB", "\u0e01", "字", "\u0301", " ", "\n", "1", "!", "'"}) {
    std::string text;
    while (text.size() < (1 << 18)) text += unit;
    EXPECT_TRUE(tokenizer.EncodeUntrusted(text).ok()) << unit;
  }
}

}  // namespace
}  // namespace signalbox::tokenizer_tiktoken_test
