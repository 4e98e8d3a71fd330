// SPDX-License-Identifier: Apache-2.0
//
// Family: what a file under model/families/ provides. A family is facts read from a config and a
// weight map; it never sees a rank, a back end or a flag.
//
//   const Family* f = FindFamily("qwen3_5_moe");
//   SB_ASSIGN_OR_RETURN(ModelFacts facts, f->parse(reader));
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "signalbox/base/status.h"
#include "signalbox/model/facts.h"
#include "signalbox/model/weight_map.h"

namespace signalbox {

class ConfigReader;

struct Family {
  std::string name;                      // ModelFacts::family
  std::vector<std::string> model_types;  // config.json spellings
  Result<ModelFacts> (*parse)(ConfigReader& config);
  FamilyFiles files;
  std::vector<TensorRule> (*layer_rules)(const ModelFacts& facts, const LayerFacts& layer);
  std::vector<TensorRule> (*mtp_rules)(const ModelFacts& facts);  // null without a draft layer
  // Beside embedding and final norm; null for none.
  std::vector<TensorRule> (*trunk_rules)(const ModelFacts& facts) = nullptr;
};

std::span<const Family> Families();
const Family* FindFamily(std::string_view model_type);

// Adds a family of a program of its own to those above. Call it before any model is read, from one
// thread. REQUIRES: neither the name nor a spelling is taken.
void RegisterFamily(Family family);

// One list per file in families/.
std::vector<Family> QwenFamilies();
std::vector<Family> KimiFamilies();

}  // namespace signalbox
