// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as tiktoken.model, a zero byte, any bytes as tokenizer_config.json: an error or a
// tokenizer that gives back what it encodes, never a crash, a hang or memory without bound.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "signalbox/base/check.h"
#include "signalbox/base/json_util.h"
#include "signalbox/text/tokenizer.h"
#include "signalbox/text/tokenizer_tiktoken.h"
#include "signalbox/text/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace signalbox;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const size_t cut = std::min(bytes.find('\0'), bytes.size());
  const auto config = ParseJson(bytes.substr(std::min(cut + 1, bytes.size())));
  if (!config.ok()) return 0;
  Result<TokenizerSpec> spec = ParseTiktoken(bytes.substr(0, cut), *config);
  if (!spec.ok()) return 0;
  const Result<Tokenizer> tokenizer = Tokenizer::Build(*std::move(spec));
  if (!tokenizer.ok()) return 0;
  std::string text;
  AppendUtf8(bytes.substr(0, 256), Utf8End::kFinal, text);
  const auto ids = tokenizer->EncodeTrusted(text);
  SB_CHECK(ids.ok()) << ids.status().ToString();
  SB_CHECK(tokenizer->Decode(*ids, SpecialTokens::kKeep) == text) << text;
  return 0;
}
