// SPDX-License-Identifier: Apache-2.0
//
// Reads steps as Step::ToString prints them, for case files. Test code.
#pragma once

#include <string_view>

#include "signalbox/base/status.h"
#include "signalbox/plan/step.h"

namespace signalbox {

// INVALID_ARGUMENT names the word that was not understood.
Result<Step> ParseStep(std::string_view text, const Mesh& mesh);
// "attn_dp+attn_tp"; "nothing" and "" are the empty set.
Result<AxisSet> ParseAxes(std::string_view names, const Mesh& mesh);

}  // namespace signalbox
