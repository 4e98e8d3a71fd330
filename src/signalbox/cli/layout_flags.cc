// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cli/layout_flags.h"

namespace signalbox {

Result<std::array<std::optional<Contract>, 3>> ContractsOf(const FlagValues& flags) {
  std::array<std::optional<Contract>, 3> contracts;
  if (flags.Has("moe-a2a-contract")) {
    SB_ASSIGN_OR_RETURN(const Contract contract, ContractFromFile(flags.Text("moe-a2a-contract")));
    contracts.fill(contract);
    return contracts;
  }
  const std::string& name = flags.Text("moe-a2a-backend");
  if (name.empty()) return contracts;
  for (CallPhase phase : {CallPhase::kPrefill, CallPhase::kDecode, CallPhase::kVerify}) {
    SB_ASSIGN_OR_RETURN(contracts[static_cast<size_t>(phase)],
                        FindContract(name, flags.Text("moe-a2a-mode"), phase));
  }
  return contracts;
}

Result<LayoutOptions> LayoutOptionsOf(const FlagValues& flags) {
  LayoutOptions layout;
  layout.parallel = {.tp = static_cast<int>(flags.Int("tp")),
                     .dp = static_cast<int>(flags.Int("dp")),
                     .ep = static_cast<int>(flags.Int("ep")),
                     .redundant_experts = static_cast<int>(flags.Int("ep-num-redundant-experts"))};
  if (layout.parallel.dp > 1 && !flags.Switch("enable-dp-attention")) {
    return InvalidArgument(
        {.what = "data parallelism of whole engines is not offered",
         .where = "--dp " + flags.Text("dp"),
         .remedy = "add --enable-dp-attention: attention is replicated inside the --tp ranks"});
  }
  SB_ASSIGN_OR_RETURN(layout.contracts, ContractsOf(flags));
  layout.shared = *ParseEnum<SharedChoice>(flags.Text("shared-experts"));
  layout.limits = {.chunked_prefill_size = flags.Int("chunked-prefill-size"),
                   .max_running_requests = flags.Int("max-running-requests"),
                   .capacity = flags.Int("max-dispatch-tokens-per-rank")};
  return layout;
}

}  // namespace signalbox
