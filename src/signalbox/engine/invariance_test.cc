// SPDX-License-Identifier: Apache-2.0
//
// A token's values do not depend on its batch mates or on how its prompt was cut, bit for bit.
#include <gtest/gtest.h>

#include <map>

#include "signalbox/engine/reference.h"

namespace signalbox::invariance_test {
namespace {

const std::string kModels = std::string(SIGNALBOX_SOURCE_DIR) + "/models/";

struct Model {
  const char* name;
  const char* reference;
};
class Invariance : public testing::TestWithParam<Model> {};
INSTANTIATE_TEST_SUITE_P(Models, Invariance,
                         testing::Values(Model{"tiny-qwen3.5-moe-mxfp4",
                                               "reference_logits.safetensors"},
                                         Model{"tiny-kimi-k3-mxfp4", "reference.safetensors"}),
                         [](const auto& info) { return info.index == 0 ? "Qwen" : "Kimi"; });

using StepRows = std::map<std::pair<int, std::string>, std::vector<float>>;  // (layer, step) -> row

// What every step of the last call left in the given row.
void Watch(Engine& engine, int64_t row, StepRows* rows) {
  engine.runner().set_observer([row, rows, &engine](const StepTrace& t) {
    if (row >= t.rows) return;
    const float* begin = t.data + row * t.width;
    (*rows)[{t.layer, t.step->ToString(engine.planned().layout.mesh())}].assign(begin,
                                                                                begin + t.width);
  });
}

TEST_P(Invariance, LastTokenIsTheSameAloneInABatchAndInPieces) {
  const std::string dir = kModels + GetParam().name;
  auto engine = *Engine::Load(dir, {.threads = 2, .budget = {.tokens = 4096, .sequences = 16}});
  const auto sequences =
      *ReadReference(dir + "/" + GetParam().reference, engine->config().facts.vocab);
  StepBatch together;
  int64_t total = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    together.sequences.push_back({.sequence = static_cast<int64_t>(i), .tokens = sequences[i].ids});
    total += static_cast<int64_t>(sequences[i].ids.size());
  }
  const std::vector<TokenId>& last = sequences.back().ids;
  StepRows batch_rows;
  Watch(*engine, total - 1, &batch_rows);
  const StepOutput batch = *engine->Run(together);
  const int64_t vocab = engine->config().facts.vocab;
  const std::vector<float> want(batch.logits.end() - vocab, batch.logits.end());

  StepRows alone_rows;
  Watch(*engine, static_cast<int64_t>(last.size()) - 1, &alone_rows);
  const StepOutput alone = *engine->Run({.sequences = {{.sequence = 100, .tokens = last}}});
  for (const auto& [step, row] : alone_rows)
    EXPECT_EQ(row, batch_rows[step]) << step.first << ": " << step.second;
  EXPECT_EQ(alone.logits, want);

  engine->runner().set_observer({});
  for (size_t piece : {size_t{1}, size_t{5}}) {
    StepOutput out;
    for (size_t at = 0; at < last.size(); at += piece) {
      const std::vector<TokenId> part(
          last.begin() + static_cast<std::ptrdiff_t>(at),
          last.begin() + static_cast<std::ptrdiff_t>(std::min(at + piece, last.size())));
      out = *engine->Run(
          {.sequences = {{.sequence = 200 + static_cast<int64_t>(piece), .tokens = part}}});
    }
    EXPECT_EQ(out.logits, want) << "pieces of " << piece;
  }
}

}  // namespace
}  // namespace signalbox::invariance_test
