// SPDX-License-Identifier: Apache-2.0
//
// MeasureExchange: what a dispatch and a combine cost on this machine, beside a plain copy of the
// same bytes, and how many bytes the routing says they must move. For benchmarks and `bench a2a`;
// collective over the transport's group.
//
//   SB_ASSIGN_OR_RETURN(ExchangeTiming t, MeasureExchange(*transport, {.tokens = 128}));
#pragma once

#include <cstdint>
#include <span>

#include "signalbox/a2a/transport.h"

namespace signalbox {

struct MeasureOptions {
  int64_t tokens = 128;  // of this rank
  int repeats = 20;
  uint64_t seed = 1;  // of the routing: distinct experts, uniform
};

// Rows of one exchange as one rank's own routing asks for them.
struct RoutedRows {
  int64_t sent = 0;       // by dispatch, to all ranks
  int64_t sent_away = 0;  // of these to other ranks
  int64_t back = 0;       // by combine, from all ranks
  int64_t back_away = 0;  // of these from other ranks
};

// The dedup formula, counted from the routing alone: a token travels once to every rank that holds
// one of its experts (else, with dedup_wire off, once per expert), and comes back once per such
// rank (once per expert where the library weights at the source). `position` is the rank's in the
// group.
RoutedRows CountRoutedRows(const Contract& contract, const ExchangeShape& shape, int position,
                           std::span<const int32_t> ids);

// Medians over the repeats on this rank, microseconds.
struct ExchangeTiming {
  double dispatch_us = 0;  // of a fused contract: its one call, with experts that copy their rows
  double combine_us = 0;   // of a fused contract: 0
  double copy_us = 0;      // memcpy of the values of all rows that are sent and come back
  Traffic dispatched;
  Traffic combined;  // of a fused contract: nothing
  RoutedRows routed;
  int64_t calls = 0;  // exchanges made, the one that warms up included

  // Values, ids and weights that one exchange moves between this rank and others, by the formula.
  int64_t BytesByFormula() const {
    return routed.sent_away * (dispatched.row_bytes + dispatched.header_bytes) +
           routed.back_away * dispatched.row_bytes;
  }
};

Result<ExchangeTiming> MeasureExchange(Transport& transport, const MeasureOptions& options);

}  // namespace signalbox
