// SPDX-License-Identifier: Apache-2.0
#include "signalbox/a2a/exchange.h"

#include <fmt/format.h>

#include <algorithm>

#include "signalbox/tensor/dtype.h"

namespace signalbox {

int64_t RowCapacity(const Contract& contract, const ExchangeShape& shape, int64_t arrived) {
  const int64_t all = shape.ranks * shape.capacity;
  const bool compact = contract.shape == RowShape::kExpertMajorCompact;
  const int64_t worst = compact ? all * std::min(shape.top_k, shape.slots) +
                                      int64_t{contract.row_align - 1} * shape.slots
                                : all;
  switch (contract.rows_bound) {
    case RowsBound::kExact:
      return shape.worst_case ? worst : arrived;
    case RowsBound::kRanksTokens:
    case RowsBound::kMinTopKLocal:
      return worst;
    case RowsBound::kLocalRanksTokens:
      return all * shape.slots;
    case RowsBound::kCallerBudget:
      return shape.row_budget > 0 ? shape.row_budget : worst;
  }
  return worst;
}

int WeightColumns(const Contract& contract, const ExchangeShape& shape) {
  switch (contract.weights) {
    case ReceivedWeights::kAbsent:
      return 0;
    case ReceivedWeights::kZeroedOffRank:
    case ReceivedWeights::kRaw:
      return shape.top_k;
    case ReceivedWeights::kPerRow:
      return 1;
    case ReceivedWeights::kDenseByExpert:
      return shape.total_slots();
  }
  return 0;
}

Status CheckShape(const Contract& contract, const ExchangeShape& shape) {
  const std::string where = ContractId(contract);
  if (shape.ranks < 1 || shape.slots < 1 || shape.hidden < 1 || shape.top_k < 1 ||
      shape.capacity < 0 || shape.row_budget < 0) {
    return InvalidArgument(
        {.what = "sizes of an exchange must be positive",
         .where = where,
         .found = fmt::format("{} ranks, {} slots, hidden {}, top-k {}", shape.ranks, shape.slots,
                              shape.hidden, shape.top_k)});
  }
  if (contract.shape == RowShape::kNone) {
    return InvalidArgument({.what = "this back end exchanges no rows", .where = where});
  }
  if (contract.overflow == OverflowPolicy::kDropByPolicy || contract.own_router) {
    return Refused(
        {.what = "this back end cannot run a model exactly",
         .where = where,
         .found = contract.own_router ? "a router of its own" : "tokens are dropped by design"});
  }
  if (shape.worst_case && contract.sync == HostSync::kAlways) {
    return InvalidArgument({.what = "this back end always waits for counts on the host",
                            .where = where,
                            .remedy = "do not ask for worst-case buffers"});
  }
  const bool fixed_rows = contract.rows_bound != RowsBound::kExact || shape.worst_case;
  if (shape.capacity == 0 && (fixed_rows || contract.overflow != OverflowPolicy::kImpossible)) {
    return InvalidArgument({.what = "no number of tokens per rank is given",
                            .where = where,
                            .remedy = "give --max-dispatch-tokens-per-rank"});
  }
  return OkStatus();
}

Status CheckInput(const Contract& contract, const ExchangeShape& shape, int64_t tokens,
                  int64_t x_size, const Routing& routing) {
  const std::string where = ContractId(contract);
  const int64_t lanes = tokens * shape.top_k;
  if (x_size != tokens * shape.hidden || static_cast<int64_t>(routing.ids.size()) != lanes ||
      static_cast<int64_t>(routing.weights.size()) != lanes) {
    return InvalidArgument({.what = "rows, ids and weights are not of the same tokens",
                            .where = where,
                            .found = fmt::format("{} values, {} ids, {} weights", x_size,
                                                 routing.ids.size(), routing.weights.size()),
                            .expected = fmt::format("{} tokens x hidden {} and x top-k {}", tokens,
                                                    shape.hidden, shape.top_k)});
  }
  const bool limited = contract.overflow != OverflowPolicy::kImpossible || shape.worst_case;
  if (limited && tokens > shape.capacity) {
    return ResourceExhausted(
        {.what =
             fmt::format("{} tokens exceed the capacity of {} per rank", tokens, shape.capacity),
         .where = where,
         .found = fmt::format("overflow of this back end: {}", ToString(contract.overflow)),
         .remedy = "split the batch, or raise --max-dispatch-tokens-per-rank"});
  }
  for (int64_t i = 0; i < lanes; ++i) {
    const int32_t id = routing.ids[i];
    const auto before = routing.ids.subspan(i - i % shape.top_k, i % shape.top_k);
    ErrorDetail error{
        .where = fmt::format("{}, token {}, lane {}", where, i / shape.top_k, i % shape.top_k),
        .found = fmt::format("{}", id)};
    if (id < -1 || id >= shape.total_slots()) {
      error.what = "an expert id of no slot";
      error.expected = fmt::format("0 to {}", shape.total_slots() - 1);
    } else if (id == -1 && contract.negative_ids != NegativeIds::kSkip) {
      error.what = "a masked expert where this back end allows none";
      error.remedy = "replace masked lanes by another expert with weight 0";
    } else if (id >= 0 && !DedupRows(contract.shape) && std::ranges::count(before, id) > 0) {
      error.what = "one expert twice in a token";
      error.expected = "distinct experts";
    }
    if (!error.what.empty()) return InvalidArgument(std::move(error));
  }
  return OkStatus();
}

std::vector<int64_t> ZoneBegins(const Contract& contract, const ExchangeShape& shape,
                                const Delivered& delivered) {
  if (!delivered.zone_begin.empty()) return delivered.zone_begin;
  std::vector<int64_t> begins(shape.slots);
  for (int e = 0; e < shape.slots; ++e) {
    if (delivered.shape == RowShape::kExpertMajorPadded) {
      begins[e] = int64_t{e} * shape.ranks * shape.capacity;
    } else if (e > 0) {
      const int64_t end = begins[e - 1] + delivered.expert_rows[e - 1];
      begins[e] = (end + contract.row_align - 1) / contract.row_align * contract.row_align;
    }
  }
  return begins;
}

UnmaskedRouting WithoutMasked(const Routing& routing, const ExchangeShape& shape) {
  UnmaskedRouting result;
  const int k = shape.top_k;
  const int64_t tokens = static_cast<int64_t>(routing.ids.size()) / k;
  for (int64_t t = 0; t < tokens; ++t) {
    const auto ids = routing.ids.subspan(t * k, k);
    const auto valid = std::ranges::find_if(ids, [](int32_t id) { return id >= 0; });
    if (valid == ids.end()) continue;
    result.tokens.push_back(t);
    const auto first = static_cast<int64_t>(result.ids.size());
    result.ids.insert(result.ids.end(), ids.begin(), ids.end());
    const std::span<int32_t> mine = std::span(result.ids).subspan(first, k);
    // Candidates start on the rank of the first valid expert and go round from there.
    int32_t candidate = *valid / shape.slots * shape.slots;
    for (int32_t& id : mine) {
      const bool masked = id < 0;
      result.weights.push_back(masked ? 0.f : routing.weights[t * k + (&id - mine.data())]);
      if (!masked) continue;
      for (int tries = 0; tries < shape.total_slots() && std::ranges::count(mine, candidate) > 0;
           ++tries) {
        candidate = (candidate + 1) % shape.total_slots();
      }
      id = candidate;
    }
  }
  return result;
}

std::vector<float> WeightsReturned(const Contract& contract, const ExchangeShape& shape,
                                   const Routing& routing) {
  if (contract.weights_back == WeightsBack::kNone) return {};
  if (routing.ids.size() != routing.weights.size()) return {};  // none were passed
  std::vector<float> back(routing.weights.size());
  for (size_t token = 0; token * shape.top_k < back.size(); ++token) {
    const size_t first = token * shape.top_k;
    std::vector<int> ranks;
    for (int k = 0; k < shape.top_k; ++k) {
      if (routing.ids[first + k] >= 0) ranks.push_back(routing.ids[first + k] / shape.slots);
    }
    std::sort(ranks.begin(), ranks.end());
    const auto distinct = std::unique(ranks.begin(), ranks.end()) - ranks.begin();
    for (int k = 0; k < shape.top_k; ++k) {
      const float weight = routing.weights[first + k];
      if (contract.weights_back == WeightsBack::kIdentity) {
        back[first + k] = routing.ids[first + k] >= 0 ? weight : 0.f;
      } else {
        for (int64_t i = 0; i < distinct; ++i) back[first + k] += weight;
      }
    }
  }
  return back;
}

Contract FusedAsExchange(const Contract& fused) {
  Contract c = fused;
  c.shape = RowShape::kExpertMajorCompact;
  c.order = RowOrder::kExpertThenSource;
  c.ids = ReceivedIds::kAbsent;
  c.masked = MaskSpelling::kNone;
  c.id_bits_out = 0;
  c.weights = ReceivedWeights::kPerRow;
  c.counts = {Counts::kDevExpert, Counts::kOffsets};
  c.row_align = 1;
  c.rows_bound = RowsBound::kExact;
  c.weighting = Weighting::kLibraryAtSource;
  return c;
}

void SetRow(std::span<const float> row, std::span<float> sum) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = 0.f + row[i];
}

void SetScaledRow(std::span<const float> row, float weight, std::span<float> sum) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = 0.f + weight * row[i];
}

void AddRow(std::span<const float> row, std::span<float> sum) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += row[i];
}

void AddScaledRow(std::span<const float> row, float weight, std::span<float> sum) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += weight * row[i];
}

void RoundToBf16(std::span<float> values) {
  for (float& v : values) v = Bf16ToFloat(FloatToBf16(v));
}

}  // namespace signalbox
