// SPDX-License-Identifier: Apache-2.0
//
// Step and LayerPlan: how a layer runs, as data. The engine executes exactly these steps, the
// checker types them, `signalbox plan` prints them. A step that moves rows or sums is a layout
// step; with all of those removed the list is the model's own one-rank program.
//
//   LayerPlan p = OneRankPlan(shape);
//   for (const Step& s : p.steps) fmt::print("{}\n", s.ToString(mesh));   // "h = mixer y"
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "signalbox/a2a/contract_fields.h"
#include "signalbox/base/status.h"
#include "signalbox/mesh/mesh.h"
#include "signalbox/plan/value.h"

namespace signalbox {

// The activations a layer works on. kResidual (and kBank where the model has one) hold the layer's
// input when the first step runs and its output after the last.
enum class Reg : uint8_t {
  kResidual,    // x [tokens, hidden], the stream between layers
  kNormed,      // y [tokens, hidden], input of the mixer or of the feed-forward part
  kMixed,       // h [tokens, hidden], output of the mixer
  kRouting,     // ids and weights [tokens, top_k]
  kDispatched,  // rows as the contract delivers them, with ids, weights and counts
  kExpertOut,   // expert results in the rows of kDispatched
  kRouted,      // sum of routed experts [tokens, hidden], or [tokens, latent] before kLatentUp
  kShared,      // shared expert [tokens, hidden]
  kLatent,      // z [tokens, latent], input of latent experts
  kBank,        // snapshots of x [snapshots, tokens, hidden] (block attention residuals)
  kCount,
};
template <>
struct EnumText<Reg> {
  static constexpr std::string_view kNames[] = {
      "x", "y", "h", "routing", "dispatched", "expert_out", "routed", "shared", "z", "bank", ""};
};

enum class StepKind : uint8_t {
  // the model's own operations
  kNorm,          // dst <- norm(src); `norm` says which weight
  kMix,           // dst <- attention over the rows of kBank and src (block attention residuals);
                  // `norm` says what it is the input of
  kSnapshot,      // kBank gains src as a snapshot, src starts again from nothing
  kMixer,         // dst <- mixer(src), heads over `axes` (output partial over them)
  kRoute,         // kRouting <- router(src); `coefficient`: routed scaling factor in the weights
  kAppendShared,  // kRouting gains a lane: the shared expert in `slot` with weight `coefficient`,
                  // divided over the ranks of `axes`; `gated`: times its gate
  kExperts,       // dst <- experts that this rank of `axes` holds, all rows in src; width over
                  // `width_axes`; weighted
  kLatentDown,    // dst <- down projection(src), hidden to latent
  kLatentUp,      // dst <- up projection(src), latent to hidden
  kShared,        // dst <- shared expert(src), width over `axes`; `gated`: times its gate
  kMlp,           // dst <- dense feed-forward(src), width over `axes`
  kAdd,           // dst += src
  kScale,         // dst *= coefficient, the model's routed scaling factor
  // layout steps: rows and sums
  kInput,          // dst <- the layer's input once more, this rank's rows over `axes`
  kAllReduce,      // dst <- src summed over `axes`; `also` travels in the same message
  kReduceScatter,  // dst <- src summed over `axes`, each rank keeps its rows
  kAllGather,      // dst <- rows of src from all ranks of `axes`
  kSlice,          // dst <- this rank's rows of src
  // layout steps: experts on other ranks
  kRemapIds,    // ids of dst in space `ids`; ranks along `axes` choose their own replicas
  kMaskTail,    // rows of dst beyond the valid ones become zeros that no expert is asked for
  kDispatch,    // kDispatched <- rows of src, routed over `axes` by the contract
  kPermute,     // rows of dst in shape `shape`, summed where several become one
  kRunExperts,  // kExpertOut <- runner(kDispatched), width over `width_axes`
  kCombine,     // dst <- kExpertOut returned to its senders over `axes`
  kCount,
};
template <>
struct EnumText<StepKind> {
  static constexpr std::string_view kNames[] = {
      "norm",      "mix",         "snapshot",   "mixer",          "route",       "append-shared",
      "experts",   "latent-down", "latent-up",  "shared",         "mlp",         "add",
      "scale",     "input",       "all-reduce", "reduce-scatter", "all-gather",  "slice",
      "remap-ids", "mask-tail",   "dispatch",   "permute",        "run-experts", "combine"};
};

enum class NormRole : uint8_t { kMixerInput, kFeedForwardInput, kLatent };
template <>
struct EnumText<NormRole> {
  static constexpr std::string_view kNames[] = {"mixer", "feed-forward", "latent"};
};

struct Step {
  StepKind kind;
  Reg dst;
  Reg src = Reg::kCount;  // kCount: dst itself
  AxisSet axes;
  AxisSet width_axes;
  NormRole norm = NormRole::kMixerInput;
  Rational coefficient;
  Reg also = Reg::kCount;               // kAllReduce: a second register in the same message
  bool weigh = false;                   // this step multiplies by the router weights
  bool gated = false;                   // the shared expert has a gate
  IdSpace ids = IdSpace::kNone;         // kRemapIds: the space it maps to
  RowShape shape = RowShape::kNone;     // kPermute: the shape it gives
  SharedSlot slot = SharedSlot::kNone;  // kAppendShared: where the shared expert's weights are
  std::string reason;                   // why the planner chose it; empty when there was no choice

  Reg source() const { return src == Reg::kCount ? dst : src; }
  // "h = all-reduce h over attn_tp": the operation, its registers, then whatever is not default.
  std::string ToString(const Mesh& mesh) const;
  friend bool operator==(const Step&, const Step&) = default;
};

// Fields of a Step that some kinds leave at their default.
enum class StepField : uint16_t {
  kAxes = 1 << 0,
  kWidthAxes = 1 << 1,
  kNorm = 1 << 2,
  kCoefficient = 1 << 3,
  kAlso = 1 << 4,
  kWeigh = 1 << 5,
  kGated = 1 << 6,
  kIds = 1 << 7,
  kShape = 1 << 8,
  kSlot = 1 << 9,
};

// What a kind of step may read, write and say.
struct StepSpec {
  uint16_t dst;     // registers it may write, bit i for Reg i
  uint16_t src;     // registers it may read as src
  bool in_place;    // src is dst
  uint16_t fields;  // bits of StepField that mean something
  bool layout;      // moves rows, sums, ids or padding and computes nothing of the model
  uint16_t reads;   // registers it reads besides src
  bool Uses(StepField field) const { return fields & static_cast<uint16_t>(field); }
  bool Reads(Reg reg) const { return (reads >> static_cast<unsigned>(reg)) & 1u; }
};
const StepSpec& Spec(StepKind kind);
bool IsLayoutStep(StepKind kind);

// INVALID_ARGUMENT: a register the kind cannot write or read, a field it has no use for, an axis
// that is not in the mesh. No step that passes makes ToString, the checker or the engine guess.
Status ValidateStep(const Step& step, const Mesh& mesh);

// What a layer does in one phase. Layers of the same kind share one plan.
using Phase = CallPhase;

struct LayerPlan {
  std::string kind;  // "gated delta net + moe"
  Phase phase = Phase::kPrefill;
  std::vector<Step> steps;
  friend bool operator==(const LayerPlan&, const LayerPlan&) = default;
};

}  // namespace signalbox
