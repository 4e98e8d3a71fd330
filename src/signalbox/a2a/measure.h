// SPDX-License-Identifier: Apache-2.0
//
// MeasureExchange: what a dispatch and a combine cost on this machine, beside a plain copy of the
// same bytes. For benchmarks and `bench a2a`; collective over the transport's group.
//
//   SB_ASSIGN_OR_RETURN(ExchangeTiming t, MeasureExchange(*transport, {.tokens = 128}));
#pragma once

#include <cstdint>

#include "signalbox/a2a/transport.h"

namespace signalbox {

struct MeasureOptions {
  int64_t tokens = 128;  // of this rank
  int repeats = 20;
  uint64_t seed = 1;  // of the routing: distinct experts, uniform
};

// Medians over the repeats on this rank, microseconds.
struct ExchangeTiming {
  double dispatch_us = 0;
  double combine_us = 0;
  double copy_us = 0;  // memcpy of as many bytes as dispatch and combine sent together
  Traffic dispatched;
  Traffic combined;
};

// Fused contracts have no dispatch to measure: InvalidArgument.
Result<ExchangeTiming> MeasureExchange(Transport& transport, const MeasureOptions& options);

}  // namespace signalbox
