// SPDX-License-Identifier: Apache-2.0
//
// Reads the tokenizer of Moonshot's Kimi models into a TokenizerSpec: tiktoken.model (a line a
// token: its bytes in base64, a space, its rank, which is its id), and tokenizer_config.json, which
// names the tokens behind it (`added_tokens_decoder`: id -> content, special). The ids between that
// it does not name, up to its greatest, are control tokens as well: `<|reserved_token_N|>`.
//
// The regular expression stands in neither file, it is the program's of the class that
// tokenizer_config.json names; so any other `tokenizer_class` than TikTokenTokenizer is refused.
//
//   SB_ASSIGN_OR_RETURN(nlohmann::json config, ReadJsonFile(dir / "tokenizer_config.json"));
//   SB_ASSIGN_OR_RETURN(TokenizerSpec spec, ParseTiktoken(text_of_tiktoken_model, config));
//   SB_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::Build(std::move(spec)));
#pragma once

#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "signalbox/base/status.h"
#include "signalbox/text/tokenizer.h"

namespace signalbox {

// kBadCheckpoint, naming the line or key, for anything else than the above; so for ranks that are
// not 0 to N-1, a byte without a token, and more than 4,096 tokens behind the ranks.
Result<TokenizerSpec> ParseTiktoken(std::string_view ranks, const nlohmann::json& config);

}  // namespace signalbox
