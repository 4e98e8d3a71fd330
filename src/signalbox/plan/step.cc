// SPDX-License-Identifier: Apache-2.0
#include "signalbox/plan/step.h"

#include <fmt/format.h>

#include <array>

namespace signalbox {
namespace {

template <typename... Regs>
constexpr uint16_t Set(Regs... regs) {
  return uint16_t(((1u << static_cast<unsigned>(regs)) | ... | 0u));
}
template <typename... Fields>
constexpr uint16_t With(Fields... fields) {
  return uint16_t((static_cast<unsigned>(fields) | ... | 0u));
}

using enum Reg;
using F = StepField;
// Registers that hold one row of numbers per token.
constexpr uint16_t kRows = Set(kResidual, kNormed, kMixed, kRouted, kShared, kLatent);
// What can be gathered and sliced.
constexpr uint16_t kMovable = kRows | Set(kBank, kRouting);
constexpr bool kInPlace = true;
constexpr bool kLayout = true;

// In the order of StepKind.
constexpr std::array kSpecs = {
    /* kNorm */ StepSpec{kRows, kRows, false, With(F::kNorm), false, 0},
    /* kMix */ StepSpec{kRows, Set(kResidual), false, With(F::kNorm), false, Set(kBank)},
    /* kSnapshot */ StepSpec{Set(kBank), Set(kResidual), false, With(), false, Set(kBank)},
    /* kMixer */ StepSpec{kRows, kRows, false, With(F::kAxes), false, 0},
    /* kRoute */ StepSpec{Set(kRouting), kRows, false, With(F::kCoefficient), false, 0},
    /* kAppendShared */
    StepSpec{Set(kRouting), Set(kRouting), kInPlace,
             With(F::kAxes, F::kCoefficient, F::kGated, F::kSlot), false, 0},
    /* kExperts */
    StepSpec{kRows, kRows, false, With(F::kAxes, F::kWidthAxes), false, Set(kRouting)},
    /* kLatentDown */ StepSpec{kRows, kRows, false, With(), false, 0},
    /* kLatentUp */ StepSpec{kRows, kRows, false, With(), false, 0},
    /* kShared */ StepSpec{kRows, kRows, false, With(F::kAxes, F::kGated), false, 0},
    /* kMlp */ StepSpec{kRows, kRows, false, With(F::kAxes), false, 0},
    /* kAdd */ StepSpec{kRows, kRows, false, With(), false, 0},
    /* kScale */ StepSpec{kRows, kRows, kInPlace, With(F::kCoefficient), false, 0},
    /* kInput */ StepSpec{Set(kResidual, kBank), 0, false, With(F::kAxes), kLayout, 0},
    /* kAllReduce */ StepSpec{kRows, kRows, false, With(F::kAxes, F::kAlso), kLayout, 0},
    /* kReduceScatter */ StepSpec{kRows, kRows, false, With(F::kAxes), kLayout, 0},
    /* kAllGather */ StepSpec{kMovable, kMovable, false, With(F::kAxes), kLayout, 0},
    /* kSlice */ StepSpec{kMovable, kMovable, false, With(F::kAxes), kLayout, 0},
    /* kRemapIds */
    StepSpec{Set(kRouting, kDispatched), Set(kRouting, kDispatched), kInPlace,
             With(F::kAxes, F::kIds), kLayout, 0},
    /* kMaskTail */
    StepSpec{Set(kRouting, kDispatched), Set(kRouting, kDispatched), kInPlace, With(), kLayout, 0},
    /* kDispatch */
    StepSpec{Set(kDispatched), kRows, false, With(F::kAxes, F::kWeigh), kLayout, Set(kRouting)},
    /* kPermute */
    StepSpec{Set(kDispatched, kExpertOut), Set(kDispatched, kExpertOut), kInPlace,
             With(F::kShape, F::kWeigh), kLayout, 0},
    /* kRunExperts */
    StepSpec{Set(kExpertOut), Set(kDispatched), false, With(F::kWidthAxes, F::kWeigh), false, 0},
    /* kCombine */
    StepSpec{kRows, Set(kExpertOut), false, With(F::kAxes, F::kWeigh), kLayout, Set(kRouting)},
};
static_assert(kSpecs.size() == static_cast<size_t>(StepKind::kCount));
static_assert(std::size(EnumText<StepKind>::kNames) == kSpecs.size());

bool In(uint16_t set, Reg reg) {
  return reg < Reg::kCount && (set & Set(reg)) != 0;
}

Status Malformed(const Step& step, std::string what) {
  return InvalidArgument({.what = fmt::format("{} {}", ToString(step.kind), what)});
}

// The first field that has a value although the kind has no use for it; empty when there is none.
std::string_view StrayField(const Step& step, const StepSpec& spec) {
  const struct {
    StepField field;
    bool set;
    std::string_view name;
  } fields[] = {
      {F::kAxes, !step.axes.empty(), "axes"},
      {F::kWidthAxes, !step.width_axes.empty(), "width axes"},
      {F::kNorm, step.norm != NormRole::kMixerInput, "norm weight"},
      {F::kCoefficient, step.coefficient != Rational{}, "coefficient"},
      {F::kAlso, step.also != kCount, "second register"},
      {F::kWeigh, step.weigh, "router weights"},
      {F::kGated, step.gated, "gate"},
      {F::kIds, step.ids != IdSpace::kNone, "id space"},
      {F::kShape, step.shape != RowShape::kNone, "row shape"},
      {F::kSlot, step.slot != SharedSlot::kNone, "shared slot"},
  };
  for (const auto& f : fields) {
    if (f.set && !spec.Uses(f.field)) return f.name;
  }
  return "";
}

}  // namespace

const StepSpec& Spec(StepKind kind) {
  return kSpecs[static_cast<size_t>(kind)];
}

bool IsLayoutStep(StepKind kind) {
  return Spec(kind).layout;
}

Status ValidateStep(const Step& step, const Mesh& mesh) {
  const StepSpec& spec = Spec(step.kind);
  if (!In(spec.dst, step.dst)) {
    return Malformed(step, fmt::format("cannot write {}", ToString(step.dst)));
  }
  if (spec.src == 0 ? step.src != kCount : !In(spec.src, step.source())) {
    return Malformed(step, fmt::format("cannot read {}", ToString(step.source())));
  }
  // A gather of a routing gives a routing: rows of numbers, ids and snapshots do not mix.
  const bool same_kind = In(kRows, step.dst) ? In(kRows, step.source()) : step.source() == step.dst;
  const bool moves = step.kind == StepKind::kAllGather || step.kind == StepKind::kSlice;
  if ((spec.in_place && step.source() != step.dst) || (moves && !same_kind)) {
    return Malformed(
        step, fmt::format("cannot turn {} into {}", ToString(step.source()), ToString(step.dst)));
  }
  if (std::string_view field = StrayField(step, spec); !field.empty()) {
    return Malformed(step, fmt::format("has no use for a {}", field));
  }
  if (step.also != kCount && (!In(kRows, step.also) || step.also == step.dst)) {
    return Malformed(step, fmt::format("cannot carry {} as well", ToString(step.also)));
  }
  if (!mesh.all().Contains(step.axes | step.width_axes)) {
    return Malformed(step, "names an axis that the mesh does not have");
  }
  const Rational& c = step.coefficient;
  constexpr int64_t kLargest = int64_t{1} << 20;  // products of a plan's few factors fit 64 bits
  if (c.den < 1 || c.den > kLargest || c.num > kLargest || c.num < -kLargest) {
    return Malformed(step, fmt::format("has coefficient {}/{}", c.num, c.den));
  }
  return OkStatus();
}

std::string Step::ToString(const Mesh& mesh) const {
  const auto name = [](auto value) { return signalbox::ToString(value); };
  if (kind == StepKind::kAdd) return fmt::format("{} += {}", name(dst), name(source()));
  if (kind == StepKind::kScale) return fmt::format("{} *= {}", name(dst), coefficient.ToString());
  std::string s = fmt::format("{} = {}", name(dst), name(kind));
  if (Spec(kind).Uses(F::kNorm)) s += fmt::format("[{}]", name(norm));
  if (Spec(kind).src != 0) s += fmt::format(" {}", name(source()));
  if (also != kCount) s += fmt::format(" and {}", name(also));
  if (slot != SharedSlot::kNone) s += fmt::format(" in {} slot", name(slot));
  if (ids != IdSpace::kNone) s += fmt::format(" to {} ids", name(ids));
  if (shape != RowShape::kNone) s += fmt::format(" to {} rows", name(shape));
  if (!axes.empty()) s += fmt::format(" over {}", mesh.Names(axes));
  if (!width_axes.empty()) s += fmt::format(" width over {}", mesh.Names(width_axes));
  if (coefficient != Rational{}) s += fmt::format(" times {}", coefficient.ToString());
  if (gated) s += " gated";
  if (weigh) s += " weighted";
  return s;
}

}  // namespace signalbox
