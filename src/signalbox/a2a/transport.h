// SPDX-License-Identifier: Apache-2.0
//
// Transport: executes any contract over the ranks of a group, by the contract's fields alone.
//
// Rows, ids, weights and counts come out as oracle.h says, bit by bit where the order of rows is
// reproducible. Where it is not, rows are permuted inside their groups by a pseudo-random order
// drawn from the seed, the call and the rank, so that nothing can come to rely on one. Results of a
// library that owns its memory live until `max_outstanding` later dispatches have overwritten them.
//
// Create, Dispatch, Combine and FusedLayer are collective over the group. Tokens that a rank may
// not send (too many, masked where forbidden) are refused on all ranks together, and the transport
// stays usable. Any other error is local to a rank, which should then give up, as in
// communicator.h.
//
//   SB_ASSIGN_OR_RETURN(auto transport, Transport::Create(contract, comm, group, shape));
//   SB_ASSIGN_OR_RETURN(Dispatched got, transport->Dispatch(x, own));
//   ... experts: got.rows() -> expert_out [capacity, hidden] ...
//   SB_ASSIGN_OR_RETURN(CombineReport report, transport->Combine(expert_out, got, own, out));
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "signalbox/a2a/exchange.h"
#include "signalbox/a2a/worklist.h"
#include "signalbox/comm/communicator.h"

namespace signalbox {

// What one rank sent in one call.
struct Traffic {
  int64_t rows = 0;          // to all ranks: one per (token, rank) or per (token, expert)
  int64_t remote_rows = 0;   // to other ranks
  int64_t row_bytes = 0;     // of a row's values
  int64_t header_bytes = 0;  // that travel beside each row

  int64_t PayloadBytes() const { return rows * row_bytes; }
  int64_t RemoteBytes() const { return remote_rows * (row_bytes + header_bytes); }
};

struct DispatchCall;  // transport.cc

// The result of a dispatch: the received rows and the handle for combine.
class Dispatched {
 public:
  Dispatched(std::shared_ptr<DispatchCall> call, uint64_t number, Traffic traffic)
      : call_(std::move(call)), number_(number), traffic_(traffic) {}

  const Delivered& rows() const;
  const Traffic& traffic() const { return traffic_; }

 private:
  friend class Transport;
  std::shared_ptr<DispatchCall> call_;
  uint64_t number_;  // of the dispatch; the call's memory may since belong to a later one
  Traffic traffic_;
};

struct CombineReport {
  Traffic traffic;
  std::vector<float> weights_back;  // [tokens, top_k]; empty when the contract returns none
};

class Transport {
 public:
  // `group` holds the communicator's rank; its size is shape.ranks. Errors of CheckShape;
  // InvalidArgument on all ranks when they differ in the contract or in the sizes it wants uniform.
  static Result<std::unique_ptr<Transport>> Create(const Contract& contract, Communicator& comm,
                                                   std::vector<RankId> group,
                                                   const ExchangeShape& shape, uint64_t seed = 1);

  // As it is executed: of a fused contract, FusedAsExchange.
  const Contract& contract() const { return contract_; }
  bool fused() const { return fused_; }
  const ExchangeShape& shape() const { return shape_; }
  // Position of this rank in the group.
  int position() const { return position_; }

  // x [tokens, hidden], `own` its routing in slots of the group. Not for fused contracts.
  Result<Dispatched> Dispatch(std::span<const float> x, const Routing& own);

  // masked = caller_id: writes `id` into the ids of all rows without a token, as the library's own
  // call does. InvalidArgument for other contracts.
  Status Sanitise(const Dispatched& dispatched, int32_t id);

  // out [tokens, hidden] <- results of the tokens that `dispatched` sent, from expert_out
  // [capacity, hidden]. `own` is this rank's routing as given to Dispatch: contracts with
  // own_routing refuse any other (the received ids, say), those that weight at the source read its
  // weights, others ignore it. InvalidArgument also for a result that was overwritten or is
  // combined twice.
  Result<CombineReport> Combine(std::span<const float> expert_out, const Dispatched& dispatched,
                                const Routing& own, std::span<float> out);

  // The one call of a fused contract: out [tokens, hidden] <- sum over lanes of weight *
  // expert(x).
  Result<Traffic> FusedLayer(std::span<const float> x, const Routing& own, const ExpertFn& experts,
                             std::span<float> out);

 private:
  Transport(const Contract& contract, Communicator& comm, std::vector<RankId> group,
            const ExchangeShape& shape, uint64_t seed);

  Status AgreeOnSetup(const Status& mine);
  Result<Dispatched> Exchange(std::span<const float> x, const Routing& own);
  // packets_[r] <- packets that rank r sends to this rank, or every rank's refusal.
  Status AgreeOnInput(const Status& mine, int64_t tokens, std::span<const int64_t> send_packets);
  void Pack(std::span<const float> x, const Routing& own, DispatchCall& call,
            std::span<int64_t> packets);
  Status Unpack(DispatchCall& call);
  std::shared_ptr<DispatchCall> NextCall();
  Status CheckCombine(std::span<const float> expert_out, const Dispatched& dispatched,
                      const Routing& own, std::span<float> out) const;
  void PackResults(std::span<const float> expert_out, const DispatchCall& call,
                   std::span<int64_t> rows_to);

  const bool fused_;
  const Contract contract_;  // of a fused one: FusedAsExchange
  Communicator& comm_;
  const std::vector<RankId> group_;
  const ExchangeShape shape_;
  const uint64_t seed_;
  int position_ = 0;

  uint64_t dispatches_ = 0;
  bool awaits_combine_ = false;
  std::vector<std::shared_ptr<DispatchCall>> calls_;
  std::vector<int64_t> packets_;
  std::vector<float> send_, recv_;
};

}  // namespace signalbox
