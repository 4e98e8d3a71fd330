// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/row_layout.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

#include "signalbox/mesh/parallel_config.h"

namespace signalbox::row_layout_test {
namespace {

TEST(RowLayout, PartsAndBlocks) {
  const ParallelMesh p = *CreateParallelMesh({.tp = 4, .dp = 2, .ep = 4});
  const RowLayout layout(p.mesh, p.attn_dp, RankId(1), {.tokens = {3, 1}, .multiple = 2});
  EXPECT_EQ(layout.tokens(), 3);
  EXPECT_EQ(layout.RowsOf(RankId(1), p.attn_dp), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(layout.RowsOf(RankId(1), p.attn_dp | p.attn_tp), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(layout.RowsOf(RankId(2), p.attn_dp | p.attn_tp), (std::vector<int64_t>{4}));
  EXPECT_EQ(layout.RowsOf(RankId(0), {}), (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_FALSE(layout.IsPadding(2));
  EXPECT_TRUE(layout.IsPadding(3));
  EXPECT_TRUE(layout.IsPadding(5));
}

// Laws: over the ranks of a group along sharding axes the rows tile the whole; along other axes
// they are equal.
RC_GTEST_PROP(RowLayout, RowsTileAndRepeat, ()) {
  const int tp = *rc::gen::element(1, 2, 3, 4, 6, 8);
  std::vector<int> divisors;
  for (int d = 1; d <= tp; ++d) {
    if (tp % d == 0) divisors.push_back(d);
  }
  const int dp = *rc::gen::elementOf(divisors);
  auto parallel = CreateParallelMesh({.tp = tp, .dp = dp, .ep = *rc::gen::elementOf(divisors)});
  RC_PRE(parallel.ok());
  const Mesh& mesh = parallel->mesh;
  BatchParts parts{.multiple = tp / dp, .equal = *rc::gen::arbitrary<bool>()};
  for (int g = 0; g < dp; ++g) parts.tokens.push_back(*rc::gen::inRange(0, 7));
  const RowLayout layout(mesh, parallel->attn_dp, RankId(0), parts);
  AxisSet rows;
  for (size_t a = 0; a < mesh.axes().size(); ++a) {
    if (*rc::gen::arbitrary<bool>()) rows = rows | AxisSet::Single(static_cast<int>(a));
  }
  const std::vector<int64_t> all = layout.RowsOf(RankId(0), {});
  for (int r = 0; r < mesh.ranks(); ++r) {
    std::map<int64_t, int> seen;
    for (RankId other : mesh.Group(RankId(r), rows)) {
      for (int64_t row : layout.RowsOf(other, rows)) ++seen[row];
    }
    RC_ASSERT(seen.size() == all.size());
    for (const auto& [row, count] : seen) RC_ASSERT(count == 1);
    for (RankId other : mesh.Group(RankId(r), mesh.all() - rows)) {
      RC_ASSERT(layout.RowsOf(other, rows) == layout.RowsOf(RankId(r), rows));
    }
  }
}

}  // namespace
}  // namespace signalbox::row_layout_test
