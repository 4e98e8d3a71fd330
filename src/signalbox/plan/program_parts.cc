// SPDX-License-Identifier: Apache-2.0
#include "signalbox/plan/program_parts.h"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace signalbox::planning {
namespace {

using enum Reg;
using K = StepKind;

}  // namespace

Result<ProgramParts> TakeApart(const LayerKindFacts& facts) {
  const auto unknown = [&](std::string what) {
    return InvalidArgument({.what = std::move(what), .where = facts.kind});
  };
  ProgramParts parts;
  bool mixer = false;
  bool ffn = false;
  bool experts = false;
  for (const Step& step : facts.program) {
    parts.bank = parts.bank || step.dst == kBank || Spec(step.kind).Reads(kBank);
    parts.snapshot = parts.snapshot || step.kind == K::kSnapshot;
    if (!mixer) {
      mixer = step.kind == K::kMixer;
      (mixer ? parts.mixer = step : parts.before.emplace_back(step));
      continue;
    }
    switch (step.kind) {
      case K::kLatentDown:
        parts.latent_down = step;
        break;
      case K::kRoute:
        parts.route = step;
        break;
      case K::kExperts:
        parts.experts = step;
        experts = true;
        break;
      case K::kShared:
        parts.shared = step;
        break;
      case K::kMlp:
        parts.mlp = step;
        break;
      case K::kScale:
      case K::kLatentUp:
        parts.behind.push_back(step);
        break;
      case K::kNorm:
      case K::kAdd:
        if (!ffn) {
          parts.between.push_back(step);
        } else if (step.kind == K::kNorm) {
          parts.behind.push_back(step);
        }
        continue;
      case K::kMix:
      case K::kSnapshot:
        if (ffn) return unknown("the program reads snapshots behind its feed-forward part");
        parts.between.push_back(step);
        continue;
      default:
        return unknown(fmt::format("the program has a {} step", ToString(step.kind)));
    }
    ffn = true;
  }
  if (!mixer || !ffn || experts != parts.route.has_value()) {
    return unknown("the program has no mixer, or no experts behind a router and no MLP");
  }
  if (experts != facts.moe.has_value() || parts.shared.has_value() != facts.shared.has_value() ||
      experts == facts.dense.has_value() || parts.latent_down.has_value() != (facts.latent > 0)) {
    return unknown("the program has other parts than the facts give sizes for");
  }
  return parts;
}

}  // namespace signalbox::planning
