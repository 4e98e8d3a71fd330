// SPDX-License-Identifier: Apache-2.0
#include "signalbox/ops/ops.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace signalbox {
namespace {

#if defined(__x86_64__)
// Not every compiler's __builtin_cpu_supports knows this name.
bool HasF16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

// The builtin asks XGETBV too, so that "avx2" and "avx512f" mean usable, not merely present.
bool HasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c();
}

bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

bool HasAvx512Vnni() {
  return HasAvx512() && __builtin_cpu_supports("avx512vnni");
}
#else
bool HasAvx2() {
  return false;
}
bool HasAvx512() {
  return false;
}
bool HasAvx512Vnni() {
  return false;
}
#endif

}  // namespace

std::string_view ToString(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Vnni:
      return "avx512vnni";
  }
  return "unknown";
}

bool IsaAvailable(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return true;
    case Isa::kAvx2:
      return HasAvx2();
    case Isa::kAvx512:
      return HasAvx512();
    case Isa::kAvx512Vnni:
      return HasAvx512Vnni();
  }
  return false;
}

Isa DetectIsa() {
  for (const Isa isa : {Isa::kAvx512Vnni, Isa::kAvx512, Isa::kAvx2}) {
    if (IsaAvailable(isa)) return isa;
  }
  return Isa::kPortable;
}

}  // namespace signalbox
