// SPDX-License-Identifier: Apache-2.0
//
// Contract: everything an engine may assume about one mode of one all-to-all library, as data.
//
// The planner reads it to choose epilogues and to refuse what cannot work, the oracle and the
// transport (oracle.h, transport.h) execute it. No logic reads `name` or `mode`: two contracts with
// equal fields behave the same whatever they are called. contract_table.cc holds the known ones;
// any other can be written in a text file.
//
//   SB_ASSIGN_OR_RETURN(Contract c, FindContract(flags.backend, "auto", CallPhase::kDecode));
//   SB_RETURN_IF_ERROR(Eligible(c, {.top_k = 8, .hidden = 4096, .slots = 512, .ranks = 8,
//                                   .rows = {.flag = "--chunked-prefill-size", .value = 4096}}));
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "signalbox/a2a/contract_fields.h"
#include "signalbox/base/status.h"

namespace signalbox {

// Zero, or an empty list, means no limit.
struct Limits {
  int top_k_max = 0;
  std::vector<int> hidden_list;   // the only widths there are kernels for, elements
  int hidden_multiple = 0;        // elements
  int hidden_bytes_multiple = 0;  // bytes of a row as it travels
  int hidden_min = 0;             // elements
  int hidden_max = 0;             // elements
  std::vector<int> ranks_list;    // the only sizes of a group
  int ranks_min = 0;
  int ranks_max = 0;
  int slots_max = 0;          // expert slots over all ranks
  int local_slots_max = 0;    // expert slots of one rank
  int tokens_max = 0;         // largest T, tokens per rank and call
  int tokens_default = 0;     // T when the user names none
  int rows_multiple = 0;      // R*T is a multiple of it
  bool equal_slots = true;    // every rank holds the same number of slots
  bool equal_tokens = false;  // every rank must send the same number of rows

  friend bool operator==(const Limits&, const Limits&) = default;
};

struct Contract {
  // For lookup and printing only.
  std::string name;                // as in --moe-a2a-backend
  std::string mode;                // which of the library's interfaces; empty when it has one
  EnumSet<CallPhase> auto_phases;  // phases in which mode "auto" means this one

  // What dispatch returns.
  RowShape shape = RowShape::kNone;
  bool dedup_wire = false;  // one row travels per (token, rank); else one per (token, expert)
  RowOrder order = RowOrder::kSourceSorted;
  ReceivedIds ids = ReceivedIds::kAbsent;
  MaskSpelling masked = MaskSpelling::kNone;
  bool lanes_kept = true;  // lane k at the receiver is lane k of the sender; else local lanes come
                           // first, by ascending expert
  int id_bits_in = 32;     // of the caller's ids
  int id_bits_out = 0;     // of the received ids; 0 when absent
  ReceivedWeights weights = ReceivedWeights::kAbsent;
  TailRows tail = TailRows::kPoison;
  NegativeIds negative_ids = NegativeIds::kForbidden;
  EnumSet<Counts> counts;
  int row_align = 1;  // rows; expert zones of the compact shape start at multiples of it
  RowsBound rows_bound = RowsBound::kExact;

  // What combine does.
  Weighting weighting = Weighting::kCaller;
  int rounding_stages = 1;   // 1: one fp32 sum, rounded at the end; 2: partial sums are rounded too
  bool own_routing = false;  // combine must be given the caller's own ids; else the handle has them
  WeightsBack weights_back = WeightsBack::kNone;

  // How it executes.
  bool uniform_capacity = true;  // T must be the same number on all ranks
  OverflowPolicy overflow = OverflowPolicy::kHostReject;
  HostSync sync = HostSync::kNever;
  OutputMemory outputs = OutputMemory::kFreshPerCall;
  CapturePolicy capture = CapturePolicy::kNo;
  EnumSet<CallPhase> capture_phases;  // phases in which `capture` is of use
  int max_outstanding = 0;            // dispatches whose results live at the same time; 0 = any
  bool alternate = false;             // dispatch and combine must strictly alternate
  bool split_phases = false;          // sending and receiving are separate calls
  bool own_router = false;            // it computes the routing itself; ours cannot be given
  EnumSet<Payload> payloads;          // of dispatched rows
  Quantiser quantiser = Quantiser::kNobody;
  bool scales_col_major = false;  // scales of a narrow payload, [rows, blocks]
  FaultPolicy fault = FaultPolicy::kTrap;

  Limits limits;

  friend bool operator==(const Contract&, const Contract&) = default;
};

// Calls visit(key, field, need) for every field in declaration order: the one list from which
// parsing, printing, comparing and JSON are made. C is Contract or const Contract.
enum class Need : bool { kOptional, kRequired };
template <typename C, typename Visitor>
void VisitFields(C& c, Visitor&& visit) {
  constexpr Need kOptional = Need::kOptional, kRequired = Need::kRequired;
  visit("name", c.name, kRequired);
  visit("mode", c.mode, kOptional);
  visit("auto_phases", c.auto_phases, kOptional);
  visit("shape", c.shape, kRequired);
  visit("dedup_wire", c.dedup_wire, kRequired);
  visit("order", c.order, kRequired);
  visit("ids", c.ids, kRequired);
  visit("masked", c.masked, kRequired);
  visit("lanes_kept", c.lanes_kept, kRequired);
  visit("id_bits_in", c.id_bits_in, kOptional);
  visit("id_bits_out", c.id_bits_out, kOptional);
  visit("weights", c.weights, kRequired);
  visit("tail", c.tail, kRequired);
  visit("negative_ids", c.negative_ids, kRequired);
  visit("counts", c.counts, kRequired);
  visit("row_align", c.row_align, kOptional);
  visit("rows_bound", c.rows_bound, kRequired);
  visit("weighting", c.weighting, kRequired);
  visit("rounding_stages", c.rounding_stages, kOptional);
  visit("own_routing", c.own_routing, kRequired);
  visit("weights_back", c.weights_back, kRequired);
  visit("uniform_capacity", c.uniform_capacity, kRequired);
  visit("overflow", c.overflow, kRequired);
  visit("sync", c.sync, kOptional);
  visit("outputs", c.outputs, kRequired);
  visit("capture", c.capture, kRequired);
  visit("capture_phases", c.capture_phases, kOptional);
  visit("max_outstanding", c.max_outstanding, kOptional);
  visit("alternate", c.alternate, kOptional);
  visit("split_phases", c.split_phases, kOptional);
  visit("own_router", c.own_router, kOptional);
  visit("payloads", c.payloads, kRequired);
  visit("quantiser", c.quantiser, kOptional);
  visit("scales_col_major", c.scales_col_major, kOptional);
  visit("fault", c.fault, kOptional);
  visit("top_k_max", c.limits.top_k_max, kOptional);
  visit("hidden_list", c.limits.hidden_list, kOptional);
  visit("hidden_multiple", c.limits.hidden_multiple, kOptional);
  visit("hidden_bytes_multiple", c.limits.hidden_bytes_multiple, kOptional);
  visit("hidden_min", c.limits.hidden_min, kOptional);
  visit("hidden_max", c.limits.hidden_max, kOptional);
  visit("ranks_list", c.limits.ranks_list, kOptional);
  visit("ranks_min", c.limits.ranks_min, kOptional);
  visit("ranks_max", c.limits.ranks_max, kOptional);
  visit("slots_max", c.limits.slots_max, kOptional);
  visit("local_slots_max", c.limits.local_slots_max, kOptional);
  visit("tokens_max", c.limits.tokens_max, kOptional);
  visit("tokens_default", c.limits.tokens_default, kOptional);
  visit("rows_multiple", c.limits.rows_multiple, kOptional);
  visit("equal_slots", c.limits.equal_slots, kOptional);
  visit("equal_tokens", c.limits.equal_tokens, kOptional);
}

// "name" or "name/mode".
std::string ContractId(const Contract& contract);

// OK when the fields agree with each other; InvalidArgument names the two that do not. Every
// contract from this header's functions has passed it.
Status Validate(const Contract& contract);

// One "key = value" line per field, an empty mode left out; ContractFromText() reads it back.
std::string ContractToText(const Contract& contract);
// One JSON object: numbers, booleans, strings, and lists for sets.
std::string ContractToJson(const Contract& contract);
// "key: a | b" for every field in which they differ, name and mode left out.
std::vector<std::string> Differences(const Contract& a, const Contract& b);

// Reads "key = value" lines; '#' starts a comment, lists are separated by commas. Fields that
// decide meaning must be given, limits may be left out. InvalidArgument names line, key and the
// nearest known key or value. `where` is the file's name, for messages.
Result<Contract> ContractFromText(std::string_view text, std::string_view where);
// The same from a file; NotFound when it cannot be read.
Result<Contract> ContractFromFile(const std::string& path);

// The known contracts, grouped by name.
std::span<const Contract> AllContracts();
// What other engines call a back end and one of its modes in one word.
struct BackEndAlias {
  std::string_view alias;
  std::string_view name;
  std::string_view mode;
};
std::span<const BackEndAlias> BackEndAliases();
// The flag that picks a mode, besides --moe-a2a-mode: the spelling users of other engines know.
std::string_view ModeFlagAlias();
// `mode` is a mode of that back end, or "auto" (also "") for the one meant in `phase`. `name` may
// also be what another engine calls a back end and mode in one word. NotFound lists what there is.
Result<Contract> FindContract(std::string_view name, std::string_view mode, CallPhase phase);

// How many rows a rank will hand to dispatch in one call, and which flag says so:
// ceil(value * tokens_each / shared_by).
struct RowDemand {
  std::string flag;         // "--chunked-prefill-size"
  int64_t value = 0;        // of the flag
  int64_t tokens_each = 1;  // rows per unit of the flag: draft tokens of a request
  int64_t shared_by = 1;    // ranks that split these rows before dispatch

  int64_t Rows() const { return (value * tokens_each + shared_by - 1) / shared_by; }
};

// What a configuration asks of a contract.
struct Request {
  int top_k = 1;
  int hidden = 0;  // elements of a row
  int slots = 0;   // expert slots over all ranks, redundant ones included
  int ranks = 1;
  CallPhase phase = CallPhase::kPrefill;
  RowDemand rows;
  int64_t capacity = 0;  // T of --max-dispatch-tokens-per-rank; 0 = the contract's default
  Payload payload = Payload::kBf16;
  bool captured = false;      // in a graph
  bool worst_case = false;    // with buffers of the worst case
  bool equal_tokens = false;  // every rank sends the same number of rows in this configuration
  bool emulated = false;  // executed by our transport: limits that only say which kernels a library
                          // was compiled for (widths, group sizes, payloads) do not apply
};

// T that a request gets: its own, or the contract's default; 0 when the contract has no capacity.
int64_t Capacity(const Contract& contract, int64_t asked);

// OK, or Refused with the limit, the flag it comes from and the largest value that works.
Status Eligible(const Contract& contract, const Request& request);

}  // namespace signalbox
