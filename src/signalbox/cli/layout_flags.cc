// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cli/layout_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "signalbox/base/host_memory.h"
#include "signalbox/base/text_util.h"
#include "signalbox/comm/mpi_world.h"

namespace signalbox {
namespace {

constexpr int kDefaultDrafts = 3;

std::string WordOf(const RunnerTerms& runner) {
  std::string word = runner.name;
  std::ranges::replace(word, ' ', '-');
  return word;
}

Status Contradiction(std::string what, std::string where) {
  return InvalidArgument(
      {.what = std::move(what), .where = std::move(where), .remedy = "leave one of them out"});
}

Result<ParallelConfig> ParallelOf(const FlagValues& flags) {
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  const auto number = [&](std::string_view name) {
    return static_cast<int>(std::min(flags.Int(name), kMost));
  };
  ParallelConfig parallel{.tp = number("tp"),
                          .dp = number("dp"),
                          .ep = number("ep"),
                          .redundant_experts = number("ep-num-redundant-experts")};
  if (flags.Switch("enable-expert-parallel")) {
    if (parallel.ep != 1 && parallel.ep != parallel.tp) {
      return Contradiction(fmt::format("--ep {} is not all {} ranks", parallel.ep, parallel.tp),
                           "--enable-expert-parallel");
    }
    parallel.ep = parallel.tp;
  }
  if (parallel.dp > 1 && !flags.Switch("enable-dp-attention")) {
    return InvalidArgument(
        {.what = "data parallelism of whole engines is not offered",
         .where = "--dp " + flags.Text("dp"),
         .remedy = "add --enable-dp-attention: attention is replicated inside the --tp ranks, "
                   "which are all ranks there are"});
  }
  return parallel;
}

Result<SharedChoice> SharedOf(const FlagValues& flags) {
  const SharedChoice choice = *ParseEnum<SharedChoice>(flags.Text("shared-experts"));
  if (!flags.Switch("disable-shared-experts-fusion")) return choice;
  if (choice == SharedChoice::kFused) {
    return Contradiction("--shared-experts fused and its opposite",
                         "--disable-shared-experts-fusion");
  }
  return choice == SharedChoice::kAuto ? SharedChoice::kUnfused : choice;
}

Result<int64_t> CapturedOf(const FlagValues& flags) {
  const int64_t captured = flags.Int("cuda-graph-max-bs");
  if (captured > 0 && flags.Switch("disable-cuda-graph")) {
    return Contradiction(fmt::format("--cuda-graph-max-bs {} and its opposite", captured),
                         "--disable-cuda-graph");
  }
  return captured;
}

// A step checks one row more than there are drafts; either number may be given.
Result<int> DraftsOf(const FlagValues& flags) {
  constexpr int64_t kMost = 1 << 30;
  int64_t steps = flags.Int("speculative-num-steps");
  const int64_t rows = flags.Int("speculative-num-draft-tokens");
  if (flags.Text("speculative-algorithm") == "none") {
    if (steps == 0 && rows == 0) return 0;
    return InvalidArgument({.what = "nobody drafts tokens",
                            .where = steps > 0
                                         ? fmt::format("--speculative-num-steps {}", steps)
                                         : fmt::format("--speculative-num-draft-tokens {}", rows),
                            .remedy = "add --speculative-algorithm mtp"});
  }
  if (steps == 0) steps = rows > 0 ? rows - 1 : kDefaultDrafts;
  if (rows > 0 && (steps != rows - 1 || steps == 0)) {
    return InvalidArgument({.what = "every step checks the drafts and one token more",
                            .where = "--speculative-num-draft-tokens",
                            .found = std::to_string(rows),
                            .expected = fmt::format("{}, which is --speculative-num-steps and one",
                                                    std::max<int64_t>(steps, 1) + 1)});
  }
  return static_cast<int>(std::min(steps, kMost));
}

// Prompt tokens of a step. Whole prompts are as much as every rank can dispatch.
int64_t ChunkOf(const FlagValues& flags, const std::optional<Contract>& prefill) {
  constexpr int64_t kWhole = 1 << 30;
  int64_t chunk = flags.Int("chunked-prefill-size");
  if (chunk < 0) {
    const int64_t capacity =
        prefill ? Capacity(*prefill, flags.Int("max-dispatch-tokens-per-rank")) : 0;
    chunk = capacity > 0 ? capacity : kWhole;
  }
  const int64_t most = flags.Int("max-prefill-tokens");
  return most == 0 ? chunk : chunk == 0 ? most : std::min(chunk, most);
}

// auto is what is exact here; a device with less memory to spare may choose otherwise.
DType KvTypeOf(const FlagValues& flags) {
  const std::string& name = flags.Text("kv-cache-dtype");
  if (name == "bf16" || name == "bfloat16") return DType::kBf16;
  if (name == "fp8_e4m3" || name == "fp8") return DType::kF8E4m3;
  return DType::kF32;
}

std::span<const RunnerTerms> RunnersOf(const FlagValues& flags) {
  const auto all = StandardRunners();
  const auto found = std::ranges::find(all, flags.Text("moe-runner-backend"), WordOf);
  return found == all.end() ? all : std::span(&*found, 1);
}

}  // namespace

std::vector<std::string> RunnerChoices() {
  std::vector<std::string> words = {"auto"};
  for (const RunnerTerms& runner : StandardRunners()) words.push_back(WordOf(runner));
  return words;
}

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

Result<LayoutOptions> LayoutOptionsOf(const FlagValues& flags, std::vector<std::string>* notes) {
  LayoutOptions layout;
  SB_ASSIGN_OR_RETURN(layout.parallel, ParallelOf(flags));
  SB_ASSIGN_OR_RETURN(layout.contracts, ContractsOf(flags));
  SB_ASSIGN_OR_RETURN(layout.shared, SharedOf(flags));
  SB_ASSIGN_OR_RETURN(const int64_t captured, CapturedOf(flags));
  SB_ASSIGN_OR_RETURN(const int drafts, DraftsOf(flags));
  layout.limits = {.chunked_prefill_size =
                       ChunkOf(flags, layout.contracts[static_cast<size_t>(CallPhase::kPrefill)]),
                   .max_running_requests = flags.Int("max-running-requests"),
                   .captured_requests = captured,
                   .draft_tokens = drafts,
                   .capacity = flags.Int("max-dispatch-tokens-per-rank")};
  layout.runners = RunnersOf(flags);
  const bool exchanges = std::ranges::any_of(
      layout.contracts, [](const auto& c) { return c && c->shape != RowShape::kNone; });
  if (exchanges) return layout;
  const auto note = [&](const std::string& flag) {
    notes->push_back(
        fmt::format("{} changes nothing: without --moe-a2a-backend no rows are moved "
                    "to experts",
                    flag));
  };
  if (flags.Text("moe-runner-backend") != "auto") note("--moe-runner-backend");
  if (flags.Text("moe-a2a-mode") != "auto") note("--moe-a2a-mode");
  if (layout.limits.capacity > 0) note("--max-dispatch-tokens-per-rank");
  return layout;
}

Result<CacheOptions> CacheOptionsOf(const FlagValues& flags, int64_t sequences,
                                    std::vector<std::string>* notes) {
  CacheOptions cache{.budget = {.tokens = flags.Int("max-total-tokens"), .sequences = sequences},
                     .kv_dtype = KvTypeOf(flags),
                     .prefix_cache = !flags.Switch("disable-radix-cache")};
  if (const int64_t states = flags.Int("max-prefix-states"); states >= 0) {
    if (states > 0 && !cache.prefix_cache) {
      return Contradiction(fmt::format("--max-prefix-states {} and nobody to keep them", states),
                           "--disable-radix-cache");
    }
    cache.budget.snapshots = states;
  }
  const double fraction = flags.Number("mem-fraction-static");
  if (fraction == 0) return cache;
  if (fraction > 1) {
    return InvalidArgument({.what = "unusable value",
                            .where = "--mem-fraction-static",
                            .found = flags.Text("mem-fraction-static"),
                            .expected = "above 0 and at most 1"});
  }
  SB_ASSIGN_OR_RETURN(const HostMemory host, ReadHostMemory());
  const int processes = MpiProcessesHere();
  const auto wanted = static_cast<int64_t>(fraction * static_cast<double>(host.total));
  cache.memory = std::max<int64_t>(std::min(wanted, host.available) / processes, 1);
  notes->push_back(fmt::format(
      "{} for weights and cache{}: {} of the {} of {}{}", HumanBytes(cache.memory),
      processes > 1 ? fmt::format(" of each of {} processes", processes) : "",
      flags.Text("mem-fraction-static"), HumanBytes(host.total), host.source,
      wanted > host.available ? fmt::format(", of which {} are free", HumanBytes(host.available))
                              : ""));
  return cache;
}

std::string MemoryText(const FlagValues& flags, const RankMemory& rank, int64_t ranks,
                       int64_t tokens) {
  std::string text = fmt::format("memory of {}: {}\n",
                                 ranks == 1 ? "the rank" : fmt::format("each of {} ranks", ranks),
                                 rank.ToString());
  if (const int64_t asked = flags.Int("max-total-tokens"); tokens < asked) {
    text += fmt::format(
        "note: --max-total-tokens {} is more than --mem-fraction-static {} leaves room for; it is "
        "{}\n",
        asked, flags.Text("mem-fraction-static"), tokens);
  }
  return text;
}

Result<EngineOptions> EngineOptionsOf(const FlagValues& flags, int64_t parallel,
                                      std::vector<std::string>* notes) {
  EngineOptions options;
  SB_ASSIGN_OR_RETURN(options.layout, LayoutOptionsOf(flags, notes));
  const std::string& device = flags.Text("device");
  if (device == "cuda") {
    return Refused({.what = "no device of this kind",
                    .where = "--device cuda",
                    .found = "a build without a GPU device",
                    .remedy = "use --device cpu"});
  }
  options.device = device == "reference" ? Device::kReference : Device::kCpu;
  PlanLimits& limits = options.layout.limits;
  if (limits.captured_requests > 0) {
    notes->push_back("--cuda-graph-max-bs changes nothing: the CPU device captures no graphs");
    limits.captured_requests = 0;
  }
  options.threads = static_cast<int>(flags.Int("threads"));
  if (options.threads == 0)
    options.threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  options.context = flags.Int("context-length");
  SB_ASSIGN_OR_RETURN(const CacheOptions cache, CacheOptionsOf(flags, parallel, notes));
  options.budget = cache.budget;
  options.kv_dtype = cache.kv_dtype;
  options.memory = cache.memory;
  options.prefix_cache = cache.prefix_cache;
  options.rank_timeout = RankTimeoutOf(flags);
  options.deterministic = flags.Switch("deterministic");
  if (flags.Text("expert-activations") == "int8") {
    options.expert_activations = ActivationPrecision::kInt8;
  }
  options.chunked_delta = flags.Text("delta-rule") == "chunked";
  options.expand_latents = flags.Text("latent-attention") == "expanded";
  if (flags.Knows("inject") && flags.Has("inject"))
    options.fault = ParseEnum<LayoutFault>(flags.Text("inject"));
  return options;
}

std::chrono::milliseconds RankTimeoutOf(const FlagValues& flags) {
  constexpr int64_t kMost = 1'000'000'000;
  return std::chrono::seconds(std::min(flags.Int("rank-timeout"), kMost));
}

Status CheckLauncher(const FlagValues& flags, bool started_by_mpi) {
  const std::string& launcher = flags.Text("launcher");
  if (launcher == "mpi" && !started_by_mpi) {
    return InvalidArgument({.what = "this process was not started by mpirun",
                            .where = "--launcher mpi",
                            .remedy = "run mpirun -np RANKS signalbox ..., or leave it out"});
  }
  if (launcher == "threads" && started_by_mpi) {
    return InvalidArgument({.what = "under mpirun every process is a rank",
                            .where = "--launcher threads",
                            .remedy = "run signalbox without mpirun, or leave it out"});
  }
  return OkStatus();
}

}  // namespace signalbox
