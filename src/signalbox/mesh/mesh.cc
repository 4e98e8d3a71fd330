// SPDX-License-Identifier: Apache-2.0
#include "signalbox/mesh/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <map>

namespace signalbox {
namespace {

Status BadAxis(std::string what, std::string found, std::string expected) {
  return InvalidArgument({.what = std::move(what),
                          .where = "mesh",
                          .found = std::move(found),
                          .expected = std::move(expected)});
}

}  // namespace

Result<Mesh> Mesh::Create(std::vector<Axis> axes, std::vector<View> views) {
  if (axes.size() > kMaxAxes) {
    return BadAxis("too many axes", std::to_string(axes.size()), fmt::format("{}", kMaxAxes));
  }
  std::map<std::string, AxisSet, std::less<>> named;
  int64_t ranks = 1;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].size < 1) {
      return BadAxis("axis size", fmt::format("{} {}", axes[i].name, axes[i].size), "1 or more");
    }
    ranks *= axes[i].size;
    if (ranks > kMaxRanks) {
      return BadAxis("too many ranks", fmt::format("at least {}", ranks),
                     fmt::format("{} or fewer", kMaxRanks));
    }
    if (!named.emplace(axes[i].name, AxisSet::Single(int(i))).second) {
      return BadAxis("axis name", fmt::format("'{}' twice", axes[i].name), "distinct names");
    }
  }
  Mesh mesh;
  mesh.axes_ = std::move(axes);
  for (const View& view : views) {
    if (!mesh.all().Contains(view.set)) {
      return BadAxis("view", fmt::format("'{}' over axes that are not there", view.name),
                     "base axes of the mesh");
    }
    auto [known, is_new] = named.emplace(view.name, view.set);
    if (!is_new && known->second != view.set) {
      return BadAxis("view name", fmt::format("'{}' with two meanings", view.name),
                     "one name for one set");
    }
  }
  if (named.count("") != 0) return BadAxis("name", "''", "a name");
  mesh.views_ = std::move(views);
  return mesh;
}

AxisSet Mesh::all() const {
  AxisSet set;
  for (size_t i = 0; i < axes_.size(); ++i) set = set | AxisSet::Single(int(i));
  return set;
}

std::optional<AxisSet> Mesh::Find(std::string_view name) const {
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name == name) return AxisSet::Single(int(i));
  }
  for (const View& view : views_) {
    if (view.name == name) return view.set;
  }
  return std::nullopt;
}

int Mesh::Size(AxisSet set) const {
  int size = 1;
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (set.Has(int(i))) size *= axes_[i].size;
  }
  return size;
}

int Mesh::Position(RankId rank, AxisSet set) const {
  int rest = rank.value();
  int position = 0;
  int stride = 1;
  for (int i = int(axes_.size()) - 1; i >= 0; --i) {
    if (set.Has(i)) {
      position += rest % axes_[i].size * stride;
      stride *= axes_[i].size;
    }
    rest /= axes_[i].size;
  }
  return position;
}

std::vector<RankId> Mesh::Group(RankId rank, AxisSet set) const {
  // One step along an axis adds the product of the axes inside it; the member at position 0 is
  // this rank with its steps along `set` taken back.
  std::vector<int> offsets = {0};
  int base = rank.value();
  int stride = 1;
  int rest = rank.value();
  for (int i = int(axes_.size()) - 1; i >= 0; --i) {
    const int size = axes_[i].size;
    if (set.Has(i)) {
      base -= rest % size * stride;
      std::vector<int> outer;
      for (int step = 0; step < size; ++step) {
        for (int offset : offsets) outer.push_back(offset + step * stride);
      }
      offsets = std::move(outer);
    }
    rest /= size;
    stride *= size;
  }
  std::vector<RankId> group;
  for (int offset : offsets) group.push_back(RankId(base + offset));
  return group;
}

std::string Mesh::Names(AxisSet set) const {
  if (set.empty()) return "nothing";
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (set == AxisSet::Single(int(i))) return axes_[i].name;
  }
  for (const View& view : views_) {
    if (set == view.set) return view.name;
  }
  std::vector<std::string> names;
  for (const View& view : views_) {
    if (view.set.empty() || !set.Contains(view.set)) continue;
    names.push_back(view.name);
    set = set - view.set;
  }
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (set.Has(int(i))) names.push_back(axes_[i].name);
  }
  return fmt::format("{}", fmt::join(names, "+"));
}

std::string Mesh::ToString() const {
  if (axes_.empty()) return "1 rank";
  std::vector<std::string> parts;
  for (const Axis& axis : axes_) parts.push_back(fmt::format("{} {}", axis.name, axis.size));
  return fmt::format("{}", fmt::join(parts, " x "));
}

}  // namespace signalbox
