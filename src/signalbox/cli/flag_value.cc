// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cli/flag_value.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>

#include "signalbox/base/text_util.h"

namespace signalbox {
namespace {

std::string Expected(const FlagSpec& flag) {
  switch (flag.kind) {
    case FlagKind::kInt:
      return fmt::format("a whole number of at least {}", flag.least);
    case FlagKind::kNumber:
      return fmt::format("a number of at least {}", flag.least);
    case FlagKind::kSwitch:
      return "true or false";
    case FlagKind::kText:
    case FlagKind::kTexts:
      break;
  }
  return fmt::format("one of {}", fmt::join(flag.choices, ", "));
}

// "4k" is 4000, "4K" 4096, "25.6k" 25600; nothing where the text is no whole number.
std::optional<int64_t> WholeNumber(std::string_view text) {
  constexpr std::string_view kSuffixes = "kmgtKMGT";
  constexpr size_t kDigits = 18;
  __int128 unit = 1;
  const size_t suffix = text.empty() ? text.npos : kSuffixes.find(text.back());
  if (suffix != text.npos) {
    for (size_t i = 0; i <= suffix % 4; ++i) unit *= suffix < 4 ? 1000 : 1024;
    text.remove_suffix(1);
  }
  std::string digits(text);
  __int128 parts = 1;
  if (const size_t point = text.find('.'); point != text.npos) {
    const size_t behind = text.size() - point - 1;
    if (point == 0 || behind == 0 || behind > kDigits) return std::nullopt;
    digits.erase(point, 1);
    for (size_t i = 0; i < behind; ++i) parts *= 10;
  }
  int64_t read = 0;
  const char* const end = digits.data() + digits.size();
  if (const auto r = std::from_chars(digits.data(), end, read); r.ec != std::errc() || r.ptr != end)
    return std::nullopt;
  const __int128 value = read * unit;
  using Limits = std::numeric_limits<int64_t>;
  if (value % parts != 0 || value / parts > Limits::max() || value / parts < Limits::min())
    return std::nullopt;
  return static_cast<int64_t>(value / parts);
}

std::optional<bool> SwitchValue(std::string_view text) {
  for (std::string_view yes : {"true", "1", "yes", "on"}) {
    if (text == yes) return true;
  }
  for (std::string_view no : {"false", "0", "no", "off"}) {
    if (text == no) return false;
  }
  return std::nullopt;
}

}  // namespace

Status UnusableValue(const FlagSpec& flag, const std::string& value, const std::string& where) {
  return InvalidArgument({.what = "unusable value",
                          .where = where,
                          .found = Quoted(value),
                          .expected = Expected(flag)});
}

Result<std::string> CanonicalValue(const FlagSpec& flag, const std::string& value,
                                   const std::string& where) {
  switch (flag.kind) {
    case FlagKind::kInt:
      if (const auto n = WholeNumber(value); n && *n >= flag.least) return std::to_string(*n);
      return UnusableValue(flag, value, where);
    case FlagKind::kNumber: {
      double d = 0;
      const char* const end = value.data() + value.size();
      const auto r = std::from_chars(value.data(), end, d);
      if (r.ec == std::errc() && r.ptr == end && std::isfinite(d) && d >= flag.least) return value;
      return UnusableValue(flag, value, where);
    }
    case FlagKind::kSwitch:
      if (const auto on = SwitchValue(value)) return std::string(*on ? "true" : "false");
      return UnusableValue(flag, value, where);
    case FlagKind::kText:
    case FlagKind::kTexts:
      break;
  }
  return value;
}

std::string DefaultOf(const FlagSpec& flag) {
  return flag.kind == FlagKind::kSwitch ? "false" : flag.fallback;
}

}  // namespace signalbox
