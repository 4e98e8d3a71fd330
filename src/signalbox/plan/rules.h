// SPDX-License-Identifier: Apache-2.0
//
// The rules of check.h, one function per family. Internal to the checker.
#pragma once

#include <string>
#include <vector>

#include "signalbox/base/status.h"
#include "signalbox/plan/check.h"
#include "signalbox/plan/step.h"
#include "signalbox/plan/value.h"

namespace signalbox::rules {

// A step and the values of the registers it reads. `src` is an empty Value for kInput.
struct Operands {
  const Step& step;
  const Value& src;
  const Value* dst = nullptr;      // kAdd
  const Value* routing = nullptr;  // kinds that read kRouting
  const Value* bank = nullptr;     // kinds that read kBank
};

struct Scope {
  const CheckContext& context;
  const Mesh& mesh;
  bool erased;  // evaluates the model's program: ids, padding and contracts do not exist there
  std::vector<std::string>& warnings;
};

// The value that the step leaves in its destination.
using Rule = Result<Value>(const Scope&, const Operands&);

// rules_sums.cc: sums, rows and non-linear operations.
Rule Input, AllReduce, ReduceScatter, AllGather, Slice, Add, Scale, Norm, Mix, Snapshot;
// rules_model.cc: what a layer computes, sliced over axes.
Rule Mixer, Shared, Mlp, LatentDown, LatentUp, Route, AppendShared, Experts;
// rules_exchange.cc: what a back end delivers and a runner reads.
Rule Dispatch, RunExperts, Combine, RemapIds, MaskTail, Permute;

// Refused with the broken rule, and with what is there instead of what should be.
Status Broken(std::string what, std::string found = "", std::string expected = "");

// `what` needs complete rows: no addend owed, no features sharded.
Status Complete(const Scope& scope, const Value& v, std::string_view what);
// Rows are cut into equal blocks only where the batch is padded to a multiple.
Status CheckSplit(const Scope& scope, AxisSet rows);
// `what` is defined on the model's hidden features.
Status Hidden(const Value& v, std::string_view what);
// A head- or column-parallel linear map over `axes`, whose ranks must hold the same rows.
Status ColumnParallel(const Scope& scope, Value& v, AxisSet axes, std::string_view what);
// The row-parallel linear map behind it: the sum over its features is owed.
Status RowParallel(const Scope& scope, Value& v);
// Each rank of `axes` computes its share of the addend, which must be whole there so far.
Status Cut(const Scope& scope, Term& term, AxisSet axes);

// What the lanes of the routing compute for the rows of src: one addend per kind of lane, not cut
// over any axis.
Result<Value> Lanes(const Scope& scope, const Operands& in);
// Ids that name slots, and none for padding rows.
Status CheckRouting(const Scope& scope, const Value& routing, std::string_view what);

// A value of one addend for the rows of another.
Value Single(const Value& rows_of, std::string_view name, std::string text,
             Rational coefficient = {});
// "function(sum)".
std::string Apply(std::string_view function, const std::vector<Addend>& sum);
void Sort(std::vector<Addend>& sum);

}  // namespace signalbox::rules
