// SPDX-License-Identifier: Apache-2.0
//
// The kernels for plain C++. CMakeLists.txt gives this file its instruction-set flags.
// The kernels use what is included before them.
// clang-format off
#include "signalbox/ops/simd_portable.h"
#include "signalbox/ops/cpu_kernels_impl.h"
// clang-format on

namespace signalbox {

const CpuKernels& PortableKernels() {
  return kKernels;
}

}  // namespace signalbox
