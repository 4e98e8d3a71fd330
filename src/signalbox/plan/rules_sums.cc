// SPDX-License-Identifier: Apache-2.0
//
// Sums and rows: which tokens a rank holds and who owes which part of which addend.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>

#include "signalbox/plan/rules.h"

namespace signalbox::rules {
namespace {

// "routed experts partial over attn_tp, shared expert complete".
std::string WhoOwes(const Mesh& mesh, const std::vector<Term>& terms) {
  std::vector<std::string> parts;
  for (const Term& t : terms) {
    parts.push_back(t.name +
                    (t.part.empty() ? " complete" : " partial over " + mesh.Names(t.part)));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string RowsOver(const Mesh& mesh, AxisSet rows) {
  return "rows sharded over " + mesh.Names(rows);
}

Status CheckSum(const Scope& scope, const Value& v, AxisSet axes, std::string_view verb) {
  const AxisSet other_tokens = axes & v.rows;
  if (!other_tokens.empty()) {
    return Broken(fmt::format("{} adds different tokens: rows are sharded over {}", verb,
                              scope.mesh.Names(other_tokens)));
  }
  for (const Term& t : v.terms) {
    const AxisSet whole = axes - t.part;
    if (whole.empty()) continue;
    return Broken(fmt::format("{} counted {} times: it is replicated over {} but summed over {}",
                              t.name, scope.mesh.Size(whole), scope.mesh.Names(whole),
                              scope.mesh.Names(whole)));
  }
  return OkStatus();
}

Value Summed(const Value& v, AxisSet axes) {
  Value out = v;
  for (Term& t : out.terms) t.part = t.part - axes;
  return out;
}

}  // namespace

Status Broken(std::string what, std::string found, std::string expected) {
  return Refused(
      {.what = std::move(what), .found = std::move(found), .expected = std::move(expected)});
}

Status Complete(const Scope& scope, const Value& v, std::string_view what) {
  for (const Term& t : v.terms) {
    if (t.part.empty()) continue;
    return Broken(
        fmt::format("{} before the sum over {} is complete", what, scope.mesh.Names(t.part)),
        WhoOwes(scope.mesh, {t}));
  }
  if (v.cols.empty()) return OkStatus();
  return Broken(fmt::format("{} on features sharded over {}", what, scope.mesh.Names(v.cols)));
}

Status CheckSplit(const Scope& scope, AxisSet rows) {
  const AxisSet sequences = scope.context.sequence_axes;
  if ((rows - sequences).empty()) return OkStatus();
  // The batch is an array over all of these axes, whichever of them the rows are cut along.
  const int ways = scope.mesh.Size(scope.mesh.all() - sequences);
  if (scope.context.row_multiple % ways == 0) return OkStatus();
  return Broken(fmt::format("rows are split {} ways, the batch is padded to a multiple of {}", ways,
                            scope.context.row_multiple));
}

Status Hidden(const Value& v, std::string_view what) {
  return v.facts.latent ? Broken(fmt::format("{} on latent features", what)) : OkStatus();
}

Value Single(const Value& rows_of, std::string_view name, std::string text, Rational coefficient) {
  return {.rows = rows_of.rows,
          .terms = {{.name = std::string(name), .coefficient = coefficient}},
          .expr = {{.text = std::move(text), .coefficient = coefficient}},
          .facts = {.pad = rows_of.facts.pad}};
}

std::string Apply(std::string_view function, const std::vector<Addend>& sum) {
  return fmt::format("{}({})", function, ToString(sum));
}

void Sort(std::vector<Addend>& sum) {
  std::ranges::sort(sum, [](const Addend& a, const Addend& b) {
    return std::tie(a.text, a.coefficient.num, a.coefficient.den) <
           std::tie(b.text, b.coefficient.num, b.coefficient.den);
  });
}

Result<Value> Input(const Scope& scope, const Operands& in) {
  const AxisSet rows = in.step.axes;
  if (!rows.Contains(scope.context.rows_in)) {
    return Broken("the layer's input is sharded already", RowsOver(scope.mesh, rows),
                  RowsOver(scope.mesh, scope.context.rows_in));
  }
  SB_RETURN_IF_ERROR(CheckSplit(scope, rows));
  const bool bank = in.step.dst == Reg::kBank;
  Value v = Single({.rows = rows}, bank ? "snapshots" : addend::kResidual, bank ? "bank" : "x");
  v.facts.pad = scope.context.row_multiple > 1 ? PadRows::kMasked : PadRows::kNone;
  return v;
}

Result<Value> AllReduce(const Scope& scope, const Operands& in) {
  SB_RETURN_IF_ERROR(CheckSum(scope, in.src, in.step.axes, "all-reduce"));
  return Summed(in.src, in.step.axes);
}

Result<Value> ReduceScatter(const Scope& scope, const Operands& in) {
  SB_RETURN_IF_ERROR(CheckSum(scope, in.src, in.step.axes, "reduce-scatter"));
  Value v = Summed(in.src, in.step.axes);
  v.rows = v.rows | in.step.axes;
  SB_RETURN_IF_ERROR(CheckSplit(scope, v.rows));
  return v;
}

Result<Value> AllGather(const Scope& scope, const Operands& in) {
  const AxisSet missing = in.step.axes - in.src.rows;
  if (!missing.empty()) {
    return Broken(
        fmt::format("gathers rows over {}, which does not shard them", scope.mesh.Names(missing)));
  }
  for (const Term& t : in.src.terms) {
    const AxisSet owed = t.part & in.step.axes;
    if (owed.empty()) continue;
    return Broken(fmt::format("gathers rows that still owe a sum over {}", scope.mesh.Names(owed)),
                  WhoOwes(scope.mesh, {t}));
  }
  Value v = in.src;
  v.rows = v.rows - in.step.axes;
  // A gathered row brings the choice of the one rank that held it.
  v.facts.own_replicas = v.facts.own_replicas - in.step.axes;
  return v;
}

Result<Value> Slice(const Scope& scope, const Operands& in) {
  const AxisSet twice = in.step.axes & in.src.rows;
  if (!twice.empty()) {
    return Broken(
        fmt::format("slices rows that are sharded over {} already", scope.mesh.Names(twice)));
  }
  Value v = in.src;
  v.rows = v.rows | in.step.axes;
  SB_RETURN_IF_ERROR(CheckSplit(scope, v.rows));
  return v;
}

Result<Value> Add(const Scope& scope, const Operands& in) {
  const Value& a = *in.dst;
  const Value& b = in.src;
  if (a.rows != b.rows) {
    return Broken("adds rows of different tokens",
                  RowsOver(scope.mesh, a.rows) + " and " + RowsOver(scope.mesh, b.rows));
  }
  if (a.cols != b.cols) {
    return Broken("adds different features",
                  fmt::format("features sharded over {} and over {}", scope.mesh.Names(a.cols),
                              scope.mesh.Names(b.cols)));
  }
  if (a.facts.latent != b.facts.latent) return Broken("adds latent and hidden features");
  Value sum = a;
  sum.terms.insert(sum.terms.end(), b.terms.begin(), b.terms.end());
  const bool equal = std::ranges::all_of(
      sum.terms, [&](const Term& t) { return t.part == sum.terms.front().part; });
  if (!equal) {
    return Broken("adds a complete and a partial value", WhoOwes(scope.mesh, sum.terms));
  }
  sum.expr.insert(sum.expr.end(), b.expr.begin(), b.expr.end());
  Sort(sum.expr);
  sum.facts.pad = std::max(a.facts.pad, b.facts.pad);
  sum.facts.scaled_by = std::max(a.facts.scaled_by, b.facts.scaled_by);
  sum.facts.weighted_by = std::max(a.facts.weighted_by, b.facts.weighted_by);
  return sum;
}

Result<Value> Scale(const Scope&, const Operands& in) {
  const Actor earlier = in.src.facts.scaled_by;
  if (earlier != Actor::kNobody) {
    return Broken(
        earlier == Actor::kModel
            ? "routed scaling factor applied twice by the model"
            : fmt::format("routed scaling factor applied by both {} and model", ToString(earlier)));
  }
  Value v = in.src;
  for (Term& t : v.terms) {
    const auto product = Rational::Product(t.coefficient, in.step.coefficient);
    if (!product) return InvalidArgument({.what = "coefficient beyond 64 bits"});
    t.coefficient = *product;
  }
  for (Addend& a : v.expr) {
    const auto product = Rational::Product(a.coefficient, in.step.coefficient);
    if (!product) return InvalidArgument({.what = "coefficient beyond 64 bits"});
    a.coefficient = *product;
  }
  v.facts.scaled_by = Actor::kModel;
  return v;
}

Result<Value> Norm(const Scope& scope, const Operands& in) {
  const std::string role(ToString(in.step.norm));
  SB_RETURN_IF_ERROR(Complete(scope, in.src, role + " norm"));
  std::string text = Apply(role + "_norm", in.src.expr);
  if (in.step.norm != NormRole::kLatent) {
    SB_RETURN_IF_ERROR(Hidden(in.src, role + " norm"));
    return Single(in.src, "normed input", std::move(text));
  }
  // The latent norm stands inside the routed path: its addends keep their names. How often they
  // are counted is part of the expression from here on.
  Value v = in.src;
  for (Term& t : v.terms) t.coefficient = {};
  v.expr = {{.text = std::move(text)}};
  return v;
}

Result<Value> Mix(const Scope& scope, const Operands& in) {
  SB_RETURN_IF_ERROR(Complete(scope, in.src, "mix"));
  SB_RETURN_IF_ERROR(Hidden(in.src, "mix"));
  SB_RETURN_IF_ERROR(Complete(scope, *in.bank, "mix of snapshots"));
  if (in.src.rows != in.bank->rows) {
    return Broken("mixes rows of different tokens", RowsOver(scope.mesh, in.src.rows) +
                                                        ", snapshots with " +
                                                        RowsOver(scope.mesh, in.bank->rows));
  }
  Value v = Single(in.src, "mix",
                   fmt::format("{}_mix({}, {})", ToString(in.step.norm), ToString(in.bank->expr),
                               ToString(in.src.expr)));
  v.facts.pad = std::max(in.src.facts.pad, in.bank->facts.pad);
  return v;
}

Result<Value> Snapshot(const Scope& scope, const Operands& in) {
  SB_RETURN_IF_ERROR(Complete(scope, in.src, "snapshot"));
  SB_RETURN_IF_ERROR(Hidden(in.src, "snapshot"));
  if (in.src.rows != in.bank->rows) {
    return Broken("snapshots rows of different tokens", RowsOver(scope.mesh, in.src.rows) +
                                                            ", snapshots with " +
                                                            RowsOver(scope.mesh, in.bank->rows));
  }
  Value v = *in.bank;
  v.expr = {{.text = fmt::format("{}, {}", ToString(in.bank->expr), ToString(in.src.expr))}};
  v.facts.pad = std::max(in.src.facts.pad, in.bank->facts.pad);
  return v;
}

}  // namespace signalbox::rules
