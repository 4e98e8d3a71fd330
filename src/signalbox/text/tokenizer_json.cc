// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/tokenizer_json.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "signalbox/base/text_util.h"

namespace signalbox {
namespace {

using Json = nlohmann::json;

// model.vocab by spelling; the keys point into the JSON.
struct Vocab {
  std::unordered_map<std::string_view, TokenId> ids;
  std::vector<TokenId> foreign;  // not spelled in the byte alphabet: added tokens, or an error
};

// Released vocabularies are below 2^18; a damaged id must not cost the memory of all below it.
constexpr int64_t kMaxTokenId = int64_t{1} << 21;

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::string Shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 100) text = text.substr(0, 100) + "...";
  return text;
}

Status Unreadable(std::string where, const Json& found, std::string expected) {
  return BadCheckpoint({.what = "a tokenizer of a kind that is not supported",
                        .where = std::move(where),
                        .found = Shown(found),
                        .expected = std::move(expected)});
}

// The member `key`, or null where `object` is no object or has none.
const Json& Member(const Json& object, const char* key) {
  static const Json kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

// Of a JSON boolean; `otherwise` where it is missing.
Result<bool> Flag(const Json& object, const char* key, bool otherwise, const std::string& where) {
  const Json& value = Member(object, key);
  if (value.is_null()) return otherwise;
  if (!value.is_boolean()) return Unreadable(where + "." + key, value, "true or false");
  return value.get<bool>();
}

Status RequireFlag(const Json& object, const char* key, bool otherwise, bool required,
                   const std::string& where) {
  SB_ASSIGN_OR_RETURN(const bool value, Flag(object, key, otherwise, where));
  if (value == required) return OkStatus();
  return Unreadable(where + "." + key, value, required ? "true" : "false");
}

bool HasType(const Json& value, std::string_view type) {
  return Member(value, "type") == type;
}

// The printable character that stands for each byte in a vocabulary: printable Latin-1 stands for
// itself, the other 68 bytes, in order, are U+0100 and following (GPT-2's byte encoder).
constexpr int kCharacters = 256 + 68;
std::array<int, kCharacters> ByteOfCharacter() {
  std::array<int, kCharacters> byte_of;
  byte_of.fill(-1);
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    byte_of[printable ? byte : next++] = byte;
  }
  return byte_of;
}

// The bytes that a vocabulary entry spells; nothing where it is not of the byte alphabet, all of
// which lies below U+0800: one or two bytes of UTF-8 a character.
std::optional<std::string> BytesOf(std::string_view spelling) {
  static const std::array<int, kCharacters> kByteOf = ByteOfCharacter();
  std::string bytes;
  for (size_t i = 0; i < spelling.size(); ++i) {
    int character = static_cast<uint8_t>(spelling[i]);
    if (character >= 0x80) {
      if (character >= 0xE0 || i + 1 == spelling.size()) return std::nullopt;
      character = (character & 0x1F) << 6 | (static_cast<uint8_t>(spelling[++i]) & 0x3F);
    }
    if (character >= kCharacters || kByteOf[character] < 0) return std::nullopt;
    bytes += static_cast<char>(kByteOf[character]);
  }
  return bytes;
}

Result<TokenId> ParseId(const Json& value, const std::string& where) {
  if (!value.is_number_integer() || value < 0 || value > kMaxTokenId) {
    return Unreadable(where, value, fmt::format("a token id of 0 to {}", kMaxTokenId));
  }
  return value.get<TokenId>();
}

Status ParsePreTokenizer(const Json& root, TokenizerSpec& spec) {
  const std::string where = "pre_tokenizer";
  const Json& json = Member(root, "pre_tokenizer");
  const Json alone = Json::array({json});
  const Json& stages = HasType(json, "Sequence") ? Member(json, "pretokenizers") : alone;
  constexpr const char* kExpected = "Split(Regex, Isolated) and ByteLevel, or ByteLevel";
  if (!stages.is_array() || stages.empty() || stages.size() > 2) {
    return Unreadable(where, json, kExpected);
  }
  const Json& byte_level = stages.back();
  if (!HasType(byte_level, "ByteLevel")) return Unreadable(where, byte_level, kExpected);
  SB_RETURN_IF_ERROR(RequireFlag(byte_level, "add_prefix_space", true, false, where));
  const bool has_split = stages.size() == 2;
  SB_RETURN_IF_ERROR(RequireFlag(byte_level, "use_regex", true, !has_split, where));
  if (!has_split) {
    spec.pattern = kGpt2Pattern;
    return OkStatus();
  }
  const Json& split = stages.front();
  const Json& regex = Member(Member(split, "pattern"), "Regex");
  if (!HasType(split, "Split") || !regex.is_string() || Member(split, "behavior") != "Isolated") {
    return Unreadable(where, split, "Split with a Regex, behavior Isolated");
  }
  SB_RETURN_IF_ERROR(RequireFlag(split, "invert", false, false, where));
  spec.pattern = regex.get<std::string>();
  return OkStatus();
}

// The parts that are not the model: each is of a kind we know, or the result would be wrong.
Status ParseStages(const Json& root, TokenizerSpec& spec) {
  const Json& normalizer = Member(root, "normalizer");
  if (!normalizer.is_null() && !HasType(normalizer, "NFC")) {
    return Unreadable("normalizer", normalizer, "null or NFC");
  }
  spec.nfc = !normalizer.is_null();
  SB_RETURN_IF_ERROR(ParsePreTokenizer(root, spec));
  const Json& post = Member(root, "post_processor");
  if (!post.is_null() && !HasType(post, "ByteLevel")) {
    return Unreadable("post_processor", post, "null or ByteLevel");
  }
  const Json& decoder = Member(root, "decoder");
  if (!HasType(decoder, "ByteLevel")) return Unreadable("decoder", decoder, "ByteLevel");
  return OkStatus();
}

Status ParseModelOptions(const Json& model, TokenizerSpec& spec) {
  if (!HasType(model, "BPE")) return Unreadable("model.type", Member(model, "type"), "BPE");
  SB_RETURN_IF_ERROR(RequireFlag(model, "byte_fallback", false, false, "model"));
  for (const char* key : {"unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json& value = Member(model, key);
    const auto* text = value.get_ptr<const std::string*>();
    if (!value.is_null() && (text == nullptr || !text->empty())) {
      return Unreadable(std::string("model.") + key, value, "null");
    }
  }
  const Json& dropout = Member(model, "dropout");
  if (!dropout.is_null() && dropout != 0) return Unreadable("model.dropout", dropout, "null");
  SB_ASSIGN_OR_RETURN(spec.ignore_merges, Flag(model, "ignore_merges", false, "model"));
  return OkStatus();
}

// Fills spec.vocab and spec.byte_tokens.
Result<Vocab> ParseVocab(const Json& json, TokenizerSpec& spec) {
  const std::string where = "model.vocab";
  if (!json.is_object()) return Unreadable(where, json, "an object of token to id");
  Vocab vocab;
  vocab.ids.reserve(json.size());
  std::array<bool, 256> has_byte = {};
  for (const auto& [spelling, value] : json.items()) {
    SB_ASSIGN_OR_RETURN(const TokenId id, ParseId(value, where));
    const size_t index = static_cast<size_t>(id);
    if (index >= spec.vocab.size()) spec.vocab.resize(index + 1);
    if (spelling.empty() || !spec.vocab[index].empty()) {
      return Unreadable(where, value, "one token with an id, not also " + Quoted(spelling));
    }
    std::optional<std::string> bytes = BytesOf(spelling);
    if (!bytes.has_value()) vocab.foreign.push_back(id);
    if (bytes.has_value() && bytes->size() == 1) {
      const uint8_t byte = static_cast<uint8_t>((*bytes)[0]);
      has_byte[byte] = true;
      spec.byte_tokens[byte] = id;
    }
    spec.vocab[index] = std::move(bytes).value_or(spelling);
    vocab.ids.emplace(spelling, id);
  }
  if (const auto gap = std::find(has_byte.begin(), has_byte.end(), false); gap != has_byte.end()) {
    return BadCheckpoint({.what = "the vocabulary has no token for a byte",
                          .where = where,
                          .found = fmt::format("none for byte 0x{:02X}", gap - has_byte.begin()),
                          .expected = "a token for each of the 256 bytes"});
  }
  return vocab;
}

// "a b" or ["a", "b"].
std::optional<std::pair<std::string_view, std::string_view>> MergeSides(const Json& merge) {
  if (merge.is_array()) {
    if (merge.size() != 2 || !merge[0].is_string() || !merge[1].is_string()) return std::nullopt;
    return std::pair<std::string_view, std::string_view>(merge[0].get_ref<const std::string&>(),
                                                         merge[1].get_ref<const std::string&>());
  }
  if (!merge.is_string()) return std::nullopt;
  const std::string_view text = merge.get_ref<const std::string&>();
  const size_t space = text.find(' ');
  if (space == text.npos || text.find(' ', space + 1) != text.npos) return std::nullopt;
  return std::pair(text.substr(0, space), text.substr(space + 1));
}

Status ParseMerges(const Json& merges, const Vocab& vocab, TokenizerSpec& spec) {
  if (!merges.is_array()) return Unreadable("model.merges", merges, "a list");
  spec.merges.reserve(merges.size());
  std::string merged;
  for (const Json& merge : merges) {
    const auto sides = MergeSides(merge);
    if (!sides.has_value()) return Unreadable("model.merges", merge, "\"a b\" or [\"a\", \"b\"]");
    (merged = sides->first) += sides->second;
    const auto left = vocab.ids.find(sides->first);
    const auto right = vocab.ids.find(sides->second);
    const auto result = vocab.ids.find(merged);
    if (left == vocab.ids.end() || right == vocab.ids.end() || result == vocab.ids.end()) {
      return Unreadable("model.merges", merge,
                        "two tokens and their concatenation in the vocabulary");
    }
    spec.merges.push_back({left->second, right->second, result->second});
  }
  return OkStatus();
}

Result<AddedToken> ParseAddedToken(const Json& json) {
  const std::string where = "added_tokens";
  const auto* content = Member(json, "content").get_ptr<const std::string*>();
  if (content == nullptr || content->empty() || content->size() > AddedTokenMatcher::kMaxBytes) {
    return Unreadable(where, json,
                      fmt::format("content of 1 to {} bytes", AddedTokenMatcher::kMaxBytes));
  }
  AddedToken token;
  token.content = *content;
  SB_ASSIGN_OR_RETURN(token.id, ParseId(Member(json, "id"), where));
  for (const char* key : {"lstrip", "rstrip", "single_word"}) {
    SB_RETURN_IF_ERROR(RequireFlag(json, key, false, false, where + " " + Quoted(token.content)));
  }
  SB_ASSIGN_OR_RETURN(token.special, Flag(json, "special", false, where));
  SB_ASSIGN_OR_RETURN(token.normalized, Flag(json, "normalized", !token.special, where));
  // Such a token is to be found in normalized text. We look in the raw text, so that it stays known
  // whose text it is. For ASCII the two differ only where a combining mark follows or the text has
  // one of the three characters that NFC turns into ASCII (U+212A, U+037E, U+1FEF).
  const bool ascii = std::all_of(token.content.begin(), token.content.end(),
                                 [](char c) { return static_cast<uint8_t>(c) < 0x80; });
  if (token.normalized && !ascii) {
    return Unreadable(where, json, "normalized false for content that is not ASCII");
  }
  return token;
}

Status ParseAddedTokens(const Json& list, const Vocab& vocab, TokenizerSpec& spec) {
  const std::string where = "added_tokens";
  if (!list.is_null() && !list.is_array()) return Unreadable(where, list, "a list");
  std::unordered_set<TokenId> ids;
  std::unordered_set<std::string> contents;
  for (const Json& json : list) {
    SB_ASSIGN_OR_RETURN(AddedToken token, ParseAddedToken(json));
    // Some vocabularies list added tokens too; then under the same id.
    const auto listed = vocab.ids.find(token.content);
    const bool agrees = listed != vocab.ids.end()
                            ? listed->second == token.id
                            : static_cast<size_t>(token.id) >= spec.vocab.size() ||
                                  spec.vocab[static_cast<size_t>(token.id)].empty();
    if (!agrees || !ids.insert(token.id).second || !contents.insert(token.content).second) {
      return Unreadable(where, json, "one id for a token, and one token for an id");
    }
    spec.added.push_back(std::move(token));
  }
  for (const TokenId id : vocab.foreign) {
    if (ids.contains(id)) continue;
    return Unreadable("model.vocab", spec.vocab[static_cast<size_t>(id)],
                      "tokens spelled in the byte alphabet");
  }
  return OkStatus();
}

}  // namespace

Result<TokenizerSpec> ParseTokenizerJson(const Json& root) {
  if (!root.is_object()) return Unreadable("top level", root, "an object");
  TokenizerSpec spec;
  SB_RETURN_IF_ERROR(ParseStages(root, spec));
  const Json& model = Member(root, "model");
  SB_RETURN_IF_ERROR(ParseModelOptions(model, spec));
  SB_ASSIGN_OR_RETURN(const Vocab vocab, ParseVocab(Member(model, "vocab"), spec));
  SB_RETURN_IF_ERROR(ParseMerges(Member(model, "merges"), vocab, spec));
  SB_RETURN_IF_ERROR(ParseAddedTokens(Member(root, "added_tokens"), vocab, spec));
  return spec;
}

}  // namespace signalbox
