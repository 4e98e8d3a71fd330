// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "signalbox/a2a/contract.h"

namespace signalbox {
namespace {

constexpr std::string_view kCapacityFlag = "--max-dispatch-tokens-per-rank";

std::string Where(const Contract& c) {
  return fmt::format("--moe-a2a-backend {}{}{}", c.name, c.mode.empty() ? "" : " ", c.mode);
}

int PayloadBits(Payload payload) {
  switch (payload) {
    case Payload::kF32:
      return 32;
    case Payload::kBf16:
    case Payload::kF16:
      return 16;
    case Payload::kFp8:
    case Payload::kInt8:
      return 8;
    case Payload::kFp4:
      return 4;
  }
  return 32;
}

// One limit: what it says and whether the request breaks it.
struct Rule {
  bool broken;
  std::string what;
  std::string expected;
};

Status FirstBroken(const Contract& c, std::initializer_list<Rule> rules, std::string_view remedy) {
  for (const Rule& rule : rules) {
    if (!rule.broken) continue;
    return Refused({.what = rule.what,
                    .where = Where(c),
                    .expected = rule.expected,
                    .remedy = std::string(remedy)});
  }
  return OkStatus();
}

std::string List(const std::vector<int>& values) {
  return fmt::format("one of {}", fmt::join(values, ", "));
}

bool Outside(const std::vector<int>& list, int value) {
  return !list.empty() && std::find(list.begin(), list.end(), value) == list.end();
}

// What the library's own design asks for, wherever it runs.
Status CheckRouting(const Contract& c, const Request& r) {
  const Limits& l = c.limits;
  return FirstBroken(
      c,
      {
          {c.own_router, "the kernel computes the routing itself; the model's cannot be given",
           "a back end that takes expert ids"},
          {c.overflow == OverflowPolicy::kDropByPolicy,
           "it drops tokens beyond the capacity of an expert, so results depend on the batch",
           "a back end that loses no token"},
          {l.top_k_max > 0 && r.top_k > l.top_k_max,
           fmt::format("{} experts per token exceed the limit of {}", r.top_k, l.top_k_max),
           fmt::format("at most {}", l.top_k_max)},
          {l.equal_slots && r.slots % r.ranks != 0,
           fmt::format("{} expert slots do not divide by {} ranks", r.slots, r.ranks),
           fmt::format("a multiple of {}: --ep-num-redundant-experts {} more", r.ranks,
                       r.ranks - r.slots % r.ranks)},
          {l.slots_max > 0 && r.slots > l.slots_max,
           fmt::format("{} expert slots exceed the limit of {}", r.slots, l.slots_max),
           fmt::format("at most {}", l.slots_max)},
          {l.local_slots_max > 0 && (r.slots + r.ranks - 1) / r.ranks > l.local_slots_max,
           fmt::format("{} expert slots per rank exceed the limit of {}",
                       (r.slots + r.ranks - 1) / r.ranks, l.local_slots_max),
           fmt::format(
               "at least {} ranks",
               l.local_slots_max > 0 ? (r.slots + l.local_slots_max - 1) / l.local_slots_max : 0)},
          {l.equal_tokens && !r.equal_tokens && r.ranks > 1,
           "ranks may send different numbers of rows, and it takes equal numbers only",
           "batches padded to one size on all ranks"},
      },
      "choose another back end or layout");
}

// What its kernels were compiled for.
Status CheckKernels(const Contract& c, const Request& r) {
  const Limits& l = c.limits;
  const int64_t bits = int64_t{r.hidden} * PayloadBits(r.payload);
  auto hidden = [&](std::string_view rule) {
    return fmt::format("hidden size {} {}", r.hidden, rule);
  };
  return FirstBroken(
      c,
      {
          {Outside(l.hidden_list, r.hidden), hidden("has no kernel"), List(l.hidden_list)},
          {l.hidden_multiple > 0 && r.hidden % l.hidden_multiple != 0,
           hidden(fmt::format("is not a multiple of {}", l.hidden_multiple)),
           fmt::format("a multiple of {}", l.hidden_multiple)},
          {l.hidden_bytes_multiple > 0 && bits % (int64_t{8} * l.hidden_bytes_multiple) != 0,
           hidden(fmt::format("gives {} rows that are not a multiple of {} bytes",
                              ToString(r.payload), l.hidden_bytes_multiple)),
           fmt::format("a multiple of {} bytes", l.hidden_bytes_multiple)},
          {r.hidden < l.hidden_min, hidden("is too small"),
           fmt::format("at least {}", l.hidden_min)},
          {l.hidden_max > 0 && r.hidden > l.hidden_max, hidden("is too large"),
           fmt::format("at most {}", l.hidden_max)},
          {Outside(l.ranks_list, r.ranks), fmt::format("no kernel for {} ranks", r.ranks),
           List(l.ranks_list)},
          {r.ranks < l.ranks_min, fmt::format("{} ranks are too few", r.ranks),
           fmt::format("at least {}", l.ranks_min)},
          {l.ranks_max > 0 && r.ranks > l.ranks_max, fmt::format("{} ranks are too many", r.ranks),
           fmt::format("at most {}", l.ranks_max)},
          {!c.payloads.Has(r.payload), fmt::format("{} rows cannot travel", ToString(r.payload)),
           "another element type for dispatched rows"},
      },
      "choose another back end or layout");
}

Status CheckCapture(const Contract& c, const Request& r) {
  if (!r.captured) return OkStatus();
  return FirstBroken(
      c,
      {
          {c.capture == CapturePolicy::kNo, "its calls cannot be captured in a graph", ""},
          {!c.capture_phases.Has(r.phase),
           fmt::format("its calls cannot be captured in the {} phase", ToString(r.phase)), ""},
          {c.capture == CapturePolicy::kWorstCaseOnly && !r.worst_case,
           "its calls can be captured with worst-case buffers only", ""},
      },
      "give --disable-cuda-graph");
}

Status CheckCapacity(const Contract& c, const Request& r) {
  const Limits& l = c.limits;
  const int64_t capacity = Capacity(c, r.capacity);
  if (l.tokens_max > 0 && capacity > l.tokens_max) {
    return Refused({.what = fmt::format("{} {} exceeds the limit of {} tokens per rank",
                                        kCapacityFlag, capacity, l.tokens_max),
                    .where = Where(c),
                    .remedy = fmt::format("largest that works is {}", l.tokens_max)});
  }
  if (l.rows_multiple > 0 && r.ranks * capacity % l.rows_multiple != 0) {
    return Refused(
        {.what = fmt::format("{} ranks x {} tokens are not a multiple of {} rows", r.ranks,
                             capacity, l.rows_multiple),
         .where = Where(c),
         .remedy = fmt::format("give {} {}", kCapacityFlag,
                               capacity / l.rows_multiple * l.rows_multiple + l.rows_multiple)});
  }
  const RowDemand& d = r.rows;
  if (c.overflow == OverflowPolicy::kImpossible || d.Rows() <= capacity) return OkStatus();

  std::string rows = fmt::format("{} rows", d.value);
  if (d.tokens_each != 1) rows += fmt::format(" x {} draft tokens", d.tokens_each);
  if (d.shared_by != 1) rows += fmt::format(" shared by {} ranks", d.shared_by);
  const int64_t largest = capacity * d.shared_by / d.tokens_each;
  std::string remedy = largest > 0 ? fmt::format("largest that works is {}", largest)
                                   : "no value of this flag works";
  if (l.tokens_max == 0 || d.Rows() <= l.tokens_max) {
    remedy += fmt::format(", or give {} {}", kCapacityFlag, d.Rows());
  }
  return Refused({.what = fmt::format("{} {}: {} exceed the capacity of {} per rank", d.flag,
                                      d.value, rows, capacity),
                  .where = Where(c),
                  .remedy = remedy});
}

}  // namespace

int64_t Capacity(const Contract& contract, int64_t asked) {
  return asked > 0 ? asked : contract.limits.tokens_default;
}

Status Eligible(const Contract& contract, const Request& request) {
  SB_CHECK(request.ranks >= 1 && request.slots >= 0 && request.rows.tokens_each >= 1 &&
           request.rows.shared_by >= 1)
      << "a request of no ranks";
  if (contract.shape == RowShape::kNone) return OkStatus();
  SB_RETURN_IF_ERROR(CheckRouting(contract, request));
  if (!request.emulated) SB_RETURN_IF_ERROR(CheckKernels(contract, request));
  SB_RETURN_IF_ERROR(CheckCapture(contract, request));
  return CheckCapacity(contract, request);
}

}  // namespace signalbox
