// SPDX-License-Identifier: Apache-2.0
//
// The kernels for AVX-512 with VNNI: those of cpu_avx512.cc, but for the products of bytes.
// CMakeLists.txt gives this file its instruction-set flags.
#if defined(__x86_64__)
// The kernels use what is included before them.
// clang-format off
#include "signalbox/ops/simd_avx512.h"
#include "signalbox/ops/cpu_kernels_impl.h"
// clang-format on

namespace signalbox {

const CpuKernels& Avx512VnniKernels() {
  return kKernels;
}

}  // namespace signalbox
#endif
