// SPDX-License-Identifier: Apache-2.0
#include "signalbox/a2a/worklist.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace signalbox {
namespace {

struct Item {
  int expert;
  int64_t row;
  float weight;
};

class Builder {
 public:
  Builder(const Contract& contract, const ExchangeShape& shape, int rank,
          const Delivered& delivered)
      : c_(contract), s_(shape), d_(delivered), first_slot_(rank * shape.slots) {}

  Result<WorkList> Run() {
    if (DedupRows(c_.shape)) {
      SB_RETURN_IF_ERROR(ListLanes());
    } else {
      ListZones();
    }
    list_.offsets.assign(s_.slots + 1, 0);
    for (const Item& item : items_) ++list_.offsets[item.expert + 1];
    std::partial_sum(list_.offsets.begin(), list_.offsets.end(), list_.offsets.begin());
    list_.rows.resize(items_.size());
    list_.weights.resize(items_.size());
    std::vector<int64_t> next = list_.offsets;
    for (const Item& item : items_) {
      const int64_t i = next[item.expert]++;
      list_.rows[i] = item.row;
      list_.weights[i] = item.weight;
    }
    return std::move(list_);
  }

 private:
  // One row per (token, expert): the zones say it all.
  void ListZones() {
    const bool weighted = c_.weighting == Weighting::kCaller;
    const std::vector<int64_t> begins = ZoneBegins(c_, s_, d_);
    for (int e = 0; e < s_.slots; ++e) {
      const int64_t end = d_.zone_end.empty() ? begins[e] + d_.expert_rows[e] : d_.zone_end[e];
      for (int64_t row = begins[e]; row < end; ++row) {
        items_.push_back({e, row, weighted ? d_.weights[row] : 1.f});
        list_.valid.push_back(row);
      }
    }
  }

  // Whether a row holds a token, as far as counts say; without counts the ids do.
  bool MayHoldToken(int64_t row) const {
    if (c_.shape == RowShape::kRankMajorPadded) {
      if (d_.source_rows.empty()) return true;
      return row % s_.capacity < d_.source_rows[row / s_.capacity];
    }
    if (d_.total_rows) return row < *d_.total_rows;
    if (d_.source_rows.empty()) return true;
    return row < std::accumulate(d_.source_rows.begin(), d_.source_rows.end(), int64_t{0});
  }

  Status ListLanes() {
    for (int64_t row = 0; row < d_.capacity; ++row) {
      if (!MayHoldToken(row)) continue;
      if (c_.ids == ReceivedIds::kAbsent) {
        ListDense(row);
        list_.valid.push_back(row);
        continue;
      }
      bool valid = false;
      for (int k = 0; k < s_.top_k; ++k) SB_RETURN_IF_ERROR(ListLane(row, k, valid));
      if (valid) list_.valid.push_back(row);
    }
    return OkStatus();
  }

  void ListDense(int64_t row) {
    const float* dense = &d_.weights[row * d_.weight_cols + first_slot_];
    for (int e = 0; e < s_.slots; ++e) {
      if (dense[e] != 0.f) items_.push_back({e, row, dense[e]});
    }
  }

  // Lanes of weight 0 are not computed: they may stand for masked ones.
  Status ListLane(int64_t row, int lane, bool& valid) {
    const int32_t id = d_.ids[row * s_.top_k + lane];
    const bool local_ids = c_.ids == ReceivedIds::kLocal;
    const int32_t slots = local_ids ? s_.slots : s_.total_slots();
    if (id >= 0 && id < slots) {
      const int32_t expert = local_ids ? id : id - first_slot_;
      if (expert < 0 || expert >= s_.slots) return OkStatus();
      const float weight = d_.weights[row * s_.top_k + lane];
      if (weight != 0.f) items_.push_back({expert, row, weight});
      valid = true;
      return OkStatus();
    }
    if (id == -1 || d_.sanitised == id) return OkStatus();
    if (id == s_.total_slots() && c_.masked == MaskSpelling::kNumExperts) return OkStatus();
    return Internal(
        {.what = "a received row holds an id of no expert slot",
         .where = fmt::format("{}, row {}, lane {}", ContractId(c_), row, lane),
         .found = fmt::format("{}", id),
         .expected = fmt::format("0 to {}, or the spelling of a masked lane", slots - 1),
         .remedy = c_.masked == MaskSpelling::kCallerId
                       ? "sanitise the rows first"
                       : "rows beyond the count must not be read"});
  }

  const Contract& c_;
  const ExchangeShape& s_;
  const Delivered& d_;
  const int first_slot_;
  std::vector<Item> items_;
  WorkList list_;
};

}  // namespace

Result<WorkList> BuildWorkList(const Contract& contract, const ExchangeShape& shape, int rank,
                               const Delivered& delivered) {
  return Builder(contract, shape, rank, delivered).Run();
}

void ScatterResults(const Contract& contract, const ExchangeShape& shape, const WorkList& list,
                    std::span<const float> y, std::span<float> expert_out) {
  const int64_t width = shape.hidden;
  auto row_of = [&](int64_t row) { return expert_out.subspan(row * width, width); };
  for (int64_t row : list.valid) std::ranges::fill(row_of(row), 0.f);
  const bool weighted = contract.weighting == Weighting::kCaller;
  for (size_t i = 0; i < list.rows.size(); ++i) {
    const std::span<float> out = row_of(list.rows[i]);
    const std::span<const float> result = y.subspan(i * width, width);
    if (weighted) {
      AddScaledRow(result, list.weights[i], out);
    } else {
      AddRow(result, out);
    }
  }
}

Status RunExperts(const Contract& contract, const ExchangeShape& shape, int rank,
                  const Delivered& delivered, const ExpertFn& experts,
                  std::span<float> expert_out) {
  SB_ASSIGN_OR_RETURN(const WorkList list, BuildWorkList(contract, shape, rank, delivered));
  const int64_t width = shape.hidden;
  std::vector<float> x(list.rows.size() * width);  // [items, hidden]
  std::vector<float> y(x.size());
  for (size_t i = 0; i < list.rows.size(); ++i) {
    std::copy_n(&delivered.rows[list.rows[i] * width], width, &x[i * width]);
  }
  SB_RETURN_IF_ERROR(experts(x, list.offsets, y));
  ScatterResults(contract, shape, list, y, expert_out);
  return OkStatus();
}

}  // namespace signalbox
