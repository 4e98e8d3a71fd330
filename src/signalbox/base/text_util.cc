// SPDX-License-Identifier: Apache-2.0
#include "signalbox/base/text_util.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

namespace signalbox {
namespace {

constexpr size_t kMaxQuoted = 120;

// Optimal string alignment distance: edits are insert, delete, replace and swap of neighbours.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1);  // row i - 2
  std::vector<size_t> last(b.size() + 1);    // row i - 1
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, last);
    std::swap(last, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replace, last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

}  // namespace

std::string HumanBytes(int64_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  // 1023.95 would print as 1024.0.
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string Quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text.substr(0, kMaxQuoted)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      if (c == '\'' || c == '\\') out += '\\';
      out += c;
    }
  }
  if (text.size() > kMaxQuoted) {
    // Not in the middle of a UTF-8 character.
    while (out.size() > 1 && (static_cast<unsigned char>(out.back()) & 0xc0) == 0x80) {
      out.pop_back();
    }
    if (static_cast<unsigned char>(out.back()) >= 0xc0) out.pop_back();
    return out + fmt::format("...' ({} bytes)", text.size());
  }
  return out + "'";
}

std::string SampleOf(std::span<const std::string_view> names, size_t shown) {
  std::string out;
  for (size_t i = 0; i < std::min(shown, names.size()); ++i) {
    if (i > 0) out += ", ";
    out += Quoted(names[i]);
  }
  if (names.size() > shown) out += fmt::format(" and {} more", names.size() - shown);
  return out;
}

std::optional<std::string_view> NearestName(std::string_view word,
                                            std::span<const std::string_view> candidates) {
  std::optional<std::string_view> best;
  size_t limit = word.size() / 3 + 1;  // best distance so far, exclusive
  for (const std::string_view candidate : candidates) {
    const size_t longer = std::max(word.size(), candidate.size());
    if (longer - std::min(word.size(), candidate.size()) >= limit) continue;
    if (const size_t distance = EditDistance(word, candidate); distance < limit) {
      limit = distance;
      best = candidate;
    }
  }
  return best;
}

bool GlobMatch(std::string_view pattern, std::string_view text) {
  size_t p = 0;
  size_t t = 0;
  size_t star = std::string_view::npos;  // the last '*' seen, and
  size_t resume = 0;                     // where the text after its run begins
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;  // let the last '*' take one more character
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

}  // namespace signalbox
