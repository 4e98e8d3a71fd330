// SPDX-License-Identifier: Apache-2.0
#include "signalbox/a2a/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <tuple>

namespace signalbox {
namespace {

// A well-mixed number from two (the finaliser of SplitMix64).
uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t z = a + 0x9e3779b97f4a7c15u * (b + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

int64_t AlignUp(int64_t value, int64_t to) {
  return (value + to - 1) / to * to;
}

}  // namespace

Result<std::vector<Arrival>> ListArrivals(const Contract& contract, const ExchangeShape& shape,
                                          int position, const float* packets,
                                          std::span<const int64_t> counts) {
  const PacketFormat format(contract, shape);
  const int32_t first_slot = position * shape.slots;
  const bool dedup = DedupRows(contract.shape);
  std::vector<Arrival> arrivals;
  for (int source = 0; source < shape.ranks; ++source) {
    for (int64_t n = 0; n < counts[source]; ++n, packets += format.words()) {
      const int32_t token = format.Token(packets);
      bool damaged = token < 0;
      for (int k = 0; k < format.lanes; ++k) {
        const int32_t id = format.Id(packets, k);
        damaged |= id < -1 || id >= shape.total_slots();
      }
      if (damaged) {
        return Internal({.what = fmt::format("packet {} from rank {} is damaged", n, source),
                         .where = ContractId(contract)});
      }
      if (dedup) {
        arrivals.push_back({.origin = {source, token, -1}, .packet = packets});
        continue;
      }
      for (int k = 0; k < format.lanes; ++k) {
        const int32_t expert = format.Id(packets, k) - first_slot;
        if (expert < 0 || expert >= shape.slots) continue;
        const int32_t lane = contract.dedup_wire ? k : format.Lane(packets);
        arrivals.push_back({.origin = {source, token, lane},
                            .expert = expert,
                            .weight = format.Weight(packets, k),
                            .packet = packets});
      }
    }
  }
  return arrivals;
}

bool RowStore::Place(std::vector<Arrival>& arrivals, uint64_t salt) {
  const int64_t end = AssignPositions(arrivals, Order(arrivals, salt));
  const int64_t capacity = RowCapacity(c_, s_, end);
  if (end > capacity && c_.overflow != OverflowPolicy::kDropWithFlag) return false;
  Resize(capacity);
  d_.overflow = end > capacity;
  std::ranges::fill(d_.origins, Origin{});
  for (Arrival& a : arrivals) {
    if (a.position >= capacity) a.position = -1;
    if (a.position >= 0) WriteRow(a);
  }
  if (d_.sanitised) {
    d_.sanitised.reset();
    std::ranges::fill(blank_, 0);
  }
  for (int64_t row = 0; row < capacity; ++row) {
    if (d_.origins[row].source < 0 && !blank_[row]) BlankRow(row);
  }
  Count(arrivals);
  return true;
}

// Indices of arrivals in the order in which their rows shall lie.
std::vector<uint32_t> RowStore::Order(const std::vector<Arrival>& arrivals, uint64_t salt) const {
  struct Key {
    int64_t group;  // rows of lower groups come first
    uint64_t run;   // then runs that lie together, in any order
    uint64_t chance;
    uint32_t index;
    auto operator<=>(const Key&) const = default;
  };
  std::vector<Key> keys(arrivals.size());
  for (uint32_t i = 0; i < keys.size(); ++i) {
    const Arrival& a = arrivals[i];
    const auto source = static_cast<uint64_t>(a.origin.source);
    Key key{.group = a.expert, .run = 0, .chance = 0, .index = i};  // expert is -1 in dedup shapes
    if (!Reproducible(c_.order)) key.chance = Mix(salt, i);
    if (c_.order == RowOrder::kRankGrouped) key.group = a.origin.source;
    if (c_.order == RowOrder::kExpertThenRankRuns) {
      key.run = Mix(salt, Mix(static_cast<uint64_t>(a.expert), source)) << 16 | source;
    }
    keys[i] = key;
  }
  if (!std::ranges::is_sorted(keys)) std::ranges::sort(keys);
  std::vector<uint32_t> order(keys.size());
  std::ranges::transform(keys, order.begin(), &Key::index);
  return order;
}

// Returns the end of the last row (of the last zone that holds one).
int64_t RowStore::AssignPositions(std::vector<Arrival>& arrivals, std::span<const uint32_t> order) {
  const bool compact = c_.shape == RowShape::kExpertMajorCompact;
  int64_t end = 0;
  if (!DedupRows(c_.shape)) {
    std::vector<int64_t> rows(s_.slots);
    for (const Arrival& a : arrivals) ++rows[a.expert];
    zone_begin_.assign(s_.slots, 0);
    for (int e = 0; e < s_.slots; ++e) {
      zone_begin_[e] = compact ? AlignUp(end, c_.row_align) : int64_t{e} * s_.ranks * s_.capacity;
      if (rows[e] > 0) end = zone_begin_[e] + rows[e];
    }
  }
  std::vector<int64_t> next = zone_begin_;
  if (c_.shape == RowShape::kRankMajorPadded) {
    next.resize(s_.ranks);
    for (int s = 0; s < s_.ranks; ++s) next[s] = s * s_.capacity;
  }
  const std::vector<int64_t> begin = next;
  int64_t flat = 0;
  for (uint32_t i : order) {
    Arrival& a = arrivals[i];
    if (c_.shape == RowShape::kFlat) {
      a.position = flat++;
    } else {
      a.position = next[c_.shape == RowShape::kRankMajorPadded ? a.origin.source : a.expert]++;
    }
    end = std::max(end, a.position + 1);
  }
  // A padded region that would run into the next one counts as beyond everything.
  const int64_t region = s_.capacity * (c_.shape == RowShape::kRankMajorPadded ? 1 : s_.ranks);
  for (size_t i = 0; i < next.size() && !compact; ++i) {
    if (next[i] - begin[i] > region) return std::numeric_limits<int64_t>::max();
  }
  return end;
}

void RowStore::Resize(int64_t capacity) {
  if (d_.capacity == capacity && !blank_.empty()) return;
  d_.shape = c_.shape;
  d_.capacity = capacity;
  d_.weight_cols = WeightColumns(c_, s_);
  d_.rows.resize(capacity * s_.hidden);
  d_.weights.resize(capacity * d_.weight_cols);
  if (c_.ids != ReceivedIds::kAbsent) d_.ids.resize(capacity * s_.top_k);
  d_.origins.resize(capacity);
  blank_.assign(capacity, 0);
}

int32_t RowStore::BlankId() const {
  if (c_.tail != TailRows::kMaskedIds) return kPoisonId;
  return c_.masked == MaskSpelling::kNumExperts ? s_.total_slots() : -1;
}

void RowStore::BlankRow(int64_t row) {
  const float value = c_.tail == TailRows::kZeroed ? 0.f : kPoison;
  std::fill_n(d_.rows.begin() + row * s_.hidden, s_.hidden, value);
  std::fill_n(d_.weights.begin() + row * d_.weight_cols, d_.weight_cols, value);
  if (!d_.ids.empty()) std::fill_n(d_.ids.begin() + row * s_.top_k, s_.top_k, BlankId());
  blank_[row] = 1;
}

void RowStore::WriteRow(const Arrival& a) {
  const std::span<const float> values = PacketFormat(c_, s_).Values(a.packet);
  std::ranges::copy(values, d_.rows.begin() + a.position * s_.hidden);
  d_.origins[a.position] = a.origin;
  blank_[a.position] = 0;
  if (c_.weights == ReceivedWeights::kPerRow) d_.weights[a.position] = a.weight;
  if (a.expert < 0) WriteLanes(a);
}

void RowStore::WriteLanes(const Arrival& a) {
  const PacketFormat format(c_, s_);
  float* const weights = d_.weights.data() + a.position * d_.weight_cols;
  if (c_.weights == ReceivedWeights::kDenseByExpert) {
    std::fill_n(weights, d_.weight_cols, 0.f);
    for (int k = 0; k < s_.top_k; ++k) {
      const int32_t id = format.Id(a.packet, k);
      if (id >= 0) weights[id] += format.Weight(a.packet, k);
    }
  }
  if (d_.ids.empty()) return;

  int32_t* const ids = d_.ids.data() + a.position * s_.top_k;
  if (!c_.lanes_kept) {
    packed_.clear();
    for (int k = 0; k < s_.top_k; ++k) {
      const int32_t id = format.Id(a.packet, k);
      if (IsLocal(id)) packed_.emplace_back(id - first_slot_, format.Weight(a.packet, k));
    }
    std::ranges::stable_sort(packed_, {}, &std::pair<int32_t, float>::first);
    packed_.resize(s_.top_k, {-1, 0.f});
    for (int k = 0; k < s_.top_k; ++k) std::tie(ids[k], weights[k]) = packed_[k];
    return;
  }
  for (int k = 0; k < s_.top_k; ++k) {
    const int32_t id = format.Id(a.packet, k);
    const bool local = IsLocal(id);
    const bool zeroed = c_.weights == ReceivedWeights::kZeroedOffRank && !local;
    if (d_.weight_cols > 0) weights[k] = zeroed ? 0.f : format.Weight(a.packet, k);
    ids[k] = c_.ids == ReceivedIds::kLocal ? id - first_slot_ : id;
    if (local) continue;
    if (c_.masked == MaskSpelling::kMinusOne) ids[k] = -1;
    if (c_.masked == MaskSpelling::kNumExperts) ids[k] = s_.total_slots();
  }
}

void RowStore::Count(const std::vector<Arrival>& arrivals) {
  const bool dedup = DedupRows(c_.shape);
  const PacketFormat format(c_, s_);
  std::vector<int64_t> experts(s_.slots);
  std::vector<int64_t> sources(dedup ? s_.ranks : s_.slots * s_.ranks);
  int64_t total = 0;
  for (const Arrival& a : arrivals) {
    if (a.position < 0) continue;
    ++total;
    ++sources[dedup ? a.origin.source : a.expert * s_.ranks + a.origin.source];
    if (!dedup) {
      ++experts[a.expert];
      continue;
    }
    for (int k = 0; k < s_.top_k; ++k) {
      const int32_t id = format.Id(a.packet, k);
      if (IsLocal(id)) ++experts[id - first_slot_];
    }
  }
  if (c_.counts.Has(Counts::kOffsets)) {
    d_.zone_begin = zone_begin_;
    d_.zone_end = zone_begin_;
    for (int e = 0; e < s_.slots; ++e) d_.zone_end[e] += experts[e];
  }
  // Worst-case buffers are for callers that do not wait for counts on the host.
  const bool on_host = c_.counts.Has(Counts::kHostExpert) && !s_.worst_case;
  if (on_host || c_.counts.Has(Counts::kDevExpert)) d_.expert_rows = std::move(experts);
  if (c_.counts.Has(Counts::kDevSource)) d_.source_rows = std::move(sources);
  if (c_.counts.Has(Counts::kDevTotal)) d_.total_rows = total;
}

void RowStore::Sanitise(int32_t id) {
  d_.sanitised = id;
  for (int64_t row = 0; row < d_.capacity; ++row) {
    if (d_.origins[row].source >= 0) continue;
    std::fill_n(d_.ids.begin() + row * s_.top_k, s_.top_k, id);
  }
}

}  // namespace signalbox
