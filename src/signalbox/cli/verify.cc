// SPDX-License-Identifier: Apache-2.0
//
// verify: compares what the engine computes with a reference, value by value.
#include <fmt/format.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "signalbox/base/progress.h"
#include "signalbox/cli/commands.h"
#include "signalbox/engine/reference.h"

namespace signalbox {
namespace {

using Json = nlohmann::json;

}  // namespace

Status RunVerify(const Invocation& invocation) {
  const FlagValues& flags = invocation.flags;
  if (!flags.Has("reference")) {
    return InvalidArgument({.what = "nothing to compare with",
                            .where = "verify",
                            .remedy = "give --reference FILE.safetensors with ids.N and logits.N"});
  }
  SB_ASSIGN_OR_RETURN(const EngineOptions options, EngineOptionsOf(flags, 1));
  SB_ASSIGN_OR_RETURN(auto engine, Engine::Load(invocation.positionals[0], options));
  SB_ASSIGN_OR_RETURN(const auto sequences,
                      ReadReference(flags.Text("reference"), engine->config().facts.vocab));
  const int64_t chunk = std::max<int64_t>(flags.Int("chunked-prefill-size"), 1);
  const double tolerance = flags.Number("tolerance");
  const bool json = flags.Text("format") == "json";
  Json report = Json::array();
  double worst = 0;
  Progress progress({.label = "verify",
                     .total = static_cast<int64_t>(sequences.size()),
                     .quiet = flags.Switch("quiet")});
  for (size_t n = 0; n < sequences.size(); ++n) {
    SB_ASSIGN_OR_RETURN(const auto logits, AllLogits(*engine, sequences[n].ids, chunk));
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
                         .expected = fmt::format("at most {:.0e}", tolerance)});
}

}  // namespace signalbox
