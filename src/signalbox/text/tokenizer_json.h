// SPDX-License-Identifier: Apache-2.0
//
// Reads the tokenizer.json of Hugging Face's `tokenizers` into a TokenizerSpec. Accepted:
//
//   normalizer     null or NFC
//   pre_tokenizer  Split(Regex, Isolated) then ByteLevel(use_regex false), in a Sequence; or
//                  ByteLevel(use_regex true) alone, which is GPT-2's pattern; no prefix space
//   model          BPE over bytes: merges as "a b" or ["a", "b"], ignore_merges; no dropout,
//   unknown
//                  token, byte fallback or affixes
//   added_tokens   content, id, special, normalized (ASCII content only); not lstrip, rstrip or
//                  single_word
//   post_processor null or ByteLevel (which changes offsets only);  decoder ByteLevel
//
// truncation and padding are for batches of training data and are not applied.
//
//   SB_ASSIGN_OR_RETURN(nlohmann::json json, ReadJsonFile(dir / "tokenizer.json"));
//   SB_ASSIGN_OR_RETURN(TokenizerSpec spec, ParseTokenizerJson(json));
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "signalbox/base/status.h"
#include "signalbox/text/tokenizer.h"

namespace signalbox {

// kBadCheckpoint, naming the place in the JSON, for anything else than the above.
Result<TokenizerSpec> ParseTokenizerJson(const nlohmann::json& root);

}  // namespace signalbox
