// SPDX-License-Identifier: Apache-2.0
//
// Problems: questions with a number for an answer, one JSON object per line.
//
//   SB_ASSIGN_OR_RETURN(auto problems, ReadProblems("eval.jsonl", /*limit=*/100));
//   LastNumber("12 + 7 = 19. The answer is 1,019.");   // 1019
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "signalbox/base/status.h"

namespace signalbox {

struct Problem {
  std::string question;
  double answer = 0;
};

// kInvalidArgument with the line that has no text "question" and number "answer". 0: no limit.
Result<std::vector<Problem>> ReadProblems(const std::string& path, int64_t limit);

// The last number of a text, thousands separators and sign included; none when there is no digit.
std::optional<double> LastNumber(std::string_view text);

}  // namespace signalbox
