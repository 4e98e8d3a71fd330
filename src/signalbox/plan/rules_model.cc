// SPDX-License-Identifier: Apache-2.0
//
// What a layer computes, and how heads, widths and experts are cut over axes.
#include <fmt/format.h>

#include "signalbox/plan/rules.h"

namespace signalbox::rules {
namespace {

// A block whose heads or inner width are sliced over the step's axes.
Result<Value> SlicedBlock(const Scope& scope, const Operands& in, std::string_view name,
                          std::string text) {
  SB_RETURN_IF_ERROR(Complete(scope, in.src, name));
  SB_RETURN_IF_ERROR(Hidden(in.src, name));
  Value v = Single(in.src, name, std::move(text));
  SB_RETURN_IF_ERROR(ColumnParallel(scope, v, in.step.axes, name));
  SB_RETURN_IF_ERROR(RowParallel(scope, v));
  return v;
}

// A linear map without bias distributes over addends, also over ones that are still owed.
Value Linear(const Value& src, std::string_view function, bool latent) {
  Value v = src;
  v.facts.latent = latent;
  for (Addend& a : v.expr) a.text = fmt::format("{}({})", function, a.text);
  return v;
}

}  // namespace

Status ColumnParallel(const Scope& scope, Value& v, AxisSet axes, std::string_view what) {
  const AxisSet other_rows = axes & v.rows;
  if (!other_rows.empty()) {
    return Broken(fmt::format("{} sliced over {} whose ranks hold different rows", what,
                              scope.mesh.Names(other_rows)));
  }
  SB_RETURN_IF_ERROR(Complete(scope, v, what));
  v.cols = axes;
  return OkStatus();
}

Status RowParallel(const Scope& scope, Value& v) {
  for (Term& t : v.terms) SB_RETURN_IF_ERROR(Cut(scope, t, v.cols));
  v.cols = {};
  return OkStatus();
}

Status Cut(const Scope& scope, Term& term, AxisSet axes) {
  const AxisSet twice = term.part & axes;
  if (!twice.empty()) {
    return Broken(fmt::format("{} cut over {} twice", term.name, scope.mesh.Names(twice)));
  }
  term.part = term.part | axes;
  return OkStatus();
}

Result<Value> Mixer(const Scope& scope, const Operands& in) {
  const AxisSet whole = in.step.axes | (scope.mesh.all() - scope.context.sequence_axes);
  const AxisSet cut = in.src.rows & whole;
  if (!cut.empty()) {
    return Broken(fmt::format("attention needs the whole sequence: rows are sharded over {}",
                              scope.mesh.Names(cut)));
  }
  return SlicedBlock(scope, in, addend::kMixer, Apply("mixer", in.src.expr));
}

Result<Value> Shared(const Scope& scope, const Operands& in) {
  const std::string gate = in.step.gated ? Apply("gate", in.src.expr) + "*" : "";
  return SlicedBlock(scope, in, addend::kShared, gate + Apply("shared", in.src.expr));
}

Result<Value> Mlp(const Scope& scope, const Operands& in) {
  return SlicedBlock(scope, in, addend::kMlp, Apply("mlp", in.src.expr));
}

Result<Value> LatentDown(const Scope&, const Operands& in) {
  SB_RETURN_IF_ERROR(Hidden(in.src, "latent down projection"));
  return Linear(in.src, "latent_down", true);
}

Result<Value> LatentUp(const Scope&, const Operands& in) {
  if (!in.src.facts.latent) return Broken("latent up projection on hidden features");
  return Linear(in.src, "latent_up", false);
}

Result<Value> Route(const Scope& scope, const Operands& in) {
  SB_RETURN_IF_ERROR(Complete(scope, in.src, "router"));
  SB_RETURN_IF_ERROR(Hidden(in.src, "router"));
  Value v = Single(in.src, addend::kRouted, Apply("router", in.src.expr), in.step.coefficient);
  v.facts.ids = IdSpace::kLogical;
  if (in.step.coefficient != Rational{}) v.facts.scaled_by = Actor::kTopK;
  // The router knows no padding: it sends such rows to experts like any other.
  if (v.facts.pad != PadRows::kNone) v.facts.pad = PadRows::kPoison;
  return v;
}

Result<Value> AppendShared(const Scope& scope, const Operands& in) {
  const Step& step = in.step;
  if (step.slot == SharedSlot::kNone) {
    return InvalidArgument({.what = "append-shared names no slot"});
  }
  Value v = in.src;
  if (v.facts.shared_slot != SharedSlot::kNone) {
    return Broken("shared expert appended to the routing twice");
  }
  if (v.facts.ids != IdSpace::kGlobal && !scope.context.slot_is_expert) {
    return Broken(
        "shared expert's slot appended to logical expert ids: the placement is not "
        "applied");
  }
  const AxisSet other_rows = step.axes & v.rows;
  if (!other_rows.empty()) {
    return Broken(
        fmt::format("shared expert's weight divided over {} whose ranks hold different "
                    "rows",
                    scope.mesh.Names(other_rows)));
  }
  if (step.slot == SharedSlot::kOneRank && !step.axes.empty()) {
    return Broken(fmt::format("shared expert's weight divided over {}, but one rank has its slot",
                              scope.mesh.Names(step.axes)));
  }
  v.facts.shared_slot = step.slot;
  if (v.facts.pad != PadRows::kNone) v.facts.pad = PadRows::kPoison;
  v.terms.push_back(
      {.name = std::string(addend::kShared), .coefficient = step.coefficient, .part = step.axes});
  // Lanes() completes the text: which rows it runs on is known where the routing is used.
  v.expr.push_back(
      {.text = step.gated ? "gate*shared" : "shared", .coefficient = step.coefficient});
  return v;
}

Status CheckRouting(const Scope& scope, const Value& routing, std::string_view what) {
  if (routing.facts.ids == IdSpace::kLogical && !scope.context.slot_is_expert) {
    return Broken(fmt::format("{} by logical expert ids: the placement is not applied", what));
  }
  if (routing.facts.pad == PadRows::kPoison) {
    return Broken(fmt::format("{} for padding rows: their routing is not masked", what));
  }
  return OkStatus();
}

Result<Value> Lanes(const Scope& scope, const Operands& in) {
  const Value& routing = *in.routing;
  SB_RETURN_IF_ERROR(Complete(scope, in.src, "experts"));
  if (routing.rows != in.src.rows) {
    return Broken("routing of other tokens", "rows sharded over " + scope.mesh.Names(in.src.rows) +
                                                 ", their routing over " +
                                                 scope.mesh.Names(routing.rows));
  }
  const std::string rows = ToString(in.src.expr);
  const std::string& router = routing.expr[0].text;  // "router(y)"
  const std::string routed_by = router.substr(router.find('('));
  Value v = routing;
  v.facts = {.latent = in.src.facts.latent, .scaled_by = routing.facts.scaled_by};
  if (routing.facts.shared_slot != SharedSlot::kNone) {
    SB_RETURN_IF_ERROR(Hidden(in.src, addend::kShared));
  }
  for (Addend& a : v.expr) {
    if (a.text == router) {
      a.text = routed_by == "(" + rows + ")" ? fmt::format("experts({})", rows)
                                             : fmt::format("experts({} by {})", rows, router);
    } else {
      a.text =
          fmt::format("{}shared({})", a.text == "shared" ? "" : "gate" + routed_by + "*", rows);
    }
  }
  Sort(v.expr);
  return v;
}

Result<Value> Experts(const Scope& scope, const Operands& in) {
  const AxisSet ep = in.step.axes;
  const AxisSet tp = in.step.width_axes;
  const AxisSet missing = in.src.rows & (ep | tp);
  if (!missing.empty()) {
    return Broken(fmt::format("masked experts need all rows: they are sharded over {}",
                              scope.mesh.Names(missing)));
  }
  SB_ASSIGN_OR_RETURN(Value v, Lanes(scope, in));
  if (!scope.erased) {
    SB_RETURN_IF_ERROR(CheckRouting(scope, *in.routing, "experts"));
    const AxisSet differ = in.routing->facts.own_replicas & ep;
    if (!differ.empty()) {
      return Broken(
          fmt::format("ranks of {} choose replicas differently: an expert runs on several "
                      "of them or on none",
                      scope.mesh.Names(differ)));
    }
  }
  for (Term& t : v.terms) {
    // Copies of a fused shared expert are whole on every rank of `ep`, each with its weight.
    const bool copies =
        t.name == addend::kShared && in.routing->facts.shared_slot != SharedSlot::kOneRank;
    if (!copies) SB_RETURN_IF_ERROR(Cut(scope, t, ep));
    SB_RETURN_IF_ERROR(Cut(scope, t, tp));
  }
  v.facts.pad = in.src.facts.pad;
  v.facts.weighted_by = Actor::kRunner;
  return v;
}

}  // namespace signalbox::rules
