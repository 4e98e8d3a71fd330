// SPDX-License-Identifier: Apache-2.0
//
// Golden plans: testdata/planner_golden.case says for each configuration which steps must come out,
// or which refusal.
#include "signalbox/plan/planner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "signalbox/plan/planner_models_test.h"
#include "signalbox/plan/print.h"

namespace signalbox {
namespace {

// A case: "case NAME", then "key value" lines and indented steps.
struct Case {
  std::string name;
  std::vector<std::pair<std::string, std::string>> settings;
  std::vector<std::string> steps;
};

std::vector<Case> ReadCases(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::vector<Case> cases;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    if (line.starts_with("case ")) {
      cases.push_back({.name = line.substr(5)});
    } else if (line.starts_with("  ")) {
      cases.back().steps.push_back(line.substr(2));
    } else {
      const size_t space = std::min(line.find(' '), line.size());
      cases.back().settings.emplace_back(line.substr(0, space),
                                         line.substr(std::min(space + 1, line.size())));
    }
  }
  return cases;
}

// What a case asks for, and what it expects.
struct Given {
  PlanRequest request;
  Phase phase = Phase::kPrefill;
  std::map<std::string, std::string> expect;
};

int64_t Number(const std::string& text) {
  return std::stoll(text);
}

// "name" or "name/mode".
void SetContract(PlanRequest& request, const std::string& id) {
  const size_t slash = std::min(id.find('/'), id.size());
  const std::string mode = slash == id.size() ? "auto" : id.substr(slash + 1);
  for (Phase phase : {Phase::kPrefill, Phase::kDecode, Phase::kVerify}) {
    request.contracts[size_t(phase)] = *FindContract(id.substr(0, slash), mode, phase);
  }
}

Given Read(const Case& c) {
  Given setup;
  PlanRequest& r = setup.request;
  r.emulated = true;
  for (const auto& [key, value] : c.settings) {
    LayerKindFacts* kind = r.facts.kinds.empty() ? nullptr : &r.facts.kinds.back();
    if (key == "model") {
      r.facts = TestModel(value);
    } else if (key == "experts") {
      kind->moe->experts = Number(value);
    } else if (key == "expert-width") {
      kind->moe->inner = Number(value);
    } else if (key == "heads") {
      kind->heads[0].count = kind->heads[1].count = Number(value);
    } else if (key == "shared-like-routed") {
      kind->shared->format = kind->moe->format;
    } else if (key == "parallel") {
      std::istringstream words(value);
      std::string flag;
      int n;
      while (words >> flag >> n) {
        if (flag == "tp") r.parallel.tp = n;
        if (flag == "dp") r.parallel.dp = n;
        if (flag == "ep") r.parallel.ep = n;
        if (flag == "redundant") r.parallel.redundant_experts = n;
      }
    } else if (key == "back-end") {
      SetContract(r, value);
    } else if (key == "shared") {
      r.shared = *ParseEnum<SharedChoice>(value);
    } else if (key == "runner") {
      for (const RunnerTerms& runner : StandardRunners()) {
        if (runner.name == value) r.runners = {&runner, 1};
      }
    } else if (key == "chunk") {
      r.limits.chunked_prefill_size = Number(value);
    } else if (key == "requests") {
      r.limits.max_running_requests = Number(value);
    } else if (key == "drafts") {
      r.limits.draft_tokens = int(Number(value));
    } else if (key == "capacity") {
      r.limits.capacity = Number(value);
    } else if (key == "phase") {
      setup.phase = *ParseEnum<Phase>(value);
    } else if (key == "compiled") {
      r.emulated = false;
    } else {
      setup.expect[key] = value;
    }
  }
  return setup;
}

TEST(PlannerGolden, Cases) {
  const auto cases = ReadCases(SIGNALBOX_TESTDATA "/planner_golden.case");
  ASSERT_GE(cases.size(), 20u);
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    Given setup = Read(c);
    const Result<LayoutPlan> plan = PlanLayout(setup.request);
    if (setup.expect.count("refused") > 0) {
      ASSERT_FALSE(plan.ok()) << LayoutToText(*plan);
      EXPECT_EQ(plan.status().code(), StatusCode::kRefused);
      EXPECT_EQ(plan.status().message(), setup.expect["refused"]);
      continue;
    }
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const KindPlan& kind = plan->kinds[0];
    const PhasePlan& phase = *kind.phase(setup.phase);
    std::string steps;
    for (const Step& step : phase.plan.steps) steps += "  " + step.ToString(plan->mesh()) + "\n";
    std::string expected;
    for (const std::string& line : c.steps) expected += "  " + line + "\n";
    EXPECT_EQ(steps, expected) << LayoutToText(*plan);
    for (const auto& [key, value] : setup.expect) {
      std::string found;
      if (key == "collectives") found = std::to_string(phase.cost.collectives);
      if (key == "placement") found = ToString(kind.cut.shared);
      if (key == "slots") found = fmt::format("{} {}", kind.cut.slots, kind.cut.slots_per_rank);
      if (key == "padded") found = std::to_string(plan->row_multiple);
      EXPECT_EQ(found, value) << key;
    }
  }
}

}  // namespace
}  // namespace signalbox
