// SPDX-License-Identifier: Apache-2.0
//
// Runs the case files of testdata/: a layout, steps as they are printed, a verdict. Right plans
// must also compute what one rank computes, and plans marked "wrong" must not.
#include "signalbox/plan/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "signalbox/mesh/parallel_config.h"
#include "signalbox/plan/simulate_test.h"
#include "signalbox/plan/step_text_test.h"
#include "signalbox/plan/toy_back_ends_test.h"

namespace signalbox {
namespace {

struct Case {
  std::string name;
  std::string where;  // file:line
  ParallelMesh layout;
  std::string program;
  CheckContext context;
  std::vector<std::string> steps;
  std::string verdict;  // typed, warns, refused or wrong
  std::string what;     // how the exit value begins, the warning, or the message
  std::string found;
};

using Programs = std::map<std::string, std::vector<std::string>>;

std::vector<Step> ParseSteps(const std::vector<std::string>& lines, const Mesh& mesh) {
  std::vector<Step> steps;
  for (const std::string& line : lines) {
    const Result<Step> step = ParseStep(line, mesh);
    EXPECT_TRUE(step.ok()) << line << ": " << step.status().ToString();
    if (step.ok()) steps.push_back(*step);
  }
  return steps;
}

// One line of a case other than a step: its first word and the rest.
void ReadLine(const std::string& key, const std::string& rest, Case& c) {
  std::istringstream words(rest);
  const auto axes = [&] {
    const Result<AxisSet> set = ParseAxes(rest, c.layout.mesh);
    EXPECT_TRUE(set.ok()) << c.where << ": " << rest;
    return set.ok() ? *set : AxisSet();
  };
  if (key == "program") {
    c.program = rest;
  } else if (key == "parallel") {
    ParallelConfig config;
    for (std::string flag; words >> flag;) {
      words >> (flag == "tp" ? config.tp : flag == "dp" ? config.dp : config.ep);
    }
    c.layout = *CreateParallelMesh(config);
    c.context.mesh = c.layout.mesh;
    c.context.sequence_axes = c.layout.attn_dp;
  } else if (key == "rows-in") {
    c.context.rows_in = axes();
  } else if (key == "rows-out") {
    c.context.rows_out = axes();
  } else if (key == "padded") {
    words >> c.context.row_multiple;
  } else if (key == "rows") {
    words >> c.context.max_rows;
  } else if (key == "capacity") {
    words >> c.context.capacity;
  } else if (key == "placement") {
    c.context.slot_is_expert = rest != "table";
  } else if (key == "back-end") {
    c.context.contract = ToyContract(rest);
  } else if (key == "runner") {
    std::string ids, word;
    words >> ids;
    c.context.runner = ToyRunner(*ParseEnum<IdSpace>(ids));
    while (words >> word) {
      if (word == "tail") c.context.runner->reads_tail = true;
      if (word == "always") c.context.runner->weights = RunnerWeights::kAlways;
      if (word == "never") c.context.runner->weights = RunnerWeights::kNever;
    }
  } else if (key == "found") {
    c.found = rest;
  } else if (key == "typed" || key == "warns" || key == "refused" || key == "wrong") {
    c.verdict = key;
    c.what = rest;
  } else {
    ADD_FAILURE() << c.where << ": unknown line: " << key;
  }
}

void ReadFile(const std::filesystem::path& path, Programs& programs, std::vector<Case>& cases) {
  std::ifstream in(path);
  std::vector<std::string>* steps = nullptr;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.empty() || line[0] == '#') continue;
    if (line[0] == ' ') {
      steps->push_back(line.substr(2));
      continue;
    }
    const size_t space = line.find(' ');
    const std::string key = line.substr(0, space);
    const std::string rest = space == line.npos ? "" : line.substr(space + 1);
    if (key == "case") {
      cases.push_back(
          {.name = rest, .where = path.filename().string() + ":" + std::to_string(number)});
      steps = &cases.back().steps;
    } else if (key == "program" && path.filename() == "programs.case") {
      steps = &programs[rest];
    } else {
      ReadLine(key, rest, cases.back());
    }
  }
}

void Judge(const Case& c, const Programs& programs) {
  SCOPED_TRACE(c.where + ": " + c.name);
  ASSERT_TRUE(programs.count(c.program)) << c.program;
  CheckContext context = c.context;
  context.program = ParseSteps(programs.at(c.program), Mesh());
  const LayerPlan plan{.kind = c.name, .steps = ParseSteps(c.steps, context.mesh)};
  const ToyWorld world{.redundant_slots = context.slot_is_expert ? 0 : 2};
  const Result<CheckedPlan> checked = CheckPlan(plan, context);
  const double error = Simulate(plan, context, world);
  if (c.verdict == "typed" || c.verdict == "warns") {
    ASSERT_TRUE(checked.ok()) << checked.status().ToString();
    EXPECT_LT(error, 1e-9);
    if (c.verdict == "warns") {
      EXPECT_THAT(checked->warnings, testing::ElementsAre(c.what));
    } else {
      EXPECT_THAT(checked->exit().ToString(context.mesh), testing::StartsWith(c.what));
      EXPECT_THAT(checked->warnings, testing::IsEmpty());
    }
    return;
  }
  ASSERT_EQ(checked.status().code(), StatusCode::kRefused) << checked.status().ToString();
  EXPECT_EQ(checked.status().detail().what, c.what);
  if (!c.found.empty()) {
    EXPECT_EQ(checked.status().detail().found, c.found);
  }
  if (c.verdict == "wrong") {
    EXPECT_GT(error, 1e-3);
  }
}

TEST(CheckPlan, JudgesEveryCase) {
  Programs programs;
  std::vector<Case> cases;
  ReadFile(SIGNALBOX_TESTDATA "/programs.case", programs, cases);
  for (const char* file : {"golden.case", "faults.case", "bugs.case", "rules.case"}) {
    const size_t before = cases.size();
    ReadFile(std::filesystem::path(SIGNALBOX_TESTDATA) / file, programs, cases);
    EXPECT_GT(cases.size(), before) << file;
  }
  for (const Case& c : cases) Judge(c, programs);
}

CheckContext DenseContext() {
  return {.program = ParseSteps({"h = norm[mixer] x", "h = mixer h", "x += h"}, Mesh())};
}

TEST(CheckPlan, HoldsTheValueOfEveryRegisterAfterEveryStep) {
  CheckContext context = DenseContext();
  context.mesh = *Mesh::Create({{"attn_tp", 2}});
  const LayerPlan plan{.steps = ParseSteps({"h = norm[mixer] x", "h = mixer h over attn_tp",
                                            "h = all-reduce h over attn_tp", "x += h"},
                                           context.mesh)};
  const Result<CheckedPlan> checked = CheckPlan(plan, context);
  ASSERT_TRUE(checked.ok()) << checked.status().ToString();
  ASSERT_EQ(checked->after.size(), 4u);
  EXPECT_EQ(checked->before[Reg::kMixed], std::nullopt);
  EXPECT_EQ(checked->after[1][Reg::kMixed]->ToString(context.mesh),
            "rows: all | mixer partial over attn_tp");
  EXPECT_EQ(checked->after[2][Reg::kMixed]->ToString(context.mesh), "rows: all | mixer");
  EXPECT_EQ(ToString(checked->exit().expr), "mixer(mixer_norm(x)) + x");
}

TEST(CheckPlan, SaysWhichStepIsRefused) {
  CheckContext context = DenseContext();
  context.mesh = *Mesh::Create({{"attn_tp", 2}});
  const LayerPlan plan{
      .steps =
          ParseSteps({"h = norm[mixer] x", "h = mixer h over attn_tp", "x += h"}, context.mesh)};
  EXPECT_EQ(CheckPlan(plan, context).status().message(),
            "adds a complete and a partial value (step 3: x += h): found residual complete, mixer "
            "partial over attn_tp");
}

TEST(CheckPlan, RefusesWhatIsNotAPlan) {
  const auto message = [](const LayerPlan& plan, const CheckContext& context) {
    const Status status = CheckPlan(plan, context).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.ToString();
    return status.message();
  };
  using testing::HasSubstr;
  CheckContext context = DenseContext();
  EXPECT_THAT(message({.steps = ParseSteps({"x += h"}, Mesh())}, context),
              HasSubstr("reads h, which holds nothing yet (step 1: x += h)"));
  EXPECT_THAT(message({.steps = {{.kind = StepKind::kNorm, .dst = Reg::kRouting}}}, context),
              HasSubstr("cannot write routing (step 1"));
  EXPECT_THAT(message({.steps = std::vector<Step>(kMaxSteps + 1, {StepKind::kAdd, Reg::kResidual})},
                      context),
              HasSubstr("too many steps"));
  // Every add doubles the expression; it must not take memory without bound.
  EXPECT_THAT(message({.steps = std::vector<Step>(60, {StepKind::kAdd, Reg::kResidual})}, context),
              HasSubstr("characters"));
  context.sequence_axes = AxisSet::Single(0);
  EXPECT_THAT(message({}, context), HasSubstr("axes or counts that the mesh cannot have"));
  context = DenseContext();
  context.program.front().dst = Reg::kRouting;
  EXPECT_THAT(message({}, context), HasSubstr("the model's own program"));
}

TEST(CheckPlan, RowsOnTheirWayGoWhenTheirRoutingGoes) {
  EXPECT_THAT(CheckPlan({.steps = ParseSteps({"y = norm[feed-forward] x", "routing = route y",
                                              "dispatched = dispatch y", "routing = route y",
                                              "expert_out = run-experts dispatched"},
                                             Mesh())},
                        DenseContext())
                  .status()
                  .message(),
              testing::HasSubstr("reads dispatched, which holds nothing yet (step 5"));
}

// The combined rows belong to one dispatch of one routing, and come back once.
TEST(CheckPlan, RowsOnTheirWayCannotOutliveTheirRouting) {
  CheckContext context = DenseContext();
  for (const std::vector<std::string>& rest : std::vector<std::vector<std::string>>{
           {"routing = route y", "routed = combine expert_out weighted"},
           {"dispatched = dispatch y", "routed = combine expert_out weighted"},
           {"routed = combine expert_out weighted", "shared = combine expert_out weighted"}}) {
    std::vector<std::string> lines = {"y = norm[feed-forward] x", "routing = route y",
                                      "dispatched = dispatch y",
                                      "expert_out = run-experts dispatched"};
    lines.insert(lines.end(), rest.begin(), rest.end());
    EXPECT_THAT(CheckPlan({.steps = ParseSteps(lines, Mesh())}, context).status().message(),
                testing::HasSubstr("reads expert_out, which holds nothing yet (step 6"));
  }
}

}  // namespace
}  // namespace signalbox
