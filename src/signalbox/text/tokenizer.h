// SPDX-License-Identifier: Apache-2.0
//
// The tokenizer of a checkpoint: byte-level BPE as tokenizer.json (Hugging Face) or tiktoken.model
// (Kimi) describes it.
//
// Encoding, in this order:
//   1. bytes that are not UTF-8 become U+FFFD (as Python's errors="replace");
//   2. spellings of added tokens are found in the raw text, leftmost first, then longest;
//   3. the text between them is brought to NFC (if the file says so), cut into pieces by the file's
//      regular expression, and each piece is merged by BPE over its bytes.
// A token of the file with "normalized": true is looked for after the others, in the text they
// leave.
//
// Text of a request never becomes an added token, whatever it spells (segment.h says why).
//
//   SB_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::LoadModel("models/qwen"));
//   SB_ASSIGN_OR_RETURN(std::vector<TokenId> ids, tokenizer.Encode(rendered_prompt));
//   std::string text = tokenizer.Decode(ids, SpecialTokens::kSkip);
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "signalbox/base/ids.h"
#include "signalbox/base/status.h"
#include "signalbox/text/bpe.h"
#include "signalbox/text/long_text.h"
#include "signalbox/text/pretokenizer.h"
#include "signalbox/text/segment.h"
#include "signalbox/text/tokenizer_added.h"

namespace signalbox {

// What decoding does with tokens the file calls special (<|im_end|>, but not <think>).
enum class SpecialTokens { kKeep, kSkip };

struct AddedToken {
  std::string content;
  TokenId id;
  bool special;
  bool normalized;
};

// A tokenizer as data: what its files say, checked (ParseTokenizerJson, ParseTiktoken), and all
// that Tokenizer needs.
struct TokenizerSpec {
  std::vector<std::string> vocab;  // bytes by id; empty where the id is none of the vocabulary
  std::array<TokenId, 256> byte_tokens;  // the token of each single byte
  std::vector<BpeMerge> merges;
  MergeRank merge_rank = MergeRank::kPlace;
  std::vector<AddedToken> added;  // ids may lie beyond `vocab`
  std::string pattern;            // of the pre-tokenizer
  bool nfc = true;
  bool ignore_merges = false;  // a piece that is a token as a whole is not merged
  LongTextLimits limits;
};

class Tokenizer {
 public:
  // Longer text is refused by Encode with kInvalidArgument.
  static constexpr size_t kMaxTextBytes = size_t{1} << 26;

  // The tokenizer of a model directory: tokenizer.json, or else tiktoken.model with
  // tokenizer_config.json. Errors as below.
  static Result<Tokenizer> LoadModel(const std::filesystem::path& model_dir);
  // kBadCheckpoint, naming the file, where it is missing, damaged or of a kind we do not read.
  static Result<Tokenizer> Load(const std::filesystem::path& tokenizer_json);
  // The ids of `spec` must be in range; kBadCheckpoint for a pattern that does not compile, or an
  // added token that ordinary text could become.
  static Result<Tokenizer> Build(TokenizerSpec spec);

  // The token ids of the segments as one text. An added token is taken only where its whole
  // spelling lies in trusted text; all else is cut and merged as if there were no segments. So the
  // result is that of EncodeTrusted(PlainText(segments)), unless a spelling overlaps untrusted
  // text. Segments that are `apart` part the text into several. Each segment is UTF-8 by itself.
  // kResourceExhausted where the file's pattern takes too long.
  Result<std::vector<TokenId>> Encode(std::span<const Segment> segments) const;
  // One segment.
  Result<std::vector<TokenId>> EncodeTrusted(std::string text) const;
  Result<std::vector<TokenId>> EncodeUntrusted(std::string text) const;

  // The text of `ids`. Bytes that are not UTF-8 become U+FFFD; an id that is no token has no text
  // (a model's rows are often more than its tokens).
  std::string Decode(std::span<const TokenId> ids, SpecialTokens special) const;

  // The bytes of a token, often not UTF-8 by themselves; empty for an id that is no token.
  std::string_view TokenBytes(TokenId id) const;
  // The token with exactly these bytes: "<|im_end|>", " the".
  std::optional<TokenId> TokenToId(std::string_view bytes) const;
  bool IsSpecial(TokenId id) const;
  // Whether the file adds the token, special or not: text alone never becomes it.
  bool IsAdded(TokenId id) const;
  // One more than the greatest id.
  size_t vocab_size() const { return bytes_.size(); }

 private:
  Tokenizer(Bpe bpe, Pretokenizer pretokenizer)
      : bpe_(std::move(bpe)), pretokenizer_(std::move(pretokenizer)) {}

  // Both append what they find in text[begin, end).
  void FindAdded(std::string_view text, size_t begin, size_t end,
                 std::vector<AddedTokenMatch>& matches) const;
  Status EncodeOrdinary(std::string_view text, size_t begin, size_t end,
                        std::vector<TokenId>& ids) const;

  std::vector<std::string> bytes_;                              // by id
  std::vector<bool> special_;                                   // by id
  std::unordered_map<std::string_view, TokenId> ordinary_ids_;  // keys point into bytes_
  std::unordered_map<std::string_view, TokenId> added_ids_;     // keys point into bytes_
  AddedTokenMatcher added_raw_;
  AddedTokenMatcher added_normalized_;
  Bpe bpe_;
  Pretokenizer pretokenizer_;
  bool nfc_ = true;
  bool ignore_merges_ = false;
  LongTextLimits limits_;
};

}  // namespace signalbox
