// SPDX-License-Identifier: Apache-2.0
#include "signalbox/plan/step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "signalbox/plan/exchange.h"
#include "signalbox/plan/one_rank.h"
#include "signalbox/plan/step_text_test.h"

namespace signalbox {
namespace {

using ::testing::HasSubstr;

Status NotUnderstood(std::string_view word) {
  return InvalidArgument({.what = "word not understood", .found = std::string(word)});
}

template <typename E>
Status Read(std::string_view word, E& out) {
  const auto value = ParseEnum<E>(word);
  if (!value) return NotUnderstood(word);
  out = *value;
  return OkStatus();
}

}  // namespace

Result<AxisSet> ParseAxes(std::string_view names, const Mesh& mesh) {
  AxisSet set;
  std::istringstream in{std::string(names)};
  for (std::string name; std::getline(in, name, '+');) {
    if (name == "nothing") continue;
    const auto axis = mesh.Find(name);
    if (!axis) return NotUnderstood(name);
    set = set | *axis;
  }
  return set;
}

Result<Step> ParseStep(std::string_view text, const Mesh& mesh) {
  std::istringstream in{std::string(text)};
  std::string dst, sign, op;
  in >> dst >> sign >> op;
  Step step{.kind = StepKind::kAdd, .dst = Reg::kResidual};
  SB_RETURN_IF_ERROR(Read(dst, step.dst));
  if (sign == "+=") {
    SB_RETURN_IF_ERROR(Read(op, step.src));
    if (step.src == step.dst) step.src = Reg::kCount;
    return step;
  }
  if (sign == "*=") {
    step.kind = StepKind::kScale;
    const auto coefficient = Rational::Parse(op);
    if (!coefficient) return NotUnderstood(op);
    step.coefficient = *coefficient;
    return step;
  }
  if (const size_t bracket = op.find('['); bracket != op.npos) {
    SB_RETURN_IF_ERROR(
        Read(std::string_view(op).substr(bracket + 1, op.size() - bracket - 2), step.norm));
    op.resize(bracket);
  }
  SB_RETURN_IF_ERROR(Read(op, step.kind));
  std::string word, next, unit;
  if (Spec(step.kind).src != 0) {
    in >> word;
    SB_RETURN_IF_ERROR(Read(word, step.src));
    if (step.src == step.dst) step.src = Reg::kCount;
  }
  while (in >> word) {
    if (word == "gated") {
      step.gated = true;
    } else if (word == "weighted") {
      step.weigh = true;
    } else if (word == "and" && in >> next) {
      SB_RETURN_IF_ERROR(Read(next, step.also));
    } else if (word == "in" && in >> next >> unit && unit == "slot") {
      SB_RETURN_IF_ERROR(Read(next, step.slot));
    } else if (word == "to" && in >> next >> unit && unit == "ids") {
      SB_RETURN_IF_ERROR(Read(next, step.ids));
    } else if (word == "to" && unit == "rows") {
      SB_RETURN_IF_ERROR(Read(next, step.shape));
    } else if (word == "over" && in >> next) {
      SB_ASSIGN_OR_RETURN(step.axes, ParseAxes(next, mesh));
    } else if (word == "width" && in >> unit >> next && unit == "over") {
      SB_ASSIGN_OR_RETURN(step.width_axes, ParseAxes(next, mesh));
    } else if (word == "times" && in >> next) {
      const auto coefficient = Rational::Parse(next);
      if (!coefficient) return NotUnderstood(next);
      step.coefficient = *coefficient;
    } else {
      return NotUnderstood(word);
    }
  }
  return step;
}

namespace {

Mesh TestMesh() {
  const AxisSet b = AxisSet::Single(1), c = AxisSet::Single(2);
  return *Mesh::Create({{"attn_dp", 2}, {"attn_tp.ep", 2}, {"attn_tp.tp", 2}},
                       {{"attn_tp", b | c}});
}

TEST(Step, PrintsAsAnEngineerWouldWriteIt) {
  const Mesh mesh = TestMesh();
  const AxisSet tp = *mesh.Find("attn_tp");
  const struct {
    Step step;
    const char* text;
  } cases[] = {
      {{.kind = StepKind::kAdd, .dst = Reg::kResidual, .src = Reg::kMixed}, "x += h"},
      {{.kind = StepKind::kScale, .dst = Reg::kRouted, .coefficient = {5, 2}}, "routed *= 2.5"},
      {{.kind = StepKind::kAllReduce, .dst = Reg::kRouted, .axes = tp, .also = Reg::kShared},
       "routed = all-reduce routed and shared over attn_tp"},
      {{.kind = StepKind::kNorm,
        .dst = Reg::kNormed,
        .src = Reg::kResidual,
        .norm = NormRole::kFeedForwardInput},
       "y = norm[feed-forward] x"},
      {{.kind = StepKind::kExperts,
        .dst = Reg::kRouted,
        .src = Reg::kNormed,
        .axes = AxisSet::Single(1),
        .width_axes = AxisSet::Single(2)},
       "routed = experts y over attn_tp.ep width over attn_tp.tp"},
      {{.kind = StepKind::kAppendShared,
        .dst = Reg::kRouting,
        .axes = tp,
        .coefficient = {1, 3},
        .gated = true,
        .slot = SharedSlot::kGlobal},
       "routing = append-shared routing in global slot over attn_tp times 1/3 gated"},
      {{.kind = StepKind::kRemapIds, .dst = Reg::kDispatched, .ids = IdSpace::kLocal},
       "dispatched = remap-ids dispatched to local ids"},
      {{.kind = StepKind::kPermute,
        .dst = Reg::kExpertOut,
        .weigh = true,
        .shape = RowShape::kFlat},
       "expert_out = permute expert_out to flat rows weighted"},
      {{.kind = StepKind::kInput, .dst = Reg::kResidual, .axes = AxisSet::Single(0)},
       "x = input over attn_dp"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(c.step.ToString(mesh), c.text);
    EXPECT_TRUE(ValidateStep(c.step, mesh).ok()) << c.text;
    EXPECT_EQ(ParseStep(c.text, mesh)->ToString(mesh), c.text);
  }
}

TEST(Step, ValidationNamesWhatAStepCannotDo) {
  const Mesh mesh = TestMesh();
  const auto message = [&](const Step& step) {
    const Status status = ValidateStep(step, mesh);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_THAT(message({.kind = StepKind::kAdd, .dst = Reg::kRouting, .src = Reg::kMixed}),
              HasSubstr("add cannot write routing"));
  EXPECT_THAT(message({.kind = StepKind::kDispatch, .dst = Reg::kDispatched}),
              HasSubstr("cannot read dispatched"));
  EXPECT_THAT(message({.kind = StepKind::kAllGather, .dst = Reg::kRouting, .src = Reg::kNormed}),
              HasSubstr("cannot turn y into routing"));
  EXPECT_THAT(message({.kind = StepKind::kScale, .dst = Reg::kRouted, .src = Reg::kShared}),
              HasSubstr("cannot turn shared into routed"));
  EXPECT_THAT(message({.kind = StepKind::kNorm,
                       .dst = Reg::kNormed,
                       .src = Reg::kResidual,
                       .axes = AxisSet::Single(0)}),
              HasSubstr("norm has no use for a"));
  EXPECT_THAT(
      message({.kind = StepKind::kAllReduce, .dst = Reg::kMixed, .axes = AxisSet::Single(5)}),
      HasSubstr("axis that the mesh does not have"));
  EXPECT_THAT(message({.kind = StepKind::kAllReduce, .dst = Reg::kMixed, .also = Reg::kMixed}),
              HasSubstr("cannot carry h"));
  EXPECT_THAT(message({.kind = StepKind::kScale, .dst = Reg::kMixed, .coefficient = {1, 0}}),
              HasSubstr("coefficient 1/0"));
  EXPECT_THAT(message({.kind = StepKind::kInput, .dst = Reg::kResidual, .src = Reg::kMixed}),
              HasSubstr("input cannot read h"));
}

TEST(Step, ErasingLayoutStepsLeavesTheProgramOfOneRank) {
  for (const Step& step : OneRankPlan({.moe = true, .shared = true}).steps) {
    EXPECT_FALSE(IsLayoutStep(step.kind)) << ToString(step.kind);
    EXPECT_TRUE(ValidateStep(step, Mesh()).ok());
  }
  EXPECT_TRUE(IsLayoutStep(StepKind::kCombine));
  EXPECT_TRUE(IsLayoutStep(StepKind::kRemapIds));
}

// Any step that is valid; most random ones are not, so fields are drawn from what the kind uses.
Step RandomStep(const Mesh& mesh) {
  const auto below = [](int n) { return *rc::gen::resize(100, rc::gen::inRange(0, n)); };
  const auto axes = [&] {
    AxisSet set;
    for (int i = 0; i < 3; ++i) {
      if (below(2) == 1) set = set | AxisSet::Single(i);
    }
    return set;
  };
  for (;;) {
    Step s{.kind = StepKind(below(int(StepKind::kCount))), .dst = Reg(below(int(Reg::kCount)))};
    const StepSpec& spec = Spec(s.kind);
    if (spec.src != 0 && !spec.in_place) s.src = Reg(below(int(Reg::kCount)));
    if (s.src == s.dst) s.src = Reg::kCount;
    if (spec.Uses(StepField::kAxes)) s.axes = axes();
    if (spec.Uses(StepField::kWidthAxes)) s.width_axes = axes();
    if (spec.Uses(StepField::kNorm)) s.norm = NormRole(below(3));
    if (spec.Uses(StepField::kCoefficient)) {
      s.coefficient = *Rational::Make(below(9) - 4, 1 + below(7));
    }
    if (spec.Uses(StepField::kAlso)) s.also = Reg(below(int(Reg::kCount) + 1));
    if (spec.Uses(StepField::kWeigh)) s.weigh = below(2) == 1;
    if (spec.Uses(StepField::kGated)) s.gated = below(2) == 1;
    if (spec.Uses(StepField::kIds)) s.ids = IdSpace(below(5));
    if (spec.Uses(StepField::kShape)) s.shape = RowShape(below(6));
    if (spec.Uses(StepField::kSlot)) s.slot = SharedSlot(below(4));
    if (ValidateStep(s, mesh).ok()) return s;
  }
}

RC_GTEST_PROP(Step, TextAndJsonBringBackTheSameStep, ()) {
  const Mesh mesh = TestMesh();
  Step step = RandomStep(mesh);
  const Result<Step> parsed = ParseStep(step.ToString(mesh), mesh);
  RC_ASSERT(parsed.ok());
  RC_ASSERT(*parsed == step);

  step.reason = *rc::gen::element<std::string>("", "fewer bytes", "\"quoted\" \n text");
  const LayerPlan plan{.kind = "k", .phase = Phase::kDecode, .steps = {step, step}};
  const Result<PlanDocument> read = PlanFromJson(PlanToJson(plan, mesh));
  RC_ASSERT(read.ok());
  RC_ASSERT(read->plan == plan);
  RC_ASSERT(read->mesh == mesh);
}

TEST(PlanJson, ErrorsSayWhichStepAndKey) {
  const auto message = [](std::string steps, std::string mesh = R"([["a", 2]])") {
    const Result<PlanDocument> read =
        PlanFromJson("{\"mesh\": " + mesh + ", \"steps\": " + steps + "}");
    EXPECT_EQ(read.status().code(), StatusCode::kInvalidArgument);
    return read.status().message();
  };
  EXPECT_THAT(message(R"([{"op": "nrom", "dst": "y", "src": "x"}])"),
              testing::AllOf(HasSubstr("step 1"), HasSubstr("perhaps 'norm'")));
  EXPECT_THAT(message(R"([{"op": "norm", "dst": "y", "source": "x"}])"),
              HasSubstr("found 'source', expected one of 'op'"));
  EXPECT_THAT(message(R"([{"op": "mixer", "dst": "h", "src": "y", "over": ["b"]}])"),
              HasSubstr("an axis of the mesh: a 2"));
  EXPECT_THAT(message(R"([{"op": "norm", "dst": "y"}, 7])"), HasSubstr("step 2"));
  EXPECT_THAT(message(R"([{"op": "scale", "dst": "h", "coefficient": 2}])"),
              HasSubstr("a fraction"));
  EXPECT_THAT(message(R"([{"op": "norm", "dst": "routing", "src": "x"}])"),
              HasSubstr("norm cannot write routing"));
  EXPECT_THAT(message("[]", R"([["a", 0]])"), HasSubstr("a size of 1 or more"));
  EXPECT_THAT(message("7"), HasSubstr("a list of at most 256 steps"));
  EXPECT_THAT(PlanFromJson("[]").status().message(), HasSubstr("an object"));
}

}  // namespace
}  // namespace signalbox
