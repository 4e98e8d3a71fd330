// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/rank_runner.h"

#include <fmt/format.h>

#include <algorithm>

#include "signalbox/base/check.h"
#include "signalbox/plan/one_rank.h"

namespace signalbox {
namespace {

LayerShape ShapeOf(const LayerFacts& layer) {
  LayerShape shape;
  shape.moe = layer.is_moe();
  shape.shared = shape.moe && std::get<MoeFacts>(layer.ffn).shared_inner > 0;
  shape.kind = fmt::format("{} + {}", layer.is_attention() ? "attention" : "gated delta net",
                           !shape.moe     ? "dense"
                           : shape.shared ? "moe with shared expert"
                                          : "moe");
  return shape;
}

}  // namespace

RankRunner::RankRunner(const ModelFacts& facts, std::unique_ptr<Ops> ops,
                       const RunnerOptions& options)
    : facts_(facts), ops_(std::move(ops)), options_(options) {}

Result<std::unique_ptr<RankRunner>> RankRunner::Create(const Checkpoint& checkpoint,
                                                       const ModelFacts& facts,
                                                       std::unique_ptr<Ops> ops,
                                                       const RunnerOptions& options,
                                                       const LoadProgress& progress) {
  std::unique_ptr<RankRunner> runner(new RankRunner(facts, std::move(ops), options));
  SB_ASSIGN_OR_RETURN(runner->weights_, LoadWeights(checkpoint, facts, WeightShards{}, progress));
  SB_RETURN_IF_ERROR(runner->BuildPlans());
  return runner;
}

// Plans, cache places and rotation tables of all layers; the draft layer comes last.
Status RankRunner::BuildPlans() {
  CacheShape shape;
  const auto add = [&](const LayerFacts& layer, const LayerWeights& w) {
    LayerPlan plan = OneRankPlan(ShapeOf(layer));
    const auto same = [&](const LayerPlan& p) { return p.kind == plan.kind; };
    const auto it = std::find_if(plans_.begin(), plans_.end(), same);
    plan_of_layer_.push_back(static_cast<size_t>(it - plans_.begin()));
    if (it == plans_.end()) plans_.push_back(std::move(plan));
    if (layer.is_attention()) {
      const AttentionFacts& a = std::get<AttentionFacts>(layer.mixer);
      cache_of_layer_.push_back(shape.attention.size());
      shape.attention.push_back({LocalKvHeads(a, w), a.head_dim, a.head_dim});
      ropes_.push_back(MakeRopeTable(a.rope));
    } else {
      const DeltaNetFacts& d = std::get<DeltaNetFacts>(layer.mixer);
      cache_of_layer_.push_back(shape.linear.size());
      shape.linear.push_back({(d.conv_kernel - 1) * LocalConvChannels(d, w),
                              LocalValueHeads(w) * d.key_dim * d.value_dim});
      ropes_.emplace_back();
    }
  };
  for (size_t l = 0; l < facts_.layers.size(); ++l) add(facts_.layers[l], weights_.layers[l]);
  if (weights_.mtp) add(*facts_.mtp, weights_.mtp->layer);
  SB_ASSIGN_OR_RETURN(CachePool pool, CachePool::Create(shape, options_.budget));
  cache_ = std::make_unique<CachePool>(std::move(pool));
  return OkStatus();
}

MathContext RankRunner::Context() {
  return {.ops = *ops_,
          .scratch = scratch_,
          .hidden = facts_.hidden,
          .norm_eps = static_cast<float>(facts_.norm_eps),
          .norm_offset = facts_.norm_offset,
          .chunked_delta = options_.chunked_delta};
}

void RankRunner::AddSpan(int64_t sequence, int64_t past, std::span<const TokenId> tokens,
                         Flat* flat) {
  flat->spans.push_back({.first = static_cast<int64_t>(flat->ids.size()),
                         .count = static_cast<int64_t>(tokens.size()),
                         .past = past});
  for (size_t i = 0; i < tokens.size(); ++i) {
    flat->ids.push_back(tokens[i]);
    flat->positions.push_back(static_cast<int32_t>(past + static_cast<int64_t>(i)));
  }
  SequenceCache& cache = sequences_.at(sequence);
  flat->caches.push_back(&cache);
  flat->block_tables.push_back(cache.blocks.data());
}

Status RankRunner::Admit(const StepBatch& batch, Flat* flat) {
  for (int64_t id : batch.release) {
    if (const auto it = sequences_.find(id); it != sequences_.end()) {
      cache_->Release(&it->second);
      sequences_.erase(it);
    }
  }
  for (const SequenceStep& s : batch.sequences) {
    for (TokenId id : s.tokens) {
      if (id < 0 || id >= facts_.vocab) {
        return InvalidArgument({.what = "token id outside the vocabulary",
                                .found = std::to_string(id),
                                .expected = fmt::format("an id in [0, {})", facts_.vocab)});
      }
    }
    SequenceCache& cache = sequences_[s.sequence];
    const int64_t length = cache.length + static_cast<int64_t>(s.tokens.size());
    if (length > facts_.max_position) {
      return InvalidArgument({.what = "sequence longer than the model's context",
                              .found = fmt::format("{} tokens", length),
                              .expected = fmt::format("at most {}", facts_.max_position)});
    }
    SB_RETURN_IF_ERROR(cache_->Reserve(&cache, length));
  }
  // Block tables may have moved while others grew: collect them once all have room.
  for (const SequenceStep& s : batch.sequences) {
    AddSpan(s.sequence, sequences_.at(s.sequence).length, s.tokens, flat);
  }
  return OkStatus();
}

Status RankRunner::RunLayer(size_t layer, const Flat& flat, float* x) {
  const bool draft = layer == facts_.layers.size();
  const LayerFacts& facts = draft ? *facts_.mtp : facts_.layers[layer];
  LayerRun run{.layer = static_cast<int>(layer),
               .facts = &facts,
               .weights = draft ? &weights_.mtp->layer : &weights_.layers[layer],
               .rope = &ropes_[layer]};
  run.batch = {.tokens = static_cast<int64_t>(flat.ids.size()),
               .sequences = flat.spans,
               .positions = flat.positions};
  const size_t place = cache_of_layer_[layer];
  std::vector<float*> conv;
  std::vector<float*> recurrent;
  if (facts.is_attention()) {
    run.attention = {.kv = cache_->kv(place), .block_tables = flat.block_tables};
  } else {
    for (const SequenceCache* cache : flat.caches) {
      conv.push_back(cache_->conv(place, cache->slot));
      recurrent.push_back(cache_->recurrent(place, cache->slot));
    }
    run.delta = {.conv = conv, .recurrent = recurrent};
  }
  LayerExecutor executor(Context(), &observer_);
  return executor.Run(plans_[plan_of_layer_[layer]], run, x);
}

void RankRunner::Logits(const float* normed, int64_t rows, std::vector<float>* out) {
  out->resize(static_cast<size_t>(rows * facts_.vocab));
  ops_->MatMul({.x = normed,
                .x_stride = facts_.hidden,
                .tokens = rows,
                .w = weights_.trunk.matrix(Role::kHead),
                .y = out->data(),
                .y_stride = facts_.vocab});
}

Result<StepOutput> RankRunner::Run(const StepBatch& batch) {
  Flat flat;
  SB_RETURN_IF_ERROR(Admit(batch, &flat));
  const int64_t tokens = static_cast<int64_t>(flat.ids.size());
  const int64_t hidden = facts_.hidden;
  Scratch::Scope scope(scratch_);
  float* x = scratch_.Take(tokens * hidden);  // [tokens, hidden]
  ops_->Embed(weights_.trunk.matrix(Role::kEmbedding), flat.ids, x);
  for (size_t l = 0; l < facts_.layers.size(); ++l) SB_RETURN_IF_ERROR(RunLayer(l, flat, x));

  StepOutput output;
  std::vector<int64_t> rows;  // that logits are asked for
  for (size_t s = 0; s < batch.sequences.size(); ++s) {
    const SequenceSpan& span = flat.spans[s];
    flat.caches[s]->length += span.count;
    if (span.count == 0 || batch.sequences[s].logits == LogitRows::kNone) continue;
    const bool all = batch.sequences[s].logits == LogitRows::kAll;
    for (int64_t i = all ? 0 : span.count - 1; i < span.count; ++i) rows.push_back(span.first + i);
  }
  const std::span<const float> norm = weights_.trunk.vector(Role::kFinalNorm);
  const int64_t wanted = static_cast<int64_t>(rows.size());
  float* picked = scratch_.Take(wanted * hidden);  // [wanted, hidden]
  if (batch.want_hidden) {
    output.hidden.resize(static_cast<size_t>(tokens * hidden));
    RunNorm(Context(), norm, x, tokens, output.hidden.data());
    ops_->GatherRows({.in = output.hidden.data(),
                      .in_stride = hidden,
                      .width = hidden,
                      .rows = rows,
                      .out = picked,
                      .out_stride = hidden});
  } else {
    ops_->GatherRows({.in = x,
                      .in_stride = hidden,
                      .width = hidden,
                      .rows = rows,
                      .out = picked,
                      .out_stride = hidden});
    RunNorm(Context(), norm, picked, wanted, picked);
  }
  Logits(picked, wanted, &output.logits);
  return output;
}

Result<StepOutput> RankRunner::RunDraft(const std::vector<DraftStep>& steps) {
  SB_CHECK(has_draft());
  const int64_t hidden = facts_.hidden;
  Flat flat;
  for (const DraftStep& s : steps) {
    const int64_t end = s.slot + static_cast<int64_t>(s.tokens.size());
    SB_RETURN_IF_ERROR(cache_->Reserve(&sequences_.at(s.sequence), end));
  }
  for (const DraftStep& s : steps) AddSpan(s.sequence, s.slot, s.tokens, &flat);
  const int64_t tokens = static_cast<int64_t>(flat.ids.size());

  Scratch::Scope scope(scratch_);
  const MathContext context = Context();
  const LayerWeights& module = weights_.mtp->module;
  float* embedded = scratch_.Take(tokens * hidden);    // [tokens, hidden]
  float* previous = scratch_.Take(tokens * hidden);    // [tokens, hidden]
  float* joined = scratch_.Take(tokens * 2 * hidden);  // [tokens, embedding | hidden]
  ops_->Embed(weights_.trunk.matrix(Role::kEmbedding), flat.ids, embedded);
  int64_t row = 0;
  for (const DraftStep& s : steps) {
    SB_CHECK(s.hidden.size() == s.tokens.size() * static_cast<size_t>(hidden));
    std::copy(s.hidden.begin(), s.hidden.end(), previous + row * hidden);
    row += static_cast<int64_t>(s.tokens.size());
  }
  const auto norm_into = [&](Role role, const float* x, float* y) {
    ops_->RmsNorm({.x = x,
                   .x_stride = hidden,
                   .rows = tokens,
                   .width = hidden,
                   .weight = module.vector(role).data(),
                   .offset = facts_.norm_offset,
                   .eps = context.norm_eps,
                   .y = y,
                   .y_stride = 2 * hidden});
  };
  norm_into(Role::kMtpEmbedNorm, embedded, joined);
  norm_into(Role::kMtpHiddenNorm, previous, joined + hidden);
  float* x = embedded;
  ops_->MatMul({.x = joined,
                .x_stride = 2 * hidden,
                .tokens = tokens,
                .w = module.matrix(Role::kMtpProject),
                .y = x,
                .y_stride = hidden});
  SB_RETURN_IF_ERROR(RunLayer(facts_.layers.size(), flat, x));

  StepOutput output;
  output.hidden.resize(static_cast<size_t>(tokens * hidden));
  RunNorm(context, module.vector(Role::kMtpFinalNorm), x, tokens, output.hidden.data());
  Logits(output.hidden.data(), tokens, &output.logits);
  return output;
}

}  // namespace signalbox
