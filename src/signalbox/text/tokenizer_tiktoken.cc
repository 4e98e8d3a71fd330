// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/tokenizer_tiktoken.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "signalbox/base/text_util.h"

namespace signalbox {
namespace {

using Json = nlohmann::json;

// Every split of a token is looked up, at a cost that grows with the square of its length.
// Released vocabularies have none longer than 256 bytes.
constexpr size_t kMaxTokenBytes = 512;
constexpr size_t kMaxFileBytes = size_t{16} << 20;  // Kimi's has 2.8 MB
constexpr TokenId kMaxControlTokens = 4096;         // Kimi has 256
constexpr const char* kRanks = "tiktoken.model";
constexpr const char* kNames = "tokenizer_config.json, added_tokens_decoder";

// Kimi's pattern. PCRE2 has no intersection of classes, so `[a&&[^\p{Han}]]` is a look-ahead and a
// class; its \p{Han} would be the script extensions, hence "sc:".
constexpr const char* kKimiPattern =
    R"(\p{sc:Han}+)"
    R"(|[^\r\n\p{L}\p{N}]?(?:(?!\p{sc:Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])*)"
    R"((?:(?!\p{sc:Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?(?:(?!\p{sc:Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])+)"
    R"((?:(?!\p{sc:Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

Status NotTiktoken(std::string where, std::string_view found, std::string expected) {
  return BadCheckpoint({.what = "a tokenizer of a kind that is not supported",
                        .where = std::move(where),
                        .found = Quoted(found),
                        .expected = std::move(expected)});
}

std::string ShownJson(const Json& value) {
  return value.dump(-1, ' ', true, Json::error_handler_t::replace);
}

int SextetOf(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

// RFC 4648, padded; nothing where the text is not that.
std::optional<std::string> FromBase64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string bytes;
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const int sextet = i < text.size() - padding ? SextetOf(text[i]) : 0;
    if (sextet < 0) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(sextet);
    if (i % 4 != 3) continue;
    for (const int shift : {16, 8, 0}) bytes += static_cast<char>(bits >> shift & 0xFF);
    bits = 0;
  }
  bytes.resize(bytes.size() - padding);
  return bytes;
}

std::optional<TokenId> ToId(std::string_view text) {
  TokenId id = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size() || id < 0) return std::nullopt;
  return id;
}

using Ranks = std::unordered_map<std::string_view, TokenId>;  // keys point into spec.vocab

// Fills spec.vocab and spec.byte_tokens.
Result<Ranks> ParseRanks(std::string_view text, TokenizerSpec& spec) {
  if (text.size() > kMaxFileBytes) {
    return NotTiktoken(kRanks, fmt::format("{} bytes", text.size()),
                       fmt::format("at most {} bytes", kMaxFileBytes));
  }
  const size_t lines = (text.size() + 1) / 7;  // "IQ== 0" and a newline at least
  spec.vocab.resize(lines);
  size_t count = 0;
  for (size_t number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const size_t space = std::min(line.find(' '), line.size());
    auto bytes = FromBase64(line.substr(0, space));
    const auto rank = ToId(line.substr(std::min(space + 1, line.size())));
    if (!bytes || bytes->empty() || bytes->size() > kMaxTokenBytes || !rank ||
        static_cast<size_t>(*rank) >= lines || !spec.vocab[static_cast<size_t>(*rank)].empty()) {
      return NotTiktoken(fmt::format("{}, line {}", kRanks, number), line,
                         fmt::format("base64 of 1 to {} bytes, a space and a rank, the ranks being "
                                     "0 to N-1, each once",
                                     kMaxTokenBytes));
    }
    spec.vocab[static_cast<size_t>(*rank)] = *std::move(bytes);
    ++count;
  }
  spec.vocab.resize(count);
  Ranks ranks;
  ranks.reserve(count);
  for (size_t id = 0; id < count; ++id) {
    const std::string& bytes = spec.vocab[id];
    if (bytes.empty() || !ranks.emplace(bytes, static_cast<TokenId>(id)).second) {
      return NotTiktoken(kRanks, fmt::format("rank {}", id),
                         "ranks 0 to N-1, each with bytes of its own");
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = ranks.find(std::string(1, static_cast<char>(byte)));
    if (found == ranks.end()) {
      return NotTiktoken(kRanks, fmt::format("no token for byte {:#04x}", byte),
                         "a token for every byte");
    }
    spec.byte_tokens[static_cast<size_t>(byte)] = found->second;
  }
  return ranks;
}

// tiktoken merges any two neighbours whose bytes together are a token: each token is the result of
// as many merges as it can be split into two tokens.
void AddMerges(const Ranks& ranks, TokenizerSpec& spec) {
  spec.merge_rank = MergeRank::kResult;
  spec.ignore_merges = true;
  for (size_t id = 0; id < spec.vocab.size(); ++id) {
    const std::string_view bytes = spec.vocab[id];
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const auto left = ranks.find(bytes.substr(0, cut));
      if (left == ranks.end()) continue;
      const auto right = ranks.find(bytes.substr(cut));
      if (right == ranks.end()) continue;
      spec.merges.push_back({left->second, right->second, static_cast<TokenId>(id)});
    }
  }
}

Result<AddedToken> ParseAdded(const std::string& key, const Json& json) {
  const std::string where = fmt::format("{}, {}", kNames, Quoted(key));
  if (!json.is_object()) return NotTiktoken(where, ShownJson(json), "an object");
  const auto content = json.find("content");
  const auto special = json.find("special");
  const auto* text = content == json.end() ? nullptr : content->get_ptr<const std::string*>();
  if (text == nullptr || text->empty() || text->size() > AddedTokenMatcher::kMaxBytes) {
    return NotTiktoken(where, ShownJson(json),
                       fmt::format("content of 1 to {} bytes", AddedTokenMatcher::kMaxBytes));
  }
  if (special != json.end() && !special->is_boolean()) {
    return NotTiktoken(where, ShownJson(json), "special as true or false");
  }
  const auto id = ToId(key);
  if (!id) return NotTiktoken(where, key, "a token id");
  return AddedToken{.content = *text,
                    .id = *id,
                    .special = special != json.end() && special->get<bool>(),
                    .normalized = false};
}

Status AddControlTokens(const Json& config, TokenizerSpec& spec) {
  const auto list = config.find("added_tokens_decoder");
  if (list == config.end() || !list->is_object()) {
    return NotTiktoken(kNames, "nothing", "an object of id to token");
  }
  const auto first = static_cast<TokenId>(spec.vocab.size());
  std::map<TokenId, AddedToken> named;
  std::unordered_map<std::string, TokenId> ids;
  for (const auto& [key, json] : list->items()) {
    SB_ASSIGN_OR_RETURN(AddedToken token, ParseAdded(key, json));
    const TokenId id = token.id;
    const bool in_range = id >= first && id - first < kMaxControlTokens;
    if (!in_range || !ids.emplace(token.content, id).second ||
        !named.emplace(id, std::move(token)).second) {
      return NotTiktoken(kNames, key,
                         fmt::format("one id for a token and one token for an id, of {} to {}",
                                     first, first + kMaxControlTokens - 1));
    }
  }
  if (named.empty()) return OkStatus();
  for (TokenId id = first; id <= named.rbegin()->first; ++id) {
    if (const auto token = named.find(id); token != named.end()) {
      spec.added.push_back(token->second);
      continue;
    }
    std::string content = fmt::format("<|reserved_token_{}|>", id);
    if (!ids.emplace(content, id).second) {
      return NotTiktoken(kNames, content, "no name that the ids without a name have");
    }
    spec.added.push_back(
        {.content = std::move(content), .id = id, .special = true, .normalized = false});
  }
  return OkStatus();
}

}  // namespace

Result<TokenizerSpec> ParseTiktoken(std::string_view ranks, const Json& config) {
  const auto name = config.is_object() ? config.find("tokenizer_class") : config.end();
  if (name == config.end() || *name != "TikTokenTokenizer") {
    return NotTiktoken("tokenizer_config.json, tokenizer_class",
                       name == config.end() ? "nothing" : ShownJson(*name),
                       "TikTokenTokenizer, whose pattern is known");
  }
  TokenizerSpec spec;
  SB_ASSIGN_OR_RETURN(const Ranks ids, ParseRanks(ranks, spec));
  AddMerges(ids, spec);
  SB_RETURN_IF_ERROR(AddControlTokens(config, spec));
  spec.pattern = kKimiPattern;
  spec.nfc = false;
  spec.limits = {.characters = 400'000, .run = 25'000};
  return spec;
}

}  // namespace signalbox
