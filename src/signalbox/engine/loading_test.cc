// SPDX-License-Identifier: Apache-2.0
//
// A rank maps its own bytes of the checkpoint and no others: as many as the plan says, each expert
// on as many ranks as the layout has copies of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "signalbox/engine/engine.h"

namespace signalbox::loading_test {
namespace {

const std::string kTiny = std::string(SIGNALBOX_SOURCE_DIR) + "/models/tiny-qwen3.5-moe-mxfp4";

std::unique_ptr<Engine> Load(const ParallelConfig& parallel, bool exchange,
                             SharedChoice shared = SharedChoice::kAuto) {
  LayoutOptions layout{.parallel = parallel, .limits = {.capacity = 64}, .shared = shared};
  if (exchange) {
    layout.contracts.fill(*ContractFromFile(std::string(SIGNALBOX_SOURCE_DIR) +
                                            "/src/signalbox/a2a/testdata/acme.contract"));
  }
  auto engine = Engine::Load(
      kTiny, {.threads = 1, .budget = {.tokens = 64, .sequences = 1}, .layout = layout});
  EXPECT_TRUE(engine.ok()) << engine.status().ToString();
  return engine.ok() ? std::move(engine).value() : nullptr;
}

std::vector<const LayerWeights*> LayersOf(const ModelWeights& weights) {
  std::vector<const LayerWeights*> layers;
  for (const LayerWeights& layer : weights.layers) layers.push_back(&layer);
  if (weights.mtp) layers.push_back(&weights.mtp->layer);
  return layers;
}

// Where rows of the file's data and scales that a rank holds of its routed experts begin, with how
// many bytes of each. Slots behind the routed ones hold a shared expert.
using Rows = std::map<const std::byte*, int64_t>;
Rows ExpertRows(const RankRunner& rank, int64_t routed_slots) {
  Rows rows;
  for (const LayerWeights* layer : LayersOf(rank.weights())) {
    for (int64_t s = 0; s < routed_slots; ++s) {
      const ExpertWeights& e = layer->experts[static_cast<size_t>(s)];
      for (const MatrixView* m : {&e.gate, &e.up, &e.down}) {
        for (int64_t r = 0; r < m->rows; ++r) {
          rows[m->data + r * m->row_bytes] = m->cols / 2;  // two MXFP4 values in a byte
          rows[m->scale + r * m->scale_row_bytes] = m->cols / kMxBlock;
        }
      }
    }
  }
  return rows;
}

int64_t Bytes(const Rows& rows) {
  int64_t bytes = 0;
  for (const auto& [begin, size] : rows) bytes += size;
  return bytes;
}

TEST(Loading, ARankMapsTheBytesOfItsPlan) {
  struct Case {
    ParallelConfig parallel;
    bool exchange = false;
    SharedChoice shared = SharedChoice::kAuto;
  };
  for (const Case& c :
       std::vector<Case>{{.parallel = {.tp = 1}},
                         {.parallel = {.tp = 2}},
                         {.parallel = {.tp = 2, .ep = 2}},
                         {.parallel = {.tp = 2, .dp = 2, .ep = 2}},
                         {.parallel = {.tp = 2, .ep = 2}, .exchange = true},
                         {.parallel = {.tp = 4, .dp = 2, .ep = 2}},
                         {.parallel = {.tp = 3, .dp = 3, .ep = 3, .redundant_experts = 2}},
                         {.parallel = {.tp = 2, .ep = 2}, .shared = SharedChoice::kReplicated}}) {
    const auto engine = Load(c.parallel, c.exchange, c.shared);
    ASSERT_NE(engine, nullptr);
    SCOPED_TRACE(testing::Message() << "tp " << c.parallel.tp << " dp " << c.parallel.dp << " ep "
                                    << c.parallel.ep << " exchange " << c.exchange);
    EXPECT_EQ(engine->ranks().size(), static_cast<size_t>(c.parallel.tp));
    for (const RankRunner* rank : engine->ranks()) {
      EXPECT_EQ(rank->weights().bytes, engine->planned().layout.memory.weights());
    }
  }
}

TEST(Loading, WholeExpertsAreDividedAmongTheRanks) {
  const auto one = Load({.tp = 1}, false);
  const auto two = Load({.tp = 2, .ep = 2}, true);
  ASSERT_TRUE(one != nullptr && two != nullptr);
  const int64_t slots = two->planned().layout.kinds[0].cut.slots_per_rank;
  const int64_t all = Bytes(ExpertRows(*one->ranks()[0], 2 * slots));
  const Rows first = ExpertRows(*two->ranks()[0], slots);
  const Rows second = ExpertRows(*two->ranks()[1], slots);
  EXPECT_GT(all, 0);
  EXPECT_EQ(all, one->planned().layout.memory.experts);
  EXPECT_EQ(Bytes(first), all / 2);
  EXPECT_EQ(Bytes(second), all / 2);
  for (const auto& [begin, size] : first) EXPECT_FALSE(second.contains(begin));
}

// Slices of a width: each rank has a part of every expert, and no byte is on two ranks.
TEST(Loading, SlicedExpertsAreDividedAmongTheRanks) {
  const auto two = Load({.tp = 2}, false);
  ASSERT_NE(two, nullptr);
  const int64_t slots = two->planned().layout.kinds[0].cut.slots_per_rank;
  const Rows first = ExpertRows(*two->ranks()[0], slots);
  const Rows second = ExpertRows(*two->ranks()[1], slots);
  EXPECT_EQ(Bytes(first), Bytes(second));
  EXPECT_EQ(Bytes(first), two->planned().layout.memory.experts);
  for (const auto& [begin, size] : first) {
    const auto next = second.lower_bound(begin);
    EXPECT_TRUE(next == second.end() || begin + size <= next->first);
    EXPECT_TRUE(next == second.begin() ||
                std::prev(next)->first + std::prev(next)->second <= begin);
  }
}

}  // namespace
}  // namespace signalbox::loading_test
