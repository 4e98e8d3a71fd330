// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/sampling_defaults.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include <nlohmann/json.hpp>

#include "signalbox/base/json_util.h"

namespace signalbox {
namespace {

Status WrongValue(const std::string& path, const std::string& field, const nlohmann::json& found,
                  std::string expected) {
  return BadCheckpoint(
      {.what = "unusable value",
       .where = path + ": " + field,
       .found = found.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace),
       .expected = std::move(expected)});
}

}  // namespace

SamplingParams OpenAiSamplingDefaults() {
  return {.temperature = 1.f};
}

Result<SamplingParams> ModelSamplingDefaults(const std::string& directory) {
  SamplingParams sampling = OpenAiSamplingDefaults();
  const std::filesystem::path file = std::filesystem::path(directory) / "generation_config.json";
  std::error_code unknown;
  if (!std::filesystem::exists(file, unknown)) return sampling;
  const std::string path = file.string();
  SB_ASSIGN_OR_RETURN(const nlohmann::json config, ReadJsonFile(file));
  if (!config.is_object()) return WrongValue(path, "all of it", config, "an object");
  for (const auto& [name, value] :
       {std::pair("temperature", &sampling.temperature), std::pair("top_p", &sampling.top_p),
        std::pair("min_p", &sampling.min_p),
        std::pair("repetition_penalty", &sampling.repetition_penalty)}) {
    const auto given = config.find(name);
    if (given == config.end() || given->is_null()) continue;
    if (!given->is_number()) return WrongValue(path, name, *given, "a number");
    *value = given->get<float>();
  }
  if (const auto top_k = config.find("top_k"); top_k != config.end() && !top_k->is_null()) {
    if (!top_k->is_number_integer()) return WrongValue(path, "top_k", *top_k, "a whole number");
    sampling.top_k = top_k->get<int64_t>();
  }
  if (const auto draws = config.find("do_sample"); draws != config.end() && !draws->is_null()) {
    if (!draws->is_boolean()) return WrongValue(path, "do_sample", *draws, "true or false");
    if (!draws->get<bool>()) sampling.temperature = 0;
  }
  if (const Status status = CheckSampling(sampling, /*vocab=*/1); !status.ok())
    return BadCheckpoint(status.detail()).At(path);
  return sampling;
}

}  // namespace signalbox
