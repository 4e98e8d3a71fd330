// SPDX-License-Identifier: Apache-2.0
#include "signalbox/plan/planner_models_test.h"

#include <algorithm>
#include <fstream>

#include "signalbox/base/check.h"
#include "signalbox/plan/step_text_test.h"

namespace signalbox {

std::vector<Step> NamedProgram(std::string_view name) {
  std::ifstream file(SIGNALBOX_TESTDATA "/programs.case");
  SB_CHECK(file.good()) << "programs.case";
  std::vector<Step> steps;
  bool wanted = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("program ")) wanted = line.substr(8) == name;
    if (!wanted || !line.starts_with("  ")) continue;
    steps.push_back(*ParseStep(line.substr(2), Mesh()));
  }
  SB_CHECK(!steps.empty()) << name;
  return steps;
}

LayoutFacts TestModel(std::string_view program) {
  LayoutFacts facts{.hidden = 4096, .trunk_bytes = 256 << 20};
  LayerKindFacts kind{.kind = std::string(program),
                      .layers = 2,
                      .program = NamedProgram(program),
                      .heads = {{"heads", 8}, {"kv heads", 2, true}}};
  const auto has = [&](StepKind wanted) {
    for (const Step& step : kind.program) {
      if (step.kind == wanted) return true;
    }
    return false;
  };
  if (has(StepKind::kExperts)) {
    kind.moe = MoeLayout{.experts = 16, .top_k = 4, .inner = 512, .format = {"mxfp4", 32}};
  } else {
    kind.dense = MlpLayout{.inner = 4096};
  }
  if (has(StepKind::kShared)) kind.shared = MlpLayout{.inner = 512};
  if (has(StepKind::kLatentDown)) kind.latent = 2048;
  constexpr int64_t kMatrix = 4096 * 512;  // elements
  kind.bytes = {.mixer = 8 * kMatrix,
                .experts = kind.moe ? 16 * 3 * kMatrix * 17 / 32 : 0,
                .shared = kind.shared ? 6 * kMatrix : 0,
                .dense = kind.dense ? 48 * kMatrix : 0,
                .whole = 16 * 4096 * 4,
                .cache_per_token = 1024};
  facts.kinds.push_back(std::move(kind));
  return facts;
}

Contract KindOfContract(std::string_view kind) {
  const auto is = [&](const Contract& c) {
    const bool flat = c.shape == RowShape::kFlat;
    const bool padded = c.shape == RowShape::kExpertMajorPadded;
    const bool forbidden = c.negative_ids == NegativeIds::kForbidden;
    if (kind == "flat-local") return flat && c.ids == ReceivedIds::kLocal;
    if (kind == "flat-global") return flat && c.ids == ReceivedIds::kGlobal;
    if (kind == "flat-weights") return flat && c.ids == ReceivedIds::kAbsent;
    if (kind == "rank-major") return c.shape == RowShape::kRankMajorPadded && c.counts.empty();
    if (kind == "by-expert") return padded && c.negative_ids == NegativeIds::kSkip;
    if (kind == "by-expert-all-ids") return padded && forbidden;
    if (kind == "fused") return c.shape == RowShape::kFused && !c.own_router;
    return kind == "own-router" && c.own_router;
  };
  const auto all = AllContracts();
  const auto found = std::ranges::find_if(all, is);
  SB_CHECK(found != all.end()) << kind;
  Contract contract = *found;
  contract.name = kind;
  contract.mode = "";
  return contract;
}

std::vector<Contract> ExchangeContracts() {
  std::vector<Contract> contracts;
  for (const Contract& c : AllContracts()) {
    if (c.shape != RowShape::kNone) contracts.push_back(c);
  }
  return contracts;
}

}  // namespace signalbox
