// SPDX-License-Identifier: Apache-2.0
//
// plan and backends.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "signalbox/cli/commands.h"
#include "signalbox/cli/layout_flags.h"
#include "signalbox/model/config.h"
#include "signalbox/plan/planner.h"
#include "signalbox/plan/print.h"

namespace signalbox {

Status RunPlan(const Invocation& invocation) {
  const FlagValues& flags = invocation.flags;
  std::vector<std::string> notes;
  SB_ASSIGN_OR_RETURN(const LayoutOptions options, LayoutOptionsOf(flags, &notes));
  SB_ASSIGN_OR_RETURN(CacheOptions cache,
                      CacheOptionsOf(flags, options.limits.max_running_requests, &notes));
  cache.budget.slots_per_sequence =
      SlotsPerSequence(options.limits.draft_tokens, cache.prefix_cache);
  if (!cache.prefix_cache) cache.budget.snapshots = 0;
  for (const std::string& note : notes) fmt::print(stderr, "signalbox: note: {}\n", note);
  SB_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(invocation.positionals[0]));
  SB_RETURN_IF_ERROR(LimitContext(flags.Int("context-length"), &config.facts));
  SB_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(invocation.positionals[0]));
  SB_ASSIGN_OR_RETURN(const PlannedModel planned,
                      PlanModel(checkpoint, config.facts, options, cache.kv_dtype));
  const int64_t ranks = planned.layout.mesh().ranks();
  const CacheDemand demand =
      DemandOf(planned.layout, planned.model.facts, config.facts.max_position, ranks);
  SB_ASSIGN_OR_RETURN(const CacheBudget budget, SizeCache(cache.budget, cache.memory, demand));
  const std::string& format = flags.Text("format");
  if (format == "json") {
    fmt::print("{}\n", LayoutToJson(planned.layout));
  } else if (format == "svg") {
    // The kind that most layers are of, in the phase that runs most.
    size_t kind = 0;
    for (size_t k = 1; k < planned.layout.kinds.size(); ++k) {
      if (planned.layout.kinds[k].layers > planned.layout.kinds[kind].layers) kind = k;
    }
    fmt::print("{}", LayoutToSvg(planned.layout, {.kind = kind, .phase = Phase::kDecode}));
  } else {
    fmt::print("{}{}", LayoutToText(planned.layout),
               MemoryText(flags, MemoryOfRank(planned.layout.memory, budget.size()), ranks,
                          budget.tokens));
  }
  return OkStatus();
}

Status RunBackends(const Invocation& invocation) {
  if (invocation.flags.Text("format") == "json") {
    nlohmann::json list = nlohmann::json::array();
    for (const Contract& c : AllContracts())
      list.push_back(nlohmann::json::parse(ContractToJson(c)));
    fmt::print("{}\n", list.dump(1));
    return OkStatus();
  }
  fmt::print("{:<28} {:<21} {:<22} {:<8} {:<16} {:<18} {}\n", "contract", "rows", "order", "ids",
             "weights", "who weights", "overflow");
  for (const Contract& c : AllContracts()) {
    fmt::print("{:<28} {:<21} {:<22} {:<8} {:<16} {:<18} {}\n", ContractId(c), ToString(c.shape),
               ToString(c.order), ToString(c.ids), ToString(c.weights), ToString(c.weighting),
               ToString(c.overflow));
  }
  fmt::print(
      "\nEvery contract runs here by emulation over thread or process ranks; the libraries "
      "themselves need\n"
      "their devices. A contract of your own: --moe-a2a-contract FILE.\n\nrunners\n");
  for (const RunnerTerms& r : StandardRunners()) {
    fmt::print("{:<28} {:<21} {}\n", r.name, ToString(r.shape), ToString(r.ids));
  }
  return OkStatus();
}

}  // namespace signalbox
