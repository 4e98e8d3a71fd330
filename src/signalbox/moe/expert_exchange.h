// SPDX-License-Identifier: Apache-2.0
//
// ExpertExchange: everything between a rank's rows and the results of their experts on whichever
// rank holds them, as the steps of a plan. One per rank, contract and sizes; layers share it, one
// after another. It holds what lies between steps: the transport, the routing that was dispatched,
// the received rows.
//
// What a contract cannot take is handled here: masked experts where it forbids them (rows without
// any expert stay at home and give zeros), unequal numbers of rows where it wants equal ones (rows
// of no token are added). A fused contract has no rows to see: dispatch keeps the input, run makes
// the one call, combine hands its output over.
//
// Create, Dispatch, Run (of fused contracts) and Combine are collective over the group. More rows
// than the capacity are refused on all ranks together (ResourceExhausted), and the exchange stays
// usable. Any other error ends this rank's part in the world, as in communicator.h.
//
//   SB_ASSIGN_OR_RETURN(auto moe, ExpertExchange::Create(contract, comm, group, options));
//   SB_RETURN_IF_ERROR(moe->Dispatch(x, {.ids = slots, .weights = weights}));
//   ... RemapIds, MaskTail, Permute as planned ...
//   SB_RETURN_IF_ERROR(moe->Run(ops, scratch, experts, /*weigh=*/true));
//   SB_RETURN_IF_ERROR(moe->Combine(out, /*weigh=*/false));
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "signalbox/a2a/transport.h"
#include "signalbox/moe/delivered_rows.h"

namespace signalbox {

// Deliberate mistakes, so that a verification can show that it finds them.
struct RowFaults {
  bool read_poison = false;  // the last valid row of every group is read one row too far
  int id_offset = 0;         // every expert is taken for the one so many slots further on
  bool weigh_twice = false;  // router weights are applied again
};

struct ExchangeOptions {
  int slots = 1;          // expert slots of one rank
  int hidden = 1;         // features of a row: the latent width where experts are latent
  int top_k = 1;          // lanes of a row: chosen experts, and fused shared slots
  int64_t capacity = 0;   // most rows that a rank sends in one call; 0 = the contract's default
  uint64_t seed = 1;      // of row orders that the contract leaves open
  Activation activation;  // of the experts
  ActivationPrecision precision = ActivationPrecision::kFloat;  // likewise
  RowFaults faults;
};

// What this rank has sent since Create.
struct TrafficTotal {
  int64_t calls = 0;
  int64_t rows = 0;
  int64_t bytes = 0;         // of the rows' values
  int64_t remote_rows = 0;   // to other ranks
  int64_t remote_bytes = 0;  // with the headers that travel beside the rows

  void Add(const Traffic& traffic);
};

class ExpertExchange {
 public:
  // The errors of Transport::Create. `group` is ascending and holds the communicator's rank.
  static Result<std::unique_ptr<ExpertExchange>> Create(const Contract& contract,
                                                        Communicator& comm,
                                                        std::vector<RankId> group,
                                                        const ExchangeOptions& options);

  const Contract& contract() const { return contract_; }
  const ExchangeShape& shape() const { return transport_->shape(); }
  // Of this rank in the group: it holds slots [position * slots, (position + 1) * slots).
  int position() const { return transport_->position(); }

  // x [rows, hidden]; `own` [rows, top_k] in slots of the group, -1 = masked. Nothing of the
  // arguments is needed afterwards.
  Status Dispatch(std::span<const float> x, const Routing& own);

  // As in delivered_rows.h. Internal out of order; InvalidArgument for all but Run() where the
  // contract is fused.
  Status RemapIds(SlotSpace to);
  Status MaskTail();
  Status Permute(RowShape to);
  Status Run(Ops& ops, Scratch& scratch, std::span<const ExpertWeights> experts, bool weigh);
  Status PermuteResults(RowShape to, bool weigh);

  // out [rows, hidden], complete: nothing is left to be summed over the group. `weigh` must say
  // what the contract does (weighting other than caller); InvalidArgument otherwise.
  Status Combine(std::span<float> out, bool weigh);

  const TrafficTotal& dispatched() const { return dispatched_total_; }
  // Of a fused contract nothing is known about the way back.
  const TrafficTotal& combined() const { return combined_total_; }

 private:
  enum class Stage : uint8_t { kIdle, kDispatched, kRun };

  ExpertExchange(const Contract& contract, Communicator& comm, std::vector<RankId> group,
                 std::unique_ptr<Transport> transport, const ExchangeOptions& options);

  bool fused() const { return contract_.shape == RowShape::kFused; }
  Status Prepare(std::span<const float> x, const Routing& own);
  void PadTo(int64_t sent);
  Status CheckRows(Stage stage) const;
  Status RunFused(Ops& ops, std::span<const ExpertWeights> experts, bool weigh);
  Routing sent_routing() const { return {.ids = ids_, .weights = weights_}; }

  const Contract contract_;
  Communicator& comm_;
  const std::vector<RankId> group_;
  const std::unique_ptr<Transport> transport_;
  const RowFaults faults_;
  const Activation activation_;
  const ActivationPrecision precision_;

  Stage stage_ = Stage::kIdle;
  int64_t rows_ = 0;             // of the caller
  std::vector<int64_t> tokens_;  // the caller's row of each row sent; rows added behind have none
  std::vector<float> x_;         // [sent, hidden]
  std::vector<int32_t> ids_;     // [sent, top_k]
  std::vector<float> weights_;   // [sent, top_k]
  std::vector<float> combined_;  // [sent, hidden]
  std::optional<Dispatched> dispatched_;
  DeliveredRows delivered_;
  TrafficTotal dispatched_total_, combined_total_;
};

}  // namespace signalbox
