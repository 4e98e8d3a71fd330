// SPDX-License-Identifier: Apache-2.0
#include "signalbox/a2a/contract.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>

namespace signalbox {
namespace {

struct Clash {
  bool wrong;
  std::string_view what;
};

Status FirstClash(const Contract& c, std::initializer_list<Clash> rules) {
  for (const Clash& rule : rules) {
    if (!rule.wrong) continue;
    return InvalidArgument({.what = "the fields of a contract contradict each other",
                            .where = ContractId(c),
                            .found = std::string(rule.what),
                            .remedy = "correct one of them"});
  }
  return OkStatus();
}

bool IsWord(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char ch) {
    return (ch >= 'a' && ch <= 'z') || (ch >= '0' && ch <= '9') || ch == '_' || ch == '-';
  });
}

Status ValidateNumbers(const Contract& c) {
  const Limits& l = c.limits;
  const bool negative =
      std::min({l.top_k_max, l.hidden_multiple, l.hidden_bytes_multiple, l.hidden_min, l.hidden_max,
                l.ranks_min, l.ranks_max, l.slots_max, l.local_slots_max, l.tokens_max,
                l.tokens_default, l.rows_multiple, c.max_outstanding}) < 0;
  auto bits = [](int b) { return b == 32 || b == 64; };
  return FirstClash(
      c, {
             {c.name.empty() || !IsWord(c.name), "name is not a word of a-z, 0-9, '_' and '-'"},
             {!IsWord(c.mode), "mode is not a word of a-z, 0-9, '_' and '-'"},
             {c.mode == "auto", "mode = auto (it stands for another mode, by phase)"},
             {negative, "a limit is negative"},
             {l.tokens_max > 0 && l.tokens_default > l.tokens_max, "tokens_default > tokens_max"},
             {l.hidden_max > 0 && l.hidden_min > l.hidden_max, "hidden_min > hidden_max"},
             {l.ranks_max > 0 && l.ranks_min > l.ranks_max, "ranks_min > ranks_max"},
             {!bits(c.id_bits_in), "id_bits_in is neither 32 nor 64"},
             {(c.ids == ReceivedIds::kAbsent) != (c.id_bits_out == 0),
              "id_bits_out is 0 exactly when ids = absent"},
             {c.id_bits_out != 0 && !bits(c.id_bits_out), "id_bits_out is neither 0, 32 nor 64"},
             {c.row_align < 1, "row_align < 1"},
             {c.rounding_stages < 1 || c.rounding_stages > 3, "rounding_stages is not 1, 2 or 3"},
         });
}

bool OrderFits(const Contract& c) {
  switch (c.order) {
    case RowOrder::kSourceSorted:
    case RowOrder::kRankGrouped:
    case RowOrder::kArrival:
      return DedupRows(c.shape);
    case RowOrder::kExpertThenSource:
    case RowOrder::kExpertThenRankRuns:
    case RowOrder::kExpertGrouped:
      return !DedupRows(c.shape);
  }
  return false;
}

bool BoundFits(const Contract& c) {
  switch (c.rows_bound) {
    case RowsBound::kExact:
    case RowsBound::kCallerBudget:
      return c.shape == RowShape::kFlat || c.shape == RowShape::kExpertMajorCompact;
    case RowsBound::kRanksTokens:
      return DedupRows(c.shape);
    case RowsBound::kLocalRanksTokens:
      return c.shape == RowShape::kExpertMajorPadded;
    case RowsBound::kMinTopKLocal:
      return c.shape == RowShape::kExpertMajorCompact;
  }
  return false;
}

// Whether a consumer can tell valid rows from the others. In the worst-case form there are no
// counts on the host.
bool RowsAreCounted(const Contract& c) {
  const bool on_host = c.counts.Has(Counts::kHostExpert) && c.sync != HostSync::kUnlessWorstCase;
  const bool per_expert = on_host || c.counts.Has(Counts::kDevExpert);
  if (!DedupRows(c.shape)) {
    return per_expert || c.counts.Has(Counts::kOffsets);
  }
  if (c.tail == TailRows::kMaskedIds || c.masked == MaskSpelling::kCallerId) return true;
  if (c.shape == RowShape::kFlat && c.counts.Has(Counts::kDevTotal)) return true;
  return c.counts.Has(Counts::kDevSource);
}

bool MaskFits(const Contract& c) {
  switch (c.ids) {
    case ReceivedIds::kAbsent:
      return c.masked == MaskSpelling::kNone;
    case ReceivedIds::kLocal:
      return c.masked == MaskSpelling::kMinusOne;
    case ReceivedIds::kGlobal:
      return true;
  }
  return false;
}

}  // namespace

std::string ContractId(const Contract& contract) {
  return contract.mode.empty() ? contract.name : fmt::format("{}/{}", contract.name, contract.mode);
}

Status Validate(const Contract& c) {
  SB_RETURN_IF_ERROR(ValidateNumbers(c));
  const bool fused = c.shape == RowShape::kFused;
  SB_RETURN_IF_ERROR(
      FirstClash(c, {{(c.weighting == Weighting::kInsideKernel) != fused,
                      "weighting = inside_kernel belongs to shape = fused, and only to it"}}));
  if (fused || c.shape == RowShape::kNone) return OkStatus();

  const bool dedup_rows = DedupRows(c.shape);
  const bool row_weights =
      c.weights == ReceivedWeights::kPerRow || c.weights == ReceivedWeights::kAbsent;
  return FirstClash(
      c,
      {
          {dedup_rows && !c.dedup_wire,
           "dedup_wire = no, although one row arrives per (token, rank)"},
          {!OrderFits(c), "order does not exist in this shape"},
          {!BoundFits(c), "rows_bound does not exist in this shape"},
          {!dedup_rows && c.ids != ReceivedIds::kAbsent,
           "ids arrive although the position of a row says its expert"},
          {dedup_rows &&
               (c.ids == ReceivedIds::kAbsent) != (c.weights == ReceivedWeights::kDenseByExpert),
           "which experts a row is for is said by ids or by weights = dense_by_expert, not both"},
          {!MaskFits(c), "masked does not exist for these ids"},
          {!c.lanes_kept &&
               (c.ids != ReceivedIds::kLocal || c.weights != ReceivedWeights::kZeroedOffRank),
           "lanes_kept = no without local ids and weights = zeroed_off_rank"},
          {dedup_rows && c.weights == ReceivedWeights::kPerRow,
           "weights = per_row where a row is for several experts"},
          {!dedup_rows && !row_weights, "weights by lane where a row is for one expert"},
          {c.weighting == Weighting::kCaller && c.weights == ReceivedWeights::kAbsent,
           "weighting = caller, but no weights arrive"},
          {dedup_rows && c.weighting != Weighting::kCaller,
           "the library weights rows that are sums over several experts"},
          {c.row_align > 1 && c.shape != RowShape::kExpertMajorCompact,
           "row_align > 1 outside of shape = expert_major_compact"},
          {c.tail == TailRows::kMaskedIds && c.masked != MaskSpelling::kMinusOne &&
               c.masked != MaskSpelling::kNumExperts,
           "tail = masked_ids without a spelling of masked"},
          {c.tail == TailRows::kZeroed && c.ids != ReceivedIds::kAbsent,
           "tail = zeroed with ids, of which 0 is an expert"},
          {!c.uniform_capacity && c.rows_bound != RowsBound::kExact,
           "buffers of ranks x tokens without uniform_capacity"},
          {c.sync == HostSync::kNever &&
               (c.rows_bound == RowsBound::kExact || c.counts.Has(Counts::kHostExpert)),
           "sync = never, although the host is told how many rows arrive"},
          {c.shape != RowShape::kExpertMajorCompact && c.counts.Has(Counts::kOffsets),
           "counts = offsets outside of shape = expert_major_compact"},
          {!RowsAreCounted(c), "nothing tells valid rows from the others"},
          {c.overflow == OverflowPolicy::kDropWithFlag && c.rows_bound != RowsBound::kCallerBudget,
           "overflow = drop_with_flag without rows_bound = caller_budget"},
          {c.overflow == OverflowPolicy::kImpossible && c.rows_bound != RowsBound::kExact,
           "overflow = impossible without rows_bound = exact"},
      });
}

Result<Contract> FindContract(std::string_view name, std::string_view mode, CallPhase phase) {
  const bool by_phase = mode.empty() || mode == "auto";
  for (const BackEndAlias& a : BackEndAliases()) {
    if (a.alias == name && (by_phase || a.mode == mode)) return FindContract(a.name, a.mode, phase);
  }
  std::vector<std::string> names;
  std::vector<std::string> modes;
  for (const Contract& c : AllContracts()) {
    if (names.empty() || names.back() != c.name) names.push_back(c.name);
    if (c.name != name) continue;
    if (by_phase ? c.auto_phases.Has(phase) : c.mode == mode) return c;
    modes.push_back(c.mode.empty() ? "auto" : c.mode);
  }
  if (modes.empty()) {
    return NotFound({.what = fmt::format("unknown back end {}", name),
                     .where = "--moe-a2a-backend",
                     .expected = fmt::format("one of {}", fmt::join(names, ", ")),
                     .remedy = "or describe it in a file given with --moe-a2a-contract"});
  }
  return NotFound({.what = fmt::format("back end {} has no mode {}", name, mode),
                   .where = "--moe-a2a-mode",
                   .expected = fmt::format("auto or one of {}", fmt::join(modes, ", "))});
}

}  // namespace signalbox
