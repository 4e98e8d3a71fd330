// SPDX-License-Identifier: Apache-2.0
//
// Reads a model directory's config.json (flat, or nested under text_config) and
// generation_config.json.
//
// Errors: kBadCheckpoint naming file, key, found and expected; an unknown model_type lists the
// known ones.
//
//   SB_ASSIGN_OR_RETURN(ModelConfig c, ReadModelConfig(dir));
//   c.facts.hidden; c.stop_ids;
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "signalbox/base/ids.h"
#include "signalbox/base/status.h"
#include "signalbox/model/facts.h"

namespace signalbox {

struct ModelConfig {
  ModelFacts facts;
  // Tokens that end a turn: generation_config.json, else config.json.
  std::vector<TokenId> stop_ids;
};

Result<ModelConfig> ReadModelConfig(const std::string& directory);
// The same from texts; `generation` may be empty. `where` names the source in errors.
Result<ModelConfig> ParseModelConfig(std::string_view config, std::string_view generation,
                                     const std::string& where);

// Spellings of model_type that can be read, for messages.
std::vector<std::string> KnownModelTypes();

}  // namespace signalbox
