// SPDX-License-Identifier: Apache-2.0
//
// verify: compares a layout with one rank, layer by layer, or logits with a reference.
#include "signalbox/engine/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "signalbox/base/progress.h"
#include "signalbox/cli/commands.h"
#include "signalbox/engine/reference.h"

namespace signalbox {
namespace {

using Json = nlohmann::json;

constexpr double kReferenceTolerance = 1e-4;
constexpr double kLayoutTolerance = 1e-5;

double ToleranceOf(const FlagValues& flags, double usual) {
  const double asked = flags.Number("tolerance");
  return asked == 0 ? usual : asked;
}

// JSON has no number for it.
Json NumberOrNull(double error) {
  return std::isnan(error) ? Json(nullptr) : Json(error);
}

// A library that casts a whole model to BF16 rounds its rotary frequencies too, and the logits that
// it then computes in fp32 are those of other angles. No file says so.
std::string RotaryHint(const FlagValues& flags, const ModelFacts& facts) {
  const bool rotates = std::any_of(
      facts.layers.begin(), facts.layers.end(),
      [](const LayerFacts& layer) { return std::holds_alternative<AttentionFacts>(layer.mixer); });
  if (!rotates || flags.Text("rope-frequencies") == "bf16") return "";
  return "if the reference is of a model that was cast to BF16 as a whole, its rotary frequencies "
         "were rounded: try --rope-frequencies bf16";
}

Status CompareWithReference(const Invocation& invocation, Engine& engine) {
  const FlagValues& flags = invocation.flags;
  SB_ASSIGN_OR_RETURN(const auto sequences,
                      ReadReference(flags.Text("reference"), engine.config().facts.vocab));
  const int64_t chunk = std::max<int64_t>(flags.Int("chunked-prefill-size"), 1);
  // Rounding may also change which experts a token is sent to.
  const double experts =
      engine.expert_activations() == ActivationPrecision::kInt8 ? 4 * kInt8Step : 0;
  const double tolerance =
      ToleranceOf(flags, std::max({kReferenceTolerance, RoundingStep(engine.kv_dtype()), experts}));
  const bool json = flags.Text("format") == "json";
  Json report = Json::array();
  double worst = 0;
  Progress progress({.label = "verify",
                     .total = static_cast<int64_t>(sequences.size()),
                     .quiet = flags.Switch("quiet")});
  for (size_t n = 0; n < sequences.size(); ++n) {
    SB_ASSIGN_OR_RETURN(const auto logits, AllLogits(engine, sequences[n].ids, chunk));
    const double error = RelativeError(logits, sequences[n].logits);
    if (!(error <= worst)) worst = error;
    report.push_back({{"sequence", n}, {"tokens", sequences[n].ids.size()}, {"error", error}});
    progress.Update(static_cast<int64_t>(n) + 1);
  }
  progress.Finish();
  if (json) {
    fmt::print("{}\n",
               Json{{"sequences", report}, {"maximum", worst}, {"tolerance", tolerance}}.dump());
  } else {
    for (const Json& r : report) {
      fmt::print("sequence {:<3} {:5} tokens  relative error {:.2e}\n", r["sequence"].get<int>(),
                 r["tokens"].get<int>(), r["error"].get<double>());
    }
    fmt::print("maximum {:.2e}, tolerance {:.0e}\n", worst, tolerance);
  }
  if (worst <= tolerance) return OkStatus();
  return OutOfTolerance({.what = "logits differ from the reference",
                         .where = flags.Text("reference"),
                         .found = fmt::format("relative error {:.2e}", worst),
                         .expected = fmt::format("at most {:.0e}", tolerance),
                         .remedy = RotaryHint(flags, engine.config().facts)});
}

// A table with a column for every addend that the model has.
void PrintLayers(const VerifyReport& report) {
  std::vector<std::string> columns;
  size_t kind_width = 4;
  for (const LayerReport& layer : report.layers) {
    kind_width = std::max(kind_width, layer.kind.size());
    for (const AddendError& a : layer.addends) {
      if (std::find(columns.begin(), columns.end(), a.addend) == columns.end())
        columns.push_back(a.addend);
    }
  }
  // In order of a layer, whatever the first kind of layer has of it; the output last.
  const auto place = [](const std::string& column) {
    static constexpr std::string_view kOrder[] = {addend::kResidual, addend::kMixer, addend::kMlp};
    if (column == "output") return std::size(kOrder) + 1;
    return static_cast<size_t>(std::find(std::begin(kOrder), std::end(kOrder), column) -
                               std::begin(kOrder));
  };
  std::stable_sort(columns.begin(), columns.end(),
                   [&](const std::string& a, const std::string& b) { return place(a) < place(b); });
  fmt::print("layer  {:<{}}", "kind", kind_width);
  for (const std::string& c : columns) fmt::print("  {:>{}}", c, std::max<size_t>(c.size(), 8));
  fmt::print("\n");
  for (const LayerReport& layer : report.layers) {
    fmt::print("{:>5}  {:<{}}", layer.layer, layer.kind, kind_width);
    for (const std::string& c : columns) {
      const auto a = std::find_if(layer.addends.begin(), layer.addends.end(),
                                  [&](const AddendError& e) { return e.addend == c; });
      const std::string error = a == layer.addends.end() ? "" : fmt::format("{:.1e}", a->error);
      fmt::print("  {:>{}}", error, std::max<size_t>(c.size(), 8));
    }
    fmt::print("\n");
  }
  fmt::print("logits {:.1e}\n", report.logits);
}

Json ToJson(const VerifyReport& report) {
  Json layers = Json::array();
  for (const LayerReport& layer : report.layers) {
    Json errors = Json::object();
    for (const AddendError& a : layer.addends) errors[a.addend] = NumberOrNull(a.error);
    layers.push_back({{"layer", layer.layer},
                      {"kind", layer.kind},
                      {"tolerance", layer.tolerance},
                      {"errors", errors}});
  }
  Json json{{"layers", layers},
            {"logits", NumberOrNull(report.logits)},
            {"maximum", NumberOrNull(report.worst)},
            {"tolerance", report.tolerance}};
  if (report.first) {
    const FoundError& f = *report.first;
    json["first"] = {{"layer", f.layer},
                     {"kind", f.kind},
                     {"addend", f.addend},
                     {"error", NumberOrNull(f.error)},
                     {"tolerance", f.tolerance},
                     {"rank", f.rank},
                     {"step", f.step}};
  }
  return json;
}

Status CompareWithOneRank(const Invocation& invocation, const EngineOptions& options,
                          Engine& engine) {
  const FlagValues& flags = invocation.flags;
  EngineOptions alone = options;
  alone.layout = {};
  alone.fault.reset();
  alone.processes = nullptr;
  SB_ASSIGN_OR_RETURN(const auto one, Engine::Load(invocation.positionals[0], alone));
  const VerifyOptions verify{
      .tokens = flags.Int("tokens"), .tolerance = ToleranceOf(flags, kLayoutTolerance), .seed = 1};
  SB_ASSIGN_OR_RETURN(const VerifyReport report, VerifyLayout(engine, *one, verify));
  if (flags.Text("format") == "json") {
    fmt::print("{}\n", ToJson(report).dump());
  } else {
    PrintLayers(report);
    fmt::print("maximum {:.2e}, tolerance {:.0e}", report.worst, verify.tolerance);
    if (report.tolerance > verify.tolerance) fmt::print(" to {:.0e}", report.tolerance);
    fmt::print("\n");
  }
  return StatusOf(report);
}

// What was broken, and what the checker would have said.
void AnnounceFault(LayoutFault fault, const FaultyLayout& faulty) {
  const Status refusal = CheckFaulty(faulty);
  fmt::print(stderr, "injected {}: {}\nthe checker: {}\n", ToString(fault), faulty.change,
             refusal.ok() ? "accepts it" : refusal.message());
}

}  // namespace

Status RunVerify(const Invocation& invocation) {
  const FlagValues& flags = invocation.flags;
  SB_ASSIGN_OR_RETURN(EngineOptions options, EngineOptionsOf(flags, kCanarySequences));
  options.processes = invocation.processes;
  options.bf16_rope = flags.Text("rope-frequencies") == "bf16";
  SB_ASSIGN_OR_RETURN(auto engine, Engine::Load(invocation.positionals[0], options));
  if (!engine->leads()) return engine->Follow();
  if (engine->faulty()) AnnounceFault(*options.fault, *engine->faulty());
  return flags.Has("reference") ? CompareWithReference(invocation, *engine)
                                : CompareWithOneRank(invocation, options, *engine);
}

}  // namespace signalbox
