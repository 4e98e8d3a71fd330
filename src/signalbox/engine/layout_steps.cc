// SPDX-License-Identifier: Apache-2.0
//
// Layout steps of the executor: sums and rows that move between ranks.
#include <algorithm>
#include <string>

#include "signalbox/base/check.h"
#include "signalbox/engine/layer_executor.h"

namespace signalbox {

Status LayerExecutor::LayoutStep(const Step& step, const LayerRun& run) {
  switch (step.kind) {
    case StepKind::kAllReduce:
      return AllReduce(step);
    case StepKind::kReduceScatter:
      return ReduceScatter(step);
    case StepKind::kAllGather:
      return AllGather(step);
    case StepKind::kSlice:
      Slice(step.dst, At(step.source()), step.axes);
      return OkStatus();
    case StepKind::kInput:
      Slice(step.dst, step.dst == Reg::kBank ? input_bank_ : input_, step.axes);
      return OkStatus();
    case StepKind::kRemapIds:
      if (step.dst != Reg::kRouting) return ExchangeStep(step, run);
      RemapRouting(step, run);
      return OkStatus();
    case StepKind::kMaskTail:
      if (step.dst != Reg::kRouting) return ExchangeStep(step, run);
      MaskPadding();
      return OkStatus();
    case StepKind::kDispatch:
    case StepKind::kCombine:
    case StepKind::kPermute:
      return ExchangeStep(step, run);
    default:
      return Internal({.what = "the engine has no such layout step",
                       .found = std::string(ToString(step.kind))});
  }
}

Status LayerExecutor::AllReduce(const Step& step) {
  const std::vector<RankId> group = world_.mesh->Group(world_.rank, step.axes);
  Register& src = At(step.source());
  if (step.also == Reg::kCount) {
    SB_RETURN_IF_ERROR(
        world_.comm->AllReduceSum(group, {src.data, static_cast<size_t>(src.floats())}));
  } else {
    // Two values, one message.
    Register& also = At(step.also);
    Scratch::Scope scope(context_.scratch);
    const int64_t n = src.floats() + also.floats();
    float* both = context_.scratch.Take(n);
    std::copy_n(src.data, src.floats(), both);
    std::copy_n(also.data, also.floats(), both + src.floats());
    SB_RETURN_IF_ERROR(world_.comm->AllReduceSum(group, {both, static_cast<size_t>(n)}));
    std::copy_n(both, src.floats(), src.data);
    std::copy_n(both + src.floats(), also.floats(), also.data);
  }
  if (&src != &At(step.dst)) At(step.dst) = src;
  return OkStatus();
}

Status LayerExecutor::ReduceScatter(const Step& step) {
  const std::vector<RankId> group = world_.mesh->Group(world_.rank, step.axes);
  const Register src = At(step.source());
  const AxisSet axes = src.axes | step.axes;
  // Blocks in group order: row numbers ascend in src, so a member's rows are found by search.
  std::vector<int64_t> order;  // places in src
  std::vector<int64_t> counts;
  for (RankId member : group) {
    const std::vector<int64_t> rows = world_.rows->RowsOf(member, axes);
    for (int64_t row : rows) {
      order.push_back(std::lower_bound(src.rows.begin(), src.rows.end(), row) - src.rows.begin());
    }
    counts.push_back(static_cast<int64_t>(rows.size()) * src.width);
  }
  Register& dst = Make(step.dst, axes, src.width);
  Scratch::Scope scope(context_.scratch);
  // A plan that scatters rows twice sends rows that are not there: zeros, as the checker would have
  // said.
  float* blocks = context_.scratch.Take(static_cast<int64_t>(order.size()) * src.width);
  context_.ops.GatherRows({.in = src.data,
                           .in_stride = src.width,
                           .width = src.width,
                           .rows = order,
                           .out = blocks,
                           .out_stride = src.width});
  return world_.comm->ReduceScatterSum(group,
                                       {blocks, order.size() * static_cast<size_t>(src.width)},
                                       counts, {dst.data, static_cast<size_t>(dst.floats())});
}

Status LayerExecutor::AllGather(const Step& step) {
  const std::vector<RankId> group = world_.mesh->Group(world_.rank, step.axes);
  const Register src = At(step.source());
  Register& dst = Make(step.dst, src.axes - step.axes, src.width);
  std::vector<int64_t> order;  // places in dst, by member
  std::vector<int64_t> bytes;
  for (RankId member : group) {
    const std::vector<int64_t> rows = world_.rows->RowsOf(member, src.axes);
    for (int64_t row : rows) {
      order.push_back(std::lower_bound(dst.rows.begin(), dst.rows.end(), row) - dst.rows.begin());
    }
    bytes.push_back(static_cast<int64_t>(rows.size() * sizeof(float)) * src.width);
  }
  if (src.ids != nullptr) dst.ids = context_.scratch.TakeInts(dst.floats());
  dst.space = src.space;
  Scratch::Scope scope(context_.scratch);
  // `from` and `to` hold 4-byte numbers [rows, width].
  const auto gather = [&](const auto* from, auto* to) -> Status {
    auto* blocks = reinterpret_cast<decltype(to)>(context_.scratch.Take(dst.floats()));
    SB_RETURN_IF_ERROR(world_.comm->AllGather(
        group, std::as_bytes(std::span(from, static_cast<size_t>(src.floats()))), bytes,
        std::as_writable_bytes(std::span(blocks, static_cast<size_t>(dst.floats())))));
    for (size_t i = 0; i < order.size(); ++i) {
      std::copy_n(blocks + static_cast<int64_t>(i) * src.width, src.width,
                  to + order[i] * src.width);
    }
    return OkStatus();
  };
  SB_RETURN_IF_ERROR(gather(src.data, dst.data));
  return src.ids == nullptr ? OkStatus() : gather(src.ids, dst.ids);
}

void LayerExecutor::Slice(Reg reg, const Register& from, AxisSet axes) {
  const Register src = from;  // dst may be the same register
  Register& dst = Make(reg, src.axes | axes, src.width);
  std::vector<int64_t> places;
  for (int64_t row : dst.rows) {
    places.push_back(std::lower_bound(src.rows.begin(), src.rows.end(), row) - src.rows.begin());
  }
  context_.ops.GatherRows({.in = src.data,
                           .in_stride = src.width,
                           .width = src.width,
                           .rows = places,
                           .out = dst.data,
                           .out_stride = src.width});
  dst.space = src.space;
  if (src.ids == nullptr) return;
  dst.ids = context_.scratch.TakeInts(dst.floats());
  for (size_t i = 0; i < places.size(); ++i) {
    std::copy_n(src.ids + places[i] * src.width, src.width,
                dst.ids + static_cast<int64_t>(i) * src.width);
  }
}

// No expert is asked to compute a padding row.
void LayerExecutor::MaskPadding() {
  Register& routing = At(Reg::kRouting);
  for (int64_t i = 0; i < routing.count(); ++i) {
    if (!world_.rows->IsPadding(routing.rows[static_cast<size_t>(i)])) continue;
    std::fill_n(routing.ids + i * routing.width, routing.width, -1);
    std::fill_n(routing.data + i * routing.width, routing.width, 0.f);
  }
}

// Experts become slots. Along step.axes ranks choose replicas of their own, which is right only
// where each row is dispatched by one rank.
void LayerExecutor::RemapRouting(const Step& step, const LayerRun& run) {
  Register& routing = At(Reg::kRouting);
  const LayerCut& cut = *run.cut;
  const int position = world_.mesh->Position(world_.rank, cut.experts);
  for (int64_t i = 0; i < routing.floats(); ++i) {
    int32_t& id = routing.ids[i];
    if (id < 0) continue;
    const int64_t row = routing.rows[static_cast<size_t>(i / routing.width)];
    const ExpertId expert(id);
    const SlotId slot = world_.first_replica ? run.placement->SlotsOf(expert).front()
                        : step.axes.empty()  ? run.placement->Choose(expert, row)
                                             : run.placement->ChooseOwn(expert, row, position);
    id = slot.value();
    // Every rank's own shared slot counts in global ids.
    if (cut.shared == SharedPlacement::kFusedOwn)
      id += static_cast<int32_t>(id / cut.slots_per_rank);
  }
  routing.space = IdSpace::kGlobal;
}

Status LayerExecutor::ExchangeStep(const Step& step, const LayerRun& run) {
  SB_CHECK(run.exchange != nullptr) << "a plan exchanges rows, and nothing was set up to do it";
  ExpertExchange& exchange = *run.exchange;
  const Register& routing = At(Reg::kRouting);
  const auto floats = [](const Register& r) { return static_cast<size_t>(r.floats()); };
  switch (step.kind) {
    case StepKind::kDispatch: {
      CountPairs(run);
      const Register& x = At(step.source());
      return exchange.Dispatch({x.data, floats(x)}, {.ids = {routing.ids, floats(routing)},
                                                     .weights = {routing.data, floats(routing)}});
    }
    case StepKind::kRemapIds:
      return exchange.RemapIds(step.ids == IdSpace::kLocal ? SlotSpace::kLocal
                                                           : SlotSpace::kGlobal);
    case StepKind::kMaskTail:
      return exchange.MaskTail();
    case StepKind::kPermute:
      return step.dst == Reg::kExpertOut ? exchange.PermuteResults(step.shape, step.weigh)
                                         : exchange.Permute(step.shape);
    case StepKind::kRunExperts:
      return exchange.Run(context_.ops, context_.scratch, run.weights->experts, step.weigh);
    default: {
      SB_CHECK(step.kind == StepKind::kCombine) << ToString(step.kind);
      Register& dst = MakeLike(step.dst, routing, exchange.shape().hidden);
      return exchange.Combine({dst.data, floats(dst)}, step.weigh);
    }
  }
}

}  // namespace signalbox
