// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include <nlohmann/json.hpp>

#include "signalbox/base/json_util.h"

namespace signalbox::tokenizer_json_test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

Json Base() {
  Result<Json> json = ReadJsonFile(SIGNALBOX_TESTDATA "/tokenizer/gpt2_small.tokenizer.json");
  EXPECT_TRUE(json.ok()) << json.status().ToString();
  return *std::move(json);
}

// The base file with `value` at `pointer` (RFC 6901).
Json With(std::string_view pointer, const Json& value) {
  Json json = Base();
  json[Json::json_pointer(std::string(pointer))] = value;
  return json;
}

Status Outcome(const Json& json) {
  Result<TokenizerSpec> spec = ParseTokenizerJson(json);
  return spec.ok() ? Tokenizer::Build(*std::move(spec)).status() : spec.status();
}

TEST(TokenizerJsonTest, Accepted) {
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const struct {
    std::string_view pointer;
    Json value;
  } cases[] = {
      {"/normalizer", {{"type", "NFC"}}},
      {"/normalizer", nullptr},
      {"/post_processor", byte_level},
      {"/pre_tokenizer/use_regex", nullptr},  // the default is true
      {"/model/dropout", 0.0},
      {"/model/continuing_subword_prefix", ""},
      {"/added_tokens", Json::array()},
      {"/added_tokens/0/special", true},
      {"/truncation", {{"max_length", 512}}},
  };
  for (const auto& [pointer, value] : cases) {
    EXPECT_EQ(Outcome(With(pointer, value)).ToString(), "OK") << pointer << " " << value;
  }
}

TEST(TokenizerJsonTest, Refused) {
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", "a"}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const auto sequence = [](Json stages) {
    return Json{{"type", "Sequence"}, {"pretokenizers", std::move(stages)}};
  };
  const auto changed = [](Json json, const char* key, Json value) {
    json[key] = std::move(value);
    return json;
  };
  const struct {
    std::string_view pointer;
    Json value;
    std::string_view message;
  } cases[] = {
      {"", Json::array(), "top level"},
      {"", 1, "top level"},
      {"/normalizer", {{"type", "NFKC"}}, "normalizer"},
      {"/normalizer", "NFC", "normalizer"},
      {"/pre_tokenizer", nullptr, "pre_tokenizer"},
      {"/pre_tokenizer/add_prefix_space", true, "pre_tokenizer.add_prefix_space"},
      {"/pre_tokenizer/use_regex", false, "pre_tokenizer.use_regex"},
      {"/pre_tokenizer/use_regex", 1, "pre_tokenizer.use_regex"},
      {"/pre_tokenizer", sequence({}), "pre_tokenizer"},
      {"/pre_tokenizer", sequence(nullptr), "pre_tokenizer"},
      {"/pre_tokenizer", sequence({split}), "pre_tokenizer"},
      {"/pre_tokenizer", sequence({byte_level, split}), "pre_tokenizer"},
      {"/pre_tokenizer", sequence({split, split, byte_level}), "pre_tokenizer"},
      {"/pre_tokenizer", sequence({changed(split, "behavior", "Removed"), byte_level}), "Isolated"},
      {"/pre_tokenizer", sequence({changed(split, "invert", true), byte_level}), "invert"},
      {"/pre_tokenizer", sequence({changed(split, "pattern", {{"String", "a"}}), byte_level}),
       "Regex"},
      {"/pre_tokenizer", sequence({changed(split, "pattern", {{"Regex", "("}}), byte_level}),
       "does not compile"},
      {"/pre_tokenizer", sequence({split, changed(byte_level, "use_regex", true)}), "use_regex"},
      {"/post_processor", {{"type", "TemplateProcessing"}}, "post_processor"},
      {"/decoder", nullptr, "decoder"},
      {"/decoder/type", "WordPiece", "decoder"},
      {"/model", nullptr, "model.type"},
      {"/model/type", "Unigram", "model.type"},
      {"/model/byte_fallback", true, "model.byte_fallback"},
      {"/model/dropout", 0.1, "model.dropout"},
      {"/model/unk_token", "<unk>", "model.unk_token"},
      {"/model/continuing_subword_prefix", "##", "model.continuing_subword_prefix"},
      {"/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix"},
      {"/model/ignore_merges", "yes", "model.ignore_merges"},
      {"/model/vocab", Json::array(), "model.vocab"},
      {"/model/vocab", Json::object(), "byte 0x00"},
      {"/model/vocab/!", -1, "token id"},
      {"/model/vocab/!", 1e9, "token id"},
      {"/model/vocab/!", 1 << 22, "token id"},
      {"/model/vocab/!", "1", "token id"},
      {"/model/vocab/!", 1, "one token with an id"},
      {"/model/vocab/", 5000, "model.vocab"},
      {"/model/vocab/\u5B57", 5000, "byte alphabet"},
      {"/model/vocab/a b", 5000, "byte alphabet"},
      {"/model/merges", nullptr, "model.merges"},
      {"/model/merges/0", "a", "model.merges"},
      {"/model/merges/0", "a b c", "model.merges"},
      {"/model/merges/0", {"a"}, "model.merges"},
      {"/model/merges/0", {"a", 1}, "model.merges"},
      {"/model/merges/0", "~ ~", "concatenation in the vocabulary"},
      {"/added_tokens", 1, "added_tokens"},
      {"/added_tokens/0", 1, "added_tokens"},
      {"/added_tokens/0/id", nullptr, "token id"},
      {"/added_tokens/0/id", 3, "one token for an id"},
      {"/added_tokens/0/id", 501, "one token for an id"},
      {"/added_tokens/0/content", "", "1 to 256 bytes"},
      {"/added_tokens/0/content", std::string(257, 'a'), "1 to 256 bytes"},
      {"/added_tokens/0/content", "><", "one token for an id"},
      {"/added_tokens/0/content", "!", "one token for an id"},
      {"/added_tokens/0", {{"id", 0}, {"content", "!"}}, "token of ordinary text"},
      {"/added_tokens/0/lstrip", true, "lstrip"},
      {"/added_tokens/0/rstrip", true, "rstrip"},
      {"/added_tokens/0/single_word", true, "single_word"},
      {"/added_tokens/0", {{"id", 600}, {"content", "\u00E9"}, {"normalized", true}}, "ASCII"},
  };
  for (const auto& [pointer, value, message] : cases) {
    const Status status = Outcome(With(pointer, value));
    EXPECT_EQ(status.code(), StatusCode::kBadCheckpoint) << pointer << " " << value;
    EXPECT_THAT(status.message(), HasSubstr(message)) << pointer << " " << value;
  }
}

TEST(TokenizerJsonTest, AVocabularyMayListAddedTokens) {
  Json json = Base();
  const Json token = json["added_tokens"][0];
  json["model"]["vocab"][token["content"].get<std::string>()] = token["id"];
  Result<TokenizerSpec> spec = ParseTokenizerJson(json);
  ASSERT_TRUE(spec.ok()) << spec.status().ToString();
  Result<Tokenizer> tokenizer = Tokenizer::Build(*std::move(spec));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_EQ(tokenizer->TokenToId(token["content"].get<std::string>()), token["id"].get<TokenId>());
}

TEST(TokenizerJsonTest, AnAddedTokenThatIgnoreMergesWouldReach) {
  // "zyx" is one piece and, as a token, in the vocabulary; user text must not become it.
  Json json = Base();
  json["model"]["vocab"]["zyx"] = 600;
  json["added_tokens"].push_back({{"id", 600}, {"content", "zyx"}});
  Result<TokenizerSpec> spec = ParseTokenizerJson(json);
  ASSERT_TRUE(spec.ok()) << spec.status().ToString();
  Result<Tokenizer> tokenizer = Tokenizer::Build(*std::move(spec));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_THAT(*tokenizer->EncodeTrusted("zyx"), testing::ElementsAre(600));
  EXPECT_THAT(*tokenizer->EncodeUntrusted("zyx"), testing::Not(testing::Contains(600)));
}

}  // namespace
}  // namespace signalbox::tokenizer_json_test
