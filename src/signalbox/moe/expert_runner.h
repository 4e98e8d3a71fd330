// SPDX-License-Identifier: Apache-2.0
//
// Expert runners: routed experts over rows in a given shape. A runner knows shapes and ids, never
// who sent the rows.
//
//   RunFlatExperts(ops, scratch, experts, {.x = y, .rows = t, .ids = ids, .weights = w, .top_k =
//   2}, out);
#pragma once

#include <cstdint>
#include <span>

#include "signalbox/ops/ops.h"
#include "signalbox/tensor/scratch.h"

namespace signalbox {

// Rows that each go to up to top_k experts held here.
struct RoutedRows {
  const float* x;  // [rows, hidden]
  int64_t hidden;
  int64_t rows;
  const int32_t* ids;    // [rows, top_k] slots of this rank; any other number is somebody else's
  const float* weights;  // [rows, top_k]; null: every weight is 1
  int64_t top_k;
  Activation activation = {};
  ActivationPrecision precision = ActivationPrecision::kFloat;
};

// out [rows, hidden] <- sum over the row's experts held here of weight * expert(x), in top_k order,
// in float. Rows without an expert here give zeros.
void RunFlatExperts(Ops& ops, Scratch& scratch, std::span<const ExpertWeights> experts,
                    const RoutedRows& in, float* out);

}  // namespace signalbox
