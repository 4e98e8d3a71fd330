// SPDX-License-Identifier: Apache-2.0
//
// Caches of keys and values in other types than float: how far the logits move, and what does not.
#include <gtest/gtest.h>

#include <algorithm>

#include "signalbox/engine/run_requests_test.h"
#include "signalbox/engine/verify.h"

namespace signalbox::kv_dtype_test {
namespace {

struct KvCase {
  std::string model;
  DType dtype;
  double within;  // of the reference, relative; about twice what was measured
};
void PrintTo(const KvCase& c, std::ostream* os) {
  *os << (c.model == kTinyQwen ? "qwen " : "kimi ") << ToString(c.dtype);
}
class KvTypes : public testing::TestWithParam<KvCase> {};
INSTANTIATE_TEST_SUITE_P(Models, KvTypes,
                         testing::Values(KvCase{kTinyQwen, DType::kBf16, 1e-3},
                                         KvCase{kTinyQwen, DType::kF8E4m3, 2e-2},
                                         KvCase{kTinyKimi, DType::kBf16, 1e-3},
                                         KvCase{kTinyKimi, DType::kF8E4m3, 4e-2}));

TEST_P(KvTypes, LogitsStayClose) {
  const KvCase& c = GetParam();
  const auto engine = LoadEngine(c.model, {.threads = 2, .kv_dtype = c.dtype});
  ASSERT_TRUE(engine);
  double worst = 0;
  for (const ReferenceSequence& s : ReferenceOf(c.model, *engine)) {
    const auto logits = AllLogits(*engine, s.ids, 64);
    ASSERT_TRUE(logits.ok()) << logits.status().ToString();
    worst = std::max(worst, RelativeError(*logits, s.logits));
  }
  EXPECT_LE(worst, c.within);
  EXPECT_GT(worst, 1e-5) << "nothing was rounded";
  RecordProperty("error", std::to_string(worst));
}

// New tokens are attended as they are stored, so pieces see what the whole sees.
TEST_P(KvTypes, LogitsDoNotDependOnHowThePromptIsCut) {
  const KvCase& c = GetParam();
  const auto engine = LoadEngine(c.model, {.threads = 2, .kv_dtype = c.dtype});
  ASSERT_TRUE(engine);
  const ReferenceSequence s = ReferenceOf(c.model, *engine).front();
  ExpectPiecesToBeTheWhole(*engine, s.ids);
}

// Expanded latent attention takes them back from the pages.
TEST(ExpandedLatents, AreThoseThatAreStored) {
  const auto absorbed = LoadEngine(kTinyKimi, {.threads = 2, .kv_dtype = DType::kF8E4m3});
  const auto expanded =
      LoadEngine(kTinyKimi, {.threads = 2, .kv_dtype = DType::kF8E4m3, .expand_latents = true});
  ASSERT_TRUE(absorbed && expanded);
  const ReferenceSequence s = ReferenceOf(kTinyKimi, *absorbed).front();
  const auto a = AllLogits(*absorbed, s.ids, 20);
  const auto b = AllLogits(*expanded, s.ids, 20);
  ASSERT_TRUE(a.ok() && b.ok());
  const auto& layers = absorbed->config().facts.layers;
  const int64_t attention = std::count_if(layers.begin(), layers.end(),
                                          [](const LayerFacts& l) { return l.is_attention(); });
  EXPECT_LE(RelativeError(*b, *a), ToleranceAfter(attention, 1e-5, DType::kF8E4m3));
}

}  // namespace
}  // namespace signalbox::kv_dtype_test
