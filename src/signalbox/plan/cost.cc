// SPDX-License-Identifier: Apache-2.0
#include "signalbox/plan/cost.h"

#include <algorithm>

namespace signalbox {
namespace {

// What a device does in the time in which it sends a byte: between a CPU socket (tens) and a GPU
// (over a thousand). Plans differ in whole sums and whole experts, so the order is not sensitive.
constexpr double kWorkPerByte = 100;
constexpr double kCopiesPerByte = 8;

class Accountant {
 public:
  Accountant(const CheckedPlan& checked, const CostTerms& terms)
      : checked_(checked), t_(terms), mesh_(terms.context.mesh) {}

  PlanCost Run(const LayerPlan& plan) {
    for (size_t i = 0; i < plan.steps.size(); ++i) {
      before_ = i == 0 ? &checked_.before : &checked_.after[i - 1];
      after_ = &checked_.after[i];
      Account(plan.steps[i]);
    }
    const double ideal = OneRankWork() / mesh_.Size(t_.attn_tp);
    if (ideal > 0) cost_.repeated = cost_.work / ideal;
    return cost_;
  }

 private:
  // Rows of a value for each row that the rank enters the layer with.
  double Rows(const Value& v) const {
    const AxisSet in = t_.context.rows_in;
    return double(mesh_.Size(in - v.rows)) / mesh_.Size(v.rows - in);
  }
  double Elements(const Value& v) const {
    return double(v.facts.latent ? t_.facts.latent : t_.hidden);
  }
  double RowBytes(const Value& v) const { return Elements(v) * t_.element_bits / 8; }
  // Bytes of a register's rows; a routing has an id and a weight per expert.
  double Bytes(Reg reg, const Value& v) const {
    const double row = reg == Reg::kRouting ? 8.0 * Lanes() : RowBytes(v);
    return Rows(v) * row;
  }
  double Lanes() const { return t_.facts.moe ? double(t_.facts.moe->top_k) : 0; }
  double Mlp(double width, double inner) const { return 3 * width * inner; }
  double ExpertWork() const {
    const double width = double(t_.facts.latent > 0 ? t_.facts.latent : t_.hidden);
    return t_.facts.moe ? Lanes() * Mlp(width, double(t_.facts.moe->inner)) : 0;
  }
  double SharedWork() const {
    return t_.facts.shared ? Mlp(double(t_.hidden), double(t_.facts.shared->inner)) : 0;
  }
  // Every rank runs its own copy for all rows it sees.
  double FusedSharedWork() const {
    return (*before_)[Reg::kRouting]->facts.shared_slot == SharedSlot::kNone ? 0 : SharedWork();
  }
  double RouterWork() const {
    return t_.facts.moe ? double(t_.hidden) * double(t_.facts.moe->experts) : 0;
  }
  double DenseWork() const {
    return t_.facts.dense ? Mlp(double(t_.hidden), double(t_.facts.dense->inner)) : 0;
  }
  double LatentWork() const { return double(t_.hidden) * double(t_.facts.latent); }
  double OneRankWork() const {
    return RouterWork() + ExpertWork() + SharedWork() + DenseWork() + 2 * LatentWork();
  }

  void Account(const Step& step) {
    switch (step.kind) {
      case StepKind::kAllReduce:
        Sum(step, step.source(), 2);
        if (step.also != Reg::kCount) Sum(step, step.also, 2);
        ++cost_.collectives;
        return;
      case StepKind::kReduceScatter:
        Sum(step, step.source(), 1);
        ++cost_.collectives;
        return;
      case StepKind::kAllGather: {
        const double n = mesh_.Size(step.axes);
        cost_.collective_bytes += (n - 1) / n * Bytes(step.dst, *(*after_)[step.dst]);
        ++cost_.collectives;
        return;
      }
      case StepKind::kDispatch:
      case StepKind::kCombine:
        Exchange(step);
        return;
      case StepKind::kPermute: {
        const Value& v = *(*before_)[step.dst];
        cost_.copied_bytes += Lanes() * Rows(v) * RowBytes(v);
        return;
      }
      default:
        Compute(step);
    }
  }

  void Sum(const Step& step, Reg reg, int times) {
    const double n = mesh_.Size(step.axes);
    cost_.collective_bytes += times * (n - 1) / n * Bytes(reg, *(*before_)[reg]);
  }

  // Rows of one token that leave its rank: one for every other rank that holds some of its experts
  // or one for every expert on another rank.
  double RowsSent(bool per_rank, int ranks) const {
    if (!per_rank) return Lanes() * (ranks - 1) / ranks;
    const double slots = double(t_.slots);
    const double own = slots / ranks;
    double missed = 1;  // probability that a rank holds none of the token's experts
    for (double k = 0; k < Lanes(); ++k) missed *= std::max(0.0, (slots - own - k) / (slots - k));
    return (ranks - 1) * (1 - missed);
  }

  void Exchange(const Step& step) {
    const int ranks = mesh_.Size(step.axes);
    if (ranks == 1 || !t_.context.contract) return;
    const Contract& c = *t_.context.contract;
    const bool dispatch = step.kind == StepKind::kDispatch;
    const Value& v = *(dispatch ? (*before_)[step.source()] : (*after_)[step.dst]);
    // Results are summed per rank before they travel, unless the sender's rank weighs them.
    const bool per_rank = dispatch ? c.dedup_wire
                                   : c.weighting != Weighting::kLibraryAtSource &&
                                         c.weighting != Weighting::kInsideKernel;
    const double header = dispatch ? 8 * (c.dedup_wire ? Lanes() : 1) : 0;
    cost_.exchange_bytes += Rows(v) * RowsSent(per_rank, ranks) * (RowBytes(v) + header);
    ++cost_.exchanges;
  }

  void Compute(const Step& step) {
    const auto rows = [&](Reg reg) { return Rows(*(*before_)[reg]); };
    switch (step.kind) {
      case StepKind::kRoute:
        cost_.work += rows(step.source()) * RouterWork();
        return;
      case StepKind::kExperts:
        cost_.work += rows(step.source()) *
                      (ExpertWork() / mesh_.Size(step.axes) + FusedSharedWork()) /
                      mesh_.Size(step.width_axes);
        return;
      case StepKind::kRunExperts:
        cost_.work +=
            rows(step.source()) * (ExpertWork() + FusedSharedWork()) / mesh_.Size(step.width_axes);
        return;
      case StepKind::kShared:
        cost_.work += rows(step.source()) * SharedWork() / mesh_.Size(step.axes);
        return;
      case StepKind::kMlp:
        cost_.work += rows(step.source()) * DenseWork() / mesh_.Size(step.axes);
        return;
      case StepKind::kLatentDown:
      case StepKind::kLatentUp:
        cost_.work += rows(step.source()) * LatentWork();
        return;
      default:
        return;
    }
  }

  const CheckedPlan& checked_;
  const CostTerms& t_;
  const Mesh& mesh_;
  const RegisterValues* before_ = nullptr;
  const RegisterValues* after_ = nullptr;
  PlanCost cost_;
};

}  // namespace

double PlanCost::Total() const {
  return collective_bytes + exchange_bytes + copied_bytes / kCopiesPerByte + work / kWorkPerByte;
}

PlanCost CostOf(const LayerPlan& plan, const CheckedPlan& checked, const CostTerms& terms) {
  return Accountant(checked, terms).Run(plan);
}

}  // namespace signalbox
