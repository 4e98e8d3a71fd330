// SPDX-License-Identifier: Apache-2.0
//
// Plans as JSON, so that other programs can make, keep or judge them.
//
// A document is one object:
//   {"mesh": [["attn_dp", 2], ["attn_tp", 2]], "views": {"moe_ep": ["attn_dp", "attn_tp"]},
//    "kind": "attention + moe", "phase": "decode",
//    "steps": [{"op": "mixer", "dst": "h", "src": "y", "over": ["attn_tp"]}, ...]}
// Step fields that have their default are left out; "src" is left out where it is dst.
//
//   SB_ASSIGN_OR_RETURN(PlanDocument d, PlanFromJson(PlanToJson(plan, mesh)));   // the same again
#pragma once

#include <string>
#include <string_view>

#include "signalbox/base/status.h"
#include "signalbox/mesh/mesh.h"
#include "signalbox/plan/check.h"
#include "signalbox/plan/step.h"

namespace signalbox {

struct PlanDocument {
  Mesh mesh;
  LayerPlan plan;
};

std::string PlanToJson(const LayerPlan& plan, const Mesh& mesh);

// INVALID_ARGUMENT says which step and which key, and what was expected there. Every step passes
// ValidateStep.
Result<PlanDocument> PlanFromJson(std::string_view json);

// A plan in the coarse steps of tools/reference/algebra.py, in ours, with what to check it against:
//   {"mesh": {"a": 2}, "latent": 0, "steps": [["input", []], ["attn", ["a"]], ...]}
// One coarse step stands for several of ours: ["attn", A] is a norm and a mixer, ["experts_a2a",
// EP, TP, WHO] is router, dispatch, experts and combine. Axes keep their names. The reference knows
// neither back ends nor padding, so the context has none.
struct ReferenceCase {
  LayerPlan plan;
  CheckContext context;
};
Result<ReferenceCase> ReferenceCaseFromJson(std::string_view json);

}  // namespace signalbox
