// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "signalbox/base/json_util.h"
#include "signalbox/base/mapped_file.h"
#include "signalbox/base/text_util.h"
#include "signalbox/text/tokenizer_json.h"
#include "signalbox/text/tokenizer_tiktoken.h"
#include "signalbox/text/unicode.h"

namespace signalbox {
namespace {

// Ordinary text becomes byte tokens and results of merges, and nothing else.
Status CheckAddedAreUnreachable(const TokenizerSpec& spec, size_t vocab_size) {
  std::vector<bool> reachable(vocab_size);
  for (const TokenId id : spec.byte_tokens) reachable[id] = true;
  for (const BpeMerge& merge : spec.merges) reachable[merge.result] = true;
  for (const AddedToken& token : spec.added) {
    if (!reachable[token.id]) continue;
    return BadCheckpoint({.what = "an added token is also a token of ordinary text",
                          .where = "added_tokens",
                          .found = fmt::format("{}, id {}", Quoted(token.content), token.id),
                          .expected = "a token that no user text can become",
                          .remedy = "give it an id of its own"});
  }
  return OkStatus();
}

Result<TokenizerSpec> ReadTiktoken(const std::filesystem::path& model_dir) {
  Result<MappedFile> file = MappedFile::Open(model_dir / "tiktoken.model");
  if (!file.ok()) return BadCheckpoint(file.status().detail());
  SB_ASSIGN_OR_RETURN(const nlohmann::json config,
                      ReadJsonFile(model_dir / "tokenizer_config.json"));
  const auto bytes = file->bytes();
  return ParseTiktoken({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, config);
}

}  // namespace

Result<Tokenizer> Tokenizer::LoadModel(const std::filesystem::path& model_dir) {
  std::error_code error;
  if (std::filesystem::exists(model_dir / "tokenizer.json", error)) {
    return Load(model_dir / "tokenizer.json");
  }
  if (!std::filesystem::exists(model_dir / "tiktoken.model", error)) {
    return BadCheckpoint({.what = "the model has no tokenizer",
                          .where = model_dir.string(),
                          .expected = "tokenizer.json or tiktoken.model",
                          .remedy = "put the file the model was released with there"});
  }
  Result<TokenizerSpec> spec = ReadTiktoken(model_dir);
  if (!spec.ok()) return spec.status().At(model_dir.string());
  Result<Tokenizer> tokenizer = Build(*std::move(spec));
  if (!tokenizer.ok()) return tokenizer.status().At((model_dir / "tiktoken.model").string());
  return tokenizer;
}

Result<Tokenizer> Tokenizer::Load(const std::filesystem::path& tokenizer_json) {
  SB_ASSIGN_OR_RETURN(const nlohmann::json json, ReadJsonFile(tokenizer_json));
  Result<TokenizerSpec> spec = ParseTokenizerJson(json);
  if (!spec.ok()) return spec.status().At(tokenizer_json.string());
  Result<Tokenizer> tokenizer = Build(*std::move(spec));
  if (!tokenizer.ok()) return tokenizer.status().At(tokenizer_json.string());
  return tokenizer;
}

Result<Tokenizer> Tokenizer::Build(TokenizerSpec spec) {
  size_t vocab_size = spec.vocab.size();
  for (const AddedToken& token : spec.added) {
    vocab_size = std::max(vocab_size, static_cast<size_t>(token.id) + 1);
  }
  SB_RETURN_IF_ERROR(CheckAddedAreUnreachable(spec, vocab_size));
  SB_ASSIGN_OR_RETURN(Pretokenizer pretokenizer, Pretokenizer::Compile(spec.pattern));

  Tokenizer tokenizer(Bpe(spec.byte_tokens, spec.merges, spec.merge_rank), std::move(pretokenizer));
  tokenizer.nfc_ = spec.nfc;
  tokenizer.ignore_merges_ = spec.ignore_merges;
  tokenizer.limits_ = spec.limits;
  tokenizer.bytes_ = std::move(spec.vocab);
  tokenizer.bytes_.resize(vocab_size);
  tokenizer.special_.resize(vocab_size);
  for (AddedToken& token : spec.added) {
    (token.normalized ? tokenizer.added_normalized_ : tokenizer.added_raw_)
        .Add(token.content, token.id);
    tokenizer.special_[token.id] = token.special;
    tokenizer.bytes_[token.id] = std::move(token.content);
    tokenizer.added_ids_.emplace(tokenizer.bytes_[token.id], token.id);
  }
  tokenizer.ordinary_ids_.reserve(vocab_size);
  for (size_t id = 0; id < vocab_size; ++id) {
    const std::string& bytes = tokenizer.bytes_[id];
    const auto added = tokenizer.added_ids_.find(bytes);
    const bool is_added =
        added != tokenizer.added_ids_.end() && added->second == static_cast<TokenId>(id);
    if (!bytes.empty() && !is_added) {
      tokenizer.ordinary_ids_.emplace(bytes, static_cast<TokenId>(id));
    }
  }
  return tokenizer;
}

void Tokenizer::FindAdded(std::string_view text, size_t begin, size_t end,
                          std::vector<AddedTokenMatch>& matches) const {
  std::vector<AddedTokenMatch> raw;
  added_raw_.FindAll(text, begin, end, raw);
  for (const AddedTokenMatch& match : raw) {
    added_normalized_.FindAll(text, begin, match.begin, matches);
    matches.push_back(match);
    begin = match.end;
  }
  added_normalized_.FindAll(text, begin, end, matches);
}

Status Tokenizer::EncodeOrdinary(std::string_view whole, size_t begin, size_t end,
                                 std::vector<TokenId>& ids) const {
  std::string_view text = whole.substr(begin, end - begin);
  std::string storage;
  if (nfc_) text = ToNfc(text, storage);
  std::vector<std::string_view> parts;
  CutLongText(text, limits_, parts);
  std::vector<std::string_view> pieces;
  for (const std::string_view part : parts) {
    SB_RETURN_IF_ERROR(pretokenizer_.Split(part, pieces));
  }
  for (const std::string_view piece : pieces) {
    if (ignore_merges_) {
      if (const auto whole = ordinary_ids_.find(piece); whole != ordinary_ids_.end()) {
        ids.push_back(whole->second);
        continue;
      }
    }
    bpe_.Encode(piece, ids);
  }
  return OkStatus();
}

Result<std::vector<TokenId>> Tokenizer::EncodeTrusted(std::string text) const {
  const Segment segment{std::move(text), true};
  return Encode({&segment, 1});
}

Result<std::vector<TokenId>> Tokenizer::EncodeUntrusted(std::string text) const {
  const Segment segment{std::move(text), false};
  return Encode({&segment, 1});
}

Result<std::vector<TokenId>> Tokenizer::Encode(std::span<const Segment> segments) const {
  std::string text;
  std::vector<AddedTokenMatch> added;
  std::vector<size_t> borders;  // where one text ends and another begins
  size_t unsearched = 0;        // trusted text from here on is yet to be searched
  for (const Segment& segment : segments) {
    if (segment.text.empty()) continue;
    if (segment.text.size() > kMaxTextBytes || text.size() > kMaxTextBytes) {
      return InvalidArgument({.what = "the text is too long to tokenize",
                              .expected = fmt::format("at most {} bytes", kMaxTextBytes),
                              .remedy = "shorten it"});
    }
    if (!segment.trusted || segment.apart) {
      FindAdded(text, unsearched, text.size(), added);
      unsearched = text.size();
    }
    if (segment.apart) borders.push_back(text.size());
    AppendUtf8(segment.text, Utf8End::kFinal, text);
    if (segment.apart) {
      borders.push_back(text.size());
      if (segment.trusted) FindAdded(text, unsearched, text.size(), added);
    }
    if (!segment.trusted || segment.apart) unsearched = text.size();
  }
  FindAdded(text, unsearched, text.size(), added);

  std::vector<TokenId> ids;
  size_t begin = 0;
  auto border = borders.begin();
  const auto encode_until = [&](size_t end) -> Status {
    for (; border != borders.end() && *border <= end; ++border) {
      if (*border <= begin) continue;
      SB_RETURN_IF_ERROR(EncodeOrdinary(text, begin, *border, ids));
      begin = *border;
    }
    return EncodeOrdinary(text, begin, end, ids);
  };
  for (const AddedTokenMatch& match : added) {
    SB_RETURN_IF_ERROR(encode_until(match.begin));
    ids.push_back(match.id);
    begin = match.end;
  }
  SB_RETURN_IF_ERROR(encode_until(text.size()));
  return ids;
}

std::string Tokenizer::Decode(std::span<const TokenId> ids, SpecialTokens special) const {
  std::string bytes;
  for (const TokenId id : ids) {
    if (special == SpecialTokens::kKeep || !IsSpecial(id)) bytes += TokenBytes(id);
  }
  std::string text;
  AppendUtf8(bytes, Utf8End::kFinal, text);
  return text;
}

std::string_view Tokenizer::TokenBytes(TokenId id) const {
  return id >= 0 && static_cast<size_t>(id) < bytes_.size() ? std::string_view(bytes_[id])
                                                            : std::string_view();
}

std::optional<TokenId> Tokenizer::TokenToId(std::string_view bytes) const {
  for (const auto* ids : {&added_ids_, &ordinary_ids_}) {
    if (const auto found = ids->find(bytes); found != ids->end()) return found->second;
  }
  return std::nullopt;
}

bool Tokenizer::IsAdded(TokenId id) const {
  const auto found = added_ids_.find(TokenBytes(id));
  return found != added_ids_.end() && found->second == id;
}

bool Tokenizer::IsSpecial(TokenId id) const {
  return id >= 0 && static_cast<size_t>(id) < special_.size() && special_[id];
}

}  // namespace signalbox
