// SPDX-License-Identifier: Apache-2.0
//
// CheckPlan: the typing rules of layouts. It derives what every register holds after every step
// from the steps alone, and refuses the first step that would add, gather or normalise something
// that is not what it should be. A plan that passes computes the model's own one-rank program on
// every rank. Nothing here knows how plans are made, so a mistake of the planner cannot vouch for
// itself.
//
//   CheckContext context{.mesh = p.mesh, .program = OneRankPlan(shape).steps,
//                        .sequence_axes = p.attn_dp};
//   SB_ASSIGN_OR_RETURN(CheckedPlan checked, CheckPlan(plan, context));
//   checked.after[3][Reg::kMixed]->ToString(mesh);   // "rows: all | mixer partial over attn_tp"
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "signalbox/a2a/contract.h"
#include "signalbox/base/status.h"
#include "signalbox/mesh/mesh.h"
#include "signalbox/plan/step.h"
#include "signalbox/plan/value.h"

namespace signalbox {

// Whether a runner multiplies its rows by the router weights.
enum class RunnerWeights : uint8_t { kNever, kOptional, kAlways };

// What an expert runner reads, as far as a plan has to know.
struct RunnerTerms {
  std::string name;
  RowShape shape = RowShape::kFlat;
  IdSpace ids = IdSpace::kLocal;  // kPosition for expert-major shapes
  bool reads_tail = false;        // also looks at rows beyond the valid ones
  RunnerWeights weights = RunnerWeights::kOptional;
};

// What the checker takes as given.
struct CheckContext {
  Mesh mesh;
  std::vector<Step> program;        // the model's own steps on one rank, without layout steps
  AxisSet rows_in;                  // axes that shard the rows of the layer's input
  std::optional<AxisSet> rows_out;  // and must shard those of its output; nothing: any
  AxisSet sequence_axes;            // axes whose ranks hold different sequences, whole ones
  int row_multiple = 1;  // a rank's batch is padded to a multiple of it; 1: there is no padding
  int64_t max_rows = 0;  // most rows of a rank at entry, draft tokens included; 0: not known
  int64_t capacity = 0;  // most rows a rank may dispatch; 0: no limit
  bool slot_is_expert = true;  // slot i holds expert i: logical ids are slot ids
  // Without a contract a dispatch delivers one row per (token, expert), grouped by expert, and
  // combine weighs when the step says so. Without a runner any rows will do.
  std::optional<Contract> contract;
  std::optional<RunnerTerms> runner;
};

// What each register holds; nothing before it is written.
class RegisterValues {
 public:
  std::optional<Value>& operator[](Reg reg) { return values_[static_cast<size_t>(reg)]; }
  const std::optional<Value>& operator[](Reg reg) const {
    return values_[static_cast<size_t>(reg)];
  }

 private:
  std::array<std::optional<Value>, static_cast<size_t>(Reg::kCount)> values_;
};

struct CheckedPlan {
  RegisterValues before;              // the layer's input
  std::vector<RegisterValues> after;  // after each step
  std::vector<std::string> warnings;  // right, but wasteful

  const Value& exit() const { return *(after.empty() ? before : after.back())[Reg::kResidual]; }
};

// REFUSED: a typing rule is broken; `what` is the rule in the plan's terms, `where` the step.
// INVALID_ARGUMENT: not a plan (ValidateStep, a register read before it is written, more than
// kMaxSteps steps, expressions or coefficients beyond any layer's).
Result<CheckedPlan> CheckPlan(const LayerPlan& plan, const CheckContext& context);

inline constexpr size_t kMaxSteps = 256;

}  // namespace signalbox
