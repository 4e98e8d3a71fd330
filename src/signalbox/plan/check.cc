// SPDX-License-Identifier: Apache-2.0
#include "signalbox/plan/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "signalbox/plan/rules.h"

namespace signalbox {
namespace {

using rules::Broken;

// In the order of StepKind.
constexpr std::array<rules::Rule*, static_cast<size_t>(StepKind::kCount)> kRules = {
    rules::Norm,          rules::Mix,       rules::Snapshot,   rules::Mixer,    rules::Route,
    rules::AppendShared,  rules::Experts,   rules::LatentDown, rules::LatentUp, rules::Shared,
    rules::Mlp,           rules::Add,       rules::Scale,      rules::Input,    rules::AllReduce,
    rules::ReduceScatter, rules::AllGather, rules::Slice,      rules::RemapIds, rules::MaskTail,
    rules::Dispatch,      rules::Permute,   rules::RunExperts, rules::Combine,
};

constexpr size_t kMaxExpression = 16 << 10;  // characters; a layer's own has a few hundred

// Runs the steps over the registers.
class Derivation {
 public:
  Derivation(const CheckContext& context, const Mesh& mesh, bool erased, bool bank)
      : context_(context), mesh_(mesh), erased_(erased) {
    const AxisSet rows = erased ? AxisSet() : context.rows_in;
    Load(Reg::kResidual, addend::kResidual, "x", rows);
    if (bank) Load(Reg::kBank, "snapshots", "bank", rows);
    checked_.before = values_;
  }

  Status Run(const std::vector<Step>& steps) {
    if (steps.size() > kMaxSteps) {
      return InvalidArgument({.what = "too many steps",
                              .found = std::to_string(steps.size()),
                              .expected = fmt::format("{} or fewer", kMaxSteps)});
    }
    for (size_t i = 0; i < steps.size(); ++i) {
      const Step& step = steps[i];
      Status status = ValidateStep(step, mesh_);
      if (!status.ok()) return status.At(fmt::format("step {}", i + 1));
      status = Apply(step);
      if (!status.ok()) return status.At(fmt::format("step {}: {}", i + 1, step.ToString(mesh_)));
      checked_.after.push_back(values_);
    }
    return OkStatus();
  }

  const RegisterValues& values() const { return values_; }
  CheckedPlan& checked() { return checked_; }

 private:
  void Load(Reg reg, std::string_view name, std::string text, AxisSet rows) {
    values_[reg] = rules::Single({.rows = rows}, name, std::move(text));
    if (context_.row_multiple > 1 && !erased_) values_[reg]->facts.pad = PadRows::kMasked;
  }

  Result<const Value*> Read(Reg reg) const {
    if (values_[reg]) return &*values_[reg];
    return InvalidArgument(
        {.what = fmt::format("reads {}, which holds nothing yet", ToString(reg))});
  }

  Status Apply(const Step& step) {
    const StepSpec& spec = Spec(step.kind);
    static const Value kNothing;
    rules::Operands in{.step = step, .src = kNothing};
    const Value* src = &kNothing;
    if (step.kind == StepKind::kAdd) {
      SB_ASSIGN_OR_RETURN(in.dst, Read(step.dst));
    }
    if (spec.src != 0) {
      SB_ASSIGN_OR_RETURN(src, Read(step.source()));
    }
    if (spec.Reads(Reg::kRouting)) {
      SB_ASSIGN_OR_RETURN(in.routing, Read(Reg::kRouting));
    }
    if (spec.Reads(Reg::kBank)) {
      SB_ASSIGN_OR_RETURN(in.bank, Read(Reg::kBank));
    }
    SB_RETURN_IF_ERROR(Write(step, step.dst, {step, *src, in.dst, in.routing, in.bank}));
    if (step.also != Reg::kCount) {
      SB_ASSIGN_OR_RETURN(src, Read(step.also));
      SB_RETURN_IF_ERROR(Write(step, step.also, {step, *src}));
    }
    if (step.kind == StepKind::kSnapshot) {
      values_[step.source()]->terms.clear();
      values_[step.source()]->expr.clear();
    }
    Invalidate(step);
    return OkStatus();
  }

  Status Write(const Step& step, Reg reg, const rules::Operands& in) {
    const rules::Scope scope{context_, mesh_, erased_, checked_.warnings};
    SB_ASSIGN_OR_RETURN(Value v, kRules[static_cast<size_t>(step.kind)](scope, in));
    size_t length = 0;
    for (const Addend& a : v.expr) length += a.text.size();
    if (length > kMaxExpression) {
      return InvalidArgument({.what = fmt::format("what {} computes takes more than {} characters",
                                                  ToString(reg), kMaxExpression)});
    }
    values_[reg] = std::move(v);
    return OkStatus();
  }

  // Rows on their way belong to one routing and one dispatch, and come back once.
  void Invalidate(const Step& step) {
    const bool routing = step.dst == Reg::kRouting;
    if (routing || step.kind == StepKind::kCombine) values_[Reg::kDispatched].reset();
    if (routing || step.kind == StepKind::kCombine || step.dst == Reg::kDispatched) {
      values_[Reg::kExpertOut].reset();
    }
  }

  const CheckContext& context_;
  const Mesh& mesh_;
  const bool erased_;
  RegisterValues values_;
  CheckedPlan checked_;
};

// The coefficient of every addend of that name, summed.
Result<Rational> Counted(const Value& v, std::string_view name) {
  Rational sum{0, 1};
  for (const Term& t : v.terms) {
    if (t.name != name) continue;
    const auto next = Rational::Sum(sum, t.coefficient);
    if (!next) return InvalidArgument({.what = "coefficient beyond 64 bits"});
    sum = *next;
  }
  return sum;
}

std::string Replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

// What the plan computes against what the model computes, the model's feed-forward input written
// as y.
Status CheckErasure(const Value& v, const Value& model, const std::optional<Value>& y) {
  if (v.expr == model.expr) return OkStatus();
  std::string plan_text = ToString(v.expr);
  std::string model_text = ToString(model.expr);
  std::string where_y;
  if (y && y->expr.size() == 1) {
    const std::string& text = y->expr[0].text;
    plan_text = Replaced(std::move(plan_text), text, "y");
    model_text = Replaced(std::move(model_text), text, "y");
    where_y = "y = " + text;
  }
  return Broken(fmt::format("with the layout erased the plan computes {}, the model {}", plan_text,
                            model_text),
                where_y);
}

Status CheckExit(const Derivation& plan, const Derivation& program, const CheckContext& context,
                 Reg reg) {
  const Value& v = *plan.values()[reg];
  const Value& model = *program.values()[reg];
  std::vector<std::string> unused;
  const rules::Scope scope{context, context.mesh, false, unused};
  SB_RETURN_IF_ERROR(rules::Complete(scope, v, "layer exit"));
  for (const std::vector<Term>& terms : {model.terms, v.terms}) {
    for (const Term& t : terms) {
      SB_ASSIGN_OR_RETURN(const Rational found, Counted(v, t.name));
      SB_ASSIGN_OR_RETURN(const Rational expected, Counted(model, t.name));
      if (found == expected) continue;
      return Broken(fmt::format("{}: coefficient {} at layer exit", t.name, found.ToString()), "",
                    expected.ToString());
    }
  }
  SB_RETURN_IF_ERROR(CheckErasure(v, model, program.values()[Reg::kNormed]));
  if (context.rows_out && v.rows != *context.rows_out) {
    return Broken(fmt::format("{} leaves the layer with rows sharded over {}", ToString(reg),
                              context.mesh.Names(v.rows)),
                  "", context.mesh.Names(*context.rows_out));
  }
  return OkStatus();
}

Status CheckGiven(const CheckContext& c) {
  const AxisSet named = c.rows_in | c.rows_out.value_or(AxisSet()) | c.sequence_axes;
  constexpr int64_t kMostRows = int64_t{1} << 40;
  if (!c.mesh.all().Contains(named) || c.row_multiple < 1 || c.max_rows < 0 ||
      c.max_rows > kMostRows || c.capacity < 0) {
    return InvalidArgument(
        {.what = "axes or counts that the mesh cannot have",
         .where = "layout",
         .found = fmt::format("row multiple {}, rows {}, capacity {}, mesh {}", c.row_multiple,
                              c.max_rows, c.capacity, c.mesh.ToString())});
  }
  std::vector<std::string> unused;
  return rules::CheckSplit({c, c.mesh, false, unused}, c.rows_in);
}

}  // namespace

Result<CheckedPlan> CheckPlan(const LayerPlan& plan, const CheckContext& context) {
  SB_RETURN_IF_ERROR(CheckGiven(context));
  const bool bank = std::ranges::any_of(context.program, [](const Step& step) {
    return step.dst == Reg::kBank || Spec(step.kind).Reads(Reg::kBank);
  });
  const Mesh one_rank;
  Derivation program(context, one_rank, /*erased=*/true, bank);
  if (Status status = program.Run(context.program); !status.ok()) {
    return status.At("the model's own program");
  }
  Derivation derivation(context, context.mesh, /*erased=*/false, bank);
  SB_RETURN_IF_ERROR(derivation.Run(plan.steps));
  for (Reg reg : {Reg::kResidual, Reg::kBank}) {
    if (reg == Reg::kBank && !bank) continue;
    if (Status status = CheckExit(derivation, program, context, reg); !status.ok()) {
      return status.At("layer exit");
    }
  }
  return std::move(derivation.checked());
}

}  // namespace signalbox
