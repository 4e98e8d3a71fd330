// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/verify.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "signalbox/engine/reference.h"
#include "signalbox/plan/value.h"

namespace signalbox {
namespace {

bool Worse(double error, double than) {
  return std::isnan(error) ? !std::isnan(than) : error > than;
}

// Values of one rank by layer and addend, rows in order of the batch.
using Reference = std::map<std::pair<int, std::string>, const AddendTrace*>;

// The canary's steps: prompts of different lengths, one of them a single token; then one more token
// of each; then one token alone, so that ranks without a row take part too.
std::vector<StepBatch> CanarySteps(const VerifyOptions& options, int64_t chunk, int64_t vocab) {
  std::mt19937_64 random(options.seed);
  const LogitRows logits = options.layers == 0 ? LogitRows::kLast : LogitRows::kNone;
  const auto step = [&](int64_t sequence, int64_t tokens) {
    SequenceStep s{.sequence = sequence, .logits = logits};
    for (int64_t i = 0; i < tokens; ++i)
      s.tokens.push_back(static_cast<TokenId>(random() % static_cast<uint64_t>(vocab)));
    return s;
  };
  // A layout refuses steps that are larger than it was planned for.
  const int64_t total =
      std::max<int64_t>(1, std::min(std::max(options.tokens, kCanarySequences + 1), chunk));
  const int64_t second = options.sequences > 1 ? (total - 1) / 3 : 0;
  const int64_t third = options.sequences > 2 && total > kCanarySequences ? 1 : 0;
  StepBatch prompts{.return_hidden = options.layers == 0};
  StepBatch more;
  const int64_t lengths[] = {total - second - third, second, third};
  for (int64_t s = 0; s < kCanarySequences; ++s) {
    if (lengths[s] == 0) continue;
    prompts.sequences.push_back(step(s, lengths[s]));
    more.sequences.push_back(step(s, 1));
  }
  return {prompts, more, {.sequences = {step(0, 1)}}};
}

std::string Describe(const StepBatch& batch) {
  std::vector<size_t> counts;
  for (const SequenceStep& s : batch.sequences) counts.push_back(s.tokens.size());
  return fmt::format("a step of {} tokens", fmt::join(counts, " + "));
}

class Comparison {
 public:
  Comparison(const Engine& engine, const VerifyOptions& options)
      : engine_(engine), options_(options) {}

  Status Compare(const StepOutput& got, const StepOutput& want, const std::string& step) {
    Reference reference;
    for (const AddendTrace& t : want.trace) reference[{t.layer, t.addend}] = &t;
    std::vector<const AddendTrace*> order;
    for (const AddendTrace& t : got.trace) order.push_back(&t);
    std::stable_sort(order.begin(), order.end(), [](const AddendTrace* a, const AddendTrace* b) {
      return a->layer < b->layer;
    });
    for (const AddendTrace* t : order) SB_RETURN_IF_ERROR(CompareOne(*t, reference, got, step));
    if (options_.layers == 0 && !want.logits.empty()) {
      const double error = RelativeError(got.logits, want.logits);
      if (Worse(error, report_.logits)) report_.logits = error;
      Note({.layer = static_cast<int>(engine_.config().facts.layers.size()),
            .kind = "head",
            .addend = "logits",
            .error = error,
            .tolerance = ToleranceOf(static_cast<int>(engine_.config().facts.layers.size()) - 1),
            .step = step});
    }
    return OkStatus();
  }

  VerifyReport Take() { return std::move(report_); }

 private:
  Status CompareOne(const AddendTrace& t, const Reference& reference, const StepOutput& got,
                    const std::string& step) {
    if (t.tokens.empty()) return OkStatus();
    std::vector<std::string> names = {t.addend};
    // A fused shared expert comes out with the routed ones.
    const bool fused = t.addend == addend::kRouted && !Has(got, t.layer, addend::kShared) &&
                       reference.contains({t.layer, std::string(addend::kShared)});
    if (fused) names.emplace_back(addend::kShared);
    std::vector<float> want(t.data.size(), 0.f);
    const size_t width = t.data.size() / t.tokens.size();
    for (const std::string& name : names) {
      const auto found = reference.find({t.layer, name});
      if (found == reference.end()) {
        return Internal({.what = "one rank has no such addend",
                         .where = fmt::format("layer {}", t.layer),
                         .found = name});
      }
      const std::vector<float>& rows = found->second->data;
      for (size_t i = 0; i < t.tokens.size(); ++i) {
        for (size_t j = 0; j < width; ++j)
          want[i * width + j] += rows[static_cast<size_t>(t.tokens[i]) * width + j];
      }
    }
    const PlannedModel& planned = engine_.planned();
    const size_t kind = planned.model.kind_of_layer[static_cast<size_t>(t.layer)];
    Put({.layer = t.layer,
         .kind = planned.layout.kinds[kind].kind,
         .addend = t.addend.empty() ? "output" : fmt::format("{}", fmt::join(names, " + ")),
         .error = RelativeError(t.data, want),
         .tolerance = ToleranceOf(t.layer),
         .rank = t.rank,
         .step = step});
    return OkStatus();
  }

  double ToleranceOf(int layer) const {
    const ModelFacts& facts = engine_.config().facts;
    int64_t attention = 0;
    int64_t moe = 0;
    for (int l = 0; l <= layer; ++l) {
      const bool draft = l == static_cast<int>(facts.layers.size());
      const LayerFacts& at = draft ? *facts.mtp : facts.layers[static_cast<size_t>(l)];
      attention += at.is_attention() ? 1 : 0;
      moe += at.is_moe() ? 1 : 0;
    }
    const double tolerance = ToleranceAfter(attention, options_.tolerance, engine_.kv_dtype());
    if (engine_.expert_activations() == ActivationPrecision::kFloat) return tolerance;
    return ToleranceAfter(moe, tolerance, kInt8Step);
  }

  static bool Has(const StepOutput& output, int layer, std::string_view name) {
    return std::any_of(output.trace.begin(), output.trace.end(),
                       [&](const AddendTrace& t) { return t.layer == layer && t.addend == name; });
  }

  void Put(FoundError found) {
    auto layer = std::find_if(report_.layers.begin(), report_.layers.end(),
                              [&](const LayerReport& l) { return l.layer == found.layer; });
    if (layer == report_.layers.end()) {
      report_.layers.push_back(
          {.layer = found.layer, .kind = found.kind, .tolerance = found.tolerance});
      layer = report_.layers.end() - 1;
    }
    auto entry = std::find_if(layer->addends.begin(), layer->addends.end(),
                              [&](const AddendError& a) { return a.addend == found.addend; });
    if (entry == layer->addends.end()) {
      layer->addends.push_back({.addend = found.addend, .error = found.error});
    } else if (Worse(found.error, entry->error)) {
      entry->error = found.error;
    }
    Note(std::move(found));
  }

  void Note(FoundError found) {
    if (Worse(found.error, report_.worst)) report_.worst = found.error;
    report_.tolerance = std::max(report_.tolerance, found.tolerance);
    if (report_.first || found.error <= found.tolerance) return;
    report_.first = std::move(found);
  }

  const Engine& engine_;
  const VerifyOptions& options_;
  VerifyReport report_;
};

// The draft layer on the hidden rows that each engine kept of its own step.
Status CompareDraft(Engine& planned, Engine& one, const StepBatch& prompts,
                    Comparison& comparison) {
  std::vector<DraftStep> steps;
  int64_t place = 0;
  for (const SequenceStep& s : prompts.sequences) {
    steps.push_back({.sequence = s.sequence, .tokens = s.tokens, .hidden = place});
    place += std::ssize(s.tokens);
  }
  SB_ASSIGN_OR_RETURN(const StepOutput want, one.RunDraft(steps, /*trace=*/true));
  SB_ASSIGN_OR_RETURN(const StepOutput got, planned.RunDraft(steps, /*trace=*/true));
  return comparison.Compare(got, want, "a step of the draft layer");
}

}  // namespace

double ToleranceAfter(int64_t attention_layers, double tolerance, DType kv_dtype) {
  return ToleranceAfter(attention_layers, tolerance, RoundingStep(kv_dtype));
}

double ToleranceAfter(int64_t rounding_layers, double tolerance, double step) {
  for (int64_t l = 0; l < rounding_layers; ++l) {
    tolerance = std::max({tolerance, std::sqrt(tolerance * step), step / 8});
  }
  return tolerance;
}

Result<VerifyReport> VerifyLayout(Engine& planned, Engine& one, const VerifyOptions& options) {
  Comparison comparison(planned, options);
  const std::vector<StepBatch> steps =
      CanarySteps(options, planned.prefill_chunk(), one.config().facts.vocab);
  for (const StepBatch& batch : steps) {
    const Engine::RunOptions run{.trace = true, .layers = options.layers};
    SB_ASSIGN_OR_RETURN(const StepOutput want, one.Run(batch, run));
    SB_ASSIGN_OR_RETURN(const StepOutput got, planned.Run(batch, run));
    SB_RETURN_IF_ERROR(comparison.Compare(got, want, Describe(batch)));
    if (batch.return_hidden && one.has_draft() && planned.has_draft()) {
      SB_RETURN_IF_ERROR(CompareDraft(planned, one, batch, comparison));
    }
  }
  const StepBatch release{.release = {0, 1, 2}};
  SB_RETURN_IF_ERROR(one.Run(release).status());
  SB_RETURN_IF_ERROR(planned.Run(release).status());
  return comparison.Take();
}

Result<VerifyReport> StartupCheck(Engine& planned, const std::string& directory) {
  // The checkpoint is mapped, so a second engine costs the layers that it runs.
  VerifyOptions options{.tokens = 8,
                        .sequences = std::min(planned.budget().sequences, kCanarySequences),
                        .tolerance = 1e-4};
  const EngineOptions alone{.budget = {.tokens = 64, .sequences = options.sequences},
                            .kv_dtype = planned.kv_dtype(),
                            .expert_activations = planned.expert_activations()};
  SB_ASSIGN_OR_RETURN(const auto one, Engine::Load(directory, alone));
  std::vector<size_t> seen;
  for (size_t l = 0; l < planned.config().facts.layers.size(); ++l) {
    const size_t kind = planned.planned().model.kind_of_layer[l];
    if (std::find(seen.begin(), seen.end(), kind) != seen.end()) continue;
    seen.push_back(kind);
    options.layers = static_cast<int64_t>(l) + 1;
  }
  SB_ASSIGN_OR_RETURN(VerifyReport report, VerifyLayout(planned, *one, options));
  SB_RETURN_IF_ERROR(StatusOf(report));
  return report;
}

Status StatusOf(const VerifyReport& report) {
  if (!report.first) return OkStatus();
  const FoundError& f = *report.first;
  return OutOfTolerance(
      {.what = fmt::format("layer {} computes {} differently than one rank", f.layer, f.addend),
       .where = fmt::format("{}, rank {}, {}", f.kind, f.rank, f.step),
       .found = fmt::format("relative error {:.2e}", f.error),
       .expected = fmt::format("at most {:.0e}", f.tolerance)});
}

}  // namespace signalbox
