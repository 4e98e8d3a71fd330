// SPDX-License-Identifier: Apache-2.0
//
// A layout for readers: as text, as JSON and as a picture.
//
//   fmt::print("{}", LayoutToText(plan));
//   WriteFile("plan.svg", LayoutToSvg(plan, {.kind = 0, .phase = Phase::kDecode}));
#pragma once

#include <cstddef>
#include <string>

#include "signalbox/plan/planner.h"

namespace signalbox {

// Per layer kind and phase the steps, the value each leaves and why; candidates that were not
// chosen; memory per rank and bytes per token. Phases with equal plans are shown once.
std::string LayoutToText(const LayoutPlan& plan);

// The same as one JSON object. Step lists are in the form of exchange.h.
std::string LayoutToJson(const LayoutPlan& plan);

struct SvgView {
  size_t kind = 0;  // index into LayoutPlan::kinds
  Phase phase = Phase::kDecode;
};

// One layer as a picture: ranks as columns, rows of tokens as tiles, steps from top to bottom.
// REQUIRES: the plan has that kind and phase.
std::string LayoutToSvg(const LayoutPlan& plan, const SvgView& view);

}  // namespace signalbox
