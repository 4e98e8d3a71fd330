// SPDX-License-Identifier: Apache-2.0
#include "signalbox/plan/exchange.h"

#include <fmt/format.h>

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "signalbox/base/json_util.h"
#include "signalbox/base/text_util.h"

namespace signalbox {
namespace {

using nlohmann::json;

Status Wrong(std::string_view key, const json& found, std::string expected) {
  return InvalidArgument({.what = fmt::format("key {}", Quoted(key)),
                          .found = Quoted(found.dump(-1, ' ', true)),
                          .expected = std::move(expected)});
}

json AxesToJson(AxisSet set, const Mesh& mesh) {
  json names = json::array();
  for (size_t i = 0; i < mesh.axes().size(); ++i) {
    if (set.Has(int(i))) names.push_back(mesh.axes()[i].name);
  }
  return names;
}

Result<AxisSet> AxesFromJson(std::string_view key, const json& names, const Mesh& mesh) {
  AxisSet set;
  if (!names.is_array()) return Wrong(key, names, "a list of axis names");
  for (const json& name : names) {
    const auto axis =
        name.is_string() ? mesh.Find(name.get_ref<const std::string&>()) : std::optional<AxisSet>();
    if (!axis) return Wrong(key, name, "an axis of the mesh: " + mesh.ToString());
    set = set | *axis;
  }
  return set;
}

template <typename E>
Result<E> EnumFromJson(std::string_view key, const json& value) {
  const std::span<const std::string_view> names(EnumText<E>::kNames);
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    if (const auto parsed = ParseEnum<E>(text)) return *parsed;
    if (const auto nearest = NearestName(text, names)) {
      return Wrong(key, value, "a known name, perhaps " + Quoted(*nearest));
    }
  }
  return Wrong(key, value, "one of " + SampleOf(names, names.size()));
}

// Reads one field of a step. Fields are few and each has its own type, so the table of them is this
// list of branches; writing follows the same order.
Status ReadField(const std::string& key, const json& value, const Mesh& mesh, Step& step) {
  if (key == "op") {
    SB_ASSIGN_OR_RETURN(step.kind, EnumFromJson<StepKind>(key, value));
  } else if (key == "dst") {
    SB_ASSIGN_OR_RETURN(step.dst, EnumFromJson<Reg>(key, value));
  } else if (key == "src") {
    SB_ASSIGN_OR_RETURN(step.src, EnumFromJson<Reg>(key, value));
  } else if (key == "also") {
    SB_ASSIGN_OR_RETURN(step.also, EnumFromJson<Reg>(key, value));
  } else if (key == "over") {
    SB_ASSIGN_OR_RETURN(step.axes, AxesFromJson(key, value, mesh));
  } else if (key == "width_over") {
    SB_ASSIGN_OR_RETURN(step.width_axes, AxesFromJson(key, value, mesh));
  } else if (key == "norm") {
    SB_ASSIGN_OR_RETURN(step.norm, EnumFromJson<NormRole>(key, value));
  } else if (key == "ids") {
    SB_ASSIGN_OR_RETURN(step.ids, EnumFromJson<IdSpace>(key, value));
  } else if (key == "shape") {
    SB_ASSIGN_OR_RETURN(step.shape, EnumFromJson<RowShape>(key, value));
  } else if (key == "slot") {
    SB_ASSIGN_OR_RETURN(step.slot, EnumFromJson<SharedSlot>(key, value));
  } else if (key == "coefficient") {
    const auto c = value.is_string() ? Rational::Parse(value.get_ref<const std::string&>())
                                     : std::optional<Rational>();
    if (!c) return Wrong(key, value, "a fraction as a string: \"5/2\"");
    step.coefficient = *c;
  } else if (key == "weigh" || key == "gated") {
    if (!value.is_boolean()) return Wrong(key, value, "true or false");
    (key == "weigh" ? step.weigh : step.gated) = value.get<bool>();
  } else if (key == "reason") {
    if (!value.is_string()) return Wrong(key, value, "a text");
    step.reason = value.get<std::string>();
  } else {
    static constexpr std::string_view kKeys[] = {
        "op",    "dst",  "src",   "also",  "over",   "norm",        "ids",
        "shape", "slot", "weigh", "gated", "reason", "coefficient", "width_over"};
    return InvalidArgument({.what = "unknown key",
                            .found = Quoted(key),
                            .expected = "one of " + SampleOf(kKeys, std::size(kKeys))});
  }
  return OkStatus();
}

json StepToJson(const Step& step, const Mesh& mesh) {
  json j{{"op", ToString(step.kind)}, {"dst", ToString(step.dst)}};
  if (step.src != Reg::kCount && step.src != step.dst) j["src"] = ToString(step.src);
  if (step.also != Reg::kCount) j["also"] = ToString(step.also);
  if (!step.axes.empty()) j["over"] = AxesToJson(step.axes, mesh);
  if (!step.width_axes.empty()) j["width_over"] = AxesToJson(step.width_axes, mesh);
  if (Spec(step.kind).Uses(StepField::kNorm)) j["norm"] = ToString(step.norm);
  if (step.ids != IdSpace::kNone) j["ids"] = ToString(step.ids);
  if (step.shape != RowShape::kNone) j["shape"] = ToString(step.shape);
  if (step.slot != SharedSlot::kNone) j["slot"] = ToString(step.slot);
  if (step.coefficient != Rational{}) {
    j["coefficient"] = fmt::format("{}/{}", step.coefficient.num, step.coefficient.den);
  }
  if (step.weigh) j["weigh"] = true;
  if (step.gated) j["gated"] = true;
  if (!step.reason.empty()) j["reason"] = step.reason;
  return j;
}

Result<Step> StepFromJson(const json& j, const Mesh& mesh) {
  if (!j.is_object() || !j.contains("op") || !j.contains("dst")) {
    return Wrong("steps", j, "objects with \"op\" and \"dst\"");
  }
  Step step{.kind = StepKind::kAdd, .dst = Reg::kResidual};
  for (const auto& [key, value] : j.items()) {
    SB_RETURN_IF_ERROR(ReadField(key, value, mesh, step));
  }
  if (step.src == step.dst) step.src = Reg::kCount;  // one spelling for one meaning
  SB_RETURN_IF_ERROR(ValidateStep(step, mesh));
  return step;
}

Result<Mesh> MeshFromJson(const json& j) {
  if (!j.contains("mesh") || !j["mesh"].is_array()) {
    return Wrong("mesh", j.value("mesh", json()), "a list of [name, size]");
  }
  std::vector<Mesh::Axis> axes;
  for (const json& axis : j["mesh"]) {
    if (!axis.is_array() || axis.size() != 2 || !axis[0].is_string() ||
        !axis[1].is_number_integer()) {
      return Wrong("mesh", axis, "[name, size]");
    }
    const int64_t size = axis[1].get<int64_t>();
    if (size < 1 || size > kMaxRanks) return Wrong("mesh", axis, "a size of 1 or more");
    axes.push_back({axis[0].get<std::string>(), int(size)});
  }
  SB_ASSIGN_OR_RETURN(const Mesh bare, Mesh::Create(axes));
  std::vector<Mesh::View> views;
  const json named = j.value("views", json::object());
  if (!named.is_object()) return Wrong("views", named, "an object of lists of axis names");
  for (const auto& [name, set] : named.items()) {
    SB_ASSIGN_OR_RETURN(const AxisSet axes_of, AxesFromJson("views", set, bare));
    views.push_back({name, axes_of});
  }
  return Mesh::Create(std::move(axes), std::move(views));
}

}  // namespace

std::string PlanToJson(const LayerPlan& plan, const Mesh& mesh) {
  json j{{"kind", plan.kind}, {"phase", ToString(plan.phase)}};
  j["mesh"] = json::array();
  for (const Mesh::Axis& axis : mesh.axes()) j["mesh"].push_back({axis.name, axis.size});
  j["views"] = json::object();
  for (const Mesh::View& view : mesh.views()) j["views"][view.name] = AxesToJson(view.set, mesh);
  j["steps"] = json::array();
  for (const Step& step : plan.steps) j["steps"].push_back(StepToJson(step, mesh));
  return j.dump(1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
}

Result<PlanDocument> PlanFromJson(std::string_view text) {
  SB_ASSIGN_OR_RETURN(const json j, ParseJson(text));
  if (!j.is_object()) return Wrong("", j, "an object");
  PlanDocument document;
  SB_ASSIGN_OR_RETURN(document.mesh, MeshFromJson(j));
  const json kind = j.value("kind", json(""));
  if (!kind.is_string()) return Wrong("kind", kind, "a text");
  document.plan.kind = kind.get<std::string>();
  if (j.contains("phase")) {
    SB_ASSIGN_OR_RETURN(document.plan.phase, EnumFromJson<Phase>("phase", j["phase"]));
  }
  const json steps = j.value("steps", json());
  if (!steps.is_array() || steps.size() > kMaxSteps) {
    return Wrong("steps", steps.is_array() ? json(steps.size()) : steps,
                 fmt::format("a list of at most {} steps", kMaxSteps));
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    Result<Step> step = StepFromJson(steps[i], document.mesh);
    if (!step.ok()) return step.status().At(fmt::format("step {}", i + 1));
    document.plan.steps.push_back(*std::move(step));
  }
  return document;
}

}  // namespace signalbox
