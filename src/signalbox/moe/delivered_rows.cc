// SPDX-License-Identifier: Apache-2.0
#include "signalbox/moe/delivered_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "signalbox/moe/expert_runner.h"

namespace signalbox {
namespace {

bool IsRowShape(RowShape shape) {
  return shape != RowShape::kNone && shape != RowShape::kFused;
}

}  // namespace

ErrorDetail DeliveredRows::Error() const {
  return {.where = fmt::format("{}, position {}", ContractId(contract_), position_)};
}

Status DeliveredRows::Reset(const Delivered& delivered) {
  for (int64_t row : valid_) {
    std::fill_n(results_.begin() + row * shape_.hidden, shape_.hidden, 0.f);
  }
  results_.resize(delivered.capacity * shape_.hidden);
  stage_ = Stage::kEmpty;
  delivered_ = &delivered;
  current_ = delivered.shape;
  tail_masked_ = false;
  valid_.clear();
  rows_.clear();
  ids_.clear();
  weights_.clear();
  offsets_.clear();
  space_ = contract_.ids == ReceivedIds::kGlobal ? SlotSpace::kGlobal : SlotSpace::kLocal;
  SB_RETURN_IF_ERROR(DedupRows(current_) ? ListTokenRows() : ListZones());
  valid_ = rows_;
  if (DedupRows(current_)) {
    SB_RETURN_IF_ERROR(contract_.ids == ReceivedIds::kAbsent ? ReadDenseLanes() : ReadLanes());
  }
  stage_ = Stage::kRows;
  return OkStatus();
}

// One row per (token, expert): the zones of the experts say it all.
Status DeliveredRows::ListZones() {
  const Delivered& d = *delivered_;
  const std::vector<int64_t> begins = ZoneBegins(contract_, shape_, d);
  offsets_.push_back(0);
  for (int e = 0; e < shape_.slots; ++e) {
    const int64_t end = d.zone_end.empty() ? begins[e] + d.expert_rows[e] : d.zone_end[e];
    if (begins[e] < 0 || (end > begins[e] && end > d.capacity)) {
      ErrorDetail error = Error();
      error.what = fmt::format("the rows of local expert {} do not lie in the buffers", e);
      error.found = fmt::format("rows {} to {} of {}", begins[e], end, d.capacity);
      return Internal(std::move(error));
    }
    for (int64_t row = begins[e]; row < end; ++row) rows_.push_back(row);
    offsets_.push_back(static_cast<int64_t>(rows_.size()));
  }
  if (d.weight_cols == 0) return OkStatus();
  weights_.reserve(rows_.size());
  for (int64_t row : rows_) weights_.push_back(d.weights[row]);
  return OkStatus();
}

bool DeliveredRows::IsMasked(int32_t id) const {
  return id == -1 || delivered_->sanitised == id ||
         (contract_.masked == MaskSpelling::kNumExperts && id == shape_.total_slots());
}

// Counts say which rows hold a token; without counts the ids do.
Status DeliveredRows::ListTokenRows() {
  const Delivered& d = *delivered_;
  ErrorDetail error = Error();
  if (contract_.masked == MaskSpelling::kCallerId && !d.sanitised) {
    error.what = "nothing says yet which of the received rows are valid";
    error.remedy = "sanitise their ids first";
    return Internal(std::move(error));
  }
  const auto list = [&](int64_t begin, int64_t count, int64_t region) -> Status {
    if (count < 0 || count > region) {
      error.what = "more rows are counted than the buffers hold";
      error.found = fmt::format("{} rows", count);
      error.expected = fmt::format("at most {}", region);
      return Internal(std::move(error));
    }
    for (int64_t row = begin; row < begin + count; ++row) rows_.push_back(row);
    return OkStatus();
  };
  if (d.shape == RowShape::kRankMajorPadded && !d.source_rows.empty()) {
    for (int s = 0; s < shape_.ranks; ++s) {
      SB_RETURN_IF_ERROR(list(s * shape_.capacity, d.source_rows[s], shape_.capacity));
    }
  } else if (d.shape == RowShape::kFlat && d.total_rows) {
    SB_RETURN_IF_ERROR(list(0, *d.total_rows, d.capacity));
  } else if (!d.source_rows.empty()) {
    const int64_t total = std::accumulate(d.source_rows.begin(), d.source_rows.end(), int64_t{0});
    SB_RETURN_IF_ERROR(list(0, total, d.capacity));
  } else {
    for (int64_t row = 0; row < d.capacity; ++row) {
      const auto lanes = std::span(d.ids).subspan(row * shape_.top_k, shape_.top_k);
      if (!std::ranges::all_of(lanes, [&](int32_t id) { return IsMasked(id); })) {
        rows_.push_back(row);
      }
    }
  }
  return OkStatus();
}

// Lanes of weight 0 are not computed: they add nothing, and may stand for masked ones.
Status DeliveredRows::ReadLanes() {
  const Delivered& d = *delivered_;
  const int32_t slots = space_ == SlotSpace::kLocal ? shape_.slots : shape_.total_slots();
  const int64_t top_k = shape_.top_k;
  ids_.reserve(rows_.size() * top_k);
  weights_.reserve(rows_.size() * top_k);
  for (int64_t row : rows_) {
    for (int64_t i = row * top_k; i < (row + 1) * top_k; ++i) {
      const int32_t id = d.ids[i];
      const bool masked = IsMasked(id);
      if (!masked && (id < 0 || id >= slots)) {
        ErrorDetail error = Error();
        error.what = fmt::format("received row {} holds an id of no expert slot", row);
        error.found = fmt::format("{}", id);
        error.expected = fmt::format("0 to {}, or the spelling of a masked lane", slots - 1);
        error.remedy = "rows beyond the count must not be read";
        return Internal(std::move(error));
      }
      const bool used = !masked && d.weights[i] != 0.f;
      ids_.push_back(used ? id : -1);
      weights_.push_back(used ? d.weights[i] : 0.f);
    }
  }
  return OkStatus();
}

// A column of weights per slot in place of ids: lanes are the local columns that are not 0.
Status DeliveredRows::ReadDenseLanes() {
  const Delivered& d = *delivered_;
  ids_.assign(rows_.size() * shape_.top_k, -1);
  weights_.assign(ids_.size(), 0.f);
  for (size_t i = 0; i < rows_.size(); ++i) {
    const float* dense = &d.weights[rows_[i] * d.weight_cols + int64_t{position_} * shape_.slots];
    int lane = 0;
    for (int e = 0; e < shape_.slots; ++e) {
      if (dense[e] == 0.f) continue;
      if (lane == shape_.top_k) {
        ErrorDetail error = Error();
        error.what = fmt::format("received row {} has weights for too many experts", rows_[i]);
        error.expected = fmt::format("at most {}", shape_.top_k);
        return Internal(std::move(error));
      }
      ids_[i * shape_.top_k + lane] = e;
      weights_[i * shape_.top_k + lane] = dense[e];
      ++lane;
    }
  }
  return OkStatus();
}

Status DeliveredRows::RemapIds(SlotSpace to) {
  ErrorDetail error = Error();
  if (stage_ != Stage::kRows) {
    error.what = "ids are mapped without rows";
    return Internal(std::move(error));
  }
  if (!DedupRows(current_)) {
    error.what = fmt::format("{} rows have no ids to map", ToString(current_));
    return InvalidArgument(std::move(error));
  }
  if (to == space_) {
    error.what = fmt::format("ids are {} already", to == SlotSpace::kLocal ? "local" : "global");
    return InvalidArgument(std::move(error));
  }
  const int32_t first = position_ * shape_.slots;
  for (int32_t& id : ids_) {
    if (to == SlotSpace::kGlobal) {
      if (id >= 0) id += first;
    } else {
      id = id >= first && id < first + shape_.slots ? id - first : -1;
    }
  }
  space_ = to;
  return OkStatus();
}

Status DeliveredRows::Permute(RowShape to) {
  ErrorDetail error = Error();
  if (stage_ != Stage::kRows) {
    error.what = "rows are permuted before there are any";
    return Internal(std::move(error));
  }
  if (!IsRowShape(to) || (DedupRows(to) && !DedupRows(current_))) {
    error.what =
        fmt::format("no permutation of rows from {} to {}", ToString(current_), ToString(to));
    return InvalidArgument(std::move(error));
  }
  if (DedupRows(current_) && !DedupRows(to)) {
    if (space_ != SlotSpace::kLocal) {
      error.what = "grouping rows by expert needs local ids, they have global ids";
      return InvalidArgument(std::move(error));
    }
    GroupByExpert();
  }
  current_ = to;
  return OkStatus();
}

// Counting sort of (row, lane) by expert; stable, so that rows of an expert keep their order.
void DeliveredRows::GroupByExpert() {
  offsets_.assign(shape_.slots + 1, 0);
  for (int32_t id : ids_) {
    if (id >= 0) ++offsets_[id + 1];
  }
  std::partial_sum(offsets_.begin(), offsets_.end(), offsets_.begin());
  std::vector<int64_t> next(offsets_.begin(), offsets_.end() - 1);
  std::vector<int64_t> rows(offsets_.back());
  std::vector<float> weights(offsets_.back());
  for (size_t i = 0; i < ids_.size(); ++i) {
    if (ids_[i] < 0) continue;
    const int64_t place = next[ids_[i]]++;
    rows[place] = rows_[i / shape_.top_k];
    weights[place] = weights_[i];
  }
  rows_ = std::move(rows);
  weights_ = std::move(weights);
  ids_.clear();
}

Status DeliveredRows::CheckRun(bool weigh) const {
  ErrorDetail error = Error();
  if (stage_ != Stage::kRows) {
    error.what = "experts are run without rows";
    return Internal(std::move(error));
  }
  if (current_ == RowShape::kRankMajorPadded) {
    error.what = fmt::format("no runner reads {} rows", ToString(current_));
    error.remedy = "permute them first";
  } else if (current_ == RowShape::kFlat && space_ != SlotSpace::kLocal) {
    error.what = "the runner reads local ids, rows have global ids";
    error.remedy = "remap them first";
  } else if (weigh && contract_.weights == ReceivedWeights::kAbsent) {
    error.what = "the runner weighs its rows, but no router weights were delivered";
  }
  return error.what.empty() ? OkStatus() : InvalidArgument(std::move(error));
}

// The mistake of read_too_far.
void DeliveredRows::ReadTooFar(std::vector<int64_t>& reads) const {
  for (int64_t& row : reads) {
    const bool last = row + 1 < delivered_->capacity &&
                      !std::binary_search(valid_.begin(), valid_.end(), row + 1);
    if (last) row = tail_masked_ ? -1 : row + 1;
  }
}

// [rows, hidden] in the order of the current shape: the delivered memory itself where it has that
// order.
const float* DeliveredRows::GatherInput(Ops& ops, Scratch& scratch) const {
  const int64_t width = shape_.hidden;
  std::vector<int64_t> reads = rows_;
  if (read_too_far_) ReadTooFar(reads);
  const auto gap =
      std::ranges::adjacent_find(reads, [](int64_t row, int64_t next) { return next != row + 1; });
  if (gap == reads.end() && !reads.empty() && reads.front() >= 0) {
    return delivered_->rows.data() + reads.front() * width;
  }
  float* x = scratch.Take(static_cast<int64_t>(reads.size()) * width);
  ops.GatherRows({.in = delivered_->rows.data(),
                  .in_stride = width,
                  .width = width,
                  .rows = reads,
                  .out = x,
                  .out_stride = width});
  return x;
}

Status DeliveredRows::Run(Ops& ops, Scratch& scratch, std::span<const ExpertWeights> experts,
                          bool weigh, const Activation& activation, ActivationPrecision precision) {
  SB_CHECK(static_cast<int>(experts.size()) == shape_.slots) << experts.size();
  SB_RETURN_IF_ERROR(CheckRun(weigh));
  const auto rows = static_cast<int64_t>(rows_.size());
  y_.resize(rows * shape_.hidden);
  stage_ = Stage::kResults;
  if (rows == 0) return OkStatus();
  const Scratch::Scope scope(scratch);
  const float* x = GatherInput(ops, scratch);  // [rows, hidden]
  if (DedupRows(current_)) {
    RunFlatExperts(ops, scratch, experts,
                   {.x = x,
                    .hidden = shape_.hidden,
                    .rows = rows,
                    .ids = ids_.data(),
                    .weights = weigh ? weights_.data() : nullptr,
                    .top_k = shape_.top_k,
                    .activation = activation,
                    .precision = precision},
                   y_.data());
    return OkStatus();
  }
  ops.GroupedMlp({.x = x,
                  .x_stride = shape_.hidden,
                  .offsets = offsets_,
                  .experts = experts,
                  .activation = activation,
                  .precision = precision,
                  .y = y_.data(),
                  .y_stride = shape_.hidden});
  if (weigh) WeighResults();
  return OkStatus();
}

void DeliveredRows::WeighResults() {
  const std::span<float> y(y_);
  for (size_t i = 0; i < rows_.size(); ++i) {
    for (float& v : y.subspan(i * shape_.hidden, shape_.hidden)) v *= weights_[i];
  }
}

Status DeliveredRows::PermuteResults(RowShape to, bool weigh) {
  ErrorDetail error = Error();
  if (stage_ != Stage::kResults) {
    error.what = "results are permuted before there are any";
    return Internal(std::move(error));
  }
  if (!IsRowShape(to) || (DedupRows(current_) && !DedupRows(to))) {
    error.what =
        fmt::format("no permutation of results from {} to {}", ToString(current_), ToString(to));
  } else if (weigh && DedupRows(current_)) {
    error.what = "the experts of a row are summed already, it has no single router weight";
  } else if (weigh && contract_.weights == ReceivedWeights::kAbsent) {
    error.what = "results are to be weighed, but no router weights were delivered";
  }
  if (!error.what.empty()) return InvalidArgument(std::move(error));
  if (weigh) WeighResults();
  current_ = to;
  return OkStatus();
}

Result<std::span<const float>> DeliveredRows::Results() {
  ErrorDetail error = Error();
  if (stage_ != Stage::kResults) {
    error.what = "results are read before there are any";
    return Internal(std::move(error));
  }
  if (current_ != contract_.shape) {
    error.what = fmt::format("combine takes {} rows, the experts return {} rows",
                             ToString(contract_.shape), ToString(current_));
    return InvalidArgument(std::move(error));
  }
  const int64_t width = shape_.hidden;
  for (size_t i = 0; i < rows_.size(); ++i) {
    AddRow(std::span(y_).subspan(i * width, width),
           std::span(results_).subspan(rows_[i] * width, width));
  }
  stage_ = Stage::kEmpty;
  return std::span<const float>(results_);
}

}  // namespace signalbox
