// SPDX-License-Identifier: Apache-2.0
//
// Input: a byte for the kind, then the source. Whatever it is, compiling ends with a grammar or an
// error, and a walk under its masks is accepted.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "signalbox/base/check.h"
#include "signalbox/text/grammar.h"

namespace signalbox {
namespace {

// A token for each byte, a few longer ones, and one that ends.
constexpr TokenId kStop = 260;

Tokenizer Bytes() {
  TokenizerSpec spec{.pattern = "."};
  for (int i = 0; i < 256; ++i) {
    spec.vocab.emplace_back(1, static_cast<char>(i));
    spec.byte_tokens[static_cast<size_t>(i)] = i;
  }
  for (const char* text : {"ab", "\", \"", "{\"", "123"}) spec.vocab.emplace_back(text);
  spec.added.push_back({.content = "<stop>", .id = kStop, .special = true, .normalized = false});
  auto tokenizer = Tokenizer::Build(std::move(spec));
  SB_CHECK(tokenizer.ok()) << tokenizer.status().ToString();
  return *std::move(tokenizer);
}

void Walk(GrammarMatcher& matcher) {
  std::vector<uint32_t> mask(kStop / 32 + 1);
  for (TokenId step = 0; step < 20 && !matcher.Ended(); ++step) {
    if (!matcher.FillMask(mask).ok()) return;
    // Another one at each step.
    TokenId id = -1;
    for (TokenId i = 0; i <= kStop && id < 0; ++i) {
      const auto at = static_cast<size_t>((i + step * 97) % (kStop + 1));
      if ((mask[at / 32] >> (at % 32) & 1) != 0) id = static_cast<TokenId>(at);
    }
    if (id < 0) return;
    const Status accepted = matcher.Accept(id);
    SB_CHECK(accepted.ok() || accepted.code() == StatusCode::kResourceExhausted)
        << id << ": " << accepted.ToString();
    if (!accepted.ok()) return;
  }
}

}  // namespace
}  // namespace signalbox

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace signalbox;
  if (size == 0 || size > 2000) return 0;
  static const Tokenizer kTokenizer = Bytes();
  static const auto kCompiler = *MakeGrammarCompiler(kTokenizer, {kStop});
  const std::string source(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto matcher = kCompiler->Compile({static_cast<GrammarSpec::Kind>(data[0] % 4), source});
  if (matcher.ok()) Walk(**matcher);
  return 0;
}
