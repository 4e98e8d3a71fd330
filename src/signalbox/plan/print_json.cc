// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "signalbox/plan/exchange.h"
#include "signalbox/plan/mesh_text.h"
#include "signalbox/plan/print.h"

namespace signalbox {
namespace {

using Json = nlohmann::ordered_json;

Json CutJson(const LayerCut& cut, const Mesh& mesh) {
  return {{"heads", BaseAxes(cut.heads, mesh)},
          {"experts", BaseAxes(cut.experts, mesh)},
          {"expert_width", BaseAxes(cut.expert_width, mesh)},
          {"shared", ToString(cut.shared)},
          {"shared_width", BaseAxes(cut.shared_width, mesh)},
          {"dense_width", BaseAxes(cut.dense_width, mesh)},
          {"slots", cut.slots},
          {"slots_per_rank", cut.slots_per_rank}};
}

Json CostJson(const PlanCost& cost) {
  return {{"collective_bytes", cost.collective_bytes},
          {"exchange_bytes", cost.exchange_bytes},
          {"copied_bytes", cost.copied_bytes},
          {"multiply_adds", cost.work},
          {"repeated", cost.repeated},
          {"collectives", cost.collectives},
          {"exchanges", cost.exchanges}};
}

Json PhaseJson(const PhasePlan& phase, const Mesh& mesh) {
  Json json = {{"phase", ToString(phase.plan.phase)}};
  const CheckContext& context = phase.context;
  json["back_end"] = context.contract ? Json(ContractId(*context.contract)) : Json();
  json["runner"] = context.runner ? Json(context.runner->name) : Json();
  json["cost_per_token"] = CostJson(phase.cost);
  json["steps"] = Json::parse(PlanToJson(phase.plan, mesh)).at("steps");
  for (size_t i = 0; i < phase.plan.steps.size(); ++i) {
    const Step& step = phase.plan.steps[i];
    Json& out = json["steps"][i];
    out["text"] = step.ToString(mesh);
    out["value"] = phase.checked.after[i][step.dst]->ToString(mesh);
  }
  json["not_chosen"] = Json::array();
  for (const Rejected& r : phase.rejected) {
    json["not_chosen"].push_back({{"candidate", r.candidate}, {"reason", r.reason}});
  }
  json["warnings"] = phase.checked.warnings;
  return json;
}

Json KindJson(const KindPlan& kind, const Mesh& mesh) {
  Json json = {{"kind", kind.kind}, {"layers", kind.layers}, {"cut", CutJson(kind.cut, mesh)}};
  json["phases"] = Json::array();
  for (const PhasePlan& phase : kind.phases) json["phases"].push_back(PhaseJson(phase, mesh));
  return json;
}

}  // namespace

std::string LayoutToJson(const LayoutPlan& plan) {
  const Mesh& mesh = plan.mesh();
  const ParallelConfig& c = plan.config;
  const MemoryPlan& m = plan.memory;
  Json json;
  json["parallel"] = {
      {"tp", c.tp}, {"dp", c.dp}, {"ep", c.ep}, {"redundant_experts", c.redundant_experts}};
  json["mesh"] = Json::array();
  for (const Mesh::Axis& axis : mesh.axes()) json["mesh"].push_back({axis.name, axis.size});
  json["views"] = Json::object();
  for (const Mesh::View& view : mesh.views()) json["views"][view.name] = BaseAxes(view.set, mesh);
  json["rows_in"] = BaseAxes(plan.rows_in, mesh);
  json["row_multiple"] = plan.row_multiple;
  json["equal_rows"] = plan.equal_rows;
  json["capacity"] = Json::object();
  for (Phase phase : plan.phases) {
    json["capacity"][std::string(ToString(phase))] = plan.capacity[static_cast<size_t>(phase)];
  }
  json["memory_per_rank"] = {{"weights", m.weights()},
                             {"mixers", m.mixer},
                             {"experts", m.experts},
                             {"shared_experts", m.shared},
                             {"mlps", m.dense},
                             {"on_every_rank", m.whole},
                             {"cache_per_token", m.cache_per_token},
                             {"cache_per_sequence", m.cache_per_sequence}};
  json["kinds"] = Json::array();
  for (const KindPlan& kind : plan.kinds) json["kinds"].push_back(KindJson(kind, mesh));
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace signalbox
