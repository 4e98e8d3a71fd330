// SPDX-License-Identifier: Apache-2.0
#include "signalbox/mesh/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>

namespace signalbox {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Mesh Make(std::vector<Mesh::Axis> axes, std::vector<Mesh::View> views = {}) {
  Result<Mesh> mesh = Mesh::Create(std::move(axes), std::move(views));
  EXPECT_TRUE(mesh.ok()) << mesh.status().ToString();
  return *mesh;
}

TEST(Mesh, GroupsAreRowMajor) {
  const Mesh mesh = Make({{"attn_dp", 2}, {"attn_tp", 3}});
  EXPECT_EQ(mesh.ranks(), 6);
  EXPECT_EQ(mesh.ToString(), "attn_dp 2 x attn_tp 3");
  EXPECT_THAT(mesh.Group(RankId(4), *mesh.Find("attn_tp")),
              ElementsAre(RankId(3), RankId(4), RankId(5)));
  EXPECT_THAT(mesh.Group(RankId(4), *mesh.Find("attn_dp")), ElementsAre(RankId(1), RankId(4)));
  EXPECT_THAT(mesh.Group(RankId(4), AxisSet()), ElementsAre(RankId(4)));
  EXPECT_EQ(mesh.Position(RankId(4), *mesh.Find("attn_tp")), 1);
  EXPECT_EQ(mesh.Find("pp"), std::nullopt);
}

TEST(Mesh, OneRank) {
  const Mesh mesh;
  EXPECT_EQ(mesh.ranks(), 1);
  EXPECT_EQ(mesh.ToString(), "1 rank");
  EXPECT_EQ(mesh.Names(AxisSet()), "nothing");
  EXPECT_THAT(mesh.Group(RankId(0), mesh.all()), ElementsAre(RankId(0)));
}

TEST(Mesh, NamesPreferOneNameForASet) {
  const AxisSet a = AxisSet::Single(0), b = AxisSet::Single(1), c = AxisSet::Single(2);
  const Mesh mesh =
      Make({{"dp", 2}, {"tp.ep", 2}, {"tp.tp", 2}}, {{"dp", a}, {"tp", b | c}, {"ep", a | b}});
  EXPECT_EQ(mesh.Names(b), "tp.ep");
  EXPECT_EQ(mesh.Names(b | c), "tp");
  EXPECT_EQ(mesh.Names(a | b), "ep");
  EXPECT_EQ(mesh.Names(a | b | c), "dp+tp");
  EXPECT_EQ(mesh.Names(a | c), "dp+tp.tp");
  EXPECT_EQ(mesh.Find("tp"), b | c);
}

TEST(Mesh, RefusesWhatIsNoMesh) {
  const AxisSet a = AxisSet::Single(0), b = AxisSet::Single(1);
  const auto message = [](std::vector<Mesh::Axis> axes, std::vector<Mesh::View> views = {}) {
    Result<Mesh> mesh = Mesh::Create(std::move(axes), std::move(views));
    EXPECT_EQ(mesh.status().code(), StatusCode::kInvalidArgument);
    return mesh.status().message();
  };
  EXPECT_THAT(message({{"a", 0}}), HasSubstr("found a 0, expected 1 or more"));
  EXPECT_THAT(message({{"a", 2}, {"a", 2}}), HasSubstr("'a' twice"));
  EXPECT_THAT(message({{"", 2}}), HasSubstr("name"));
  EXPECT_THAT(message({{"a", 65536}, {"b", 65536}}), HasSubstr("too many ranks"));
  EXPECT_THAT(message(std::vector<Mesh::Axis>(9, {"a", 1})), HasSubstr("too many axes"));
  EXPECT_THAT(message({{"a", 2}}, {{"v", b}}), HasSubstr("not there"));
  EXPECT_THAT(message({{"a", 2}, {"b", 2}}, {{"a", b}}), HasSubstr("two meanings"));
  EXPECT_THAT(message({{"a", 2}}, {{"v", a}, {"v", AxisSet()}}), HasSubstr("two meanings"));
}

// Any mesh of up to three axes and 64 ranks, any set of its axes.
RC_GTEST_PROP(Mesh, GroupsOverAnySetPartitionTheWorld, ()) {
  std::vector<Mesh::Axis> axes;
  for (const char* name : {"a", "b", "c"}) axes.push_back({name, *rc::gen::inRange(1, 5)});
  const Mesh mesh = *Mesh::Create(axes);
  AxisSet set;
  for (int i = 0; i < 3; ++i) {
    if (*rc::gen::arbitrary<bool>()) set = set | AxisSet::Single(i);
  }

  std::set<std::set<int>> groups;
  for (int r = 0; r < mesh.ranks(); ++r) {
    const std::vector<RankId> group = mesh.Group(RankId(r), set);
    RC_ASSERT(int(group.size()) == mesh.Size(set));
    RC_ASSERT(group[size_t(mesh.Position(RankId(r), set))] == RankId(r));
    std::set<int> members;
    for (size_t i = 0; i < group.size(); ++i) {
      RC_ASSERT(mesh.Position(group[i], set) == int(i));
      RC_ASSERT(mesh.Position(group[i], mesh.all() - set) ==
                mesh.Position(RankId(r), mesh.all() - set));
      members.insert(group[i].value());
    }
    groups.insert(members);
  }
  size_t covered = 0;
  for (const auto& group : groups) covered += group.size();
  RC_ASSERT(int(covered) == mesh.ranks());
}

}  // namespace
}  // namespace signalbox
