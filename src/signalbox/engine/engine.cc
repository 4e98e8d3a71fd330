// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace signalbox {
namespace {

// Long enough to fill the device, short enough for others to get their turn.
constexpr int64_t kUsualPrefillChunk = 512;

Result<std::unique_ptr<Ops>> MakeOps(const EngineOptions& options, int ranks) {
  if (options.device == Device::kReference) return MakeReferenceOps();
  return MakeCpuOps({.threads = std::max(1, options.threads / ranks)});
}

bool Exchanges(const LayoutPlan& layout) {
  for (const KindPlan& kind : layout.kinds) {
    for (const PhasePlan& phase : kind.phases) {
      if (phase.context.contract) return true;
    }
  }
  return false;
}

}  // namespace

Status SameInAllPhases(const LayoutPlan& layout) {
  const auto runner = [](const PhasePlan& p) {
    return p.context.runner ? p.context.runner->name : std::string();
  };
  for (const KindPlan& kind : layout.kinds) {
    const PhasePlan& first = kind.phases.front();
    for (const PhasePlan& phase : kind.phases) {
      const char* differ = phase.context.contract != first.context.contract ? "contracts"
                           : runner(phase) != runner(first)                 ? "expert runners"
                           : phase.plan.steps != first.plan.steps           ? "steps"
                                                                            : nullptr;
      if (differ == nullptr) continue;
      return Refused({.what = "a token's sums would depend on the phase that it is computed in",
                      .where = "--deterministic",
                      .found = fmt::format("{} of {} and {} differ in layers of kind {}", differ,
                                           ToString(layout.phases.front()),
                                           ToString(phase.plan.phase), kind.kind),
                      .remedy = "name one --moe-a2a-mode for all phases, or leave out "
                                "--deterministic"});
    }
  }
  return OkStatus();
}

Result<PlannedModel> PlanModel(const Checkpoint& checkpoint, const ModelFacts& facts,
                               const LayoutOptions& options, DType kv_dtype) {
  PlannedModel planned;
  SB_ASSIGN_OR_RETURN(const ModelWeights whole, BindWeights(checkpoint, facts));
  if (options.limits.draft_tokens > 0 && !whole.mtp) {
    return Refused({.what = facts.mtp ? "the checkpoint has no weights of a draft head"
                                      : "this model has no draft head",
                    .where = "--speculative-algorithm",
                    .remedy = "leave it out"});
  }
  planned.model = DescribeLayout(facts, whole, kv_dtype);
  SB_ASSIGN_OR_RETURN(planned.layout, PlanLayout({.parallel = options.parallel,
                                                  .facts = planned.model.facts,
                                                  .contracts = options.contracts,
                                                  .limits = options.limits,
                                                  .shared = options.shared,
                                                  .runners = options.runners,
                                                  .emulated = true}));
  return planned;
}

Status LimitContext(int64_t context, ModelFacts* facts) {
  if (context > facts->max_position) {
    return Refused({.what = "the model has not so many positions",
                    .where = "--context-length",
                    .found = std::to_string(context),
                    .expected = fmt::format("at most {}", facts->max_position)});
  }
  if (context > 0) facts->max_position = context;
  return OkStatus();
}

Result<std::unique_ptr<Engine>> Engine::Load(const std::string& directory,
                                             const EngineOptions& options,
                                             const LoadProgress& progress) {
  SB_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(directory));
  SB_RETURN_IF_ERROR(LimitContext(options.context, &config.facts));
  SB_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(directory));
  std::unique_ptr<Engine> engine(new Engine(std::move(checkpoint), std::move(config)));
  // Unless told otherwise, steps with prompt tokens are what every rank can dispatch.
  LayoutOptions layout = options.layout;
  PlanLimits& limits = layout.limits;
  if (limits.chunked_prefill_size == 0) {
    limits.chunked_prefill_size =
        limits.capacity > 0 ? std::min(kUsualPrefillChunk, limits.capacity) : kUsualPrefillChunk;
  }
  engine->prefill_chunk_ = limits.chunked_prefill_size;
  SB_ASSIGN_OR_RETURN(engine->planned_, PlanModel(engine->checkpoint_, engine->config_.facts,
                                                  layout, options.kv_dtype));
  if (options.deterministic) {
    if (options.chunked_delta || options.expand_latents) {
      return Refused(
          {.what = "a token's numbers would depend on how its prompt is cut",
           .where = "--deterministic",
           .found = options.chunked_delta ? "--delta-rule chunked" : "--latent-attention expanded",
           .remedy = "leave one of the two out"});
    }
    SB_RETURN_IF_ERROR(SameInAllPhases(engine->planned_.layout));
  }
  if (options.fault) {
    SB_ASSIGN_OR_RETURN(engine->faulty_, InjectFault(engine->planned_.layout, *options.fault));
    if (engine->faulty_->in_steps) engine->planned_.layout = engine->faulty_->declared;
  }
  SB_RETURN_IF_ERROR(engine->Start(options, progress));
  return engine;
}

Status Engine::FillBudget(const EngineOptions& options) {
  Communicator* const processes = options.processes;
  CacheBudget asked = options.budget;
  prefix_cache_ = options.prefix_cache;
  asked.slots_per_sequence = SlotsPerSequence(drafts_, prefix_cache_);
  if (!prefix_cache_) asked.snapshots = 0;
  const int64_t here = processes != nullptr ? 1 : planned_.layout.mesh().ranks();
  const CacheDemand demand =
      DemandOf(planned_.layout, planned_.model.facts, config_.facts.max_position, here);
  SB_ASSIGN_OR_RETURN(budget_, SizeCache(asked, options.memory, demand));
  if (processes == nullptr) return OkStatus();
  std::vector<RankId> all;
  for (int r = 0; r < processes->size(); ++r) all.emplace_back(r);
  return processes->Agree(all, Agreement::kMin, std::span(&budget_.tokens, 1));
}

Status Engine::Start(const EngineOptions& options, const LoadProgress& progress) {
  const int ranks = planned_.layout.mesh().ranks();
  RankSetup setup{.checkpoint = &checkpoint_,
                  .facts = &config_.facts,
                  .model = &planned_.model,
                  .layout = &planned_.layout,
                  .kv_dtype = options.kv_dtype,
                  .expert_activations = options.expert_activations,
                  .chunked_delta = options.chunked_delta,
                  .expand_latents = options.expand_latents,
                  .bf16_rope = options.bf16_rope,
                  .first_replica = options.deterministic,
                  .row_faults = {.read_poison = options.fault == LayoutFault::kPoisonRow,
                                 .id_offset = options.fault == LayoutFault::kIdsOffByOne ? 1 : 0,
                                 .weigh_twice = options.fault == LayoutFault::kWeightsTwice}};
  if (options.processes != nullptr && options.processes->size() != ranks) {
    return InvalidArgument(
        {.what = "as many processes as ranks are needed",
         .where = "--tp",
         .found = fmt::format("{} ranks in {} processes", ranks, options.processes->size())});
  }
  drafts_ = options.layout.limits.draft_tokens;
  kv_dtype_ = options.kv_dtype;
  expert_activations_ = options.expert_activations;
  SB_RETURN_IF_ERROR(FillBudget(options));
  setup.budget = budget_;
  const int parts = planned_.layout.mesh().Size(planned_.layout.parallel.attn_dp);
  accounts_.assign(static_cast<size_t>(parts), CacheAccount(budget_.size()));
  named_ = std::make_unique<SequenceTable>(accounts_);
  if (ranks == 1 && !Exchanges(planned_.layout)) {
    SB_ASSIGN_OR_RETURN(std::unique_ptr<Ops> ops, MakeOps(options, 1));
    SB_ASSIGN_OR_RETURN(alone_, RankRunner::Create(setup, std::move(ops), progress));
    ranks_ = {alone_.get()};
    return OkStatus();
  }
  ranks_.assign(static_cast<size_t>(options.processes != nullptr ? 1 : ranks), nullptr);
  const MakeRank make = [&](Communicator& comm) -> Result<std::unique_ptr<Rank>> {
    RankSetup mine = setup;
    mine.comm = &comm;
    const size_t place =
        options.processes != nullptr ? 0 : static_cast<size_t>(comm.rank().value());
    SB_ASSIGN_OR_RETURN(std::unique_ptr<Ops> ops,
                        MakeOps(options, static_cast<int>(ranks_.size())));
    SB_ASSIGN_OR_RETURN(auto runner, RankRunner::Create(mine, std::move(ops),
                                                        place == 0 ? progress : LoadProgress()));
    ranks_[place] = runner.get();
    return std::unique_ptr<Rank>(std::move(runner));
  };
  if (options.processes != nullptr) {
    SB_ASSIGN_OR_RETURN(team_, RankTeam::JoinProcesses(*options.processes, make));
  } else {
    const CommOptions comm{.deadline = options.rank_timeout};
    SB_ASSIGN_OR_RETURN(team_, RankTeam::StartThreads(ranks, comm, make));
  }
  return OkStatus();
}

Result<StepOutput> Engine::Run(const StepBatch& batch, const RunOptions& options) {
  SB_ASSIGN_OR_RETURN(StepCommand step, named_->Place(batch));
  step.trace = options.trace;
  step.layers = options.layers;
  Result<StepOutput> output = Execute(step);
  if (output.ok()) named_->Advance(batch);
  return output;
}

Result<ExpertLoad> Engine::ExpertLoadSoFar() {
  SB_ASSIGN_OR_RETURN(const StepOutput output, Execute({.kind = StepCommand::Kind::kCountPairs}));
  const LayoutPlan& layout = planned_.layout;
  ExpertLoad load;
  for (size_t l = 0; l < output.pairs.size(); ++l) {
    const std::vector<int64_t>& pairs = output.pairs[l];
    if (pairs.empty()) continue;
    const LayerCut& cut = layout.kinds[planned_.model.kind_of_layer[l]].cut;
    const auto experts = pairs.size() - static_cast<size_t>(layout.config.redundant_experts);
    load.layers.push_back(static_cast<int32_t>(l));
    load.experts.emplace_back(experts, 0);
    load.ranks.emplace_back();
    for (size_t s = 0; s < pairs.size(); ++s) load.experts.back()[s % experts] += pairs[s];
    for (int r = 0; r < layout.mesh().ranks(); ++r) {
      const auto first =
          pairs.begin() + layout.mesh().Position(RankId(r), cut.experts) * cut.slots_per_rank;
      load.ranks.back().push_back(std::accumulate(first, first + cut.slots_per_rank, int64_t{0}));
    }
  }
  return load;
}

Result<StepOutput> Engine::RunDraft(const std::vector<DraftStep>& steps, bool trace) {
  SB_ASSIGN_OR_RETURN(StepCommand step, named_->Place(steps));
  step.trace = trace;
  return Execute(step);
}

}  // namespace signalbox
