// SPDX-License-Identifier: Apache-2.0
#include "signalbox/mesh/parallel_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace signalbox {
namespace {

using ::testing::HasSubstr;

struct Named {
  int tp, dp, ep;
  const char* mesh;
  const char* moe_ep;
};

class AxisNames : public ::testing::TestWithParam<Named> {};

TEST_P(AxisNames, SayWhichViewTheyBelongTo) {
  const Named& c = GetParam();
  Result<ParallelMesh> p = CreateParallelMesh({.tp = c.tp, .dp = c.dp, .ep = c.ep});
  ASSERT_TRUE(p.ok()) << p.status().ToString();
  EXPECT_EQ(p->mesh.ToString(), c.mesh);
  EXPECT_EQ(p->mesh.Names(p->moe_ep), c.moe_ep);
}

INSTANTIATE_TEST_SUITE_P(
    Configs, AxisNames,
    ::testing::Values(Named{1, 1, 1, "1 rank", "nothing"},                //
                      Named{2, 1, 1, "attn_tp 2", "nothing"},             //
                      Named{2, 1, 2, "attn_tp 2", "attn_tp"},             //
                      Named{4, 2, 4, "attn_dp 2 x attn_tp 2", "moe_ep"},  //
                      Named{4, 2, 2, "attn_dp 2 x attn_tp 2", "attn_dp"},
                      Named{4, 1, 2, "attn_tp.ep 2 x attn_tp.tp 2", "attn_tp.ep"},
                      Named{8, 4, 2, "attn_dp.ep 2 x attn_dp.tp 2 x attn_tp 2", "attn_dp.ep"},
                      Named{8, 2, 4, "attn_dp 2 x attn_tp.ep 2 x attn_tp.tp 2", "moe_ep"},
                      Named{8, 8, 8, "attn_dp 8", "attn_dp"}));

TEST(ParallelConfig, RefusalsNameTheNearestThatWorks) {
  const auto refusal = [](ParallelConfig config, StatusCode code = StatusCode::kRefused) {
    Result<ParallelMesh> p = CreateParallelMesh(config);
    EXPECT_EQ(p.status().code(), code);
    return p.status().message();
  };
  EXPECT_EQ(refusal({.tp = 6, .dp = 2, .ep = 3}),
            "attention groups of --dp 2 and expert groups of --ep 3 cross: no common axes make "
            "both: expected one of --dp and --ep divides the other; use --ep 2 or --ep 6 with "
            "--dp 2, or --dp 1 or --dp 3 with --ep 3");
  EXPECT_THAT(refusal({.tp = 8, .ep = 3}), HasSubstr("use --ep 2 or --ep 4"));
  EXPECT_THAT(refusal({.tp = 4, .dp = 8}), HasSubstr("use --dp 4"));
  EXPECT_THAT(refusal({.tp = 0}, StatusCode::kInvalidArgument), HasSubstr("--tp"));
  EXPECT_THAT(refusal({.tp = 1 << 30}, StatusCode::kInvalidArgument), HasSubstr("--tp"));
  EXPECT_THAT(refusal({.redundant_experts = -1}, StatusCode::kInvalidArgument),
              HasSubstr("--ep-num-redundant-experts"));
}

// Every cell of major x minor holds one rank, and ranks count through it row by row.
void ExpectRowMajorFactorisation(const Mesh& mesh, AxisSet major, AxisSet minor) {
  EXPECT_EQ(major & minor, AxisSet());
  EXPECT_EQ(major | minor, mesh.all());
  EXPECT_EQ(mesh.Size(major) * mesh.Size(minor), mesh.ranks());
  for (int r = 0; r < mesh.ranks(); ++r) {
    EXPECT_EQ(mesh.Position(RankId(r), major) * mesh.Size(minor) + mesh.Position(RankId(r), minor),
              r);
  }
}

TEST(ParallelConfig, AllFactorisationsOfUpTo16Ranks) {
  int refined = 0;
  int crossing = 0;
  for (int tp = 1; tp <= 16; ++tp) {
    for (int dp = 1; dp <= tp; ++dp) {
      for (int ep = 1; ep <= tp; ++ep) {
        SCOPED_TRACE(testing::Message() << "tp " << tp << " dp " << dp << " ep " << ep);
        Result<ParallelMesh> p = CreateParallelMesh({.tp = tp, .dp = dp, .ep = ep});
        const bool nests = tp % dp == 0 && tp % ep == 0 && (dp % ep == 0 || ep % dp == 0);
        ASSERT_EQ(p.ok(), nests);
        if (!nests) {
          EXPECT_EQ(p.status().code(), StatusCode::kRefused);
          crossing += tp % dp == 0 && tp % ep == 0;
          continue;
        }
        ++refined;
        EXPECT_EQ(p->mesh.ranks(), tp);
        EXPECT_EQ(p->mesh.Size(p->attn_dp), dp);
        EXPECT_EQ(p->mesh.Size(p->moe_ep), ep);
        ExpectRowMajorFactorisation(p->mesh, p->attn_dp, p->attn_tp);
        ExpectRowMajorFactorisation(p->mesh, p->moe_ep, p->moe_tp);
        for (const auto& [name, set] :
             {std::pair{"attn_dp", p->attn_dp}, std::pair{"attn_tp", p->attn_tp},
              std::pair{"moe_ep", p->moe_ep}, std::pair{"moe_tp", p->moe_tp}}) {
          EXPECT_EQ(p->mesh.Find(name), set);
        }
        for (const Mesh::Axis& axis : p->mesh.axes()) EXPECT_GT(axis.size, 1);
      }
    }
  }
  // Of the 184 pairs of divisors, 14 cross: 2 and 3 of 6, 2 and 3, 3 and 4 of 12, ...
  EXPECT_EQ(refined, 170);
  EXPECT_EQ(crossing, 14);
}

}  // namespace
}  // namespace signalbox
