// SPDX-License-Identifier: Apache-2.0
#include "signalbox/plan/print.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "signalbox/plan/mesh_text.h"

namespace signalbox {
namespace {

std::string Bytes(double bytes) {
  static constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 2, kUnits[unit]);
}

class Printer {
 public:
  explicit Printer(const LayoutPlan& plan) : plan_(plan), mesh_(plan.mesh()) {}

  std::string Run() {
    Header();
    for (const KindPlan& kind : plan_.kinds) {
      for (const PhasePlan& phase : kind.phases) todo_.push_back({&kind, &phase});
    }
    while (!todo_.empty()) Section();
    Footer();
    return std::move(out_);
  }

 private:
  template <typename... Args>
  void Line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
    out_ += '\n';
  }

  struct Entry {
    const KindPlan* kind;
    const PhasePlan* phase;
    bool SamePlan(const Entry& other) const {
      return kind->cut == other.kind->cut && phase->plan.steps == other.phase->plan.steps &&
             phase->context.contract == other.phase->context.contract &&
             phase->cost == other.phase->cost;
    }
  };

  void Header() {
    const ParallelConfig& c = plan_.config;
    Line("layout of {}: tp {}, dp {}, ep {}{}",
         mesh_.ranks() == 1 ? "1 rank" : fmt::format("{} ranks", mesh_.ranks()), c.tp, c.dp, c.ep,
         c.redundant_experts > 0 ? fmt::format(", {} redundant experts", c.redundant_experts) : "");
    if (mesh_.ranks() > 1) Line("axes: {}", mesh_.ToString());
    for (const std::string& view : ViewsOf(mesh_)) Line("  {}", view);
    Line("rows between layers: {}{}", plan_.rows_in.empty() ? "all on every rank" : "sharded over ",
         plan_.rows_in.empty() ? "" : mesh_.Names(plan_.rows_in));
    if (plan_.row_multiple > 1) {
      Line("rows are padded to a multiple of {}{}", plan_.row_multiple,
           plan_.equal_rows ? ", and to those of the longest attention group" : "");
    }
  }

  // The first plan that is left, for all kinds and phases that have it.
  void Section() {
    const Entry first = todo_.front();
    Line("");
    for (const KindPlan& kind : plan_.kinds) {
      std::vector<std::string_view> phases;
      for (const Entry& e : todo_) {
        if (e.kind == &kind && e.SamePlan(first)) phases.push_back(ToString(e.phase->plan.phase));
      }
      if (phases.empty()) continue;
      Line("{} ({} {}): {}", kind.kind, kind.layers, kind.layers == 1 ? "layer" : "layers",
           fmt::join(phases, ", "));
    }
    Body(first.kind->cut, *first.phase);
    std::erase_if(todo_, [&](const Entry& e) { return e.SamePlan(first); });
  }

  void Body(const LayerCut& cut, const PhasePlan& phase) {
    if (phase.context.contract) {
      Line("  back end {}{}{}", ContractId(*phase.context.contract),
           phase.context.runner ? ", runner " + phase.context.runner->name : "",
           phase.context.capacity > 0
               ? fmt::format(", at most {} rows per rank and call", phase.context.capacity)
               : "");
    }
    Weights(cut);
    Steps(phase);
    Cost(phase.cost);
    if (phase.rejected.empty()) return;
    Line("  not chosen:");
    for (const Rejected& r : phase.rejected) Line("    {}: {}", r.candidate, r.reason);
  }

  void Weights(const LayerCut& cut) {
    if (mesh_.ranks() == 1) return;
    std::vector<std::string> parts;
    const auto over = [&](std::string_view what, AxisSet axes) {
      if (!axes.empty()) parts.push_back(fmt::format("{} over {}", what, mesh_.Names(axes)));
    };
    over("heads", cut.heads);
    if (cut.slots > 0) {
      parts.push_back(fmt::format("{} expert slots, {} per rank", cut.slots, cut.slots_per_rank));
      over("experts", cut.experts);
      over("expert width", cut.expert_width);
    }
    over("MLP width", cut.dense_width);
    if (cut.shared != SharedPlacement::kNone) {
      parts.push_back(fmt::format("shared expert {}", ToString(cut.shared)));
      over("its width", cut.shared_width);
    }
    Line("  weights: {}", fmt::join(parts, ", "));
  }

  void Steps(const PhasePlan& phase) {
    size_t width = 0;
    for (const Step& step : phase.plan.steps) width = std::max(width, step.ToString(mesh_).size());
    Line("  {:>2}  {:<{}}  {}", "", "x", width,
         phase.checked.before[Reg::kResidual]->ToString(mesh_));
    for (size_t i = 0; i < phase.plan.steps.size(); ++i) {
      const Step& step = phase.plan.steps[i];
      Line("  {:>2}  {:<{}}  {}", i + 1, step.ToString(mesh_), width,
           phase.checked.after[i][step.dst]->ToString(mesh_));
      if (!step.reason.empty()) Line("        because {}", step.reason);
    }
    for (const std::string& warning : phase.checked.warnings) Line("  warning: {}", warning);
  }

  void Cost(const PlanCost& cost) {
    std::string line = "  per token of an attention group, each rank sends ";
    const auto count = [](int n, std::string_view what) {
      return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
    };
    line += fmt::format("{} in {}", Bytes(cost.collective_bytes),
                        count(cost.collectives, "collective"));
    if (cost.exchanges > 0) {
      line += fmt::format(" and {} in dispatch and combine", Bytes(cost.exchange_bytes));
    }
    line += fmt::format("; work: {:.2f} of a fair share", cost.repeated);
    Line("{}", line);
  }

  void Footer() {
    const MemoryPlan& m = plan_.memory;
    Line("");
    Line(
        "memory per rank: weights {} (mixers {}, experts {}, shared experts {}, MLPs {}, on every "
        "rank {})",
        Bytes(double(m.weights())), Bytes(double(m.mixer)), Bytes(double(m.experts)),
        Bytes(double(m.shared)), Bytes(double(m.dense)), Bytes(double(m.whole)));
    Line("                 cache {} per token, {} per sequence", Bytes(double(m.cache_per_token)),
         Bytes(double(m.cache_per_sequence)));
    for (Phase phase : plan_.phases) {
      double collective = 0;
      double exchange = 0;
      for (const KindPlan& kind : plan_.kinds) {
        const PlanCost& cost = kind.phase(phase)->cost;
        collective += cost.collective_bytes * double(kind.layers);
        exchange += cost.exchange_bytes * double(kind.layers);
      }
      Line("{}: all layers send {} per token and rank in dispatch and combine, {} in collectives",
           ToString(phase), Bytes(exchange), Bytes(collective));
    }
  }

  const LayoutPlan& plan_;
  const Mesh& mesh_;
  std::vector<Entry> todo_;
  std::string out_;
};

}  // namespace

std::string LayoutToText(const LayoutPlan& plan) {
  return Printer(plan).Run();
}

}  // namespace signalbox
