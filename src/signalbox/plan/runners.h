// SPDX-License-Identifier: Apache-2.0
//
// The expert runners of this engine, as terms: which rows each reads. A runner is chosen by the
// shape it accepts; it never knows who sent the rows.
#pragma once

#include <span>

#include "signalbox/plan/check.h"

namespace signalbox {

// Flat rows with local ids; flat rows with the weights of all experts instead of ids; expert-major
// padded; expert-major compact. None reads a row beyond the valid ones.
std::span<const RunnerTerms> StandardRunners();

}  // namespace signalbox
