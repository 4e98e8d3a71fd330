// SPDX-License-Identifier: Apache-2.0
//
// Carries the addends of registers through the steps of a layer: what is linear is done to each of
// them as well, what makes something new starts a new addend.
#include <algorithm>

#include "signalbox/engine/layer_executor.h"

namespace signalbox {
namespace {

// The addend that a step makes; empty for steps that make none.
std::string_view MadeBy(StepKind kind) {
  switch (kind) {
    case StepKind::kInput:
      return addend::kResidual;
    case StepKind::kMixer:
      return addend::kMixer;
    case StepKind::kMlp:
      return addend::kMlp;
    case StepKind::kShared:
      return addend::kShared;
    case StepKind::kExperts:
    case StepKind::kCombine:
    case StepKind::kLatentUp:
      return addend::kRouted;
    default:
      return {};
  }
}

bool IsLinear(StepKind kind) {
  return kind == StepKind::kAllReduce || kind == StepKind::kReduceScatter ||
         kind == StepKind::kAllGather || kind == StepKind::kSlice || kind == StepKind::kScale;
}

}  // namespace

LayerExecutor::Addend LayerExecutor::CopyOf(std::string_view name, const Register& reg,
                                            const float* data) {
  float* copy = context_.scratch.Take(reg.floats());
  std::copy_n(data, reg.floats(), copy);
  return {name, copy};
}

Status LayerExecutor::ExecuteWithAddends(const Step& step, const LayerRun& run) {
  const bool reads = step.kind != StepKind::kInput;
  const Register src = reads ? At(step.source()) : Register();
  const Register also = step.also == Reg::kCount ? Register() : At(step.also);
  const Register old = At(step.dst);
  SB_RETURN_IF_ERROR(Execute(step, run));
  if (step.kind == StepKind::kAdd) {
    MergeAddends(src, &At(step.dst));
    return OkStatus();
  }
  if (step.kind == StepKind::kSnapshot) At(step.source()).addends.clear();
  if (IsLinear(step.kind)) {
    if (step.also != Reg::kCount) {
      Step second = step;
      second.dst = second.src = step.also;
      second.also = Reg::kCount;
      SB_ASSIGN_OR_RETURN(At(step.also).addends, CarryAddends(second, also, run));
    }
    Step first = step;
    first.also = Reg::kCount;
    SB_ASSIGN_OR_RETURN(At(step.dst).addends, CarryAddends(first, src, run));
    return OkStatus();
  }
  Register& dst = At(step.dst);
  dst.addends.clear();
  const std::string_view made = MadeBy(step.kind);
  if (!made.empty() && dst.data != nullptr) dst.addends = {CopyOf(made, dst, dst.data)};
  return OkStatus();
}

// The addends of `src`, as the register was before the step, after it.
Result<std::vector<LayerExecutor::Addend>> LayerExecutor::CarryAddends(const Step& step,
                                                                       const Register& src,
                                                                       const LayerRun& run) {
  const Register done = At(step.dst);
  const Register source = At(step.source());
  std::vector<Addend> carried;
  for (const Addend& a : src.addends) {
    Register& in = At(step.source());
    in = src;
    in.data = a.data;
    SB_RETURN_IF_ERROR(Execute(step, run));
    carried.push_back({a.name, At(step.dst).data});
  }
  At(step.source()) = source;
  At(step.dst) = done;
  return carried;
}

void LayerExecutor::MergeAddends(const Register& src, Register* dst) {
  for (const Addend& a : src.addends) {
    const auto same = std::find_if(dst->addends.begin(), dst->addends.end(),
                                   [&](const Addend& d) { return d.name == a.name; });
    if (same == dst->addends.end()) {
      dst->addends.push_back(CopyOf(a.name, src, a.data));
    } else {
      context_.ops.AddScaled(a.data, 1.f, src.floats(), same->data);
    }
  }
}

}  // namespace signalbox
