// SPDX-License-Identifier: Apache-2.0
#include "signalbox/model/family.h"

#include <algorithm>

#include "signalbox/base/check.h"
#include "signalbox/model/families/rules.h"

namespace signalbox {
namespace {

std::vector<Family>& Registry() {
  static std::vector<Family> all = [] {
    std::vector<Family> known = QwenFamilies();
    for (Family& family : KimiFamilies()) known.push_back(std::move(family));
    return known;
  }();
  return all;
}

const Family& FamilyOf(const ModelFacts& facts) {
  for (const Family& f : Families()) {
    if (f.name == facts.family) return f;
  }
  SB_CHECK(false) << "facts of an unregistered family " << facts.family;
  __builtin_unreachable();
}

}  // namespace

std::span<const Family> Families() {
  return Registry();
}

void RegisterFamily(Family family) {
  for (const Family& f : Families()) SB_CHECK(f.name != family.name) << f.name;
  for (const std::string& type : family.model_types) SB_CHECK(FindFamily(type) == nullptr) << type;
  Registry().push_back(std::move(family));
}

const Family* FindFamily(std::string_view model_type) {
  for (const Family& f : Families()) {
    if (std::find(f.model_types.begin(), f.model_types.end(), model_type) != f.model_types.end())
      return &f;
  }
  return nullptr;
}

std::string_view MixerName(const LayerFacts& layer) {
  if (const auto* delta = std::get_if<DeltaNetFacts>(&layer.mixer)) {
    return delta->decay_rank > 0 ? "kimi delta attention" : "gated delta net";
  }
  return std::holds_alternative<LatentAttentionFacts>(layer.mixer) ? "latent attention"
                                                                   : "attention";
}

int64_t TensorRule::total() const {
  int64_t sum = 0;
  for (const TensorPart& p : parts) sum += p.size;
  return sum;
}

FamilyFiles FilesOf(const ModelFacts& facts) {
  return FamilyOf(facts).files;
}

std::vector<TensorRule> TrunkRules(const ModelFacts& facts) {
  std::vector<TensorRule> rules = {
      weight_rules::Matrix("embed_tokens", Role::kEmbedding, facts.vocab, facts.hidden),
      weight_rules::Vector("norm.weight", Role::kFinalNorm, facts.hidden)};
  if (const auto more = FamilyOf(facts).trunk_rules; more != nullptr) {
    for (TensorRule& rule : more(facts)) rules.push_back(std::move(rule));
  }
  return rules;
}

std::vector<TensorRule> HeadRules(const ModelFacts& facts) {
  if (facts.tied_embeddings) return {};
  return {weight_rules::Matrix(FilesOf(facts).head_prefix + "lm_head", Role::kHead, facts.vocab,
                               facts.hidden)};
}

std::vector<TensorRule> LayerRules(const ModelFacts& facts, const LayerFacts& layer) {
  return FamilyOf(facts).layer_rules(facts, layer);
}

std::vector<TensorRule> MtpRules(const ModelFacts& facts) {
  return facts.mtp ? FamilyOf(facts).mtp_rules(facts) : std::vector<TensorRule>();
}

std::string_view ToString(Role role) {
  static constexpr std::string_view kNames[] = {"embedding",
                                                "head",
                                                "final norm",
                                                "input norm",
                                                "feed-forward norm",
                                                "query",
                                                "key",
                                                "value",
                                                "attention out",
                                                "query bias",
                                                "key bias",
                                                "value bias",
                                                "query latent",
                                                "query latent norm",
                                                "key latent",
                                                "key latent norm",
                                                "key and value",
                                                "attention gate",
                                                "query norm",
                                                "key norm",
                                                "delta query",
                                                "delta key",
                                                "delta value",
                                                "delta gate",
                                                "delta beta",
                                                "delta decay",
                                                "delta decay rank",
                                                "delta query, key, value and gate",
                                                "delta beta and decay",
                                                "delta conv",
                                                "delta A_log",
                                                "delta dt_bias",
                                                "delta norm",
                                                "delta out",
                                                "router",
                                                "router bias",
                                                "latent down",
                                                "latent norm",
                                                "latent up",
                                                "expert gate",
                                                "expert up",
                                                "expert down",
                                                "shared gate",
                                                "shared up",
                                                "shared down",
                                                "shared score",
                                                "dense gate",
                                                "dense up",
                                                "dense down",
                                                "mixer mix norm",
                                                "mixer mix query",
                                                "feed-forward mix norm",
                                                "feed-forward mix query",
                                                "output mix norm",
                                                "output mix query",
                                                "padding",
                                                "draft projection",
                                                "draft embedding norm",
                                                "draft hidden norm",
                                                "draft final norm"};
  static_assert(std::size(kNames) == static_cast<size_t>(Role::kCount));
  return kNames[static_cast<size_t>(role)];
}

}  // namespace signalbox
