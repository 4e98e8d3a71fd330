// SPDX-License-Identifier: Apache-2.0
//
// Weights out of a checkpoint, in the format that the file itself has. Whether a weight is
// quantised, and how, is decided per tensor from names, dtypes and shapes; what a config declares
// about it is not consulted, because releases get it wrong.
//
// A weight named X (a module path without ".weight") is stored in exactly one of these ways, where
// S is "X.weight" or, as fused experts have it, the bare "X":
//
//   plain      S F32, BF16 or F16 [out, in]
//   MXFP4      S U8 [out, in/2] + S_scale U8 or F8_E8M0 [out, in/32]         (Quark)
//   MXFP4      S_packed U8 [out, in/2] + S_scale U8 or F8_E8M0 [out, in/32]  (compressed-tensors)
//   block FP8  S F8_E4M3 [out, in] + S_scale_inv F32 or BF16 [ceil(out/128), ceil(in/128)]
//
// Anything else is BAD_CHECKPOINT: a missing tensor, two spellings at once, a scale without its
// weight or the reverse, other dtypes, other shapes, data not aligned to its elements. Shapes match
// exactly, dimension by dimension: nothing is squeezed, broadcast, padded or transposed.
// Views point into the mapped files and live as long as the Checkpoint. Every tensor used is marked
// in the ledger.
//
//   SB_ASSIGN_OR_RETURN(MatrixView head, ReadMatrix(ledger, "lm_head", vocab, hidden));
//   SB_ASSIGN_OR_RETURN(auto down, ReadFused(ledger, p + "mlp.experts.down_proj", 256, 2048, 512));
//   SB_ASSIGN_OR_RETURN(std::vector<float> norm, ReadVector(ledger, "model.norm.weight", hidden));
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "signalbox/base/status.h"
#include "signalbox/tensor/checkpoint.h"
#include "signalbox/tensor/matrix.h"

namespace signalbox {

// Whether the checkpoint holds weight `name` in any of the spellings above, complete or not. Says
// which of two styles (fused or per-expert, say) a release uses.
bool HasWeight(const Checkpoint& checkpoint, std::string_view name);

// Weight `name` [rows, cols].
Result<MatrixView> ReadMatrix(TensorLedger& ledger, std::string_view name, int64_t rows,
                              int64_t cols);

// Fused weight `name` [experts, rows, cols]: every tensor above with `experts` in front of its
// shape. One view per expert.
Result<std::vector<MatrixView>> ReadFused(TensorLedger& ledger, std::string_view name,
                                          int64_t experts, int64_t rows, int64_t cols);

// What ReadTensor reads, checked and marked as read, its data left alone.
Result<const TensorRef*> FindTensor(TensorLedger& ledger, std::string_view name,
                                    std::span<const int64_t> shape);
// A copy in float of the tensor with this full name (".weight", ".bias" included) and exactly this
// shape; F32, BF16 or F16. Any alignment.
Result<std::vector<float>> ReadTensor(TensorLedger& ledger, std::string_view name,
                                      std::span<const int64_t> shape);
// ReadTensor of shape [n].
Result<std::vector<float>> ReadVector(TensorLedger& ledger, std::string_view name, int64_t n);

// A place among the scales of a view.
struct ScalePosition {
  int64_t row = 0;  // row of the scale array: one per row (MXFP4) or per 128 rows (FP8)
  int64_t block = 0;
};
// The first scale that is not a number (E8M0 255; for FP8 also infinity); none for plain formats.
// One such byte turns 32 weights, and every token that meets them, into NaN. Reads all scales.
std::optional<ScalePosition> FindNanScale(const MatrixView& view);

}  // namespace signalbox
