// SPDX-License-Identifier: Apache-2.0
//
// MB/s of encoding and decoding. Mixed text in the tiny vocabularies (run it in the repository's
// root); with SIGNALBOX_QWEN_TOKENIZER=DIR (tools/fetch_qwen_tokenizer.py) in Qwen3.5's.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "signalbox/base/check.h"
#include "signalbox/text/tokenizer.h"

namespace signalbox {
namespace {

const Tokenizer& Qwen() {
  static const Tokenizer kTokenizer = [] {
    const char* folder = std::getenv("SIGNALBOX_QWEN_TOKENIZER");
    Result<Tokenizer> tokenizer =
        Tokenizer::Load(folder != nullptr ? std::string(folder) + "/qwen3.5.json"
                                          : "models/tiny-qwen3.5-moe-mxfp4/tokenizer.json");
    SB_CHECK(tokenizer.ok()) << tokenizer.status().ToString();
    return *std::move(tokenizer);
  }();
  return kTokenizer;
}

const Tokenizer& Kimi() {
  static const Tokenizer kTokenizer = [] {
    Result<Tokenizer> tokenizer = Tokenizer::LoadModel("models/tiny-kimi-k3-mxfp4");
    SB_CHECK(tokenizer.ok()) << tokenizer.status().ToString();
    return *std::move(tokenizer);
  }();
  return kTokenizer;
}

// English prose, code, Chinese and accented text in turn, with words that vary: 1 MB.
std::string MixedText() {
  const std::string_view parts[] = {
      "The signalman sets the route, proves it, and only then clears the signal for train ",
      "for (int i = 0; i < n; ++i) {\n    total += weights[i] * rows[i];\n}\n// line ",
      "信号楼为每一列火车安排进路，确认无误之后才会开放信号。编号：",
      "Élève naïf, où es-tu\u00A0? Déjà à l’école; çà et là, des gâteaux nº ",
  };
  std::string text;
  for (size_t i = 0; text.size() < 1'000'000; ++i) {
    text += parts[i % std::size(parts)];
    text += std::to_string(i * 7919 % 100'003) + (i % 5 == 0 ? "\n\n" : " ");
  }
  return text;
}

void Encode(benchmark::State& state, const std::string& text, const Tokenizer& tokenizer = Qwen()) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(tokenizer.EncodeUntrusted(text));
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
}

void EncodeMixed(benchmark::State& state) {
  Encode(state, MixedText());
}
void EncodeMixedKimi(benchmark::State& state) {
  Encode(state, MixedText(), Kimi());
}
void EncodeMegabyteOfOneLetter(benchmark::State& state) {
  Encode(state, std::string(1 << 20, 'a'));
}
void EncodeMegabyteOfSpaces(benchmark::State& state) {
  Encode(state, std::string(1 << 20, ' '));
}

void DecodeMixed(benchmark::State& state) {
  const std::string text = MixedText();
  const std::vector<TokenId> ids = *Qwen().EncodeUntrusted(text);
  for (auto _ : state) {
    benchmark::DoNotOptimize(Qwen().Decode(ids, SpecialTokens::kSkip));
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
}

BENCHMARK(EncodeMixed)->Unit(benchmark::kMillisecond);
BENCHMARK(EncodeMixedKimi)->Unit(benchmark::kMillisecond);
BENCHMARK(EncodeMegabyteOfOneLetter)->Unit(benchmark::kMillisecond);
BENCHMARK(EncodeMegabyteOfSpaces)->Unit(benchmark::kMillisecond);
BENCHMARK(DecodeMixed)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace signalbox
