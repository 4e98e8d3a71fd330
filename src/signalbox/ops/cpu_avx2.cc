// SPDX-License-Identifier: Apache-2.0
//
// The kernels for AVX2, FMA and F16C. CMakeLists.txt gives this file its instruction-set flags.
#if defined(__x86_64__)
// The kernels use what is included before them.
// clang-format off
#include "signalbox/ops/simd_avx2.h"
#include "signalbox/ops/cpu_kernels_impl.h"
// clang-format on

namespace signalbox {

const CpuKernels& Avx2Kernels() {
  return kKernels;
}

}  // namespace signalbox
#endif
