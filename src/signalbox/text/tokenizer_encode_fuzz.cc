// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as text: what is encoded decodes to the text itself (UTF-8, NFC), whether control
// tokens are taken or not, and however it is cut into segments.
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>

#include "signalbox/base/check.h"
#include "signalbox/text/detokenizer.h"
#include "signalbox/text/tokenizer.h"
#include "signalbox/text/unicode.h"

namespace signalbox {
namespace {

Tokenizer MakeTokenizer() {
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte) {
    spec.vocab.push_back(std::string(1, static_cast<char>(byte)));
    spec.byte_tokens[byte] = byte;
  }
  for (const auto& [left, right] : {std::pair{'a', 'b'}, {' ', ' '}, {256, 'c'}, {257, 257}}) {
    const TokenId result = static_cast<TokenId>(spec.vocab.size());
    spec.merges.push_back({left, right, result});
    spec.vocab.push_back(spec.vocab[left] + spec.vocab[right]);
  }
  spec.added = {
      {"<|im_end|>", 300, true, false}, {"<a>", 301, false, false}, {"<a><", 302, false, true}};
  spec.pattern =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  Result<Tokenizer> tokenizer = Tokenizer::Build(std::move(spec));
  SB_CHECK(tokenizer.ok()) << tokenizer.status().ToString();
  return *std::move(tokenizer);
}

std::string Valid(std::string_view bytes) {
  std::string text;
  AppendUtf8(bytes, Utf8End::kFinal, text);
  return text;
}

std::string Streamed(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  StreamDecoder decoder(tokenizer, SpecialTokens::kKeep);
  std::string text;
  for (const TokenId id : ids) text += decoder.Push(id);
  return text + decoder.Flush();
}

}  // namespace
}  // namespace signalbox

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace signalbox;
  static const Tokenizer kTokenizer = MakeTokenizer();
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  const size_t cut = bytes.size() * data[0] / 255;
  const Segments segments = {{std::string(bytes.substr(0, cut)), (data[0] & 1) != 0},
                             {std::string(bytes.substr(cut)), (data[0] & 2) != 0}};
  const auto ids = kTokenizer.Encode(segments);
  SB_CHECK(ids.ok()) << ids.status().ToString();
  const std::string decoded = kTokenizer.Decode(*ids, SpecialTokens::kKeep);
  SB_CHECK(Streamed(kTokenizer, *ids) == decoded);

  // A control token parts the text for NFC too, so compare after it.
  const std::string text = Valid(segments[0].text) + Valid(segments[1].text);
  std::string got_storage;
  std::string want_storage;
  SB_CHECK(ToNfc(decoded, got_storage) == ToNfc(text, want_storage)) << text;
  if (!segments[0].trusted && !segments[1].trusted) {
    SB_CHECK(decoded == want_storage || decoded == text) << text;
    for (const TokenId id : *ids) SB_CHECK(id < 300) << text;
  }
  return 0;
}
