// SPDX-License-Identifier: Apache-2.0
//
// What a back end delivers, what a runner reads, and what lies between them.
#include <fmt/format.h>

#include "signalbox/plan/rules.h"

namespace signalbox::rules {
namespace {

std::string BackEnd(const Scope& scope) {
  return scope.context.contract ? "back end " + ContractId(*scope.context.contract) : "back end";
}

std::string RunnerName(const Scope& scope) {
  return "runner " + scope.context.runner->name;
}

// Rows as the contract delivers them.
Facts Delivered(const std::optional<Contract>& contract) {
  if (!contract) return {.shape = RowShape::kExpertMajorPadded, .ids = IdSpace::kPosition};
  Facts facts{.shape = contract->shape};
  switch (contract->ids) {
    case ReceivedIds::kAbsent:
      facts.ids = IdSpace::kPosition;
      break;
    case ReceivedIds::kLocal:
      facts.ids = IdSpace::kLocal;
      break;
    case ReceivedIds::kGlobal:
      facts.ids = IdSpace::kGlobal;
      break;
  }
  facts.pad = contract->tail == TailRows::kPoison ? PadRows::kPoison : PadRows::kMasked;
  return facts;
}

Status CheckCapacity(const Scope& scope, AxisSet rows) {
  const CheckContext& c = scope.context;
  if (c.capacity == 0 || c.max_rows == 0) return OkStatus();
  const int64_t gathered = c.max_rows * scope.mesh.Size(c.rows_in - rows);
  const int64_t ways = scope.mesh.Size(rows - c.rows_in);
  const int64_t sent = (gathered + ways - 1) / ways;
  if (sent <= c.capacity) return OkStatus();
  return Broken(fmt::format("{} rows exceed the capacity of {} per rank", sent, c.capacity),
                fmt::format("{} rows at entry, split {} ways before dispatch", gathered, ways));
}

// Applies the router weights once: by `actor` if the step says so.
Status Weigh(Facts& facts, bool weigh, Actor actor) {
  if (!weigh) return OkStatus();
  if (facts.weighted_by != Actor::kNobody) {
    return Broken("router weights applied twice",
                  fmt::format("by {} and by {}", ToString(facts.weighted_by), ToString(actor)));
  }
  facts.weighted_by = actor;
  return OkStatus();
}

// Several experts' results become one row: their weights cannot be told apart afterwards.
Status CheckWeighted(const Facts& facts, std::string_view what) {
  if (facts.weighted_by != Actor::kNobody) return OkStatus();
  return Broken(
      fmt::format("{} sums the experts of a row before the router weights are applied", what));
}

Status CheckRunner(const Scope& scope, const Value& rows, bool weigh) {
  if (const auto& contract = scope.context.contract;
      weigh && contract && contract->weights == ReceivedWeights::kAbsent) {
    return Broken(
        fmt::format("runner weighs its rows, {} delivers no router weights", BackEnd(scope)));
  }
  if (!scope.context.runner) return OkStatus();
  const RunnerTerms& runner = *scope.context.runner;
  if (runner.shape != rows.facts.shape) {
    return Broken(fmt::format("{} reads {} rows, {} delivers {} rows", RunnerName(scope),
                              ToString(runner.shape), BackEnd(scope), ToString(rows.facts.shape)));
  }
  if (runner.ids != rows.facts.ids) {
    return Broken(fmt::format("{} reads {} ids, {} delivers {} ids", RunnerName(scope),
                              ToString(runner.ids), BackEnd(scope), ToString(rows.facts.ids)));
  }
  if (runner.reads_tail && rows.facts.pad == PadRows::kPoison) {
    return Broken(fmt::format("{} reads rows beyond the valid ones, {} leaves them unwritten",
                              RunnerName(scope), BackEnd(scope)));
  }
  if (runner.weights != RunnerWeights::kOptional &&
      weigh != (runner.weights == RunnerWeights::kAlways)) {
    return Broken(fmt::format("{} {} multiplies by the router weights", RunnerName(scope),
                              weigh ? "never" : "always"));
  }
  return OkStatus();
}

}  // namespace

Result<Value> Dispatch(const Scope& scope, const Operands& in) {
  const AxisSet ep = in.step.axes;
  if (const auto& contract = scope.context.contract;
      contract && contract->shape == RowShape::kNone) {
    return Broken(fmt::format("{} dispatches nothing", BackEnd(scope)));
  }
  SB_ASSIGN_OR_RETURN(Value v, Lanes(scope, in));
  SB_RETURN_IF_ERROR(CheckRouting(scope, *in.routing, "dispatch"));
  if (in.routing->facts.shared_slot == SharedSlot::kGlobal) {
    return Broken(
        fmt::format("shared expert fused into a global slot: every rank of {} has a copy, "
                    "so its id names no destination",
                    scope.mesh.Names(ep)));
  }
  SB_RETURN_IF_ERROR(CheckCapacity(scope, v.rows));
  const AxisSet repeated = ep - v.rows;
  if (scope.mesh.Size(repeated) > 1) {
    scope.warnings.push_back(
        fmt::format("each row is dispatched {} times: rows are the same over "
                    "{}",
                    scope.mesh.Size(repeated), scope.mesh.Names(repeated)));
  }
  const Facts rows = v.facts;
  v.facts = Delivered(scope.context.contract);
  v.facts.latent = rows.latent;
  v.facts.scaled_by = rows.scaled_by;
  v.facts.dispatched = ep;
  SB_RETURN_IF_ERROR(Weigh(v.facts, in.step.weigh, Actor::kDispatch));
  if (in.step.weigh) {
    // Weighted inputs are another function of the rows than weighted outputs.
    for (Addend& a : v.expr) a.text = "weighted_input:" + a.text;
  }
  return v;
}

Result<Value> RunExperts(const Scope& scope, const Operands& in) {
  Value v = in.src;
  SB_RETURN_IF_ERROR(ColumnParallel(scope, v, in.step.width_axes, "experts"));
  SB_RETURN_IF_ERROR(RowParallel(scope, v));
  const AxisSet twice = v.facts.dispatched & in.step.width_axes;
  if (!twice.empty()) {
    return Broken(fmt::format("{} cut over {} twice", addend::kRouted, scope.mesh.Names(twice)));
  }
  SB_RETURN_IF_ERROR(Weigh(v.facts, in.step.weigh, Actor::kRunner));
  SB_RETURN_IF_ERROR(CheckRunner(scope, in.src, in.step.weigh));
  if (DedupRows(v.facts.shape)) SB_RETURN_IF_ERROR(CheckWeighted(v.facts, "runner"));
  v.facts.ids = IdSpace::kNone;
  return v;
}

Result<Value> Combine(const Scope& scope, const Operands& in) {
  Value v = in.src;
  if (in.step.axes != v.facts.dispatched) {
    return Broken("combines over another group than dispatched", scope.mesh.Names(in.step.axes),
                  scope.mesh.Names(v.facts.dispatched));
  }
  SB_RETURN_IF_ERROR(Weigh(v.facts, in.step.weigh, Actor::kLibrary));
  if (v.facts.weighted_by == Actor::kNobody) return Broken("router weights are not applied");
  const RowShape shape = Delivered(scope.context.contract).shape;
  if (v.facts.shape != shape) {
    return Broken(fmt::format("{} combines {} rows, the experts return {} rows", BackEnd(scope),
                              ToString(shape), ToString(v.facts.shape)));
  }
  if (const auto& contract = scope.context.contract) {
    const bool library = contract->weighting != Weighting::kCaller;
    if (in.step.weigh != library) {
      return Broken(fmt::format("combine of {} {} multiplies by the router weights", BackEnd(scope),
                                library ? "always" : "never"));
    }
  }
  v.facts = {.latent = v.facts.latent,
             .pad = in.routing->facts.pad,
             .weighted_by = v.facts.weighted_by,
             .scaled_by = v.facts.scaled_by};
  return v;
}

Result<Value> RemapIds(const Scope&, const Operands& in) {
  const IdSpace from = in.src.facts.ids;
  const IdSpace to = in.step.ids;
  const bool placement = from == IdSpace::kLogical && to == IdSpace::kGlobal;
  const bool delivered =
      in.step.dst == Reg::kDispatched && ((from == IdSpace::kGlobal && to == IdSpace::kLocal) ||
                                          (from == IdSpace::kLocal && to == IdSpace::kGlobal));
  if (from == to || (to == IdSpace::kGlobal && !placement && !delivered)) {
    return Broken("expert ids mapped to slots twice", fmt::format("{} ids", ToString(from)));
  }
  if (!placement && !delivered) {
    return Broken(fmt::format("no map from {} ids to {} ids", ToString(from), ToString(to)));
  }
  if (!placement && !in.step.axes.empty()) {
    return InvalidArgument({.what = "only a placement has replicas to choose"});
  }
  if (placement && in.src.facts.shared_slot != SharedSlot::kNone) {
    return Broken("placement applied to the shared expert's slot");
  }
  Value v = in.src;
  v.facts.ids = to;
  v.facts.own_replicas = v.facts.own_replicas | in.step.axes;
  return v;
}

Result<Value> MaskTail(const Scope&, const Operands& in) {
  Value v = in.src;
  if (v.facts.pad == PadRows::kPoison) v.facts.pad = PadRows::kMasked;
  return v;
}

Result<Value> Permute(const Scope&, const Operands& in) {
  Value v = in.src;
  const RowShape from = v.facts.shape;
  const RowShape to = in.step.shape;
  const bool movable = from != RowShape::kFused && to != RowShape::kFused && to != RowShape::kNone;
  const bool results = in.step.dst == Reg::kExpertOut;
  // One row per token can be repeated for its experts on the way in, and only there; the way out
  // sums what was repeated.
  if (!movable || (!results && DedupRows(to) && !DedupRows(from)) ||
      (results && DedupRows(from) && !DedupRows(to))) {
    return Broken(fmt::format("no permutation of {} from {} to {}", ToString(in.step.dst),
                              ToString(from), ToString(to)));
  }
  if (in.step.weigh && !results) {
    return InvalidArgument({.what = "rows are weighed before the experts by dispatch only"});
  }
  SB_RETURN_IF_ERROR(Weigh(v.facts, in.step.weigh, Actor::kPermute));
  if (results && DedupRows(to) && !DedupRows(from)) {
    SB_RETURN_IF_ERROR(CheckWeighted(v.facts, "permute"));
  }
  if (!results && !DedupRows(to)) {
    if (DedupRows(from) && v.facts.ids != IdSpace::kLocal) {
      return Broken(fmt::format("grouping rows by expert needs local ids, they have {} ids",
                                ToString(v.facts.ids)));
    }
    v.facts.ids = IdSpace::kPosition;
  }
  v.facts.shape = to;
  // Counts say which rows are valid, and only those move.
  if (v.facts.pad == PadRows::kPoison) v.facts.pad = PadRows::kMasked;
  return v;
}

}  // namespace signalbox::rules
