// SPDX-License-Identifier: Apache-2.0
//
// The kernels for AVX-512 F, BW, VL and DQ. CMakeLists.txt gives this file its instruction-set
// flags.
#if defined(__x86_64__)
// The kernels use what is included before them.
// clang-format off
#include "signalbox/ops/simd_avx512.h"
#include "signalbox/ops/cpu_kernels_impl.h"
// clang-format on

namespace signalbox {

const CpuKernels& Avx512Kernels() {
  return kKernels;
}

}  // namespace signalbox
#endif
