// SPDX-License-Identifier: Apache-2.0
#include "signalbox/a2a/transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "signalbox/a2a/placement.h"

namespace signalbox {
namespace {

// FNV-1a over 32-bit words and over text: to notice that two things differ, not against malice.
constexpr uint64_t kHashBasis = 0xcbf29ce484222325u;
uint64_t Hash(uint64_t hash, uint64_t value) {
  return (hash ^ value) * 0x100000001b3u;
}
uint64_t HashIds(std::span<const int32_t> ids) {
  uint64_t hash = Hash(kHashBasis, ids.size());
  for (int32_t id : ids) hash = Hash(hash, static_cast<uint32_t>(id));
  return hash;
}
uint64_t HashContract(Contract contract) {
  contract.name.clear();
  contract.mode.clear();
  uint64_t hash = kHashBasis;
  for (char ch : ContractToText(contract)) hash = Hash(hash, static_cast<unsigned char>(ch));
  return hash;
}

// The first `count` values of a buffer that only grows: all of them will be written, so clearing
// them first would be a pass for nothing.
std::span<float> Room(std::vector<float>& buffer, int64_t count) {
  if (static_cast<int64_t>(buffer.size()) < count) buffer.resize(count);
  return std::span(buffer).first(count);
}

int64_t Total(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

}  // namespace

struct DispatchCall {
  // A token, or one of its lanes, that this rank sent: what comes back for it is one row.
  struct Sent {
    int32_t token;
    int32_t lane;  // -1: the sum over the lanes on that rank
  };

  DispatchCall(const Contract& contract, const ExchangeShape& shape, int position)
      : store(contract, shape, position) {}

  uint64_t number = 0;
  bool combined = false;
  int64_t tokens = 0;
  uint64_t own_hash = 0;
  RowStore store;
  std::vector<Arrival> arrivals;        // by sender, token and lane; packets are gone
  std::vector<std::vector<Sent>> sent;  // [ranks] by token and lane
};

const Delivered& Dispatched::rows() const {
  return call_->store.delivered();
}

Transport::Transport(const Contract& contract, Communicator& comm, std::vector<RankId> group,
                     const ExchangeShape& shape, uint64_t seed)
    : fused_(contract.shape == RowShape::kFused),
      contract_(fused_ ? FusedAsExchange(contract) : contract),
      comm_(comm),
      group_(std::move(group)),
      shape_(shape),
      seed_(seed),
      packets_(shape.ranks) {}

Result<std::unique_ptr<Transport>> Transport::Create(const Contract& contract, Communicator& comm,
                                                     std::vector<RankId> group,
                                                     const ExchangeShape& shape, uint64_t seed) {
  const auto me = std::ranges::find(group, comm.rank());
  if (me == group.end() || static_cast<int>(group.size()) != shape.ranks) {
    return InvalidArgument({.what = "the group of an exchange is not the one of its shape",
                            .where = ContractId(contract),
                            .found = fmt::format("{} members", group.size()),
                            .expected = fmt::format("{} members, rank {} among them", shape.ranks,
                                                    comm.rank().value())});
  }
  const auto position = static_cast<int>(me - group.begin());
  std::unique_ptr<Transport> transport(
      new Transport(contract, comm, std::move(group), shape, seed));
  transport->position_ = position;
  Status mine = Validate(contract);
  if (mine.ok()) mine = CheckShape(transport->contract_, shape);
  SB_RETURN_IF_ERROR(transport->AgreeOnSetup(mine));
  return transport;
}

Status Transport::AgreeOnSetup(const Status& mine) {
  const bool uniform = contract_.uniform_capacity || shape_.worst_case;
  constexpr std::string_view kNames[] = {"refusals",    "contracts",  "slots per rank",
                                         "hidden size", "top-k",      "tokens per rank",
                                         "row budgets", "worst case", "rounding"};
  const std::vector<int64_t> setup = {
      !mine.ok(),        static_cast<int64_t>(HashContract(contract_)),
      shape_.slots,      shape_.hidden,
      shape_.top_k,      uniform ? shape_.capacity : 0,
      shape_.row_budget, shape_.worst_case,
      shape_.round_bf16};
  std::vector<int64_t> low = setup, high = setup;
  SB_RETURN_IF_ERROR(comm_.Agree(group_, Agreement::kMin, low));
  SB_RETURN_IF_ERROR(comm_.Agree(group_, Agreement::kMax, high));
  if (!mine.ok()) return mine;
  if (high[0] != 0) {
    return InvalidArgument(
        {.what = "another rank cannot set up the exchange", .where = ContractId(contract_)});
  }
  for (size_t i = 1; i < setup.size(); ++i) {
    if (low[i] == high[i]) continue;
    return InvalidArgument(
        {.what = fmt::format("ranks of an exchange differ in their {}", kNames[i]),
         .where = ContractId(contract_),
         .found = i == 1 ? "different fields" : fmt::format("{} to {}", low[i], high[i]),
         .expected = "the same on all ranks"});
  }
  return OkStatus();
}

Result<Dispatched> Transport::Dispatch(std::span<const float> x, const Routing& own) {
  if (fused_) {
    return InvalidArgument({.what = "a fused back end has no separate dispatch",
                            .where = ContractId(contract_),
                            .remedy = "call FusedLayer"});
  }
  return Exchange(x, own);
}

Result<Dispatched> Transport::Exchange(std::span<const float> x, const Routing& own) {
  if (contract_.alternate && awaits_combine_) {
    return InvalidArgument({.what = "a dispatch before the combine of the last one",
                            .where = ContractId(contract_),
                            .remedy = "this back end wants them to alternate"});
  }
  const auto tokens = static_cast<int64_t>(own.ids.size()) / shape_.top_k;
  const Status mine = CheckInput(contract_, shape_, tokens, static_cast<int64_t>(x.size()), own);

  std::shared_ptr<DispatchCall> call = NextCall();
  call->tokens = tokens;
  call->own_hash = HashIds(own.ids);
  std::vector<int64_t> send_packets(shape_.ranks);
  const PacketFormat format(contract_, shape_);
  if (mine.ok()) Pack(x, own, *call, send_packets);
  SB_RETURN_IF_ERROR(AgreeOnInput(mine, tokens, send_packets));

  const int64_t packet_bytes = format.words() * int64_t{sizeof(float)};
  std::vector<int64_t> give(shape_.ranks), take(shape_.ranks);
  for (int r = 0; r < shape_.ranks; ++r) {
    give[r] = send_packets[r] * packet_bytes;
    take[r] = packets_[r] * packet_bytes;
  }
  const std::span<float> sent = Room(send_, Total(send_packets) * format.words());
  const std::span<float> received = Room(recv_, Total(packets_) * format.words());
  SB_RETURN_IF_ERROR(
      comm_.AllToAll(group_, std::as_bytes(sent), give, std::as_writable_bytes(received), take));
  SB_RETURN_IF_ERROR(Unpack(*call));

  awaits_combine_ = true;
  Traffic traffic{.row_bytes = shape_.hidden * int64_t{sizeof(float)},
                  .header_bytes = format.header_words() * int64_t{sizeof(float)}};
  traffic.rows = Total(send_packets);
  traffic.remote_rows = traffic.rows - send_packets[position_];
  return Dispatched(call, call->number, traffic);
}

// The memory of the next result: the oldest of a fixed number, or, for libraries that allocate,
// memory that nobody holds any more.
std::shared_ptr<DispatchCall> Transport::NextCall() {
  const uint64_t number = ++dispatches_;
  std::shared_ptr<DispatchCall> call;
  if (contract_.max_outstanding > 0) {
    const size_t index = number % static_cast<uint64_t>(contract_.max_outstanding);
    if (index < calls_.size()) call = calls_[index];
  } else {
    const auto free = std::ranges::find_if(calls_, [](auto& c) { return c.use_count() == 1; });
    if (free != calls_.end()) call = *free;
  }
  if (!call) {
    call = calls_.emplace_back(std::make_shared<DispatchCall>(contract_, shape_, position_));
    call->sent.resize(shape_.ranks);
  }
  call->number = number;
  call->combined = false;
  return call;
}

Status Transport::AgreeOnInput(const Status& mine, int64_t tokens,
                               std::span<const int64_t> send_packets) {
  std::vector<int64_t> header = {static_cast<int64_t>(mine.code()), tokens};
  header.insert(header.end(), send_packets.begin(), send_packets.end());
  std::vector<int64_t> all(header.size() * shape_.ranks);
  const std::vector<int64_t> bytes(shape_.ranks,
                                   static_cast<int64_t>(header.size() * sizeof(int64_t)));
  SB_RETURN_IF_ERROR(comm_.AllGather(group_, BytesOf(header), bytes, WritableBytesOf(all)));
  if (!mine.ok()) return mine;
  for (int r = 0; r < shape_.ranks; ++r) {
    const int64_t* theirs = &all[r * header.size()];
    if (theirs[0] != 0) {
      const auto code = static_cast<StatusCode>(theirs[0]);
      return Status(code, {.what = fmt::format("rank {} could not dispatch", group_[r].value()),
                           .where = ContractId(contract_),
                           .remedy = "see the error of that rank"});
    }
    if (contract_.limits.equal_tokens && theirs[1] != tokens) {
      return InvalidArgument(
          {.what = "ranks send different numbers of tokens",
           .where = ContractId(contract_),
           .found = fmt::format("{} on rank {}, {} on rank {}", tokens, group_[position_].value(),
                                theirs[1], group_[r].value()),
           .remedy = "pad all ranks to one number"});
    }
    packets_[r] = theirs[2 + position_];
  }
  packets_[position_] = send_packets[position_];
  return OkStatus();
}

// call.sent <- what goes to each rank, packets[r] of them, which then lie in send_.
void Transport::Pack(std::span<const float> x, const Routing& own, DispatchCall& call,
                     std::span<int64_t> packets) {
  const int k = shape_.top_k;
  const bool by_lane = !DedupRows(contract_.shape);
  for (auto& list : call.sent) list.clear();
  for (int32_t t = 0; t < call.tokens; ++t) {
    for (int32_t lane = 0; lane < k; ++lane) {
      const int32_t id = own.ids[int64_t{t} * k + lane];
      if (id < 0) continue;
      const int rank = id / shape_.slots;
      auto& list = call.sent[rank];
      const bool first = list.empty() || list.back().token != t;
      if (first || !contract_.dedup_wire) ++packets[rank];
      if (first || by_lane) list.push_back({t, by_lane ? lane : -1});
    }
  }

  const PacketFormat format(contract_, shape_);
  float* packet = Room(send_, Total(packets) * format.words()).data();
  for (const auto& list : call.sent) {
    int32_t last = -1;
    for (const auto [t, lane] : list) {
      if (contract_.dedup_wire && t == last) continue;
      last = t;
      const int64_t first = int64_t{t} * k + (contract_.dedup_wire ? 0 : lane);
      PacketFormat::PutInt(packet, t);
      PacketFormat::PutInt(packet + 1, contract_.dedup_wire ? -1 : lane);
      for (int j = 0; j < format.lanes; ++j) {
        PacketFormat::PutInt(packet + 2 + j, own.ids[first + j]);
        packet[2 + format.lanes + j] = own.weights[first + j];
      }
      const std::span<float> values(packet + format.header_words(), shape_.hidden);
      std::ranges::copy(x.subspan(int64_t{t} * shape_.hidden, shape_.hidden), values.begin());
      if (shape_.round_bf16) RoundToBf16(values);
      packet += format.words();
    }
  }
}

Status Transport::Unpack(DispatchCall& call) {
  SB_ASSIGN_OR_RETURN(call.arrivals,
                      ListArrivals(contract_, shape_, position_, recv_.data(), packets_));
  const bool fits = call.store.Place(call.arrivals, seed_ + call.number * shape_.ranks + position_);
  for (Arrival& a : call.arrivals) a.packet = nullptr;
  // Only a budget can be exceeded while every rank keeps to its tokens; the ranks then fail
  // together.
  const bool budget = contract_.rows_bound == RowsBound::kCallerBudget &&
                      contract_.overflow != OverflowPolicy::kDropWithFlag;
  int64_t failed = fits ? 0 : 1;
  if (budget) SB_RETURN_IF_ERROR(comm_.Agree(group_, Agreement::kMax, {&failed, 1}));
  if (failed == 0) return OkStatus();
  if (!budget) {
    return Internal(
        {.what = "more rows arrived than the ranks' tokens allow", .where = ContractId(contract_)});
  }
  return ResourceExhausted({.what = fmt::format("{} exceed the receive budget of {}",
                                                fits ? "rows of another rank" : "received rows",
                                                RowCapacity(contract_, shape_, 0)),
                            .where = ContractId(contract_),
                            .remedy = "raise the budget: ranks x tokens per rank always suffices"});
}

Status Transport::Sanitise(const Dispatched& dispatched, int32_t id) {
  if (contract_.masked != MaskSpelling::kCallerId) {
    return InvalidArgument({.what = "this back end has no call that writes ids into empty rows",
                            .where = ContractId(contract_)});
  }
  dispatched.call_->store.Sanitise(id);
  return OkStatus();
}

Status Transport::CheckCombine(std::span<const float> expert_out, const Dispatched& dispatched,
                               const Routing& own, std::span<float> out) const {
  const DispatchCall& call = *dispatched.call_;
  const Delivered& rows = call.store.delivered();
  const int64_t lanes = call.tokens * shape_.top_k;
  ErrorDetail error{.where = ContractId(contract_)};
  if (call.number != dispatched.number_) {
    error.what = fmt::format("the result of dispatch {} was overwritten by dispatch {}",
                             dispatched.number_, call.number);
    error.expected = fmt::format("at most {} results at a time", contract_.max_outstanding);
  } else if (call.combined) {
    error.what = fmt::format("dispatch {} is combined twice", call.number);
  } else if (static_cast<int64_t>(expert_out.size()) != rows.capacity * shape_.hidden ||
             static_cast<int64_t>(out.size()) != call.tokens * shape_.hidden) {
    error.what = "buffers of combine have the wrong size";
    error.found = fmt::format("{} and {} values", expert_out.size(), out.size());
    error.expected = fmt::format("{} rows and {} tokens of hidden {}", rows.capacity, call.tokens,
                                 shape_.hidden);
  } else if (contract_.own_routing && !own.ids.empty() && own.ids.data() == rows.ids.data()) {
    error.what = "combine was given the ids that arrived with the rows";
    error.remedy = "give the routing of this rank's own tokens, as given to dispatch";
  } else if (contract_.own_routing && HashIds(own.ids) != call.own_hash) {
    error.what = "combine was given another routing than dispatch";
    error.found = fmt::format("{} ids", own.ids.size());
    error.expected = fmt::format("the {} ids of dispatch", lanes);
    error.remedy = "give the routing of this rank's own tokens, as given to dispatch";
  } else if (contract_.weighting == Weighting::kLibraryAtSource &&
             static_cast<int64_t>(own.weights.size()) != lanes) {
    error.what = "combine weights at the source and needs the weights of this rank's tokens";
    error.found = fmt::format("{} weights", own.weights.size());
    error.expected = fmt::format("{}", lanes);
  }
  return error.what.empty() ? OkStatus() : InvalidArgument(std::move(error));
}

// send_ <- what each sender gets back: rows as they are where it weights lanes itself, else one sum
// per token. rows_to[r] counts them.
void Transport::PackResults(std::span<const float> expert_out, const DispatchCall& call,
                            std::span<int64_t> rows_to) {
  const bool by_lane = contract_.weighting == Weighting::kLibraryAtSource;
  const bool weighted = contract_.weighting == Weighting::kLibraryAtExpert;
  const bool round_sums = shape_.round_bf16 && contract_.rounding_stages > 1 && !by_lane;
  const int64_t width = shape_.hidden;
  std::vector<float> rounded;
  float* next = Room(send_, std::ssize(call.arrivals) * width).data();  // most that it can be
  for (size_t i = 0; i < call.arrivals.size();) {
    const Origin& first = call.arrivals[i].origin;
    const std::span<float> sum(next, width);
    bool empty = true;
    do {
      const Arrival& a = call.arrivals[i];
      if (a.position >= 0) {  // else dropped on arrival: counts as zero
        std::span<const float> row = expert_out.subspan(a.position * width, width);
        if (shape_.round_bf16) {
          rounded.assign(row.begin(), row.end());
          RoundToBf16(rounded);
          row = rounded;
        }
        if (weighted) {
          (empty ? SetScaledRow : AddScaledRow)(row, a.weight, sum);
        } else {
          (empty ? SetRow : AddRow)(row, sum);
        }
        empty = false;
      }
      ++i;
    } while (!by_lane && i < call.arrivals.size() &&
             call.arrivals[i].origin.source == first.source &&
             call.arrivals[i].origin.token == first.token);
    if (empty) std::ranges::fill(sum, 0.f);
    if (round_sums) RoundToBf16(sum);
    ++rows_to[first.source];
    next += width;
  }
}

Result<CombineReport> Transport::Combine(std::span<const float> expert_out,
                                         const Dispatched& dispatched, const Routing& own,
                                         std::span<float> out) {
  SB_RETURN_IF_ERROR(CheckCombine(expert_out, dispatched, own, out));
  DispatchCall& call = *dispatched.call_;
  const bool by_lane = contract_.weighting == Weighting::kLibraryAtSource;
  const int64_t width = shape_.hidden;
  const int64_t row_bytes = width * int64_t{sizeof(float)};
  std::vector<int64_t> give(shape_.ranks), take(shape_.ranks);
  PackResults(expert_out, call, give);
  CombineReport report{.traffic = {.row_bytes = row_bytes},
                       .weights_back = WeightsReturned(contract_, shape_, own)};
  report.traffic.rows = std::accumulate(give.begin(), give.end(), int64_t{0});
  report.traffic.remote_rows = report.traffic.rows - give[position_];

  std::vector<DispatchCall::Sent> returned;  // one per row that comes back
  for (int r = 0; r < shape_.ranks; ++r) {
    const size_t before = returned.size();
    for (const DispatchCall::Sent& s : call.sent[r]) {
      if (by_lane || returned.size() == before || returned.back().token != s.token) {
        returned.push_back(s);
      }
    }
    take[r] = static_cast<int64_t>(returned.size() - before) * row_bytes;
    give[r] *= row_bytes;
  }
  const std::span<const float> sent = Room(send_, report.traffic.rows * width);
  const std::span<float> back = Room(recv_, std::ssize(returned) * width);
  SB_RETURN_IF_ERROR(
      comm_.AllToAll(group_, std::as_bytes(sent), give, std::as_writable_bytes(back), take));
  call.combined = true;
  awaits_combine_ = false;

  std::vector<int64_t> row_of(by_lane ? call.tokens * shape_.top_k : 0, -1);
  for (size_t i = 0; i < returned.size() && by_lane; ++i) {
    row_of[returned[i].token * shape_.top_k + returned[i].lane] = static_cast<int64_t>(i);
  }
  std::vector<bool> started(call.tokens);
  const auto add = [&](int64_t row, int64_t token, float weight) {
    const std::span<const float> values = back.subspan(row * width, width);
    const std::span<float> sum = out.subspan(token * width, width);
    if (by_lane) {
      (started[token] ? AddScaledRow : SetScaledRow)(values, weight, sum);
    } else {
      (started[token] ? AddRow : SetRow)(values, sum);
    }
    started[token] = true;
  };
  for (size_t i = 0; i < row_of.size(); ++i) {
    if (row_of[i] >= 0) add(row_of[i], static_cast<int64_t>(i) / shape_.top_k, own.weights[i]);
  }
  for (size_t i = 0; i < returned.size() && !by_lane; ++i) {
    add(static_cast<int64_t>(i), returned[i].token, 1.f);
  }
  for (int64_t t = 0; t < call.tokens; ++t) {
    if (!started[t]) std::ranges::fill(out.subspan(t * width, width), 0.f);
  }
  if (shape_.round_bf16) RoundToBf16(out);
  return report;
}

Result<Traffic> Transport::FusedLayer(std::span<const float> x, const Routing& own,
                                      const ExpertFn& experts, std::span<float> out) {
  if (!fused_) {
    return InvalidArgument({.what = "this back end computes no whole layer",
                            .where = ContractId(contract_),
                            .remedy = "call Dispatch and Combine"});
  }
  SB_ASSIGN_OR_RETURN(const Dispatched dispatched, Exchange(x, own));
  const Delivered& got = dispatched.rows();
  std::vector<int64_t> offsets = got.zone_begin;
  offsets.push_back(got.capacity);
  std::vector<float> y(got.rows.size());
  SB_RETURN_IF_ERROR(experts(got.rows, offsets, y));
  // The kernel weights on the expert's rank; what returns to the sender is summed as it is.
  for (int64_t row = 0; row < got.capacity; ++row) {
    for (float& v : std::span(y).subspan(row * shape_.hidden, shape_.hidden)) {
      v *= got.weights[row];
    }
  }
  const std::vector<float> ones(own.weights.size(), 1.f);
  SB_RETURN_IF_ERROR(Combine(y, dispatched, {.ids = own.ids, .weights = ones}, out).status());
  return dispatched.traffic();
}

}  // namespace signalbox
