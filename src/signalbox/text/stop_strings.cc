// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/stop_strings.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "signalbox/base/text_util.h"
#include "signalbox/text/unicode.h"

namespace signalbox {
namespace {

Status CheckStop(const std::string& stop) {
  if (stop.empty()) {
    return InvalidArgument({.what = "a stop string is empty",
                            .where = "stop",
                            .expected = "at least one character",
                            .remedy = "leave it out"});
  }
  if (stop.size() > StopStrings::kMaxBytes) {
    return InvalidArgument({.what = "a stop string is too long",
                            .where = "stop",
                            .found = fmt::format("{} bytes", stop.size()),
                            .expected = fmt::format("at most {}", StopStrings::kMaxBytes)});
  }
  std::string repaired;
  AppendUtf8(stop, Utf8End::kFinal, repaired);
  if (repaired != stop) {
    return InvalidArgument({.what = "a stop string is no text",
                            .where = "stop",
                            .found = Quoted(stop),
                            .expected = "UTF-8"});
  }
  return OkStatus();
}

// The longest prefix of `stop` that `matched` bytes of it and then `byte` end with.
size_t Extend(const std::string& stop, const std::vector<size_t>& fallback, size_t matched,
              char byte) {
  while (matched > 0 && stop[matched] != byte) matched = fallback[matched];
  return stop[matched] == byte ? matched + 1 : 0;
}

}  // namespace

Result<StopStrings> StopStrings::Create(std::vector<std::string> stops) {
  if (stops.size() > kMaxStops) {
    return InvalidArgument({.what = "too many stop strings",
                            .where = "stop",
                            .found = fmt::format("{}", stops.size()),
                            .expected = fmt::format("at most {}", kMaxStops)});
  }
  StopStrings result;
  for (std::string& text : stops) {
    SB_RETURN_IF_ERROR(CheckStop(text));
    std::vector<size_t> fallback(text.size(), 0);  // of all of it: never asked for
    for (size_t n = 1; n + 1 < text.size(); ++n) {
      fallback[n + 1] = Extend(text, fallback, fallback[n], text[n]);
    }
    result.stops_.push_back({.text = std::move(text), .fallback = std::move(fallback)});
  }
  return result;
}

std::optional<StopStrings::Match> StopStrings::Push(std::string_view piece) {
  if (stops_.empty()) return std::nullopt;
  for (size_t at = 0; at < piece.size(); ++at) {
    std::optional<Match> found;
    for (size_t i = 0; i < stops_.size(); ++i) {
      Stop& stop = stops_[i];
      stop.matched = Extend(stop.text, stop.fallback, stop.matched, piece[at]);
      if (stop.matched < stop.text.size()) continue;
      if (!found || stop.text.size() > stops_[found->stop].text.size()) found = {i, at + 1};
    }
    if (found) return found;
  }
  return std::nullopt;
}

size_t StopStrings::held() const {
  size_t most = 0;
  for (const Stop& stop : stops_) most = std::max(most, stop.matched);
  return most;
}

}  // namespace signalbox
