// SPDX-License-Identifier: Apache-2.0
//
// The nearest layout that works, for refusals. Internal to the planner.
#pragma once

#include <string_view>

#include "signalbox/plan/planner.h"

namespace signalbox::planning {

// A remedy that says less than the flags of a layout.
inline constexpr std::string_view kAnotherLayout = "choose another back end or layout";

// The plan for exactly this request, or why there is none. A refusal whose remedy is empty, or is
// kAnotherLayout, leaves the remedy to WithNearest.
Result<LayoutPlan> PlanExactly(const PlanRequest& request);

// The refusal with a remedy: its own where it has one, else the flags of the nearest layout that
// works, if one does.
Status WithNearest(const Status& refusal, const PlanRequest& request);

}  // namespace signalbox::planning
