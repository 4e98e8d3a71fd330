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

namespace signalbox::planner_test {
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

// One kind of contract for all phases, or "PREFILL then DECODE".
void SetContract(PlanRequest& request, const std::string& kinds) {
  if (kinds == "none") return;
  const size_t then = kinds.find(" then ");
  const std::string later = then == kinds.npos ? kinds : kinds.substr(then + 6);
  request.contracts[0] = KindOfContract(kinds.substr(0, then));
  request.contracts[1] = request.contracts[2] = KindOfContract(later);
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
    } else if (key == "captured") {
      r.limits.captured_requests = Number(value);
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

// With kUnfused a routed slot is not even a candidate for the shared expert.
TEST(PlannerTest, UnfusedLeavesFusedPlacementsOut) {
  for (SharedChoice shared : {SharedChoice::kAuto, SharedChoice::kUnfused}) {
    PlanRequest request{
        .parallel = {.tp = 2, .ep = 2}, .facts = TestModel("gated"), .shared = shared};
    request.facts.kinds[0].shared->format = request.facts.kinds[0].moe->format;
    const Result<LayoutPlan> plan = PlanLayout(request);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(LayoutToText(*plan).find("fused") != std::string::npos, shared == SharedChoice::kAuto)
        << LayoutToText(*plan);
  }
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

PlanRequest Request(const ParallelConfig& parallel, const std::string& back_end) {
  PlanRequest request{.parallel = parallel, .facts = TestModel("gated"), .emulated = true};
  SetContract(request, back_end);
  return request;
}

// A contract defined nowhere but here plans like the known one whose fields it has.
TEST(Planner, UnknownContractPlansLikeTheOneWithItsFields) {
  const PlanRequest known = Request({.tp = 2, .ep = 2}, "flat-global");
  PlanRequest unknown = known;
  std::string text = ContractToText(*known.contracts[0]);
  const std::string name = "flat-global";
  text.replace(text.find(name), name.size(), "acme");
  const Result<Contract> acme = ContractFromText(text, "acme.txt");
  ASSERT_TRUE(acme.ok()) << acme.status().message();
  unknown.contracts = {*acme, *acme, *acme};
  std::string expected = LayoutToText(*PlanLayout(known));
  for (size_t at; (at = expected.find(name)) != expected.npos;) {
    expected.replace(at, name.size(), "acme");
  }
  EXPECT_EQ(LayoutToText(*PlanLayout(unknown)), expected);
}

TEST(Planner, CostsAreTheBytesOfTheAlgorithms) {
  constexpr double kRow = 4096 * 2;
  const LayoutPlan none = *PlanLayout(Request({.tp = 4}, "none"));
  // Two all-reduces as rings.
  EXPECT_DOUBLE_EQ(none.kinds[0].phases[0].cost.collective_bytes, 2 * 2 * 0.75 * kRow);

  // A quarter of the rows each. A rank holds 4 of 16 experts: all 4 of a token miss it with
  // probability 12/16 * 11/15 * 10/14 * 9/13.
  const double hit = 1 - 12. * 11 * 10 * 9 / (16. * 15 * 14 * 13);
  const LayoutPlan flat = *PlanLayout(Request({.tp = 4, .ep = 4}, "flat-global"));
  const PlanCost& cost = flat.kinds[0].phases[0].cost;
  EXPECT_DOUBLE_EQ(cost.collective_bytes, 2 * 0.75 * kRow);
  EXPECT_DOUBLE_EQ(cost.exchange_bytes, 0.25 * 3 * hit * (2 * kRow + 4 * 8));
  EXPECT_EQ(cost.exchanges, 2);
  EXPECT_DOUBLE_EQ(cost.repeated, 1);

  // One row per (token, expert), three quarters of them to other ranks.
  const LayoutPlan by_expert = *PlanLayout(Request({.tp = 4, .ep = 4}, "by-expert"));
  EXPECT_DOUBLE_EQ(by_expert.kinds[0].phases[0].cost.exchange_bytes,
                   0.25 * 4 * 0.75 * (2 * kRow + 8));
}

TEST(Planner, MemoryOfARankIsItsShare) {
  const LayoutFacts facts = TestModel("gated");
  const LayerBytes& b = facts.kinds[0].bytes;
  const MemoryPlan m = PlanLayout(Request({.tp = 4, .ep = 2}, "none"))->memory;
  EXPECT_EQ(m.mixer, 2 * b.mixer / 4);
  EXPECT_EQ(m.experts, 2 * b.experts / 4);
  EXPECT_EQ(m.shared, 2 * b.shared / 4);
  EXPECT_EQ(m.whole, 2 * b.whole + facts.trunk_bytes);
  EXPECT_EQ(m.cache_per_token, 2 * b.cache_per_token / 2);  // two heads of keys and values
  const MemoryPlan redundant =
      PlanLayout(Request({.tp = 2, .ep = 2, .redundant_experts = 4}, "none"))->memory;
  EXPECT_EQ(redundant.experts, 2 * b.experts / 16 * 10);
}

TEST(Planner, RowsThatContractsWantEqualArePaddedToTheLongest) {
  const LayoutPlan plan = *PlanLayout(Request({.tp = 2, .dp = 2, .ep = 2}, "flat-weights"));
  EXPECT_TRUE(plan.equal_rows);
  EXPECT_FALSE(PlanLayout(Request({.tp = 2, .ep = 2}, "flat-weights"))->equal_rows);
  EXPECT_EQ(plan.capacity[0], 4096);
}

TEST(Planner, RejectsFactsThatNoModelHas) {
  const auto broken = [](auto&& change) {
    PlanRequest request = Request({.tp = 2}, "none");
    change(request);
    const Result<LayoutPlan> plan = PlanLayout(request);
    return plan.ok() ? StatusCode::kOk : plan.status().code();
  };
  constexpr auto kInvalid = StatusCode::kInvalidArgument;
  EXPECT_EQ(broken([](PlanRequest& r) { r.facts.kinds.clear(); }), kInvalid);
  EXPECT_EQ(broken([](PlanRequest& r) { r.facts.hidden = 0; }), kInvalid);
  EXPECT_EQ(broken([](PlanRequest& r) { r.facts.kinds[0].moe->experts = 0; }), kInvalid);
  EXPECT_EQ(broken([](PlanRequest& r) { r.facts.kinds[0].moe->top_k = 17; }), kInvalid);
  EXPECT_EQ(broken([](PlanRequest& r) { r.facts.kinds[0].heads[0].count = 0; }), kInvalid);
  EXPECT_EQ(broken([](PlanRequest& r) { r.facts.kinds[0].moe.reset(); }), kInvalid);
  EXPECT_EQ(broken([](PlanRequest& r) { r.facts.kinds[0].program.clear(); }), kInvalid);
  EXPECT_EQ(broken([](PlanRequest& r) { r.limits.capacity = -1; }), kInvalid);
  EXPECT_EQ(broken([](PlanRequest& r) { r.limits.draft_tokens = 1 << 20; }), kInvalid);
  EXPECT_EQ(broken([](PlanRequest& r) { r.parallel.tp = 0; }), kInvalid);
  EXPECT_EQ(broken([](PlanRequest&) {}), StatusCode::kOk);
}

}  // namespace
}  // namespace signalbox::planner_test
