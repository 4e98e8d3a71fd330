// SPDX-License-Identifier: Apache-2.0
#include "signalbox/model/family.h"

#include <algorithm>

#include "signalbox/base/check.h"

namespace signalbox {
namespace {

const Family& FamilyOf(const ModelFacts& facts) {
  for (const Family& f : Families()) {
    if (f.name == facts.family) return f;
  }
  SB_CHECK(false) << "facts of an unregistered family " << facts.family;
  __builtin_unreachable();
}

TensorRule Matrix(std::string name, Role role, int64_t rows, int64_t cols) {
  return {.kind = TensorRule::Kind::kMatrix,
          .name = std::move(name),
          .parts = {{role, rows}},
          .other = cols};
}

}  // namespace

std::span<const Family> Families() {
  static const std::vector<Family> kFamilies = QwenFamilies();
  return kFamilies;
}

const Family* FindFamily(std::string_view model_type) {
  for (const Family& f : Families()) {
    if (std::find(f.model_types.begin(), f.model_types.end(), model_type) != f.model_types.end())
      return &f;
  }
  return nullptr;
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
  return {Matrix("embed_tokens", Role::kEmbedding, facts.vocab, facts.hidden),
          {.kind = TensorRule::Kind::kVector,
           .name = "norm.weight",
           .parts = {{Role::kFinalNorm, facts.hidden}}}};
}

std::vector<TensorRule> HeadRules(const ModelFacts& facts) {
  if (facts.tied_embeddings) return {};
  return {Matrix("lm_head", Role::kHead, facts.vocab, facts.hidden)};
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
                                                "query norm",
                                                "key norm",
                                                "delta query",
                                                "delta key",
                                                "delta value",
                                                "delta gate",
                                                "delta beta",
                                                "delta decay",
                                                "delta conv",
                                                "delta A_log",
                                                "delta dt_bias",
                                                "delta norm",
                                                "delta out",
                                                "router",
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
                                                "draft projection",
                                                "draft embedding norm",
                                                "draft hidden norm",
                                                "draft final norm"};
  static_assert(std::size(kNames) == static_cast<size_t>(Role::kCount));
  return kNames[static_cast<size_t>(role)];
}

}  // namespace signalbox
