// SPDX-License-Identifier: Apache-2.0
//
// The coarse steps of tools/reference/algebra.py in ours.
#include <fmt/format.h>

#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "signalbox/base/json_util.h"
#include "signalbox/base/text_util.h"
#include "signalbox/plan/exchange.h"

namespace signalbox {
namespace {

using nlohmann::json;
using Arguments = std::vector<json>;

// Its registers are ours under the same names.
constexpr std::pair<std::string_view, Reg> kRegisters[] = {{"x", Reg::kResidual},
                                                           {"h", Reg::kMixed},
                                                           {"y", Reg::kNormed},
                                                           {"routed", Reg::kRouted},
                                                           {"shared", Reg::kShared}};

class Translator {
 public:
  explicit Translator(const Mesh& mesh) : mesh_(mesh) {}

  // Appends what one coarse step stands for.
  Status Translate(const json& step);

  std::vector<Step> steps;
  std::optional<AxisSet> rows_in;  // common to all inputs

  // The parts of a layer, also used to write down the model's own program.
  void Attention(AxisSet heads) {
    Emit({.kind = StepKind::kNorm, .dst = Reg::kMixed, .src = Reg::kResidual});
    Emit({.kind = StepKind::kMixer, .dst = Reg::kMixed, .axes = heads});
  }
  void Norm(Reg src) {
    Emit({.kind = StepKind::kNorm,
          .dst = Reg::kNormed,
          .src = src,
          .norm = NormRole::kFeedForwardInput});
  }
  void MaskedExperts(AxisSet ep, AxisSet tp) {
    Route();
    Emit({.kind = StepKind::kExperts,
          .dst = Reg::kRouted,
          .src = Reg::kNormed,
          .axes = ep,
          .width_axes = tp});
  }
  void LatentNorm() {
    Emit({.kind = StepKind::kNorm, .dst = Reg::kRouted, .norm = NormRole::kLatent});
  }
  void Shared(AxisSet width) {
    Emit({.kind = StepKind::kShared, .dst = Reg::kShared, .src = Reg::kNormed, .axes = width});
  }
  void Add(Reg dst, Reg src) { Emit({.kind = StepKind::kAdd, .dst = dst, .src = src}); }

 private:
  void Emit(Step step) { steps.push_back(std::move(step)); }

  void Route() {
    Emit({.kind = StepKind::kRoute, .dst = Reg::kRouting, .src = Reg::kNormed});
    Emit({.kind = StepKind::kMaskTail, .dst = Reg::kRouting});
  }

  void ExchangedExperts(AxisSet ep, AxisSet tp, bool runner_weighs, bool library_weighs) {
    Route();
    Emit({.kind = StepKind::kDispatch, .dst = Reg::kDispatched, .src = Reg::kNormed, .axes = ep});
    Emit({.kind = StepKind::kRunExperts,
          .dst = Reg::kExpertOut,
          .src = Reg::kDispatched,
          .width_axes = tp,
          .weigh = runner_weighs});
    Emit({.kind = StepKind::kCombine,
          .dst = Reg::kRouted,
          .src = Reg::kExpertOut,
          .axes = ep,
          .weigh = library_weighs});
  }

  // The i-th argument as what it should be; the first failure is kept in status_.
  const json& Argument(size_t i, bool right_type, std::string_view expected) {
    if (!right_type && status_.ok()) {
      status_ = InvalidArgument(
          {.what = fmt::format("argument {}", i + 1), .expected = std::string(expected)});
    }
    static const json kNothing;
    return right_type ? arguments_[i] : kNothing;
  }
  std::string Text(size_t i) {
    const json& a = Argument(i, i < arguments_.size() && arguments_[i].is_string(), "a text");
    return a.is_string() ? a.get<std::string>() : "";
  }
  Reg Register(size_t i) {
    const std::string text = Text(i);
    for (const auto& [name, reg] : kRegisters) {
      if (name == text) return reg;
    }
    Argument(i, false, "a register");
    return Reg::kCount;
  }
  AxisSet Axes(size_t i) {
    const json& a = Argument(i, i < arguments_.size() && arguments_[i].is_array(), "a list");
    AxisSet set;
    for (const json& name : a) {
      const auto axis = name.is_string() ? mesh_.Find(name.get_ref<const std::string&>())
                                         : std::optional<AxisSet>();
      if (!axis) Argument(i, false, "axes of the mesh");
      set = set | axis.value_or(AxisSet());
    }
    return set;
  }
  bool Lists(size_t i, std::string_view who) {
    const json& a = Argument(i, i < arguments_.size() && arguments_[i].is_array(), "a list");
    for (const json& name : a) {
      if (name == who) return true;
    }
    return false;
  }

  const Mesh& mesh_;
  Arguments arguments_;
  Status status_;
};

Status Translator::Translate(const json& step) {
  if (!step.is_array() || step.empty() || !step[0].is_string()) {
    return InvalidArgument({.what = "a step is a list that starts with its name"});
  }
  arguments_.assign(step.begin() + 1, step.end());
  status_ = OkStatus();
  const std::map<std::string, std::function<void()>> macros = {
      {"input",
       [&] {
         Emit({.kind = StepKind::kInput, .dst = Reg::kResidual, .axes = Axes(0)});
         rows_in = rows_in.value_or(mesh_.all()) & Axes(0);
       }},
      {"attn", [&] { Attention(Axes(0)); }},
      {"all_reduce",
       [&] { Emit({.kind = StepKind::kAllReduce, .dst = Register(0), .axes = Axes(1)}); }},
      {"reduce_scatter",
       [&] { Emit({.kind = StepKind::kReduceScatter, .dst = Register(0), .axes = Axes(1)}); }},
      {"all_gather",
       [&] { Emit({.kind = StepKind::kAllGather, .dst = Register(0), .axes = Axes(1)}); }},
      {"slice", [&] { Emit({.kind = StepKind::kSlice, .dst = Register(0), .axes = Axes(1)}); }},
      {"add", [&] { Add(Register(0), Register(1)); }},
      {"norm", [&] { Norm(Register(0)); }},
      {"shared", [&] { Shared(Axes(0)); }},
      {"experts_masked", [&] { MaskedExperts(Axes(0), Axes(1)); }},
      {"experts_a2a",
       [&] { ExchangedExperts(Axes(0), Axes(1), Lists(2, "runner"), Lists(2, "library")); }},
      {"latent_norm", [&] { LatentNorm(); }},
      {"scale",
       [&] {
         const auto coefficient = Rational::Parse(Text(1));
         if (!coefficient) Argument(1, false, "a fraction");
         Emit({.kind = StepKind::kScale,
               .dst = Register(0),
               .coefficient = coefficient.value_or(Rational{})});
       }},
  };
  const std::string name = step[0].get<std::string>();
  const auto macro = macros.find(name);
  if (macro == macros.end()) {
    return InvalidArgument({.what = "unknown step", .found = Quoted(name)});
  }
  macro->second();
  return status_;
}

std::vector<Step> Program(bool latent) {
  const Mesh one_rank;
  Translator model(one_rank);
  model.Attention({});
  model.Add(Reg::kResidual, Reg::kMixed);
  model.Norm(Reg::kResidual);
  model.MaskedExperts({}, {});
  if (latent) model.LatentNorm();
  model.Shared({});
  model.Add(Reg::kRouted, Reg::kShared);
  model.Add(Reg::kResidual, Reg::kRouted);
  std::erase_if(model.steps, [](const Step& step) { return IsLayoutStep(step.kind); });
  return std::move(model.steps);
}

}  // namespace

Result<ReferenceCase> ReferenceCaseFromJson(std::string_view text) {
  SB_ASSIGN_OR_RETURN(const json j, ParseJson(text));
  const auto part = [&](const char* key) { return j.is_object() ? j.value(key, json()) : json(); };
  const json sizes = part("mesh");
  const json steps = part("steps");
  if (!sizes.is_object() || !steps.is_array()) {
    return InvalidArgument(
        {.what = "no case", .expected = "an object with \"mesh\" and \"steps\""});
  }
  std::vector<Mesh::Axis> axes;  // nlohmann keeps keys sorted, as the reference does
  for (const auto& [name, size] : sizes.items()) {
    const bool fits = size.is_number_integer() && size >= 1 && size <= kMaxRanks;
    axes.push_back({name, fits ? size.get<int>() : 0});
  }
  ReferenceCase result;
  SB_ASSIGN_OR_RETURN(result.context.mesh, Mesh::Create(std::move(axes)));
  const bool latent = part("latent") == 1 || part("latent") == true;
  Translator translator(result.context.mesh);
  for (size_t i = 0; i < steps.size(); ++i) {
    Status status = translator.Translate(steps[i]);
    if (!status.ok()) return status.At(fmt::format("step {}", i + 1));
  }
  result.plan.kind = "reference";
  result.plan.steps = std::move(translator.steps);
  result.context.program = Program(latent);
  result.context.rows_in = translator.rows_in.value_or(AxisSet());
  result.context.sequence_axes = result.context.mesh.all();
  result.context.row_multiple = result.context.mesh.ranks();
  return result;
}

}  // namespace signalbox
