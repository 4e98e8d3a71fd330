// SPDX-License-Identifier: Apache-2.0
#include "signalbox/plan/simulate_test.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "signalbox/plan/toy_layer_test.h"

namespace signalbox {
namespace {

using namespace toy;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// --------------------------------------------------------------------------------------- registers
struct Lane {
  int id = -1;  // in the space that the steps have mapped it to; -1: nobody's
  double weight = 0;
  bool shared = false;
};
struct Row {
  int64_t index = -1;  // among all rows of the world; -1: unwritten memory behind the valid ones
  Vec x;
  std::vector<Lane> lanes;  // of a routing or a dispatched row
  int sender = -1;          // of a dispatched row
  int slot = -1;            // expert-major rows: local slot, or kSharedSlot
};
constexpr int kSharedSlot = 1 << 20;
using Rows = std::vector<Row>;

struct Registers {
  std::map<Reg, Rows> rows;
  std::vector<Rows> bank;  // snapshots
  SharedSlot shared_slot = SharedSlot::kNone;
};

class World {
 public:
  World(const CheckContext& context, const Mesh& mesh, AxisSet sequence_axes, int row_multiple,
        const ToyWorld& toy)
      : context_(context), mesh_(mesh), toy_(toy), layer_(toy.seed), sequence_axes_(sequence_axes) {
    const int homes = mesh.Size(sequence_axes);
    const AxisSet split = mesh.all() - sequence_axes;
    for (int home = 0; home < homes; ++home) {
      int64_t count = 0;
      for (int s = home; s < toy.sequences; s += homes) {
        for (int t = 0; t < toy.tokens; ++t, ++count) {
          all_.push_back({.sequence = s, .token = t});
        }
      }
      for (; count % row_multiple != 0; ++count) all_.push_back({});
      const int ways = mesh.Size(split);
      const int64_t block = std::max<int64_t>(1, count / ways);
      for (int64_t i = 0; i < count; ++i) {
        Position& p = all_[all_.size() - size_t(count - i)];
        p.rank = RankAt(home, std::min<int>(int(i / block), ways - 1));
      }
    }
    ranks_.resize(size_t(mesh.ranks()));
    std::mt19937 random(toy.seed + 7);
    std::normal_distribution<double> normal;
    std::map<std::pair<int, int>, Vec> inputs;
    for (int s = 0; s < toy.sequences; ++s) {
      for (int t = 0; t < toy.tokens; ++t) {
        for (int b = 0; b < 2; ++b) {
          Vec x(kHidden);
          for (double& v : x) v = normal(random);
          inputs[{s * 2 + b, t}] = x;
        }
      }
    }
    for (Position& p : all_) {
      p.input = p.sequence < 0 ? Vec(kHidden) : inputs[{p.sequence * 2, p.token}];
      p.snapshot = p.sequence < 0 ? Vec(kHidden) : inputs[{p.sequence * 2 + 1, p.token}];
    }
  }

  void Run(const std::vector<Step>& steps, AxisSet rows_in) {
    for (int r = 0; r < mesh_.ranks(); ++r) {
      ranks_[size_t(r)].rows[Reg::kResidual] = Load(r, rows_in, &Position::input);
      ranks_[size_t(r)].bank = {Load(r, rows_in, &Position::snapshot)};
    }
    for (const Step& step : steps) {
      std::vector<Registers> next = ranks_;
      for (int r = 0; r < mesh_.ranks(); ++r) {
        Apply(step, step.dst, step.source(), r, next[size_t(r)]);
        if (step.also != Reg::kCount) Apply(step, step.also, step.also, r, next[size_t(r)]);
      }
      ranks_ = std::move(next);
    }
  }

  // Output of each real row by (sequence, token), from every rank that holds it.
  std::multimap<std::pair<int, int>, Vec> Outputs() const {
    std::multimap<std::pair<int, int>, Vec> out;
    for (const Registers& rank : ranks_) {
      for (const Row& row : rank.rows.at(Reg::kResidual)) {
        const Position& p = all_[size_t(row.index)];
        if (p.sequence >= 0) out.emplace(std::pair{p.sequence, p.token}, row.x);
      }
    }
    return out;
  }
  int padding_rows_computed() const { return padding_rows_computed_; }

 private:
  struct Position {
    int sequence = -1;  // -1: a padding row
    int token = 0;
    int rank = 0;  // whose coordinates are those of the row
    Vec input, snapshot;
  };

  // The rank at that position along the sequence axes and along all others.
  int RankAt(int home, int place) const {
    for (int r = 0; r < mesh_.ranks(); ++r) {
      if (mesh_.Position(RankId(r), sequence_axes_) == home &&
          mesh_.Position(RankId(r), mesh_.all() - sequence_axes_) == place) {
        return r;
      }
    }
    throw Unfit("rank");
  }
  bool Holds(int rank, AxisSet rows, int64_t index) const {
    return mesh_.Position(RankId(all_[size_t(index)].rank), rows) ==
           mesh_.Position(RankId(rank), rows);
  }
  Rows Load(int rank, AxisSet rows, Vec Position::*what) const {
    Rows out;
    for (size_t i = 0; i < all_.size(); ++i) {
      if (Holds(rank, rows, int64_t(i))) out.push_back({.index = int64_t(i), .x = all_[i].*what});
    }
    return out;
  }
  Rows Kept(int rank, AxisSet axes, Rows rows) const {
    std::erase_if(rows, [&](const Row& row) { return !Holds(rank, axes, row.index); });
    return rows;
  }
  Part PartOf(int rank, AxisSet axes) const {
    return {mesh_.Position(RankId(rank), axes), mesh_.Size(axes)};
  }
  const Rows& Get(int rank, Reg reg) const {
    const auto found = ranks_[size_t(rank)].rows.find(reg);
    Fit(found != ranks_[size_t(rank)].rows.end(), "register");
    return found->second;
  }

  int Slots() const { return kExperts + toy_.redundant_slots; }
  int SlotOwner(int slot, int n) const { return slot * n / Slots(); }
  int FirstSlot(int position, int n) const {
    int slot = 0;
    while (slot < Slots() && SlotOwner(slot, n) < position) ++slot;
    return slot;
  }

  using RowFunction = std::function<Vec(const Row&)>;
  Rows Map(int rank, Reg src, const RowFunction& f) const {
    Rows out = Get(rank, src);
    for (Row& row : out) row.x = f(row);
    return out;
  }

  void Apply(const Step& step, Reg dst, Reg src, int rank, Registers& out);
  Rows Sum(const Step& step, Reg src, int rank) const;
  Rows Moved(const Step& step, int rank, const std::function<const Rows&(int)>& of) const;
  void AppendShared(const Step& step, Registers& out) const;
  Rows Mixer(const Step& step, int rank) const;
  Rows Route(const Step& step, int rank) const;
  Rows Mix(const Step& step, int rank) const;
  Rows Place(const Step& step, int rank) const;
  Rows Experts(const Step& step, int rank);
  Rows Dispatch(const Step& step, int rank);
  Rows Renumber(const Step& step, int rank) const;
  Rows Regroup(const Step& step, int rank) const;
  Rows RunExperts(const Step& step, int rank);
  Rows Combine(const Step& step, int rank) const;

  const CheckContext& context_;
  const Mesh& mesh_;
  const ToyWorld toy_;
  const Layer layer_;
  const AxisSet sequence_axes_;
  std::vector<Position> all_;
  std::vector<Registers> ranks_;
  AxisSet dispatched_over_;
  size_t dispatched_width_ = 0;
  int padding_rows_computed_ = 0;
};

Rows World::Sum(const Step& step, Reg src, int rank) const {
  Rows out = Get(rank, src);
  for (Row& row : out) row.x.clear();
  for (RankId peer : mesh_.Group(RankId(rank), step.axes)) {
    const Rows& rows = Get(peer.value(), src);
    Fit(rows.size() == out.size(), "rows");
    for (size_t i = 0; i < out.size(); ++i) AddTo(out[i].x, rows[i].x);
  }
  return out;
}

// kSlice keeps rows, kAllGather collects those of the group, in the order of the batch.
Rows World::Moved(const Step& step, int rank, const std::function<const Rows&(int)>& of) const {
  if (step.kind == StepKind::kSlice) return Kept(rank, step.axes, of(rank));
  Rows rows;
  for (RankId peer : mesh_.Group(RankId(rank), step.axes)) {
    const Rows& part = of(peer.value());
    rows.insert(rows.end(), part.begin(), part.end());
  }
  std::ranges::stable_sort(rows, [](const Row& a, const Row& b) { return a.index < b.index; });
  return rows;
}

void World::AppendShared(const Step& step, Registers& out) const {
  for (Row& row : out.rows[step.dst]) {
    const double gate = step.gated ? layer_.Gate(row.x) : 1;
    const double weight = double(step.coefficient.num) / double(step.coefficient.den);
    row.lanes.push_back(
        {.id = kSharedSlot, .weight = gate * weight / mesh_.Size(step.axes), .shared = true});
  }
  out.shared_slot = step.slot;
}

// A causal mean per sequence under a non-linear map per head.
Rows World::Mixer(const Step& step, int rank) const {
  const Part part = PartOf(rank, step.axes);
  std::map<int, std::pair<Vec, int>> seen;
  return Map(rank, step.source(), [&](const Row& row) {
    const int sequence = all_[size_t(row.index)].sequence;
    Vec y(kHidden);
    if (sequence < 0) return y;
    auto& [sum, count] = seen[sequence];
    AddTo(sum, row.x);
    ++count;
    Vec mean = sum;
    for (double& v : mean) v /= count;
    for (int h = part.begin(kHeads); h < part.end(kHeads); ++h) {
      Vec z = layer_.heads[size_t(h)] * mean;
      for (double& v : z) v = std::tanh(v);
      AddTo(y, z);
    }
    return y;
  });
}

Rows World::Route(const Step& step, int rank) const {
  Rows out = Get(rank, step.source());
  for (Row& row : out) {
    const Vec logits = layer_.router * row.x;
    std::vector<int> order(kExperts);
    for (int i = 0; i < kExperts; ++i) order[size_t(i)] = i;
    std::ranges::stable_sort(order,
                             [&](int a, int b) { return logits[size_t(a)] > logits[size_t(b)]; });
    double total = 0;
    for (int k = 0; k < kTopK; ++k) total += std::exp(logits[size_t(order[size_t(k)])]);
    const double factor = double(step.coefficient.num) / double(step.coefficient.den);
    for (int k = 0; k < kTopK; ++k) {
      const int e = order[size_t(k)];
      row.lanes.push_back({.id = e, .weight = factor * std::exp(logits[size_t(e)]) / total});
    }
  }
  return out;
}

Rows World::Mix(const Step& step, int rank) const {
  Rows out = Get(rank, step.source());
  for (size_t i = 0; i < out.size(); ++i) {
    std::vector<Vec> candidates = {out[i].x};
    for (const Rows& snapshot : ranks_[size_t(rank)].bank) {
      Fit(snapshot.size() == out.size(), "snapshots");
      candidates.push_back(snapshot[i].x);
    }
    Vec mixed(kHidden);
    double total = 0;
    for (const Vec& c : candidates) {
      const double p = std::exp(std::tanh(c.at(static_cast<size_t>(step.norm))));
      total += p;
      AddTo(mixed, c, p);
    }
    for (double& v : mixed) v /= total;
    out[i].x = mixed;
  }
  return out;
}

// Slot s < kExperts holds expert s; the slots behind hold the first experts once more.
Rows World::Place(const Step& step, int rank) const {
  Rows out = Get(rank, step.dst);
  for (Row& row : out) {
    for (Lane& lane : row.lanes) {
      if (lane.shared || lane.id < 0 || lane.id >= toy_.redundant_slots) continue;
      const int64_t choice = row.index + mesh_.Position(RankId(rank), step.axes);
      if (choice % 2 == 1) lane.id += kExperts;
    }
  }
  return out;
}

Rows World::Experts(const Step& step, int rank) {
  const Part ep = PartOf(rank, step.axes);
  const Part width = PartOf(rank, step.width_axes);
  const Rows& routing = Get(rank, Reg::kRouting);
  const SharedSlot slot = ranks_[size_t(rank)].shared_slot;
  Rows out = Get(rank, step.source());
  Fit(routing.size() == out.size(), "routing");
  for (size_t i = 0; i < out.size(); ++i) {
    const Vec x = out[i].x;
    Vec y(x.size());
    for (const Lane& lane : routing[i].lanes) {
      if (lane.shared) {
        if (slot == SharedSlot::kOneRank && ep.share != 0) continue;
        AddTo(y, layer_.shared.Run(x, width), lane.weight);
      } else if (lane.id >= 0 && SlotOwner(lane.id, ep.shares) == ep.share) {
        AddTo(y, layer_.Expert(lane.id % kExperts, x, width), lane.weight);
      } else {
        continue;
      }
      padding_rows_computed_ += all_[size_t(out[i].index)].sequence < 0;
    }
    out[i].x = y;
  }
  return out;
}

// Rows for this rank from all ranks of its group, in the contract's shape and spelling.
Rows World::Dispatch(const Step& step, int rank) {
  const Part me = PartOf(rank, step.axes);
  const bool dedup = context_.contract && DedupRows(context_.contract->shape);
  const bool local = context_.contract && context_.contract->ids == ReceivedIds::kLocal;
  dispatched_over_ = step.axes;
  Rows out;
  for (RankId sender : mesh_.Group(RankId(rank), step.axes)) {
    const Registers& from = ranks_[size_t(sender.value())];
    const Rows& rows = Get(sender.value(), step.source());
    const Rows& routing = Get(sender.value(), Reg::kRouting);
    Fit(routing.size() == rows.size(), "routing");
    const int home = PartOf(sender.value(), step.axes).share;
    for (size_t i = 0; i < rows.size(); ++i) {
      Row row = rows[i];
      dispatched_width_ = row.x.size();
      row.sender = sender.value();
      row.lanes = routing[i].lanes;
      Rows per_expert;
      for (Lane& lane : row.lanes) {
        const int owner = lane.shared   ? (from.shared_slot == SharedSlot::kOneRank ? 0 : home)
                          : lane.id < 0 ? -1
                                        : SlotOwner(lane.id, me.shares);
        const bool mine = owner == me.share;
        const int slot = lane.shared ? kSharedSlot : lane.id - FirstSlot(me.share, me.shares);
        if (mine) {
          per_expert.push_back(row);
          per_expert.back().lanes = {lane};
          per_expert.back().slot = slot;
          if (step.weigh) {
            for (double& v : per_expert.back().x) v *= lane.weight;
          }
        }
        if (local || lane.shared) lane.id = mine ? slot : -1;
      }
      padding_rows_computed_ += all_[size_t(row.index)].sequence < 0 ? int(per_expert.size()) : 0;
      if (!dedup) {
        out.insert(out.end(), per_expert.begin(), per_expert.end());
      } else if (!per_expert.empty()) {
        if (step.weigh) row.x = per_expert[0].x;
        out.push_back(row);
      }
    }
  }
  if (context_.contract && context_.contract->tail == TailRows::kPoison) {
    out.push_back({.x = Vec(kHidden, kNaN), .lanes = {{.id = 0, .weight = kNaN}}, .slot = 0});
  }
  return out;
}

Rows World::Renumber(const Step& step, int rank) const {
  const Part me = PartOf(rank, dispatched_over_);
  const int first = FirstSlot(me.share, me.shares);
  Rows out = Get(rank, step.dst);
  for (Row& row : out) {
    for (Lane& lane : row.lanes) {
      if (lane.shared || lane.id < 0) continue;
      if (step.ids == IdSpace::kGlobal) {
        lane.id += first;
      } else {
        lane.id = SlotOwner(lane.id, me.shares) == me.share ? lane.id - first : -1;
      }
    }
  }
  return out;
}

// The out-of-the-ordinary cases of kPermute are the way in to expert-major and the way back.
Rows World::Regroup(const Step& step, int rank) const {
  const Rows& rows = Get(rank, step.dst);
  Rows out;
  if (step.dst == Reg::kDispatched) {
    for (const Row& row : rows) {
      if (row.index < 0) continue;
      if (row.slot >= 0 || DedupRows(step.shape)) {
        out.push_back(row);
        continue;
      }
      for (const Lane& lane : row.lanes) {
        if (lane.id < 0) continue;
        out.push_back(row);
        out.back().lanes = {lane};
        out.back().slot = lane.id;
      }
    }
    return out;
  }
  for (const Row& row : rows) {
    Row weighed = row;
    if (step.weigh) {
      for (double& v : weighed.x) v *= row.lanes.at(0).weight;
    }
    const auto same = std::ranges::find_if(
        out, [&](const Row& r) { return r.index == row.index && r.sender == row.sender; });
    if (DedupRows(step.shape) && same != out.end()) {
      AddTo(same->x, weighed.x);
    } else {
      out.push_back(weighed);
      if (DedupRows(step.shape)) out.back().slot = -1;
    }
  }
  return out;
}

Rows World::RunExperts(const Step& step, int rank) {
  const Part width = PartOf(rank, step.width_axes);
  const Part me = PartOf(rank, dispatched_over_);
  const int first = FirstSlot(me.share, me.shares);
  const int slots = FirstSlot(me.share + 1, me.shares) - first;
  const RunnerTerms runner = context_.runner.value_or(RunnerTerms{});
  const bool weigh = runner.weights == RunnerWeights::kOptional
                         ? step.weigh
                         : runner.weights == RunnerWeights::kAlways;
  Rows out;
  bool poisoned = false;
  for (const Row& in : Get(rank, Reg::kDispatched)) {
    if (in.index < 0) {
      poisoned = poisoned || (runner.reads_tail && !in.lanes.empty());
      continue;
    }
    Row row = in;
    row.x.assign(in.x.size(), 0);
    for (const Lane& lane : in.lanes) {
      int slot = in.slot;
      if (slot < 0)
        slot = runner.ids == IdSpace::kGlobal && !lane.shared ? lane.id - first : lane.id;
      const double factor = weigh ? lane.weight : 1;
      if (slot == kSharedSlot) {
        AddTo(row.x, layer_.shared.Run(in.x, width), factor);
      } else if (slot >= 0 && slot < slots) {
        AddTo(row.x, layer_.Expert((slot + first) % kExperts, in.x, width), factor);
      }
    }
    out.push_back(row);
  }
  for (Row& row : out) {
    if (poisoned) row.x.assign(row.x.size(), kNaN);
  }
  return out;
}

Rows World::Combine(const Step& step, int rank) const {
  const bool library =
      context_.contract ? context_.contract->weighting != Weighting::kCaller : step.weigh;
  Rows out = Get(rank, Reg::kRouting);
  const Rows routing = out;
  for (Row& row : out) {
    row.x.clear();
    row.lanes.clear();
  }
  for (RankId peer : mesh_.Group(RankId(rank), step.axes)) {
    for (const Row& row : Get(peer.value(), Reg::kExpertOut)) {
      if (row.sender != rank) continue;
      const auto mine =
          std::ranges::find_if(out, [&](const Row& r) { return r.index == row.index; });
      Fit(mine != out.end(), "sender's row");
      AddTo(mine->x, row.x, library ? row.lanes.at(0).weight : 1);
    }
  }
  for (Row& row : out) {
    if (row.x.empty()) row.x.assign(dispatched_width_, 0);
  }
  return out;
}

void World::Apply(const Step& step, Reg dst, Reg src, int rank, Registers& out) {
  const auto map = [&](const RowFunction& f) { out.rows[dst] = Map(rank, src, f); };
  switch (step.kind) {
    case StepKind::kInput:
      if (dst == Reg::kBank) {
        out.bank = {Load(rank, step.axes, &Position::snapshot)};
      } else {
        out.rows[dst] = Load(rank, step.axes, &Position::input);
      }
      return;
    case StepKind::kNorm:
      return map([&](const Row& row) { return layer_.Norm(step.norm, row.x); });
    case StepKind::kMixer:
      out.rows[dst] = Mixer(step, rank);
      return;
    case StepKind::kRoute:
      out.rows[dst] = Route(step, rank);
      out.shared_slot = SharedSlot::kNone;
      return;
    case StepKind::kExperts:
      out.rows[dst] = Experts(step, rank);
      return;
    case StepKind::kShared:
      return map([&](const Row& row) {
        Vec y = layer_.shared.Run(row.x, PartOf(rank, step.axes));
        if (step.gated) {
          for (double& v : y) v *= layer_.Gate(row.x);
        }
        return y;
      });
    case StepKind::kMlp:
      return map([&](const Row& row) { return layer_.mlp.Run(row.x, PartOf(rank, step.axes)); });
    case StepKind::kAdd: {
      Rows& sum = out.rows[dst] = Get(rank, dst);
      const Rows& addend = Get(rank, src);
      Fit(sum.size() == addend.size(), "rows");
      for (size_t i = 0; i < sum.size(); ++i) AddTo(sum[i].x, addend[i].x);
      return;
    }
    case StepKind::kScale:
      return map([&](const Row& row) {
        Vec y(row.x.size());
        AddTo(y, row.x, double(step.coefficient.num) / double(step.coefficient.den));
        return y;
      });
    case StepKind::kAllReduce:
      out.rows[dst] = Sum(step, src, rank);
      return;
    case StepKind::kReduceScatter:
      out.rows[dst] = Kept(rank, step.axes, Sum(step, src, rank));
      return;
    case StepKind::kAllGather:
    case StepKind::kSlice:
      if (dst != Reg::kBank) {
        out.rows[dst] = Moved(step, rank, [&](int r) -> const Rows& { return Get(r, src); });
      }
      for (size_t b = 0; dst == Reg::kBank && b < out.bank.size(); ++b) {
        out.bank[b] =
            Moved(step, rank, [&](int r) -> const Rows& { return ranks_[size_t(r)].bank.at(b); });
      }
      return;
    case StepKind::kDispatch:
      out.rows[dst] = Dispatch(step, rank);
      return;
    case StepKind::kRunExperts:
      out.rows[dst] = RunExperts(step, rank);
      return;
    case StepKind::kCombine:
      out.rows[dst] = Combine(step, rank);
      return;
    case StepKind::kLatentDown:
      return map([&](const Row& row) { return layer_.latent_down * row.x; });
    case StepKind::kLatentUp:
      return map([&](const Row& row) { return layer_.latent_up * row.x; });
    case StepKind::kMix:
      out.rows[dst] = Mix(step, rank);
      return;
    case StepKind::kSnapshot:
      out.bank.push_back(Get(rank, src));
      for (Row& row : out.rows[src]) row.x.assign(row.x.size(), 0);
      return;
    case StepKind::kAppendShared:
      AppendShared(step, out);
      return;
    case StepKind::kRemapIds:
      out.rows[dst] = dst == Reg::kRouting ? Place(step, rank) : Renumber(step, rank);
      return;
    case StepKind::kMaskTail:
      for (Row& row : out.rows[dst]) {
        if (row.index < 0 || all_[size_t(row.index)].sequence < 0) row.lanes.clear();
      }
      return;
    case StepKind::kPermute:
      out.rows[dst] = Regroup(step, rank);
      return;
    case StepKind::kCount:
      break;
  }
  throw Unfit("step");
}

}  // namespace

double Simulate(const LayerPlan& plan, const CheckContext& context, const ToyWorld& toy) {
  constexpr double kUnfit = std::numeric_limits<double>::infinity();
  const Mesh one_rank;
  ToyWorld alone = toy;
  alone.redundant_slots = 0;
  CheckContext plain;
  World model(plain, one_rank, {}, 1, alone);
  model.Run(context.program, {});
  const auto expected = model.Outputs();

  World ranks(context, context.mesh, context.sequence_axes, context.row_multiple, toy);
  try {
    ranks.Run(plan.steps, context.rows_in);
  } catch (const Unfit&) {
    return kUnfit;
  }
  double largest = 0;
  for (const auto& [row, x] : expected) {
    for (double v : x) largest = std::max(largest, std::abs(v));
  }
  double error = 0;
  const auto found = ranks.Outputs();
  for (const auto& [row, x] : expected) {
    if (found.count(row) == 0) return kUnfit;
  }
  for (const auto& [row, x] : found) {
    const Vec& want = expected.find(row)->second;
    if (x.size() != want.size()) return kUnfit;
    for (size_t i = 0; i < x.size(); ++i) {
      const double e = std::abs(x[i] - want[i]) / largest;
      error = std::isnan(e) ? kUnfit : std::max(error, e);
    }
  }
  return ranks.padding_rows_computed() > 0 ? kUnfit : error;
}

}  // namespace signalbox
