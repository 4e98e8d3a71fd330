// SPDX-License-Identifier: Apache-2.0
#include "signalbox/plan/epilogue.h"

#include <fmt/format.h>

namespace signalbox::planning {
namespace {

IdSpace DeliveredIds(const Contract& contract) {
  switch (contract.ids) {
    case ReceivedIds::kAbsent:
      return IdSpace::kPosition;
    case ReceivedIds::kLocal:
      return IdSpace::kLocal;
    case ReceivedIds::kGlobal:
      return IdSpace::kGlobal;
  }
  return IdSpace::kNone;
}

// Grouping rows by expert needs ids of this rank, and repeats a row for each of its experts; the
// way back sums them.
bool CanPermute(RowShape from, RowShape to, IdSpace ids) {
  if (DedupRows(from)) return DedupRows(to) || ids != IdSpace::kPosition;
  return !DedupRows(to);
}

}  // namespace

std::optional<Epilogue> EpilogueFor(const Contract& contract,
                                    const std::optional<RunnerTerms>& runner) {
  if (contract.shape == RowShape::kFused) {
    return runner ? std::nullopt : std::optional(Epilogue{});
  }
  if (!runner) return std::nullopt;
  const bool permute = runner->shape != contract.shape;
  const IdSpace ids = DeliveredIds(contract);
  if (permute && !CanPermute(contract.shape, runner->shape, ids)) return std::nullopt;

  Epilogue e;
  const bool uncounted = DedupRows(contract.shape) && contract.counts.empty();
  if (contract.tail == TailRows::kPoison && (uncounted || (runner->reads_tail && !permute))) {
    e.before.push_back({.kind = StepKind::kMaskTail,
                        .dst = Reg::kDispatched,
                        .reason = uncounted ? "no count says which rows are valid"
                                            : "the runner reads rows that the back end leaves "
                                              "unwritten"});
  }
  const bool group = permute && DedupRows(contract.shape) && !DedupRows(runner->shape);
  const IdSpace wanted = group ? IdSpace::kLocal : runner->ids;
  if (ids != wanted && (ids == IdSpace::kPosition || wanted == IdSpace::kPosition)) {
    return std::nullopt;
  }
  if (ids != wanted) {
    e.before.push_back(
        {.kind = StepKind::kRemapIds,
         .dst = Reg::kDispatched,
         .ids = wanted,
         .reason =
             fmt::format("the back end delivers {} ids, {} {} ones", ToString(ids),
                         group ? "the permutation reads" : "the runner reads", ToString(wanted))});
  }

  const bool caller = contract.weighting == Weighting::kCaller;
  const bool permute_weighs = caller && group && runner->weights == RunnerWeights::kNever;
  e.runner_weighs = caller && !permute_weighs;
  if (permute) {
    e.before.push_back({.kind = StepKind::kPermute,
                        .dst = Reg::kDispatched,
                        .shape = runner->shape,
                        .reason = fmt::format("the back end delivers {} rows, the runner reads {} "
                                              "ones",
                                              ToString(contract.shape), ToString(runner->shape))});
    e.after.push_back({.kind = StepKind::kPermute,
                       .dst = Reg::kExpertOut,
                       .weigh = permute_weighs,
                       .shape = contract.shape});
    e.permutes = 2;
  }
  return e;
}

}  // namespace signalbox::planning
