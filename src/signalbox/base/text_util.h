// SPDX-License-Identifier: Apache-2.0
//
// Small text helpers for messages.
//
//   HumanBytes(15588720);                       // "14.9 MiB"
//   NearestName("--paralell", known_flags);     // "--parallel"
//   Quoted("a\x1b[31mb");                       // "'a\x1b[31mb'" with the escape spelled out
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace signalbox {

// "512 B", "14.9 MiB", "1.4 TiB": 1024-based, one decimal.
std::string HumanBytes(int64_t bytes);

// Text from a file or a request, safe to print: in single quotes, control characters, quotes and
// backslashes escaped, cut after 120 bytes.
std::string Quoted(std::string_view text);

// "'a', 'b', 'c' and 12 more": the first `shown` names, each Quoted.
std::string SampleOf(std::span<const std::string_view> names, size_t shown = 3);

// The candidate with the fewest edits (insert, delete, replace, swap of neighbours) from `word`;
// none when more than a third of the word would have to change. First of equals.
std::optional<std::string_view> NearestName(std::string_view word,
                                            std::span<const std::string_view> candidates);

// Whether `text` matches `pattern`, in which '*' stands for any run of characters, also none.
bool GlobMatch(std::string_view pattern, std::string_view text);

}  // namespace signalbox
