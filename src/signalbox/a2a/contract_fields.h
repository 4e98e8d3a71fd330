// SPDX-License-Identifier: Apache-2.0
//
// The vocabulary of an all-to-all contract: one small enum per question that a layout planner, an
// epilogue or an emulator has to ask about a dispatch/combine library. contract.h puts them
// together.
//
// Every enum has its text form beside it, so that parsing, printing and JSON need no further code:
//
//   ToString(RowShape::kFlat) == "flat";   ParseEnum<RowShape>("flat") == RowShape::kFlat;
//
// Notation everywhere in this module: R ranks, L expert slots per rank, T most tokens a rank may
// send, B tokens it does send, K experts per token, H hidden width, N rows a rank receives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

namespace signalbox {

// The text of an enum's values, in the order of its enumerators (which count from zero).
template <typename E>
struct EnumText;

template <typename E>
concept ContractEnum = requires {
  EnumText<E>::kNames[0];
};

template <ContractEnum E>
constexpr std::string_view ToString(E value) {
  return EnumText<E>::kNames[static_cast<size_t>(value)];
}

template <ContractEnum E>
constexpr std::optional<E> ParseEnum(std::string_view text) {
  for (size_t i = 0; i < std::size(EnumText<E>::kNames); ++i) {
    if (EnumText<E>::kNames[i] == text) return static_cast<E>(i);
  }
  return std::nullopt;
}

// A set of values of one such enum.
template <ContractEnum E>
class EnumSet {
 public:
  constexpr EnumSet() = default;
  constexpr EnumSet(std::initializer_list<E> values) {
    for (E v : values) Add(v);
  }
  constexpr void Add(E value) { bits_ |= 1u << static_cast<unsigned>(value); }
  constexpr bool Has(E value) const { return (bits_ >> static_cast<unsigned>(value)) & 1u; }
  constexpr bool empty() const { return bits_ == 0; }
  friend constexpr bool operator==(EnumSet, EnumSet) = default;

 private:
  uint32_t bits_ = 0;
};

// What a model call is for.
enum class CallPhase : uint8_t { kPrefill, kDecode, kVerify };
template <>
struct EnumText<CallPhase> {
  static constexpr std::string_view kNames[] = {"prefill", "decode", "verify"};
};

// How received rows lie in memory.
enum class RowShape : uint8_t {
  kNone,                // nothing is exchanged: every rank holds all rows, sums complete the layer
  kFlat,                // [N, H], one row per (token, this rank)
  kRankMajorPadded,     // [R, T, H], the region of each sender filled from its start
  kExpertMajorPadded,   // [L, R*T, H], one row per (token, expert), each expert filled from its
                        // start
  kExpertMajorCompact,  // [N', H], one row per (token, expert), zones of experts one after another
  kFused,               // none to see: one call computes the whole layer
};
template <>
struct EnumText<RowShape> {
  static constexpr std::string_view kNames[] = {
      "none", "flat", "rank_major_padded", "expert_major_padded", "expert_major_compact", "fused"};
};

// One row stands for all experts of a token on this rank.
constexpr bool DedupRows(RowShape shape) {
  return shape == RowShape::kFlat || shape == RowShape::kRankMajorPadded;
}

// In which order the rows of a shape lie. The first two are reproducible, the others depend on
// arrival.
enum class RowOrder : uint8_t {
  kSourceSorted,        // by sender, then by the sender's token
  kExpertThenSource,    // by expert, then as above
  kRankGrouped,         // by sender, any order inside
  kExpertThenRankRuns,  // by expert, rows of one sender adjacent, any order of senders and inside
  kExpertGrouped,       // by expert, any order inside
  kArrival,             // any
};
template <>
struct EnumText<RowOrder> {
  static constexpr std::string_view kNames[] = {"source_sorted",  "expert_then_source",
                                                "rank_grouped",   "expert_then_rank_runs",
                                                "expert_grouped", "arrival"};
};
constexpr bool Reproducible(RowOrder order) {
  return order == RowOrder::kSourceSorted || order == RowOrder::kExpertThenSource;
}

// Whether expert ids arrive beside the rows, and in whose numbering.
enum class ReceivedIds : uint8_t { kAbsent, kLocal, kGlobal };
template <>
struct EnumText<ReceivedIds> {
  static constexpr std::string_view kNames[] = {"absent", "local", "global"};
};

// How the lane of an expert that is not on this rank is spelt in the received ids.
enum class MaskSpelling : uint8_t {
  kNone,        // it is not: the caller's ids come unchanged
  kMinusOne,    // -1
  kNumExperts,  // R*L
  kCallerId,  // unchanged in valid rows; a separate call writes the caller's id into all other rows
};
template <>
struct EnumText<MaskSpelling> {
  static constexpr std::string_view kNames[] = {"none", "minus_one", "num_experts", "caller_id"};
};

// Router weights that arrive beside the rows.
enum class ReceivedWeights : uint8_t {
  kAbsent,
  kZeroedOffRank,  // [N, K], 0 in lanes of other ranks
  kRaw,            // [N, K], lanes of other ranks keep theirs
  kPerRow,         // [N], the weight of the row's expert
  kDenseByExpert,  // [N, R*L], by expert, all ranks' experts
};
template <>
struct EnumText<ReceivedWeights> {
  static constexpr std::string_view kNames[] = {"absent", "zeroed_off_rank", "raw", "per_row",
                                                "dense_by_expert"};
};

// What rows beyond the valid ones hold, where there are any.
enum class TailRows : uint8_t {
  kMaskedIds,  // ids spelt as masked, everything else unwritten
  kZeroed,     // zeros
  kPoison,     // unwritten, ids included
};
template <>
struct EnumText<TailRows> {
  static constexpr std::string_view kNames[] = {"masked_ids", "zeroed", "poison"};
};

// What the library does with id -1 in the caller's routing.
enum class NegativeIds : uint8_t { kSkip, kForbidden, kKernelDependent };
template <>
struct EnumText<NegativeIds> {
  static constexpr std::string_view kNames[] = {"skip", "forbidden", "kernel_dependent"};
};

// Counts that come with the rows.
enum class Counts : uint8_t {
  kHostExpert,  // rows per local expert, on the host
  kDevExpert,   // rows per local expert, on the device
  kDevSource,   // rows per sender; in expert-major shapes per (expert, sender)
  kDevTotal,    // rows
  kOffsets,     // begin and end of the zone of each expert
};
template <>
struct EnumText<Counts> {
  static constexpr std::string_view kNames[] = {"host_expert", "dev_expert", "dev_source",
                                                "dev_total", "offsets"};
};

// Most rows that can arrive: the memory an engine sets aside.
enum class RowsBound : uint8_t {
  kExact,             // as many as arrive; R*T when worst-case buffers are asked for
  kRanksTokens,       // R*T
  kLocalRanksTokens,  // L*R*T
  kMinTopKLocal,      // R*T*min(K, L), plus zone padding
  kCallerBudget,      // a number of the caller; without one, the worst case of the shape
};
template <>
struct EnumText<RowsBound> {
  static constexpr std::string_view kNames[] = {"exact", "ranks_tokens", "local_ranks_tokens",
                                                "min_topk_local", "caller_budget"};
};

// Who multiplies by the router weight.
enum class Weighting : uint8_t {
  kLibraryAtSource,  // combine, on the sender, fp32 in lane order
  kLibraryAtExpert,  // combine, on the expert's rank, with the weights that came with dispatch
  kCaller,           // the expert side returns weighted rows; combine is a plain sum
  kInsideKernel,     // the fused kernel
};
template <>
struct EnumText<Weighting> {
  static constexpr std::string_view kNames[] = {"library_at_source", "library_at_expert", "caller",
                                                "inside_kernel"};
};

// What combine makes of router weights that are passed back through it.
enum class WeightsBack : uint8_t { kNone, kIdentity, kTimesDistinctRanks };
template <>
struct EnumText<WeightsBack> {
  static constexpr std::string_view kNames[] = {"none", "identity", "times_distinct_ranks"};
};

// More tokens or rows than the buffers hold.
enum class OverflowPolicy : uint8_t {
  kImpossible,    // back-pressure: capacity changes speed only
  kHostReject,    // refused on the host
  kDeviceTrap,    // the device stops
  kUndefined,     // unchecked (also: an assertion of debug builds)
  kDropWithFlag,  // excess rows are lost and a flag says so
  kDropByPolicy,  // excess tokens are lost by design
};
template <>
struct EnumText<OverflowPolicy> {
  static constexpr std::string_view kNames[] = {"impossible", "host_reject",    "device_trap",
                                                "undefined",  "drop_with_flag", "drop_by_policy"};
};

enum class HostSync : uint8_t { kNever, kUnlessWorstCase, kAlways };
template <>
struct EnumText<HostSync> {
  static constexpr std::string_view kNames[] = {"never", "unless_worst_case", "always"};
};

// Who owns the memory of results, hence how long they live.
enum class OutputMemory : uint8_t { kFreshPerCall, kLibraryFixed, kCallerOwned };
template <>
struct EnumText<OutputMemory> {
  static constexpr std::string_view kNames[] = {"fresh_per_call", "library_fixed", "caller_owned"};
};

// Whether a call may be captured in a graph.
enum class CapturePolicy : uint8_t {
  kYes,
  kParityOfTwo,    // an even number of calls: two buffers alternate by a bit baked in at capture
  kWorstCaseOnly,  // only with buffers of the worst case, which need no count on the host
  kNo,
};
template <>
struct EnumText<CapturePolicy> {
  static constexpr std::string_view kNames[] = {"yes", "parity_of_two", "worst_case_only", "no"};
};

// What happens when a peer does not answer.
enum class FaultPolicy : uint8_t { kSpinForever, kTrap, kLibraryMask, kCallerMask };
template <>
struct EnumText<FaultPolicy> {
  static constexpr std::string_view kNames[] = {"spin_forever", "trap", "library_mask",
                                                "caller_mask"};
};

// Element types that may travel.
enum class Payload : uint8_t { kF32, kBf16, kF16, kFp8, kFp4, kInt8 };
template <>
struct EnumText<Payload> {
  static constexpr std::string_view kNames[] = {"f32", "bf16", "f16", "fp8", "fp4", "int8"};
};

// Who turns 16-bit rows into a narrower payload, where one travels.
enum class Quantiser : uint8_t { kNobody, kCaller, kLibrary };
template <>
struct EnumText<Quantiser> {
  static constexpr std::string_view kNames[] = {"nobody", "caller", "library"};
};

}  // namespace signalbox
