// SPDX-License-Identifier: Apache-2.0
//
// LastNumber: the answer of a word problem is the last number of the text, thousands separators and
// sign included; none when there is no digit.
//
//   LastNumber("12 + 7 = 19. The answer is 1,019.");   // 1019
#pragma once

#include <optional>
#include <string_view>

namespace signalbox {

std::optional<double> LastNumber(std::string_view text);

}  // namespace signalbox
