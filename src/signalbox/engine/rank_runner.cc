// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/rank_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "signalbox/base/check.h"

namespace signalbox {
namespace {

constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));

bool Fused(SharedPlacement placement) {
  return placement == SharedPlacement::kFusedGlobal || placement == SharedPlacement::kFusedOwn;
}

// Taken on the way through all layers.
int64_t Snapshots(const ModelFacts& facts) {
  return std::count_if(facts.layers.begin(), facts.layers.end(),
                       [](const LayerFacts& layer) { return layer.snapshot; });
}

// A fused shared expert is one more expert behind the routed ones.
void AppendFusedShared(const LayerCut& cut, LayerWeights* w) {
  if (!Fused(cut.shared)) return;
  w->experts.push_back(
      {w->matrix(Role::kSharedGate), w->matrix(Role::kSharedUp), w->matrix(Role::kSharedDown)});
}

}  // namespace

RankRunner::RankRunner(const RankSetup& setup, std::unique_ptr<Ops> ops)
    : checkpoint_(*setup.checkpoint),
      facts_(*setup.facts),
      model_(*setup.model),
      layout_(*setup.layout),
      comm_(setup.comm),
      setup_(setup),
      rank_(setup.comm == nullptr ? RankId(0) : setup.comm->rank()),
      part_(setup.layout->mesh().Position(rank_, setup.layout->parallel.attn_dp)),
      parts_(setup.layout->mesh().Size(setup.layout->parallel.attn_dp)),
      ops_(std::move(ops)) {}

Result<std::unique_ptr<RankRunner>> RankRunner::Create(const RankSetup& setup,
                                                       std::unique_ptr<Ops> ops,
                                                       const LoadProgress& progress) {
  std::unique_ptr<RankRunner> runner(new RankRunner(setup, std::move(ops)));
  std::vector<WeightShards> shards;
  for (size_t kind : setup.model->kind_of_layer)
    shards.push_back(runner->ShardsOf(setup.layout->kinds[kind].cut));
  shards.resize(setup.facts->layers.size() + 1);
  SB_ASSIGN_OR_RETURN(runner->weights_,
                      LoadWeights(*setup.checkpoint, *setup.facts, shards, progress));
  SB_RETURN_IF_ERROR(runner->Build());
  SB_RETURN_IF_ERROR(runner->BuildExchanges());
  return runner;
}

WeightShards RankRunner::ShardsOf(const LayerCut& cut) const {
  const auto shard = [&](AxisSet axes) {
    return Shard{.index = mesh().Position(rank_, axes), .count = mesh().Size(axes)};
  };
  WeightShards shards{
      .heads = shard(cut.heads),
      .expert_width = shard(cut.expert_width),
      .shared_width = shard(Fused(cut.shared) ? cut.expert_width : cut.shared_width),
      .dense_width = shard(cut.dense_width)};
  if (cut.slots_per_rank == 0) return shards;
  shards.slots.emplace();
  const int64_t first = mesh().Position(rank_, cut.experts) * cut.slots_per_rank;
  const int64_t experts =
      cut.slots - layout_.config.redundant_experts;  // slot s holds expert s mod experts
  for (int64_t s = first; s < first + cut.slots_per_rank; ++s) {
    shards.slots->emplace_back(static_cast<int32_t>(s % experts));
  }
  return shards;
}

// Placements, cache places and rotation tables of all layers; the draft layer comes last.
Status RankRunner::Build() {
  for (const KindPlan& kind : layout_.kinds) {
    placements_.emplace_back();
    if (kind.cut.slots == 0) continue;
    const int redundant = layout_.config.redundant_experts;
    SB_ASSIGN_OR_RETURN(
        ExpertPlacement placement,
        ExpertPlacement::Create({.experts = static_cast<int>(kind.cut.slots) - redundant,
                                 .redundant = redundant,
                                 .ranks = mesh().Size(kind.cut.experts)}));
    placements_.back() = std::move(placement);
  }
  CacheShape shape{.kv_dtype = setup_.kv_dtype};
  const auto add = [&](const LayerFacts& layer, LayerWeights& w, size_t index) {
    const LayerCut& cut = layout_.kinds[model_.kind_of_layer[index]].cut;
    AppendFusedShared(cut, &w);
    pairs_.emplace_back(static_cast<size_t>(cut.slots), 0);
    if (const auto* attention = std::get_if<AttentionFacts>(&layer.mixer)) {
      const AttentionFacts& a = *attention;
      cache_of_layer_.push_back(shape.attention.size());
      shape.attention.push_back({LocalKvHeads(a, w), a.head_dim, a.head_dim});
      ropes_.push_back(MakeRopeTable(a.rope, setup_.bf16_rope));
      return;
    }
    if (const auto* latent = std::get_if<LatentAttentionFacts>(&layer.mixer)) {
      cache_of_layer_.push_back(shape.attention.size());
      shape.attention.push_back({1, latent->cached(), 0});  // values are the front of the keys
      ropes_.emplace_back();
      return;
    }
    const DeltaNetFacts& d = std::get<DeltaNetFacts>(layer.mixer);
    cache_of_layer_.push_back(shape.linear.size());
    shape.linear.push_back({(d.conv_kernel - 1) * LocalConvChannels(d, w),
                            LocalValueHeads(w) * d.key_dim * d.value_dim});
    ropes_.emplace_back();
  };
  for (size_t l = 0; l < facts_.layers.size(); ++l) add(facts_.layers[l], weights_.layers[l], l);
  if (weights_.mtp) add(*facts_.mtp, weights_.mtp->layer, facts_.layers.size());
  SB_ASSIGN_OR_RETURN(CachePool pool, CachePool::Create(shape, setup_.budget.size()));
  cache_ = std::make_unique<CachePool>(std::move(pool));
  return OkStatus();
}

Status RankRunner::BuildExchanges() {
  for (size_t k = 0; k < layout_.kinds.size(); ++k) {
    const KindPlan& kind = layout_.kinds[k];
    exchanges_.emplace_back();
    for (size_t p = 0; p < kind.phases.size(); ++p) {
      exchanges_.back().emplace_back();
      const PhasePlan& phase = kind.phases[p];
      if (!phase.context.contract) continue;
      const int shared = Fused(kind.cut.shared) ? 1 : 0;
      const int64_t latent = model_.facts.kinds[k].latent;
      const ExchangeOptions options{
          .slots = static_cast<int>(kind.cut.slots_per_rank) + shared,
          .hidden = static_cast<int>(latent > 0 ? latent : facts_.hidden),
          .top_k = static_cast<int>(model_.facts.kinds[k].moe->top_k) + shared,
          .capacity = layout_.capacity[static_cast<size_t>(layout_.phases[p])],
          .activation = facts_.activation,
          .precision = setup_.expert_activations,
          .faults = setup_.row_faults};
      SB_ASSIGN_OR_RETURN(exchanges_.back().back(),
                          ExpertExchange::Create(*phase.context.contract, *comm_,
                                                 mesh().Group(rank_, kind.cut.experts), options));
    }
  }
  return OkStatus();
}

RankMemory RankRunner::memory() const {
  return {.weights = weights_.bytes,
          .size = cache_->size(),
          .page_bytes = kBlockTokens * cache_->shape().bytes_per_token(),
          .slot_bytes = cache_->shape().bytes_per_sequence()};
}

MathContext RankRunner::Context() {
  return {.ops = *ops_,
          .scratch = scratch_,
          .hidden = facts_.hidden,
          .norm_eps = static_cast<float>(facts_.norm_eps),
          .norm_offset = facts_.norm_offset,
          .activation = facts_.activation,
          .chunked_delta = setup_.chunked_delta,
          .expand_latents = setup_.expand_latents};
}

Result<StepOutput> RankRunner::Execute(const StepCommand& command) {
  if (command.kind == StepCommand::Kind::kCountPairs) {
    StepOutput output;
    SB_ASSIGN_OR_RETURN(output.pairs, CollectPairs());
    return output;
  }
  SB_RETURN_IF_ERROR(Check(command));
  for (const StateCopy& c : command.copies) {
    if (c.part == part_) cache_->CopyState(c.from, c.to);
  }
  for (const Window& w : command.windows) {
    const bool begins = w.past == 0 && command.kind == StepCommand::Kind::kRun;
    if (begins && w.part == part_) cache_->ClearState(w.slot);
  }
  tracing_ = command.trace;
  layer_limit_ = command.layers;
  trace_.clear();
  Result<StepOutput> output =
      command.kind == StepCommand::Kind::kDraft ? RunDraft(command) : Run(command);
  if (tracing_ && output.ok()) SB_RETURN_IF_ERROR(CollectTrace(&output->trace));
  return output;
}

// All windows, also those of other parts: ranks refuse alike.
Status RankRunner::Check(const StepCommand& command) const {
  for (const Window& w : command.windows) {
    for (TokenId id : w.tokens) {
      if (id >= 0 && id < facts_.vocab) continue;
      return InvalidArgument({.what = "token id outside the vocabulary",
                              .found = std::to_string(id),
                              .expected = fmt::format("an id in [0, {})", facts_.vocab)});
    }
    const int64_t length = w.past + std::ssize(w.tokens);
    if (length > facts_.max_position) {
      return InvalidArgument({.what = "sequence longer than the model's context",
                              .found = fmt::format("{} tokens", length),
                              .expected = fmt::format("at most {}", facts_.max_position)});
    }
    SB_CHECK(std::ssize(w.pages) * kBlockTokens >= length) << w.pages.size();
  }
  return OkStatus();
}

RankRunner::Flat RankRunner::Flatten(const StepCommand& command) const {
  Flat flat{.parts = {.tokens = std::vector<int64_t>(static_cast<size_t>(parts_), 0),
                      .multiple = layout_.row_multiple,
                      .equal = layout_.equal_rows},
            .phase = command.phase};
  int64_t place = 0;
  for (const Window& w : command.windows) {
    const int64_t count = std::ssize(w.tokens);
    const int64_t take = w.logits == LogitRows::kNone  ? 0
                         : w.logits == LogitRows::kAll ? count
                                                       : std::min<int64_t>(count, 1);
    flat.parts.tokens[static_cast<size_t>(w.part)] += count;
    flat.logits.push_back({w.part, take});
    flat.tokens.push_back({w.part, count});
    place += count;
    if (w.part != part_) continue;
    const int64_t first = std::ssize(flat.ids);
    flat.spans.push_back({.first = first, .count = count, .past = w.past});
    for (int64_t i = 0; i < count; ++i) {
      flat.ids.push_back(w.tokens[static_cast<size_t>(i)]);
      flat.positions.push_back(static_cast<int32_t>(w.past + i));
      flat.places.push_back(place - count + i);
      if (i >= count - take) flat.wanted.push_back(first + i);
    }
    flat.windows.push_back(&w);
    flat.block_tables.push_back(w.pages.data());
    flat.rolls_back |= !w.after.empty();
  }
  return flat;
}

Status RankRunner::RunLayer(size_t layer, const Flat& flat, const RowLayout& rows,
                            SnapshotBank* bank, float* x) {
  const bool draft = layer == facts_.layers.size();
  const LayerFacts& facts = draft ? *facts_.mtp : facts_.layers[layer];
  const size_t kind_index = model_.kind_of_layer[layer];
  const KindPlan& kind = layout_.kinds[kind_index];
  const PhasePlan* phase = kind.phase(flat.phase);
  SB_CHECK(phase != nullptr) << "no plan for " << ToString(flat.phase);
  LayerRun run{
      .layer = static_cast<int>(layer),
      .facts = &facts,
      .weights = draft ? &weights_.mtp->layer : &weights_.layers[layer],
      .rope = &ropes_[layer],
      .batch = {.tokens = rows.tokens(), .sequences = flat.spans, .positions = flat.positions},
      .cut = &kind.cut,
      .placement = placements_[kind_index] ? &*placements_[kind_index] : nullptr,
      .exchange = exchanges_[kind_index][static_cast<size_t>(phase - kind.phases.data())].get(),
      .bank = facts_.mixes ? bank : nullptr,
      .pairs = pairs_[layer]};
  const size_t place = cache_of_layer_[layer];
  std::vector<float*> conv;
  std::vector<float*> recurrent;
  std::vector<float*> conv_after;
  std::vector<float*> recurrent_after;
  if (facts.is_attention()) {
    run.attention = {.kv = cache_->kv(place), .block_tables = flat.block_tables};
  } else {
    for (const Window* w : flat.windows) {
      conv.push_back(cache_->conv(place, w->slot));
      recurrent.push_back(cache_->recurrent(place, w->slot));
      if (!flat.rolls_back) continue;
      for (size_t i = 0; i < w->tokens.size(); ++i) {
        const bool kept = !w->after.empty();  // else the state advances in place
        conv_after.push_back(kept ? cache_->conv(place, w->after[i]) : nullptr);
        recurrent_after.push_back(kept ? cache_->recurrent(place, w->after[i]) : nullptr);
      }
    }
    run.delta = {.conv = conv,
                 .recurrent = recurrent,
                 .conv_after = conv_after,
                 .recurrent_after = recurrent_after};
  }
  const RankWorld world{.mesh = &mesh(),
                        .rank = rank_,
                        .comm = comm_,
                        .rows = &rows,
                        .rows_in = layout_.rows_in,
                        .first_replica = setup_.first_replica,
                        .faults = setup_.row_faults,
                        .precision = setup_.expert_activations};
  std::vector<ExitAddend> addends;
  LayerExecutor executor(Context(), world, &observer_, tracing_ ? &addends : nullptr);
  SB_RETURN_IF_ERROR(executor.Run(phase->plan, run, x));
  if (tracing_) Record(layer, flat, rows, x, std::move(addends));
  return OkStatus();
}

// What this rank holds of the layer's output, in places of the step.
void RankRunner::Record(size_t layer, const Flat& flat, const RowLayout& rows, const float* x,
                        std::vector<ExitAddend> addends) {
  const std::vector<int64_t> held = rows.RowsOf(rank_, layout_.rows_in);
  std::vector<int64_t> tokens;
  for (int64_t row : held) {
    if (!rows.IsPadding(row))
      tokens.push_back(flat.places[static_cast<size_t>(row - rows.first())]);
  }
  // Padding rows come last.
  const size_t floats = tokens.size() * static_cast<size_t>(facts_.hidden);
  addends.push_back({.name = {}, .rows = {x, x + floats}});
  for (ExitAddend& a : addends) {
    a.rows.resize(floats);
    trace_.push_back({.rank = rank_.value(),
                      .layer = static_cast<int32_t>(layer),
                      .addend = std::string(a.name),
                      .tokens = tokens,
                      .data = std::move(a.rows)});
  }
}

// On rank 0 those of all ranks.
Result<std::vector<std::vector<int64_t>>> RankRunner::CollectPairs() {
  std::vector<std::vector<int64_t>> sums = pairs_;
  if (comm_ == nullptr) return sums;
  const std::vector<RankId> all = mesh().Group(rank_, mesh().all());
  std::vector<int64_t> own;
  if (rank_ != RankId(0)) {
    for (const auto& slots : pairs_) own.insert(own.end(), slots.begin(), slots.end());
  }
  std::vector<int64_t> send(all.size(), 0);
  send[0] = std::ssize(own) * static_cast<int64_t>(sizeof(int64_t));
  std::vector<std::byte> received;
  std::vector<int64_t> sizes;
  SB_RETURN_IF_ERROR(
      comm_->AllToAllLearn(all, std::as_bytes(std::span(own)), send, received, sizes));
  const std::byte* next = received.data();  // [ranks but this one, layers, slots]
  while (next != received.data() + received.size()) {
    for (auto& slots : sums) {
      for (int64_t& sum : slots) {
        int64_t count = 0;
        std::memcpy(&count, next, sizeof(count));
        next += sizeof(count);
        sum += count;
      }
    }
  }
  return sums;
}

Status RankRunner::CollectTrace(std::vector<AddendTrace>* trace) {
  *trace = std::move(trace_);
  if (comm_ == nullptr) return OkStatus();
  const std::vector<RankId> all = mesh().Group(rank_, mesh().all());
  const std::vector<std::byte> bytes =
      rank_ == RankId(0) ? std::vector<std::byte>() : EncodeTrace(*trace);
  std::vector<int64_t> send(all.size(), 0);
  send[0] = static_cast<int64_t>(bytes.size());
  std::vector<std::byte> received;
  std::vector<int64_t> sizes;
  SB_RETURN_IF_ERROR(comm_->AllToAllLearn(all, bytes, send, received, sizes));
  std::span<const std::byte> left = received;
  for (int64_t size : sizes) {
    if (size == 0) continue;
    SB_ASSIGN_OR_RETURN(std::vector<AddendTrace> theirs,
                        DecodeTrace(left.first(static_cast<size_t>(size))));
    left = left.subspan(static_cast<size_t>(size));
    std::move(theirs.begin(), theirs.end(), std::back_inserter(*trace));
  }
  return OkStatus();
}

void RankRunner::FinalNorm(const float* x, const SnapshotBank& bank, std::span<const int64_t> rows,
                           float* y) {
  Scratch::Scope scope(scratch_);
  const auto pick = [&](const float* in, int64_t width, float* out) {
    ops_->GatherRows({.in = in,
                      .in_stride = width,
                      .width = width,
                      .rows = rows,
                      .out = out,
                      .out_stride = width});
  };
  const auto count = static_cast<int64_t>(rows.size());
  pick(x, facts_.hidden, y);
  if (facts_.mixes) {
    const int64_t width = bank.snapshots * facts_.hidden;
    float* snapshots = scratch_.Take(count * width);  // [rows, snapshots, hidden]
    pick(bank.rows, width, snapshots);
    RunMix(Context(), weights_.trunk.vector(Role::kOutputMixNorm),
           weights_.trunk.vector(Role::kOutputMixQuery),
           {.rows = snapshots, .snapshots = bank.snapshots}, y, count, y);
  }
  RunNorm(Context(), weights_.trunk.vector(Role::kFinalNorm), y, count, y);
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

Status RankRunner::Collect(std::span<const Piece> pieces, int64_t width, std::vector<float>* rows) {
  if (!leads_part()) rows->clear();
  if (parts_ == 1 || !leads_part()) return OkStatus();
  std::vector<int64_t> bytes(static_cast<size_t>(parts_), 0);
  for (const Piece& p : pieces) bytes[static_cast<size_t>(p.part)] += p.rows * width * kFloatBytes;
  std::vector<int64_t> next(bytes.size(), 0);  // first float of each part that is not taken yet
  int64_t total = 0;
  for (size_t p = 0; p < bytes.size(); ++p) {
    next[p] = total;
    total += bytes[p] / kFloatBytes;
  }
  std::vector<float> all(static_cast<size_t>(total));
  SB_RETURN_IF_ERROR(comm_->AllGather(mesh().Group(rank_, layout_.parallel.attn_dp), BytesOf(*rows),
                                      bytes, WritableBytesOf(all)));
  rows->clear();
  for (const Piece& p : pieces) {
    const auto begin = all.begin() + next[static_cast<size_t>(p.part)];
    rows->insert(rows->end(), begin, begin + p.rows * width);
    next[static_cast<size_t>(p.part)] += p.rows * width;
  }
  return OkStatus();
}

Status RankRunner::Answer(const StepCommand& command, const Flat& flat, StepOutput* output) {
  if (command.return_hidden) output->hidden = kept_;
  SB_RETURN_IF_ERROR(Collect(flat.logits, facts_.vocab, &output->logits));
  if (!command.return_hidden) return OkStatus();
  return Collect(flat.tokens, facts_.hidden, &output->hidden);
}

Result<StepOutput> RankRunner::Run(const StepCommand& command) {
  const Flat flat = Flatten(command);
  const RowLayout layout(mesh(), layout_.parallel.attn_dp, rank_, flat.parts);
  const int64_t tokens = layout.tokens();
  const int64_t rows = static_cast<int64_t>(layout.RowsOf(rank_, layout_.rows_in).size());
  const int64_t hidden = facts_.hidden;
  Scratch::Scope scope(scratch_);
  float* x = scratch_.Take(rows * hidden);  // [rows, hidden], padding last
  ops_->Embed(weights_.trunk.matrix(Role::kEmbedding), flat.ids, x);
  std::fill(x + tokens * hidden, x + rows * hidden, 0.f);
  SnapshotBank bank{.rows = scratch_.Take(rows * hidden * Snapshots(facts_))};
  const size_t layers = layer_limit_ == 0
                            ? facts_.layers.size()
                            : std::min(static_cast<size_t>(layer_limit_), facts_.layers.size());
  for (size_t l = 0; l < layers; ++l) SB_RETURN_IF_ERROR(RunLayer(l, flat, layout, &bank, x));

  StepOutput output;
  if (leads_part()) {
    const int64_t count = std::ssize(flat.wanted);
    float* picked = scratch_.Take(count * hidden);  // [wanted, hidden]
    FinalNorm(x, bank, flat.wanted, picked);
    Logits(picked, count, &output.logits);
  }
  kept_places_.clear();
  kept_.clear();
  if (command.keep_hidden || command.return_hidden) {
    std::vector<int64_t> all(static_cast<size_t>(tokens));
    std::iota(all.begin(), all.end(), 0);
    kept_.resize(static_cast<size_t>(tokens * hidden));
    FinalNorm(x, bank, all, kept_.data());
    kept_places_ = flat.places;
  }
  SB_RETURN_IF_ERROR(Answer(command, flat, &output));
  return output;
}

Result<StepOutput> RankRunner::RunDraft(const StepCommand& command) {
  SB_CHECK(has_draft());
  const int64_t hidden = facts_.hidden;
  const Flat flat = Flatten(command);
  const RowLayout layout(mesh(), layout_.parallel.attn_dp, rank_, flat.parts);
  const int64_t tokens = layout.tokens();
  const int64_t rows = static_cast<int64_t>(layout.RowsOf(rank_, layout_.rows_in).size());

  Scratch::Scope scope(scratch_);
  const MathContext context = Context();
  const LayerWeights& module = weights_.mtp->module;
  float* x = scratch_.Take(rows * hidden);             // [rows, hidden]
  float* previous = scratch_.Take(tokens * hidden);    // [tokens, hidden]
  float* joined = scratch_.Take(tokens * 2 * hidden);  // [tokens, embedding | hidden]
  ops_->Embed(weights_.trunk.matrix(Role::kEmbedding), flat.ids, x);
  float* next = previous;
  for (const Window* w : flat.windows) {
    const auto found = std::lower_bound(kept_places_.begin(), kept_places_.end(), w->hidden);
    const int64_t row = found - kept_places_.begin();
    const int64_t count = std::ssize(w->tokens);
    SB_CHECK(row + count <= std::ssize(kept_places_) && *found == w->hidden) << w->hidden;
    next = std::copy_n(kept_.data() + row * hidden, count * hidden, next);
  }
  const auto norm_into = [&](Role role, const float* from, float* y) {
    ops_->RmsNorm({.x = from,
                   .x_stride = hidden,
                   .rows = tokens,
                   .width = hidden,
                   .weight = module.vector(role).data(),
                   .offset = facts_.norm_offset,
                   .eps = context.norm_eps,
                   .y = y,
                   .y_stride = 2 * hidden});
  };
  norm_into(Role::kMtpEmbedNorm, x, joined);
  norm_into(Role::kMtpHiddenNorm, previous, joined + hidden);
  ops_->MatMul({.x = joined,
                .x_stride = 2 * hidden,
                .tokens = tokens,
                .w = module.matrix(Role::kMtpProject),
                .y = x,
                .y_stride = hidden});
  std::fill(x + tokens * hidden, x + rows * hidden, 0.f);
  SB_RETURN_IF_ERROR(RunLayer(facts_.layers.size(), flat, layout, nullptr, x));

  kept_.resize(static_cast<size_t>(tokens * hidden));
  kept_places_ = flat.places;
  RunNorm(context, module.vector(Role::kMtpFinalNorm), x, tokens, kept_.data());
  StepOutput output;
  if (leads_part()) {
    const int64_t count = std::ssize(flat.wanted);
    float* picked = scratch_.Take(count * hidden);  // [wanted, hidden]
    ops_->GatherRows({.in = kept_.data(),
                      .in_stride = hidden,
                      .width = hidden,
                      .rows = flat.wanted,
                      .out = picked,
                      .out_stride = hidden});
    Logits(picked, count, &output.logits);
  }
  SB_RETURN_IF_ERROR(Answer(command, flat, &output));
  return output;
}

}  // namespace signalbox
