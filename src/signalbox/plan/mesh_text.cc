// SPDX-License-Identifier: Apache-2.0
#include "signalbox/plan/mesh_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace signalbox {

std::vector<std::string> BaseAxes(AxisSet set, const Mesh& mesh) {
  std::vector<std::string> names;
  for (size_t i = 0; i < mesh.axes().size(); ++i) {
    if (set.Has(static_cast<int>(i))) names.push_back(mesh.axes()[i].name);
  }
  return names;
}

std::vector<std::string> ViewsOf(const Mesh& mesh) {
  std::vector<std::string> views;
  for (const Mesh::View& view : mesh.views()) {
    const std::string axes = fmt::format("{}", fmt::join(BaseAxes(view.set, mesh), " x "));
    if (!axes.empty() && axes != view.name) views.push_back(view.name + " = " + axes);
  }
  return views;
}

}  // namespace signalbox
