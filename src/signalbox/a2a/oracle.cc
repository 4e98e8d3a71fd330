// SPDX-License-Identifier: Apache-2.0
#include "signalbox/a2a/oracle.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace signalbox {
namespace {

// A row that one rank receives, before anything is written.
struct Row {
  Origin origin;
  int expert = -1;  // local; -1 in shapes whose rows are for several
  int64_t position = -1;
};

// Builds what one rank receives.
class Receiver {
 public:
  Receiver(const Contract& contract, const ExchangeShape& shape,
           const std::vector<RankInput>& inputs, int rank)
      : c_(contract), s_(shape), inputs_(inputs), first_slot_(rank * shape.slots) {}

  Result<Delivered> Run() {
    List();
    const int64_t end = Place();
    d_.shape = c_.shape;
    d_.capacity = RowCapacity(c_, s_, end);
    d_.overflow = end > d_.capacity;
    if (d_.overflow && c_.overflow != OverflowPolicy::kDropWithFlag) {
      return ResourceExhausted(
          {.what = fmt::format("{} rows exceed the receive budget of {}", end, d_.capacity),
           .where = ContractId(c_)});
    }
    std::erase_if(rows_, [&](const Row& row) { return row.position >= d_.capacity; });
    Blank();
    for (const Row& row : rows_) Write(row);
    Count();
    return std::move(d_);
  }

 private:
  bool IsLocal(int32_t id) const { return id >= first_slot_ && id < first_slot_ + s_.slots; }
  int64_t Tokens(int source) const {
    return static_cast<int64_t>(inputs_[source].ids.size()) / s_.top_k;
  }
  int32_t Id(int source, int64_t token, int lane) const {
    return inputs_[source].ids[token * s_.top_k + lane];
  }
  float Weight(int source, int64_t token, int lane) const {
    return inputs_[source].weights[token * s_.top_k + lane];
  }

  // All rows, in the canonical order of the shape.
  void List() {
    if (DedupRows(c_.shape)) {
      for (int s = 0; s < s_.ranks; ++s) {
        for (int t = 0; t < Tokens(s); ++t) {
          bool wanted = false;
          for (int k = 0; k < s_.top_k; ++k) wanted |= IsLocal(Id(s, t, k));
          if (wanted) rows_.push_back({.origin = {s, t, -1}});
        }
      }
      return;
    }
    for (int e = 0; e < s_.slots; ++e) {
      for (int s = 0; s < s_.ranks; ++s) {
        for (int t = 0; t < Tokens(s); ++t) {
          for (int k = 0; k < s_.top_k; ++k) {
            if (Id(s, t, k) == first_slot_ + e) rows_.push_back({{s, t, k}, e});
          }
        }
      }
    }
  }

  // Gives every row its place; returns the end of the last one (of the last zone).
  int64_t Place() {
    std::vector<int64_t> next(std::max(s_.ranks, s_.slots));
    int64_t end = 0;
    int zone = -1;
    d_.zone_begin.assign(s_.slots, 0);
    for (Row& row : rows_) {
      switch (c_.shape) {
        case RowShape::kRankMajorPadded:
          row.position = row.origin.source * s_.capacity + next[row.origin.source]++;
          break;
        case RowShape::kExpertMajorPadded:
          row.position = int64_t{row.expert} * s_.ranks * s_.capacity + next[row.expert]++;
          break;
        case RowShape::kExpertMajorCompact:
          while (zone < row.expert) end = BeginZone(++zone, end);
          [[fallthrough]];
        default:
          row.position = end++;
      }
    }
    while (++zone < s_.slots) end = BeginZone(zone, end);
    return end;
  }

  // Experts without rows do not move the end.
  int64_t BeginZone(int zone, int64_t end) {
    const int64_t begin = (end + c_.row_align - 1) / c_.row_align * c_.row_align;
    d_.zone_begin[zone] = begin;
    const bool used =
        std::any_of(rows_.begin(), rows_.end(), [&](const Row& row) { return row.expert == zone; });
    return used ? begin : end;
  }

  int32_t MaskedId() const {
    return c_.masked == MaskSpelling::kNumExperts ? s_.total_slots() : -1;
  }

  void Blank() {
    const bool zeroed = c_.tail == TailRows::kZeroed;
    d_.weight_cols = WeightColumns(c_, s_);
    d_.rows.assign(d_.capacity * s_.hidden, zeroed ? 0.f : kPoison);
    d_.weights.assign(d_.capacity * d_.weight_cols, zeroed ? 0.f : kPoison);
    if (c_.ids != ReceivedIds::kAbsent) {
      d_.ids.assign(d_.capacity * s_.top_k,
                    c_.tail == TailRows::kMaskedIds ? MaskedId() : kPoisonId);
    }
    d_.origins.assign(d_.capacity, {});
  }

  void Write(const Row& row) {
    const auto [source, token, lane] = row.origin;
    d_.origins[row.position] = row.origin;
    const std::span<float> x(&d_.rows[row.position * s_.hidden], s_.hidden);
    std::copy_n(&inputs_[source].x[int64_t{token} * s_.hidden], s_.hidden, x.begin());
    if (s_.round_bf16) RoundToBf16(x);
    if (c_.weights == ReceivedWeights::kPerRow) {
      d_.weights[row.position] = Weight(source, token, lane);
    }
    if (lane < 0) WriteLanes(row);
  }

  void WriteLanes(const Row& row) {
    const auto [source, token, none] = row.origin;
    struct Lane {
      int32_t id;
      float weight;
      bool local;
    };
    std::vector<Lane> lanes;
    for (int k = 0; k < s_.top_k; ++k) {
      const int32_t id = Id(source, token, k);
      lanes.push_back({id, Weight(source, token, k), IsLocal(id)});
    }
    if (c_.weights == ReceivedWeights::kDenseByExpert) {
      float* dense = &d_.weights[row.position * d_.weight_cols];
      std::fill_n(dense, d_.weight_cols, 0.f);
      for (const Lane& lane : lanes) {
        if (lane.id >= 0) dense[lane.id] += lane.weight;
      }
    }
    if (!c_.lanes_kept) {
      std::stable_sort(lanes.begin(), lanes.end(), [](const Lane& a, const Lane& b) {
        return std::tuple(!a.local, a.local ? a.id : 0) < std::tuple(!b.local, b.local ? b.id : 0);
      });
    }
    for (int k = 0; k < s_.top_k; ++k) {
      const Lane& lane = lanes[k];
      if (c_.weights == ReceivedWeights::kRaw || c_.weights == ReceivedWeights::kZeroedOffRank) {
        const bool keep = lane.local || c_.weights == ReceivedWeights::kRaw;
        d_.weights[row.position * s_.top_k + k] = keep ? lane.weight : 0.f;
      }
      if (c_.ids == ReceivedIds::kAbsent) continue;
      int32_t id = lane.id;
      if (c_.ids == ReceivedIds::kLocal) id -= first_slot_;
      const bool spelt =
          c_.masked == MaskSpelling::kMinusOne || c_.masked == MaskSpelling::kNumExperts;
      d_.ids[row.position * s_.top_k + k] = !lane.local && spelt ? MaskedId() : id;
    }
  }

  void Count() {
    std::vector<int64_t> experts(s_.slots);
    std::vector<int64_t> sources(DedupRows(c_.shape) ? s_.ranks : s_.slots * s_.ranks);
    for (const Row& row : rows_) {
      if (row.expert >= 0) {
        ++experts[row.expert];
        ++sources[row.expert * s_.ranks + row.origin.source];
        continue;
      }
      ++sources[row.origin.source];
      for (int k = 0; k < s_.top_k; ++k) {
        const int32_t id = Id(row.origin.source, row.origin.token, k);
        if (IsLocal(id)) ++experts[id - first_slot_];
      }
    }
    if (c_.counts.Has(Counts::kOffsets)) {
      for (int e = 0; e < s_.slots; ++e) d_.zone_end.push_back(d_.zone_begin[e] + experts[e]);
    } else {
      d_.zone_begin.clear();
    }
    // Without a count on the host the worst-case form has none of that kind.
    const bool host = c_.counts.Has(Counts::kHostExpert) && !s_.worst_case;
    if (host || c_.counts.Has(Counts::kDevExpert)) d_.expert_rows = experts;
    if (c_.counts.Has(Counts::kDevSource)) d_.source_rows = sources;
    if (c_.counts.Has(Counts::kDevTotal)) d_.total_rows = static_cast<int64_t>(rows_.size());
  }

  const Contract& c_;
  const ExchangeShape& s_;
  const std::vector<RankInput>& inputs_;
  const int first_slot_;
  std::vector<Row> rows_;
  Delivered d_;
};

using RowIndex = std::map<std::tuple<int, int, int>, int64_t>;  // origin -> row

RowIndex IndexRows(const Delivered& delivered) {
  RowIndex index;
  for (size_t i = 0; i < delivered.origins.size(); ++i) {
    const Origin& o = delivered.origins[i];
    if (o.source >= 0) index[{o.source, o.token, o.lane}] = static_cast<int64_t>(i);
  }
  return index;
}

}  // namespace

Result<std::vector<Delivered>> OracleDispatch(const Contract& contract, const ExchangeShape& shape,
                                              const std::vector<RankInput>& inputs) {
  SB_RETURN_IF_ERROR(CheckShape(contract, shape));
  for (const RankInput& in : inputs) {
    const int64_t tokens = static_cast<int64_t>(in.ids.size()) / shape.top_k;
    SB_RETURN_IF_ERROR(
        CheckInput(contract, shape, tokens, static_cast<int64_t>(in.x.size()), in.routing()));
    if (contract.limits.equal_tokens && in.ids.size() != inputs[0].ids.size()) {
      return InvalidArgument({.what = "ranks send different numbers of tokens"});
    }
  }
  std::vector<Delivered> delivered;
  for (int r = 0; r < shape.ranks; ++r) {
    SB_ASSIGN_OR_RETURN(Delivered d, Receiver(contract, shape, inputs, r).Run());
    delivered.push_back(std::move(d));
  }
  return delivered;
}

std::vector<Combined> OracleCombine(const Contract& contract, const ExchangeShape& shape,
                                    const std::vector<RankInput>& inputs,
                                    const std::vector<Delivered>& delivered,
                                    const std::vector<std::vector<float>>& outputs) {
  const int hidden = shape.hidden;
  std::vector<RowIndex> index;
  for (const Delivered& d : delivered) index.push_back(IndexRows(d));
  std::vector<Combined> results;
  for (int source = 0; source < shape.ranks; ++source) {
    const RankInput& in = inputs[source];
    const int tokens = static_cast<int>(in.ids.size()) / shape.top_k;
    Combined result{.out = std::vector<float>(int64_t{tokens} * hidden)};
    // The row that rank r returns for a lane (-1: for the token), rounded as it travels.
    auto row = [&](int r, int token, int lane) -> std::vector<float> {
      const auto it = index[r].find({source, token, lane});
      if (it == index[r].end()) return {};
      const auto begin = outputs[r].begin() + it->second * hidden;
      std::vector<float> values(begin, begin + hidden);
      if (shape.round_bf16) RoundToBf16(values);
      return values;
    };
    for (int t = 0; t < tokens; ++t) {
      const std::span<float> out(&result.out[int64_t{t} * hidden], hidden);
      auto lane_weight = [&](int k) { return in.weights[t * shape.top_k + k]; };
      if (contract.weighting == Weighting::kLibraryAtSource) {
        for (int k = 0; k < shape.top_k; ++k) {
          const int32_t id = in.ids[t * shape.top_k + k];
          if (id < 0) continue;
          const std::vector<float> values = row(id / shape.slots, t, k);
          if (!values.empty()) AddScaledRow(values, lane_weight(k), out);
        }
      } else {
        for (int r = 0; r < shape.ranks; ++r) {
          std::vector<float> partial = row(r, t, -1);
          for (int k = 0; k < shape.top_k; ++k) {
            const std::vector<float> values = row(r, t, k);
            if (values.empty()) continue;
            partial.resize(hidden);
            if (contract.weighting == Weighting::kLibraryAtExpert) {
              AddScaledRow(values, lane_weight(k), partial);
            } else {
              AddRow(values, partial);
            }
          }
          if (shape.round_bf16 && contract.rounding_stages > 1) RoundToBf16(partial);
          if (!partial.empty()) AddRow(partial, out);
        }
      }
      if (shape.round_bf16) RoundToBf16(out);
    }
    result.weights_back = WeightsReturned(contract, shape, in.routing());
    results.push_back(std::move(result));
  }
  return results;
}

Result<Delivered> CanonicalOrder(const Contract& contract, const ExchangeShape& shape,
                                 const Delivered& delivered) {
  const bool by_expert = !DedupRows(contract.shape);
  const std::vector<int64_t> zones =
      by_expert ? ZoneBegins(contract, shape, delivered) : std::vector<int64_t>{0};
  using Key = std::tuple<int64_t, int, int, int>;  // group, source, token, lane
  std::vector<std::pair<Key, int64_t>> rows;
  for (int64_t i = 0; i < delivered.capacity; ++i) {
    const Origin& o = delivered.origins[i];
    if (o.source < 0) continue;
    int64_t group = std::upper_bound(zones.begin(), zones.end(), i) - zones.begin();
    if (contract.shape == RowShape::kRankMajorPadded) group = i / shape.capacity;
    rows.push_back({{group, o.source, o.token, o.lane}, i});
  }
  const bool runs =
      contract.order == RowOrder::kRankGrouped || contract.order == RowOrder::kExpertThenRankRuns;
  std::map<std::pair<int64_t, int>, int64_t> last;  // (group, source) -> index of its last row
  for (size_t i = 0; i < rows.size() && runs; ++i) {
    const auto [group, source, token, lane] = rows[i].first;
    const auto [it, fresh] = last.try_emplace({group, source}, static_cast<int64_t>(i));
    if (!fresh && it->second != static_cast<int64_t>(i) - 1) {
      return Internal({.what = fmt::format("rows of rank {} do not lie together", source),
                       .where = ContractId(contract)});
    }
    it->second = static_cast<int64_t>(i);
  }

  Delivered result = delivered;
  auto sorted = rows;
  std::sort(sorted.begin(), sorted.end());
  auto move = [](const auto& from, int64_t i, auto& to, int64_t j, int64_t width) {
    if (from.empty()) return;  // rows without ids or weights
    std::copy_n(from.begin() + i * width, width, to.begin() + j * width);
  };
  for (size_t n = 0; n < rows.size(); ++n) {
    const int64_t i = sorted[n].second;
    const int64_t j = rows[n].second;
    result.origins[j] = delivered.origins[i];
    move(delivered.rows, i, result.rows, j, shape.hidden);
    move(delivered.ids, i, result.ids, j, shape.top_k);
    move(delivered.weights, i, result.weights, j, delivered.weight_cols);
  }
  return result;
}

}  // namespace signalbox
