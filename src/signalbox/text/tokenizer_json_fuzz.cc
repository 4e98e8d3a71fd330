// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as tokenizer.json: an error or a tokenizer, never a crash, a hang or memory without
// bound.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <nlohmann/json.hpp>

#include "signalbox/base/json_util.h"
#include "signalbox/text/tokenizer.h"
#include "signalbox/text/tokenizer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace signalbox;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  Result<nlohmann::json> json = ParseJson(bytes, StatusCode::kBadCheckpoint);
  if (!json.ok()) return 0;
  Result<TokenizerSpec> spec = ParseTokenizerJson(*json);
  if (!spec.ok()) return 0;
  Result<Tokenizer> tokenizer = Tokenizer::Build(*std::move(spec));
  if (!tokenizer.ok()) return 0;
  (void)tokenizer->EncodeTrusted(std::string(bytes.substr(0, 256)));
  return 0;
}
