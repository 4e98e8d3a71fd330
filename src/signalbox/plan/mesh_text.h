// SPDX-License-Identifier: Apache-2.0
//
// Texts about meshes that the printers share. Internal to them.
#pragma once

#include <string>
#include <vector>

#include "signalbox/mesh/mesh.h"

namespace signalbox {

// Base axes of a set, in mesh order.
std::vector<std::string> BaseAxes(AxisSet set, const Mesh& mesh);

// "moe_ep = attn_dp x attn_tp", for views that are no axis of the same name.
std::vector<std::string> ViewsOf(const Mesh& mesh);

}  // namespace signalbox
