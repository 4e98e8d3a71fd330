// SPDX-License-Identifier: Apache-2.0
//
// Verification of a layout: canary tokens go through every layer of the plan and through one rank,
// same weights, and what each layer adds to the residual is compared, addend by addend, on every
// rank. A wrong layer is named with the addend that is wrong, however well the text reads.
//
//   SB_ASSIGN_OR_RETURN(VerifyReport report, VerifyLayout(*engine, *one_rank, {.tokens = 64}));
//   report.worst;                       // 2.1e-7
//   if (report.first) report.first->addend;   // "shared expert"
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "signalbox/base/status.h"
#include "signalbox/engine/engine.h"

namespace signalbox {

// Most sequences of a canary.
inline constexpr int64_t kCanarySequences = 3;

// Where a cache rounds keys and values, small differences grow. Numbers that differ by a relative
// error e fall on different sides of a rounding with probability e / step and are a step apart
// then, sqrt(e * step) in the mean. A rank may have a single row, where one number of the 64 or
// more of its key makes step / 8: the first attention layer is given that much. From there, every
// further one takes the tolerance half way to the step, on a logarithmic scale; it never goes past.
// Without an attention layer, or with a cache of floats, it stays what it is.
double ToleranceAfter(int64_t attention_layers, double tolerance, DType kv_dtype);
// The same after layers that round with a step of this relative size: those whose experts take
// int8, kInt8Step.
double ToleranceAfter(int64_t rounding_layers, double tolerance, double step);
// Of a block of 32 numbers, the largest is about twice their root mean square: 2 / 127.
inline constexpr double kInt8Step = 1.0 / 64;

struct VerifyOptions {
  int64_t tokens = 64;                   // of the prompts together, 4 at least; no more than a step
  int64_t sequences = kCanarySequences;  // that both engines have room for, 2 tokens more for each
  int64_t layers = 0;       // the first so many; 0: all, with the draft layer and the logits
  double tolerance = 1e-5;  // relative Frobenius error of an addend, over the rows of a rank;
                            // ToleranceAfter() the attention layers up to it
  uint64_t seed = 1;        // of the canary tokens
};

// Relative errors, the largest over ranks and steps; NaN where a value is not a number.
struct AddendError {
  std::string addend;  // "mixer", "routed experts + shared expert"; "output": the residual stream
  double error = 0;
};
struct LayerReport {
  int layer = 0;
  std::string kind;
  double tolerance = 0;
  std::vector<AddendError> addends;  // in order of the layer; the output last
};
struct FoundError {
  int layer = 0;
  std::string kind;
  std::string addend;
  double error = 0;
  double tolerance = 0;
  int rank = 0;
  std::string step;  // "prefill of 42 + 21 + 1 tokens"
};
struct VerifyReport {
  std::vector<LayerReport> layers;
  double logits = 0;     // relative error; 0 when not all layers ran
  double worst = 0;      // of all of it
  double tolerance = 0;  // the largest
  // First over the tolerance, in order of steps of the engine, layers and addends.
  std::optional<FoundError> first;
};

// `one` runs the same checkpoint on one rank, with a cache of the same type. Sequences of both
// engines must be unused and free.
Result<VerifyReport> VerifyLayout(Engine& planned, Engine& one, const VerifyOptions& options);

// A verification short enough for every start: a few tokens through the layers up to the first of
// the last kind. kOutOfTolerance with the layer and the addend.
Result<VerifyReport> StartupCheck(Engine& planned, const std::string& directory);

// kOutOfTolerance with layer, addend, rank and step when the report has an error.
Status StatusOf(const VerifyReport& report);

}  // namespace signalbox
