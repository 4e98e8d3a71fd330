// SPDX-License-Identifier: Apache-2.0
#include "signalbox/plan/cuts.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace signalbox::planning {
namespace {

constexpr int64_t kMostOfASize = int64_t{1} << 30;
constexpr int64_t kMostBytes = int64_t{1} << 50;

// Empty when `ways` ranks can hold equal shares of a width, else why not.
std::string WhyNotCut(int64_t inner, const WidthFormat& format, int ways) {
  if (inner % ways != 0) return fmt::format("{} does not divide by {}", inner, ways);
  const int64_t share = inner / ways;
  if (share % format.block == 0) return "";
  return fmt::format("{} is not a multiple of the {} block of {}", share, format.name,
                     format.block);
}

Status CheckHeads(const LayerKindFacts& facts, const Mesh& mesh, AxisSet attn_tp) {
  const int ways = mesh.Size(attn_tp);
  for (const HeadCount& heads : facts.heads) {
    const bool repeats = heads.may_repeat && ways % heads.count == 0;
    if (heads.count % ways == 0 || repeats) continue;
    return Refused({.what = fmt::format("{} {} cannot be shared by {} ranks of attn_tp",
                                        heads.count, heads.name, ways),
                    .where = fmt::format("--tp, {}", facts.kind)});
  }
  return OkStatus();
}

Status CheckExperts(const LayerKindFacts& facts, const LayerCut& cut, const Mesh& mesh) {
  const MoeLayout& moe = *facts.moe;
  const int ep = mesh.Size(cut.experts);
  if (cut.slots % ep != 0) {
    return Refused({.what = fmt::format("{} expert slots do not divide by {} ranks", cut.slots, ep),
                    .where = fmt::format("--ep, {}", facts.kind),
                    .found = fmt::format("{} experts and {} redundant ones", moe.experts,
                                         cut.slots - moe.experts),
                    .expected = fmt::format("a multiple of {}", ep)});
  }
  const int ways = mesh.Size(cut.expert_width);
  if (std::string why = WhyNotCut(moe.inner, moe.format, ways); !why.empty()) {
    return Refused({.what = fmt::format("routed experts of width {} cannot be cut over {} ranks of "
                                        "moe_tp: {}",
                                        moe.inner, ways, why),
                    .where = fmt::format("--ep, {}", facts.kind)});
  }
  return OkStatus();
}

// Axis sets over which a width may be worth cutting, without repetition.
std::vector<AxisSet> WidthAxes(const ParallelMesh& p) {
  std::vector<AxisSet> sets;
  for (AxisSet set :
       {p.mesh.all(), p.attn_tp, p.moe_tp, p.attn_tp & p.moe_tp, p.attn_tp & p.moe_ep}) {
    if (!set.empty() && std::ranges::find(sets, set) == sets.end()) sets.push_back(set);
  }
  return sets;
}

class SharedPlacements {
 public:
  SharedPlacements(const LayerKindFacts& facts, const ParallelMesh& p, const LayerCut& base)
      : facts_(facts), p_(p), base_(base) {}

  void Sharded() {
    for (AxisSet set : WidthAxes(p_)) {
      std::string why = WhyNotCut(facts_.shared->inner, facts_.shared->format, p_.mesh.Size(set));
      if (why.empty()) {
        Offer(SharedPlacement::kSharded, set);
      } else {
        found_.rejected.push_back(
            {"shared expert sharded over " + p_.mesh.Names(set), "width " + why});
      }
    }
  }
  void Replicated() { Offer(SharedPlacement::kReplicated, {}); }
  void Fused() {
    const MlpLayout& shared = *facts_.shared;
    const MoeLayout& moe = *facts_.moe;
    std::string why;
    if (facts_.latent > 0) {
      why = "routed experts work in the latent space, it does not";
    } else if (shared.inner != moe.inner || shared.format != moe.format) {
      why = fmt::format("width {} in {} does not fit a routed slot of width {} in {}", shared.inner,
                        shared.format.name, moe.inner, moe.format.name);
    }
    if (!why.empty()) {
      found_.rejected.push_back({"shared expert fused", std::move(why)});
      return;
    }
    Offer(SharedPlacement::kFusedGlobal, {});
    Offer(SharedPlacement::kFusedOwn, {});
  }
  Cuts Take() { return std::move(found_); }

 private:
  void Offer(SharedPlacement placement, AxisSet width) {
    LayerCut cut = base_;
    cut.shared = placement;
    cut.shared_width = width;
    found_.cuts.push_back(cut);
  }

  const LayerKindFacts& facts_;
  const ParallelMesh& p_;
  const LayerCut& base_;
  Cuts found_;
};

Result<Cuts> SharedCuts(const LayerKindFacts& facts, const ParallelMesh& p, const LayerCut& base,
                        SharedChoice choice) {
  SharedPlacements placements(facts, p, base);
  const auto asked = [&](SharedChoice c) {
    return choice == SharedChoice::kAuto || choice == c ||
           (choice == SharedChoice::kUnfused && c != SharedChoice::kFused);
  };
  if (asked(SharedChoice::kSharded)) placements.Sharded();
  // On one rank, cutting over nothing is the same as not cutting.
  if (asked(SharedChoice::kReplicated) || p.mesh.ranks() == 1) placements.Replicated();
  if (asked(SharedChoice::kFused)) placements.Fused();
  Cuts cuts = placements.Take();
  if (cuts.cuts.empty()) {
    return Refused({.what = fmt::format("the shared expert cannot be {}", ToString(choice)),
                    .where = fmt::format("--shared-experts, {}", facts.kind),
                    .found = cuts.rejected.empty() ? "" : cuts.rejected.front().reason,
                    .remedy = "use --shared-experts auto"});
  }
  return cuts;
}

Cuts DenseCuts(const LayerKindFacts& facts, const ParallelMesh& p, const LayerCut& base) {
  Cuts cuts;
  for (AxisSet set : {p.attn_tp, p.attn_tp & p.moe_tp, p.attn_tp & p.moe_ep, AxisSet()}) {
    LayerCut cut = base;
    cut.dense_width = set;
    const std::string why = WhyNotCut(facts.dense->inner, facts.dense->format, p.mesh.Size(set));
    if (!why.empty()) {
      cuts.rejected.push_back({"MLP over " + p.mesh.Names(set), "width " + why});
    } else if (std::ranges::find(cuts.cuts, cut) == cuts.cuts.end()) {
      cuts.cuts.push_back(cut);
    }
  }
  return cuts;
}

Status CheckNumbers(const std::string& kind, int64_t least, int64_t most,
                    std::initializer_list<int64_t> values) {
  for (int64_t value : values) {
    if (value >= least && value <= most) continue;
    return InvalidArgument({.what = "layout facts hold a number that no model has",
                            .where = kind,
                            .found = std::to_string(value),
                            .expected = fmt::format("{} to {}", least, most)});
  }
  return OkStatus();
}

}  // namespace

Status ValidateFacts(const LayoutFacts& facts) {
  const auto sizes = [](const std::string& kind, std::initializer_list<int64_t> values) {
    return CheckNumbers(kind, 1, kMostOfASize, values);
  };
  SB_RETURN_IF_ERROR(sizes("model", {facts.hidden, int64_t(facts.kinds.size())}));
  SB_RETURN_IF_ERROR(CheckNumbers("model", 0, kMostBytes, {facts.trunk_bytes}));
  for (const LayerKindFacts& k : facts.kinds) {
    const LayerBytes& b = k.bytes;
    SB_RETURN_IF_ERROR(CheckNumbers(k.kind, 0, kMostOfASize, {k.layers, k.latent}));
    SB_RETURN_IF_ERROR(CheckNumbers(
        k.kind, 0, kMostBytes,
        {b.mixer, b.experts, b.shared, b.dense, b.whole, b.cache_per_token, b.cache_per_sequence}));
    for (const HeadCount& heads : k.heads) SB_RETURN_IF_ERROR(sizes(k.kind, {heads.count}));
    if (k.moe) {
      SB_RETURN_IF_ERROR(
          sizes(k.kind, {k.moe->experts, k.moe->top_k, k.moe->inner, k.moe->format.block}));
      SB_RETURN_IF_ERROR(CheckNumbers(k.kind, 1, k.moe->experts, {k.moe->top_k}));
    }
    for (const auto& mlp : {k.shared, k.dense}) {
      if (mlp) SB_RETURN_IF_ERROR(sizes(k.kind, {mlp->inner, mlp->format.block}));
    }
  }
  return OkStatus();
}

Result<Cuts> CutsOf(const LayerKindFacts& facts, const ParallelConfig& config,
                    const ParallelMesh& parallel, SharedChoice shared) {
  LayerCut cut{.heads = parallel.attn_tp};
  SB_RETURN_IF_ERROR(CheckHeads(facts, parallel.mesh, parallel.attn_tp));
  if (!facts.moe) return DenseCuts(facts, parallel, cut);
  cut.experts = parallel.moe_ep;
  cut.expert_width = parallel.moe_tp;
  cut.slots = facts.moe->experts + config.redundant_experts;
  SB_RETURN_IF_ERROR(CheckExperts(facts, cut, parallel.mesh));
  cut.slots_per_rank = cut.slots / parallel.mesh.Size(cut.experts);
  if (!facts.shared) return Cuts{.cuts = {cut}};
  return SharedCuts(facts, parallel, cut, shared);
}

MemoryPlan MemoryOf(const LayerKindFacts& facts, const LayerCut& cut, const Mesh& mesh) {
  const LayerBytes& b = facts.bytes;
  const int ways = mesh.Size(cut.heads);
  int64_t cache_ways = ways;
  for (const HeadCount& heads : facts.heads) {
    if (heads.may_repeat) cache_ways = std::min(cache_ways, heads.count);
  }
  const bool fused =
      cut.shared == SharedPlacement::kFusedGlobal || cut.shared == SharedPlacement::kFusedOwn;
  MemoryPlan m{.mixer = b.mixer / ways,
               .shared = b.shared / mesh.Size(fused ? cut.expert_width : cut.shared_width),
               .dense = b.dense / mesh.Size(cut.dense_width),
               .whole = b.whole,
               .cache_per_token = b.cache_per_token / cache_ways,
               .cache_per_sequence =
                   b.cache_per_sequence / ways + b.cache_per_sequence_repeated / cache_ways};
  if (facts.moe) {
    m.experts = b.experts / facts.moe->experts * cut.slots_per_rank / mesh.Size(cut.expert_width);
  }
  return m;
}

}  // namespace signalbox::planning
