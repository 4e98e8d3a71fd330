// SPDX-License-Identifier: Apache-2.0
#include "signalbox/moe/expert_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace signalbox {

void TrafficTotal::Add(const Traffic& traffic) {
  ++calls;
  rows += traffic.rows;
  bytes += traffic.PayloadBytes();
  remote_rows += traffic.remote_rows;
  remote_bytes += traffic.RemoteBytes();
}

ExpertExchange::ExpertExchange(const Contract& contract, Communicator& comm,
                               std::vector<RankId> group, std::unique_ptr<Transport> transport,
                               const ExchangeOptions& options)
    : contract_(contract),
      comm_(comm),
      group_(std::move(group)),
      transport_(std::move(transport)),
      faults_(options.faults),
      activation_(options.activation),
      precision_(options.precision),
      delivered_(contract_, transport_->shape(), transport_->position(),
                 options.faults.read_poison) {}

Result<std::unique_ptr<ExpertExchange>> ExpertExchange::Create(const Contract& contract,
                                                               Communicator& comm,
                                                               std::vector<RankId> group,
                                                               const ExchangeOptions& options) {
  const ExchangeShape shape{.ranks = static_cast<int>(group.size()),
                            .slots = options.slots,
                            .hidden = options.hidden,
                            .top_k = options.top_k,
                            .capacity = Capacity(contract, options.capacity)};
  SB_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport,
                      Transport::Create(contract, comm, group, shape, options.seed));
  return std::unique_ptr<ExpertExchange>(
      new ExpertExchange(contract, comm, std::move(group), std::move(transport), options));
}

Status ExpertExchange::Dispatch(std::span<const float> x, const Routing& own) {
  stage_ = Stage::kIdle;
  dispatched_.reset();  // its memory may be used again
  SB_RETURN_IF_ERROR(Prepare(x, own));
  if (!fused()) {
    SB_ASSIGN_OR_RETURN(dispatched_, transport_->Dispatch(x_, sent_routing()));
    dispatched_total_.Add(dispatched_->traffic());
    if (contract_.masked == MaskSpelling::kCallerId) {
      SB_RETURN_IF_ERROR(transport_->Sanitise(*dispatched_, -1));
    }
    SB_RETURN_IF_ERROR(delivered_.Reset(dispatched_->rows()));
  }
  stage_ = Stage::kDispatched;
  return OkStatus();
}

// The rows and the routing that the contract can take.
Status ExpertExchange::Prepare(std::span<const float> x, const Routing& own) {
  const ExchangeShape& s = shape();
  rows_ = static_cast<int64_t>(own.ids.size()) / s.top_k;
  const auto lanes = static_cast<size_t>(rows_ * s.top_k);
  if (own.ids.size() != lanes || own.weights.size() != lanes ||
      x.size() != static_cast<size_t>(rows_ * s.hidden)) {
    return Internal({.what = "rows, ids and weights are not of the same tokens",
                     .where = ContractId(contract_),
                     .found = fmt::format("{} values, {} ids, {} weights", x.size(), own.ids.size(),
                                          own.weights.size())});
  }
  if (contract_.negative_ids == NegativeIds::kSkip) {
    tokens_.resize(rows_);
    std::iota(tokens_.begin(), tokens_.end(), int64_t{0});
    ids_.assign(own.ids.begin(), own.ids.end());
    weights_.assign(own.weights.begin(), own.weights.end());
  } else {
    UnmaskedRouting unmasked = WithoutMasked(own, s);
    tokens_ = std::move(unmasked.tokens);
    ids_ = std::move(unmasked.ids);
    weights_ = std::move(unmasked.weights);
  }
  x_.resize(tokens_.size() * s.hidden);
  for (size_t i = 0; i < tokens_.size(); ++i) {
    std::ranges::copy(x.subspan(tokens_[i] * s.hidden, s.hidden), x_.begin() + i * s.hidden);
  }
  if (faults_.weigh_twice) {
    for (float& w : weights_) w *= w;
  }
  if (contract_.limits.equal_tokens) {
    auto sent = static_cast<int64_t>(tokens_.size());
    SB_RETURN_IF_ERROR(comm_.Agree(group_, Agreement::kMax, {&sent, 1}));
    PadTo(sent);
  }
  return OkStatus();
}

// Rows of zeros without an expert; where there must be one, this rank's first ones with weight 0.
void ExpertExchange::PadTo(int64_t sent) {
  const ExchangeShape& s = shape();
  const bool skip = contract_.negative_ids == NegativeIds::kSkip;
  x_.resize(sent * s.hidden, 0.f);
  weights_.resize(sent * s.top_k, 0.f);
  for (auto lane = static_cast<int64_t>(ids_.size()); lane < sent * s.top_k; ++lane) {
    const auto k = static_cast<int>(lane % s.top_k);
    ids_.push_back(skip ? -1 : (position() * s.slots + k) % s.total_slots());
  }
}

Status ExpertExchange::CheckRows(Stage stage) const {
  if (fused()) {
    return InvalidArgument(
        {.what = "a fused back end shows no rows", .where = ContractId(contract_)});
  }
  if (stage_ == stage) return OkStatus();
  return Internal({.what = stage == Stage::kDispatched ? "there are no dispatched rows"
                                                       : "there are no results of experts",
                   .where = ContractId(contract_)});
}

Status ExpertExchange::RemapIds(SlotSpace to) {
  SB_RETURN_IF_ERROR(CheckRows(Stage::kDispatched));
  return delivered_.RemapIds(to);
}

Status ExpertExchange::MaskTail() {
  SB_RETURN_IF_ERROR(CheckRows(Stage::kDispatched));
  delivered_.MaskTail();
  return OkStatus();
}

Status ExpertExchange::Permute(RowShape to) {
  SB_RETURN_IF_ERROR(CheckRows(Stage::kDispatched));
  return delivered_.Permute(to);
}

Status ExpertExchange::Run(Ops& ops, Scratch& scratch, std::span<const ExpertWeights> experts,
                           bool weigh) {
  if (stage_ != Stage::kDispatched || static_cast<int>(experts.size()) != shape().slots) {
    return Internal({.what = "experts are run without rows, or not those of this rank's slots",
                     .where = ContractId(contract_),
                     .found = fmt::format("{} experts", experts.size()),
                     .expected = fmt::format("{} after a dispatch", shape().slots)});
  }
  std::vector<ExpertWeights> shifted;
  if (faults_.id_offset != 0) {
    shifted.assign(experts.begin(), experts.end());
    const int slots = shape().slots;
    std::rotate(shifted.begin(), shifted.begin() + (faults_.id_offset % slots + slots) % slots,
                shifted.end());
    experts = shifted;
  }
  SB_RETURN_IF_ERROR(fused()
                         ? RunFused(ops, experts, weigh)
                         : delivered_.Run(ops, scratch, experts, weigh, activation_, precision_));
  stage_ = Stage::kRun;
  return OkStatus();
}

Status ExpertExchange::RunFused(Ops& ops, std::span<const ExpertWeights> experts, bool weigh) {
  if (weigh) {
    return InvalidArgument({.what = "a fused back end multiplies by the router weights itself",
                            .where = ContractId(contract_)});
  }
  const int64_t width = shape().hidden;
  const ExpertFn grouped = [&](std::span<const float> x, std::span<const int64_t> offsets,
                               std::span<float> y) {
    ops.GroupedMlp({.x = x.data(),
                    .x_stride = width,
                    .offsets = offsets,
                    .experts = experts,
                    .activation = activation_,
                    .precision = precision_,
                    .y = y.data(),
                    .y_stride = width});
    return OkStatus();
  };
  combined_.resize(x_.size());
  SB_ASSIGN_OR_RETURN(const Traffic traffic,
                      transport_->FusedLayer(x_, sent_routing(), grouped, combined_));
  dispatched_total_.Add(traffic);
  return OkStatus();
}

Status ExpertExchange::PermuteResults(RowShape to, bool weigh) {
  SB_RETURN_IF_ERROR(CheckRows(Stage::kRun));
  return delivered_.PermuteResults(to, weigh);
}

Status ExpertExchange::Combine(std::span<float> out, bool weigh) {
  const bool library = contract_.weighting != Weighting::kCaller;
  const int64_t width = shape().hidden;
  if (stage_ != Stage::kRun || static_cast<int64_t>(out.size()) != rows_ * width) {
    return Internal({.what = "combine without results, or into other rows than were dispatched",
                     .where = ContractId(contract_),
                     .found = fmt::format("{} values", out.size()),
                     .expected = fmt::format("{} after a run", rows_ * width)});
  }
  if (weigh != library) {
    return InvalidArgument({.what = fmt::format("combine {} multiplies by the router weights",
                                                library ? "always" : "never"),
                            .where = ContractId(contract_)});
  }
  if (!fused()) {
    SB_ASSIGN_OR_RETURN(const std::span<const float> results, delivered_.Results());
    combined_.resize(x_.size());
    SB_ASSIGN_OR_RETURN(const CombineReport report,
                        transport_->Combine(results, *dispatched_, sent_routing(), combined_));
    combined_total_.Add(report.traffic);
  }
  std::ranges::fill(out, 0.f);
  for (size_t i = 0; i < tokens_.size(); ++i) {
    std::copy_n(combined_.begin() + i * width, width, out.begin() + tokens_[i] * width);
  }
  stage_ = Stage::kIdle;
  return OkStatus();
}

}  // namespace signalbox
