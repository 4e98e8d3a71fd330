// SPDX-License-Identifier: Apache-2.0
#include "signalbox/model/config.h"

#include <filesystem>

#include <nlohmann/json.hpp>

#include "signalbox/base/json_util.h"
#include "signalbox/base/text_util.h"
#include "signalbox/model/config_reader.h"
#include "signalbox/model/family.h"

namespace signalbox {
namespace {

using Json = nlohmann::json;

void AppendIds(const Json& value, std::vector<TokenId>* ids) {
  if (value.is_number_integer()) {
    const double id = value.get<double>();
    if (id >= 0 && id < (int64_t{1} << 31)) ids->push_back(static_cast<TokenId>(id));
  } else if (value.is_array()) {
    for (const Json& v : value) AppendIds(v, ids);
  }
}

std::vector<TokenId> StopIds(const Json& config, const Json& text, const Json& generation) {
  std::vector<TokenId> ids;
  for (const Json* source : {&generation, &config, &text}) {
    if (source->contains("eos_token_id")) AppendIds(source->at("eos_token_id"), &ids);
    if (!ids.empty()) break;
  }
  return ids;
}

Result<ModelConfig> FromJson(const Json& config, const Json& generation, const std::string& where) {
  if (!config.is_object()) {
    return BadCheckpoint({.what = "config is not a JSON object", .where = where});
  }
  ConfigReader outer(config, where);
  const bool nested = outer.Has("text_config");
  ConfigReader text = nested ? outer.Object("text_config") : outer;
  SB_RETURN_IF_ERROR(outer.status());
  const std::string type = outer.StringOr("model_type", "");
  SB_RETURN_IF_ERROR(outer.status());
  const Family* family = FindFamily(type);
  if (family == nullptr && nested) family = FindFamily(text.StringOr("model_type", ""));
  if (family == nullptr) {
    const std::vector<std::string> known = KnownModelTypes();
    std::string list;
    for (const std::string& k : known) list += (list.empty() ? "" : ", ") + k;
    return BadCheckpoint({.what = "unknown kind of model",
                          .where = where + ", key model_type",
                          .found = type.empty() ? "nothing" : Quoted(type),
                          .expected = "one of " + list});
  }
  ModelConfig result;
  SB_ASSIGN_OR_RETURN(result.facts, family->parse(text));
  // Nested configs state tying at the top; either place counts.
  result.facts.tied_embeddings |= outer.BoolOr("tie_word_embeddings", false);
  SB_RETURN_IF_ERROR(outer.status());
  result.stop_ids = StopIds(config, nested ? config.at("text_config") : config, generation);
  for (TokenId id : result.stop_ids) {
    if (id >= result.facts.vocab) {
      outer.Fail("eos_token_id", std::to_string(id),
                 "an id below vocab_size " + std::to_string(result.facts.vocab));
    }
  }
  SB_RETURN_IF_ERROR(outer.status());
  return result;
}

}  // namespace

Result<ModelConfig> ReadModelConfig(const std::string& directory) {
  const std::filesystem::path dir(directory);
  SB_ASSIGN_OR_RETURN(Json config, ReadJsonFile(dir / "config.json"));
  Json generation = Json::object();
  std::error_code ignored;
  if (std::filesystem::exists(dir / "generation_config.json", ignored)) {
    SB_ASSIGN_OR_RETURN(generation, ReadJsonFile(dir / "generation_config.json"));
  }
  return FromJson(config, generation, (dir / "config.json").string());
}

Result<ModelConfig> ParseModelConfig(std::string_view config, std::string_view generation,
                                     const std::string& where) {
  auto parsed = ParseJson(config, StatusCode::kBadCheckpoint);
  if (!parsed.ok()) return parsed.status().At(where);
  Json extra = Json::object();
  if (!generation.empty()) {
    auto g = ParseJson(generation, StatusCode::kBadCheckpoint);
    if (!g.ok()) return g.status().At(where);
    extra = *g;
  }
  return FromJson(*parsed, extra, where);
}

std::vector<std::string> KnownModelTypes() {
  std::vector<std::string> types;
  for (const Family& f : Families())
    types.insert(types.end(), f.model_types.begin(), f.model_types.end());
  return types;
}

}  // namespace signalbox
