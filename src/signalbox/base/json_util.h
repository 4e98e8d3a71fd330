// SPDX-License-Identifier: Apache-2.0
//
// Strict JSON for text that others wrote: UTF-8, one value, no duplicate keys, bounded depth.
// nlohmann::json alone takes the last of two equal keys, stops quietly at a NUL and has no depth
// limit; each of the three lets two readers disagree about one file.
//
//   SB_ASSIGN_OR_RETURN(nlohmann::json config, ReadJsonFile(dir / "config.json"));
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "signalbox/base/status.h"

namespace signalbox {

inline constexpr int kMaxJsonDepth = 64;
inline constexpr int64_t kMaxJsonFileBytes = int64_t{256} << 20;

// Errors have the given code (INVALID_ARGUMENT suits requests, BAD_CHECKPOINT model files), say
// what is wrong and at which byte; add the place with Status::At. Numbers that do not fit a double
// and nesting beyond kMaxJsonDepth are errors.
Result<nlohmann::json> ParseJson(std::string_view text,
                                 StatusCode code = StatusCode::kInvalidArgument);

// The error for a fault that nlohmann's SAX interface reports: `position` and `what` as given to
// parse_error. For readers that use that interface themselves.
Status JsonSyntaxError(size_t position, std::string_view what, StatusCode code);

// A file of the model directory. Missing, larger than kMaxJsonFileBytes or not JSON:
// BAD_CHECKPOINT that names the file.
Result<nlohmann::json> ReadJsonFile(const std::filesystem::path& path);

}  // namespace signalbox
