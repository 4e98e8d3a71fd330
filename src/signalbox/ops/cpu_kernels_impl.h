// SPDX-License-Identifier: Apache-2.0
//
// All kernels, and the table of them, for the Vec that was included before. Included by the file of
// each instruction set and local to it.
#pragma once

#include "signalbox/ops/cpu_kernels.h"
// In order: each uses what the ones before define.
// clang-format off
#include "signalbox/ops/cpu_math_impl.h"
#include "signalbox/ops/cpu_matmul_impl.h"
#include "signalbox/ops/cpu_int8_impl.h"
#include "signalbox/ops/cpu_rows_impl.h"
#include "signalbox/ops/cpu_attention_impl.h"
#include "signalbox/ops/cpu_delta_impl.h"
// clang-format on

namespace signalbox {
namespace {

constexpr CpuKernels kKernels = {
    .mat_mul = MatMul,
    .quantise = Quantise,
    .mat_mul_int8 = Int8MatMul,
    .mat_mul_transposed = MatMulTransposed,
    .decode_row = DecodeRow,
    .load_floats = LoadNumbers,
    .rms_norm = RmsNorm,
    .gated_rms_norm = GatedRmsNorm,
    .mix = Mix,
    .rope = Rope,
    .attention = Attention,
    .causal_conv = CausalConv,
    .delta_recurrent = DeltaRecurrent,
    .delta_chunked = DeltaChunked,
    .router = Router,
    .glu = Glu,
    .sigmoid_mul = SigmoidMul,
    .add_scaled = AddScaled,
    .bounded_decay = BoundedDecay,
};

}  // namespace
}  // namespace signalbox
