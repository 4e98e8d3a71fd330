// SPDX-License-Identifier: Apache-2.0
//
// The known back ends as data: the only file (with its test) in which their names occur.
//
// Facts are from the libraries' public sources and documents as of 2025-09 to 2026-08. Where a
// library lets its caller choose, the entry holds what this engine would ask for. "unstated" marks
// a value that we found in no source and chose on the safe side.
#include "signalbox/a2a/contract.h"

namespace signalbox {
namespace {

constexpr EnumSet<CallPhase> kAllPhases = {CallPhase::kPrefill, CallPhase::kDecode,
                                           CallPhase::kVerify};
constexpr EnumSet<CallPhase> kDecodeVerify = {CallPhase::kDecode, CallPhase::kVerify};
constexpr EnumSet<Payload> kAnyPayload = {Payload::kF32, Payload::kBf16, Payload::kF16,
                                          Payload::kFp8, Payload::kFp4,  Payload::kInt8};

std::vector<int> ShortHiddenList() {
  return {2048, 2560, 4096, 5120, 6144, 7168, 8192};
}

Contract With(Contract base, void (*change)(Contract&)) {
  change(base);
  return base;
}

Contract NoExchange() {
  return {.name = "none",
          .auto_phases = kAllPhases,
          .shape = RowShape::kNone,
          .negative_ids = NegativeIds::kSkip,
          .overflow = OverflowPolicy::kImpossible,
          .capture = CapturePolicy::kYes,
          .capture_phases = kAllPhases,
          .payloads = kAnyPayload};
}

// Flat rows in the sender's order, local ids, exact counts on the host.
Contract DeepepNormal() {
  return {.name = "deepep",
          .mode = "normal",
          .auto_phases = {CallPhase::kPrefill},
          .shape = RowShape::kFlat,
          .dedup_wire = true,
          .order = RowOrder::kSourceSorted,
          .ids = ReceivedIds::kLocal,
          .masked = MaskSpelling::kMinusOne,
          .id_bits_in = 64,
          .id_bits_out = 64,
          .weights = ReceivedWeights::kZeroedOffRank,
          .tail = TailRows::kMaskedIds,  // with worst-case buffers; else there is no tail
          .negative_ids = NegativeIds::kSkip,
          .counts = {Counts::kHostExpert},
          .rounding_stages = 1,  // 2 between nodes
          .weights_back = WeightsBack::kIdentity,
          .uniform_capacity = false,
          .overflow = OverflowPolicy::kImpossible,
          .sync = HostSync::kUnlessWorstCase,
          .capture = CapturePolicy::kWorstCaseOnly,
          .capture_phases = kDecodeVerify,
          .payloads = {Payload::kBf16, Payload::kFp8},
          .quantiser = Quantiser::kCaller,
          .limits = {.top_k_max = 32,
                     .hidden_bytes_multiple = 16,
                     // 2, 4 or 8 in one node; 8 in each of 2, 3, 4, 6, 8, 12, 16, 18 or 20 nodes
                     .ranks_list = {2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160}}};
}

// Expert-major padded, weighted at the source, nothing read by the host.
Contract DeepepLowLatency() {
  return {.name = "deepep",
          .mode = "low_latency",
          .auto_phases = kDecodeVerify,
          .shape = RowShape::kExpertMajorPadded,
          .order = RowOrder::kExpertThenRankRuns,
          .id_bits_in = 64,
          .negative_ids = NegativeIds::kSkip,
          .counts = {Counts::kDevExpert, Counts::kDevSource},
          .rows_bound = RowsBound::kLocalRanksTokens,
          .weighting = Weighting::kLibraryAtSource,
          .own_routing = true,
          .overflow = OverflowPolicy::kHostReject,
          .outputs = OutputMemory::kLibraryFixed,
          .capture = CapturePolicy::kParityOfTwo,
          .capture_phases = kDecodeVerify,
          .max_outstanding = 2,
          .split_phases = true,
          .payloads = {Payload::kBf16, Payload::kFp8},
          .quantiser = Quantiser::kLibrary,
          .scales_col_major = true,
          .limits = {.top_k_max = 11,
                     .hidden_list = {2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192},
                     .tokens_max = 1024,
                     .tokens_default = 128,
                     .rows_multiple = 4}};
}

void DeepepV2Flat(Contract& c) {
  c.name = "deepep_v2";
  c.mode = "flat";
  c.auto_phases = kAllPhases;
  c.order = RowOrder::kRankGrouped;  // source-sorted when built deterministic
  c.weights = ReceivedWeights::kRaw;
  c.tail = TailRows::kPoison;  // with worst-case buffers; else there is no tail
  c.counts = {Counts::kHostExpert, Counts::kDevExpert, Counts::kDevSource};
  c.rounding_stages = 2;
  c.uniform_capacity = true;
  c.overflow = OverflowPolicy::kHostReject;
  c.limits = {.top_k_max = 32,
              .hidden_multiple = 256,
              .ranks_max = 1024,
              .slots_max = 2048,
              .local_slots_max = 256,
              .tokens_default = 2048};
}

// Turns flat received rows into one row per (token, expert), expanded at the receiver.
void ExpandAtReceiver(Contract& c) {
  c.shape = RowShape::kExpertMajorCompact;
  c.ids = ReceivedIds::kAbsent;
  c.masked = MaskSpelling::kNone;
  c.lanes_kept = true;
  c.id_bits_out = 0;
  c.weights = ReceivedWeights::kPerRow;
  c.row_align = 16;  // the caller chooses; this engine asks for 16 rows
  c.auto_phases = {};
}

void DeepepV2Expand(Contract& c) {
  ExpandAtReceiver(c);
  c.mode = "expand";
  c.order = RowOrder::kExpertGrouped;
  c.counts = {Counts::kOffsets};
  c.rows_bound = RowsBound::kMinTopKLocal;
}

// Its non-blocking form. All ranks had to send equally many rows in the versions most in use.
void HybridFlat(Contract& c) {
  c.name = "hybrid_ep";
  c.mode = "flat";
  c.auto_phases = kAllPhases;
  c.ids = ReceivedIds::kAbsent;
  c.masked = MaskSpelling::kNone;
  c.id_bits_out = 0;
  c.weights = ReceivedWeights::kDenseByExpert;
  c.tail = TailRows::kPoison;  // unstated
  c.counts = {Counts::kDevTotal};
  c.rows_bound = RowsBound::kCallerBudget;
  c.uniform_capacity = true;
  c.overflow = OverflowPolicy::kDropWithFlag;
  c.capture = CapturePolicy::kYes;
  c.capture_phases = kAllPhases;
  c.fault = FaultPolicy::kSpinForever;
  c.limits = {.hidden_multiple = 16, .tokens_default = 4096, .equal_tokens = true};
}

void HybridPermute(Contract& c) {
  ExpandAtReceiver(c);
  c.mode = "permute";
  c.order = RowOrder::kExpertThenSource;
  c.counts = {Counts::kDevExpert};
}

// Flat rows in arrival order, global ids unmodified, count on the device, fixed memory.
Contract MoriNative() {
  return {.name = "mori",
          .mode = "native",
          .auto_phases = kAllPhases,
          .shape = RowShape::kFlat,
          .dedup_wire = true,
          .order = RowOrder::kArrival,
          .ids = ReceivedIds::kGlobal,
          .masked = MaskSpelling::kNone,
          .id_bits_out = 32,
          .weights = ReceivedWeights::kRaw,
          .negative_ids = NegativeIds::kKernelDependent,
          .counts = {Counts::kDevTotal},
          .rows_bound = RowsBound::kRanksTokens,
          .rounding_stages = 1,  // 2 between nodes
          .own_routing = true,
          .weights_back = WeightsBack::kTimesDistinctRanks,
          .overflow = OverflowPolicy::kUndefined,
          .outputs = OutputMemory::kLibraryFixed,
          .capture = CapturePolicy::kYes,
          .capture_phases = kAllPhases,
          .max_outstanding = 1,
          .split_phases = true,
          .payloads = {Payload::kF32, Payload::kBf16, Payload::kFp8, Payload::kFp4},
          .quantiser = Quantiser::kCaller,
          .fault = FaultPolicy::kSpinForever,
          // Its kernels find the ranks of a token within one wavefront, which must have more lanes
          // than the token has experts: 64 on the data-centre devices, 32 on others.
          .limits = {.top_k_max = 63,
                     .hidden_bytes_multiple = 16,  // "vector multiple", width unstated
                     .tokens_default = 4096}};
}

// A conversion of the native form; its combine weights on the expert's rank. The conversion keeps
// the slots of a token in arrays of nine.
void MoriStandard(Contract& c) {
  c.mode = "standard";
  c.auto_phases = {};
  c.shape = RowShape::kExpertMajorPadded;
  c.order = RowOrder::kExpertGrouped;
  c.ids = ReceivedIds::kAbsent;
  c.id_bits_out = 0;
  c.weights = ReceivedWeights::kAbsent;
  c.counts = {Counts::kDevExpert};
  c.rows_bound = RowsBound::kLocalRanksTokens;
  c.weighting = Weighting::kLibraryAtExpert;
  c.rounding_stages = 2;
  c.weights_back = WeightsBack::kNone;
  c.split_phases = false;
  c.limits.top_k_max = 9;
}

void Pplx(Contract& c) {
  c.name = "pplx";
  c.mode = "";
  c.auto_phases = kAllPhases;
  c.id_bits_in = 32;
  c.negative_ids = NegativeIds::kForbidden;
  c.counts = {Counts::kDevExpert};
  c.outputs = OutputMemory::kCallerOwned;
  c.capture = CapturePolicy::kYes;
  c.capture_phases = kAllPhases;
  c.max_outstanding = 1;
  c.payloads = kAnyPayload;
  c.quantiser = Quantiser::kCaller;
  c.scales_col_major = false;
  c.fault = FaultPolicy::kSpinForever;
  c.limits = {.hidden_bytes_multiple = 16, .ranks_min = 2, .tokens_default = 128};
}

// Rank-major regions; ids and weights travel as ordinary payloads, counts stay inside.
Contract FlashinferOneSided() {
  return {.name = "flashinfer",
          .mode = "one_sided",
          .auto_phases = kAllPhases,
          .shape = RowShape::kRankMajorPadded,
          .dedup_wire = true,
          .order = RowOrder::kArrival,
          .ids = ReceivedIds::kGlobal,
          .masked = MaskSpelling::kCallerId,
          .id_bits_out = 32,
          .weights = ReceivedWeights::kRaw,
          .negative_ids = NegativeIds::kForbidden,
          .rows_bound = RowsBound::kRanksTokens,
          .overflow = OverflowPolicy::kUndefined,
          .outputs = OutputMemory::kLibraryFixed,
          .capture = CapturePolicy::kYes,
          .capture_phases = kAllPhases,
          .max_outstanding = 1,
          .alternate = true,
          .payloads = kAnyPayload,
          .quantiser = Quantiser::kCaller,
          .limits = {.top_k_max = 22,
                     .hidden_bytes_multiple = 16,  // unstated
                     .ranks_max = 64,
                     .tokens_default = 4096,
                     .equal_slots = false}};
}

void FlashinferTwoSided(Contract& c) {
  c.mode = "two_sided";
  c.auto_phases = {};
  c.shape = RowShape::kFlat;
  c.order = RowOrder::kRankGrouped;
  c.masked = MaskSpelling::kNumExperts;
  c.tail = TailRows::kMaskedIds;
  c.counts = {Counts::kDevSource};
  c.rounding_stages = 2;
  c.outputs = OutputMemory::kFreshPerCall;
  c.alternate = false;
  c.payloads = {Payload::kBf16, Payload::kFp8, Payload::kFp4};
  c.fault = FaultPolicy::kSpinForever;
  c.limits = {.tokens_default = 4096};
}

Contract NcclRankMajor() {
  return {.name = "nccl_ep",
          .mode = "ll_rank_major",
          .shape = RowShape::kRankMajorPadded,
          .dedup_wire = true,
          .order = RowOrder::kArrival,
          .ids = ReceivedIds::kLocal,
          .masked = MaskSpelling::kMinusOne,
          .id_bits_in = 64,
          .id_bits_out = 32,
          .weights = ReceivedWeights::kRaw,
          .negative_ids = NegativeIds::kSkip,
          .counts = {Counts::kDevSource},
          .rows_bound = RowsBound::kRanksTokens,
          .overflow = OverflowPolicy::kHostReject,
          .outputs = OutputMemory::kCallerOwned,
          .capture = CapturePolicy::kParityOfTwo,
          .capture_phases = kDecodeVerify,
          .max_outstanding = 2,
          .split_phases = true,
          .payloads = {Payload::kBf16},
          .fault = FaultPolicy::kLibraryMask,
          .limits = {.top_k_max = 9,
                     .hidden_list = ShortHiddenList(),
                     .ranks_max = 64,
                     .tokens_default = 128}};
}

// One copy per (token, rank) on the wire, expanded at the receiver.
void NcclExpertMajor(Contract& c) {
  c.mode = "ll_expert_major";
  c.auto_phases = kDecodeVerify;
  c.shape = RowShape::kExpertMajorPadded;
  c.order = RowOrder::kExpertThenRankRuns;
  c.ids = ReceivedIds::kAbsent;
  c.masked = MaskSpelling::kNone;
  c.id_bits_out = 0;
  c.weights = ReceivedWeights::kAbsent;
  c.counts = {Counts::kDevExpert, Counts::kDevSource};
  c.rows_bound = RowsBound::kLocalRanksTokens;
  c.weighting = Weighting::kLibraryAtSource;
}

// High throughput: a receive budget, and lanes packed to the local experts.
void NcclHighThroughput(Contract& c) {
  c.mode = "ht_flat";
  c.auto_phases = {CallPhase::kPrefill};
  c.shape = RowShape::kFlat;
  c.order = RowOrder::kSourceSorted;
  c.lanes_kept = false;
  c.id_bits_out = 64;
  c.weights = ReceivedWeights::kZeroedOffRank;
  c.counts = {Counts::kDevTotal, Counts::kDevExpert};
  c.rows_bound = RowsBound::kCallerBudget;
  c.rounding_stages = 2;  // 1 inside one node
  c.weights_back = WeightsBack::kIdentity;
  c.overflow = OverflowPolicy::kDeviceTrap;
  c.capture = CapturePolicy::kYes;
  c.max_outstanding = 1;
  c.split_phases = false;
  c.fault = FaultPolicy::kTrap;
  c.limits.top_k_max = 0;
  c.limits.tokens_max = 8192;
  c.limits.tokens_default = 4096;
}

void NcclHighThroughputExpertMajor(Contract& c) {
  ExpandAtReceiver(c);
  c.mode = "ht_expert_major";
  c.order = RowOrder::kExpertGrouped;
  c.tail = TailRows::kZeroed;
  c.counts = {Counts::kDevExpert, Counts::kOffsets};
}

Contract AscendNormal() {
  return {.name = "ascend",
          .mode = "normal",
          .auto_phases = {CallPhase::kPrefill},
          .shape = RowShape::kExpertMajorCompact,
          .order = RowOrder::kExpertGrouped,
          .id_bits_in = 64,
          .negative_ids = NegativeIds::kSkip,
          .counts = {Counts::kHostExpert},
          .weighting = Weighting::kLibraryAtSource,
          .uniform_capacity = false,
          .overflow = OverflowPolicy::kHostReject,
          .sync = HostSync::kAlways,
          .payloads = {Payload::kBf16, Payload::kInt8},
          .quantiser = Quantiser::kLibrary,
          .limits = {.top_k_max = 16,
                     .hidden_min = 1024,
                     .hidden_max = 7168,
                     .slots_max = 512,
                     .tokens_max = 8192,
                     .tokens_default = 8192}};
}

void AscendLowLatency(Contract& c) {
  c.mode = "low_latency";
  c.auto_phases = kDecodeVerify;
  c.negative_ids = NegativeIds::kKernelDependent;  // a switch, off by default
  c.counts = {Counts::kDevExpert};
  c.rows_bound = RowsBound::kMinTopKLocal;
  c.own_routing = true;
  c.uniform_capacity = true;
  c.overflow = OverflowPolicy::kUndefined;  // its buffer is sized by the caller
  c.sync = HostSync::kNever;
  c.capture = CapturePolicy::kYes;  // unstated
  c.capture_phases = kDecodeVerify;
  c.max_outstanding = 1;
  c.limits.tokens_max = 512;
  c.limits.tokens_default = 128;
}

Contract MegaMoe() {
  return {.name = "megamoe",
          .auto_phases = kAllPhases,
          .shape = RowShape::kFused,
          .id_bits_in = 64,
          .negative_ids = NegativeIds::kSkip,
          .weighting = Weighting::kInsideKernel,
          .overflow = OverflowPolicy::kHostReject,
          .outputs = OutputMemory::kLibraryFixed,
          .capture = CapturePolicy::kYes,
          .capture_phases = kAllPhases,
          .max_outstanding = 1,
          .payloads = {Payload::kBf16, Payload::kFp8},
          .quantiser = Quantiser::kCaller,
          .limits = {.top_k_max = 32, .hidden_multiple = 128, .tokens_default = 8192}};
}

void AscendFused(Contract& c) {
  c.name = "ascend_fuseep";
  c.negative_ids = NegativeIds::kKernelDependent;
  c.outputs = OutputMemory::kFreshPerCall;
  c.capture_phases = kDecodeVerify;  // unstated
  c.payloads = {Payload::kBf16};
  c.quantiser = Quantiser::kLibrary;
  c.limits = {.top_k_max = 12,
              .hidden_min = 512,
              .hidden_max = 7168,
              .slots_max = 512,
              .tokens_max = 256,
              .tokens_default = 256};
}

void FlashMoe(Contract& c) {
  c.name = "flashmoe";
  c.own_router = true;
  c.negative_ids = NegativeIds::kForbidden;
  c.overflow = OverflowPolicy::kDropByPolicy;
  c.capture = CapturePolicy::kNo;  // unstated
  c.capture_phases = {};
  c.quantiser = Quantiser::kNobody;
  c.fault = FaultPolicy::kSpinForever;
  c.limits = {.tokens_default = 4096};
}

std::vector<Contract> MakeTable() {
  const Contract normal = DeepepNormal();
  const Contract low_latency = DeepepLowLatency();
  const Contract v2 = With(normal, DeepepV2Flat);
  const Contract hybrid = With(normal, HybridFlat);
  const Contract high_throughput = With(NcclRankMajor(), NcclHighThroughput);
  return {
      NoExchange(),
      normal,
      low_latency,
      v2,
      With(v2, DeepepV2Expand),
      hybrid,
      With(hybrid, HybridPermute),
      MoriNative(),
      With(MoriNative(), MoriStandard),
      With(low_latency, Pplx),
      With(low_latency,
           [](Contract& c) {
             c.name = "nixl";
             c.fault = FaultPolicy::kLibraryMask;
             c.limits.top_k_max = 16;
             c.limits.hidden_list.push_back(3584);
           }),
      With(normal,
           [](Contract& c) {
             c.name = "nixl";
             c.mode = "high_throughput";
           }),
      With(low_latency,
           [](Contract& c) {
             c.name = "mooncake";
             c.mode = "";
             c.auto_phases = kAllPhases;
             c.fault = FaultPolicy::kCallerMask;
           }),
      With(normal, [](Contract& c) { c.name = "uccl"; }),
      With(low_latency,
           [](Contract& c) {
             c.name = "uccl";
             c.limits.top_k_max = 16;
             c.limits.hidden_list = ShortHiddenList();
           }),
      FlashinferOneSided(),
      With(FlashinferOneSided(), FlashinferTwoSided),
      With(NcclRankMajor(), NcclExpertMajor),
      NcclRankMajor(),
      high_throughput,
      With(high_throughput, NcclHighThroughputExpertMajor),
      AscendNormal(),
      With(AscendNormal(), AscendLowLatency),
      MegaMoe(),
      With(MegaMoe(), AscendFused),
      With(MegaMoe(), FlashMoe),
  };
}

}  // namespace

std::span<const Contract> AllContracts() {
  static const std::vector<Contract> kTable = MakeTable();
  return kTable;
}

std::span<const BackEndAlias> BackEndAliases() {
  static constexpr BackEndAlias kAliases[] = {
      {"naive", "none", ""},
      {"allgather_reducescatter", "none", ""},
      {"deepep_high_throughput", "deepep", "normal"},
      {"deepep_low_latency", "deepep", "low_latency"},
  };
  return kAliases;
}

std::string_view ModeFlagAlias() {
  return "--deepep-mode";
}

}  // namespace signalbox
