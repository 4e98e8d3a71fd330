// SPDX-License-Identifier: Apache-2.0
#include "signalbox/tensor/dtype.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <iterator>

#include "signalbox/base/check.h"

namespace signalbox {
namespace {

struct DTypeFacts {
  std::string_view name;
  int64_t bytes;
};

// In the order of DType.
constexpr DTypeFacts kDTypes[] = {
    {"F64", 8}, {"F32", 4}, {"BF16", 2}, {"F16", 2}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
    {"U8", 1},  {"I8", 1},  {"I32", 4},  {"I64", 8}, {"BOOL", 1},
};
static_assert(std::size(kDTypes) == static_cast<size_t>(DType::kBool) + 1);

}  // namespace

int64_t ByteSize(DType dtype) {
  return kDTypes[static_cast<size_t>(dtype)].bytes;
}

std::string_view ToString(DType dtype) {
  return kDTypes[static_cast<size_t>(dtype)].name;
}

std::optional<DType> ParseDType(std::string_view name) {
  for (size_t i = 0; i < std::size(kDTypes); ++i) {
    if (kDTypes[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

uint16_t FloatToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  // Rounding could carry a NaN into an infinity or a zero: keep its sign, make it quiet.
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float F16ToFloat(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t exponent = (bits >> 10) & 0x1f;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in float
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  const uint32_t float_exponent = exponent == 31 ? 255 : exponent + (127 - 15);
  return std::bit_cast<float>(sign | (float_exponent << 23) | (mantissa << 13));
}

uint16_t FloatToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  if (std::isnan(value)) return sign | 0x7e00;
  const float magnitude = std::fabs(value);
  if (magnitude >= 65520.f) return sign | 0x7c00;  // half way past the largest half, 65504
  if (magnitude < 0x1p-14f) {
    // Subnormal: the code is the magnitude in units of 2^-24, and 1024 is the smallest normal.
    return sign | static_cast<uint16_t>(std::nearbyint(magnitude * 0x1p24f));
  }
  const uint32_t m = bits & 0x7fffffff;
  const uint32_t rounded = m + 0xfff + ((m >> 13) & 1);
  return sign | static_cast<uint16_t>((rounded >> 13) - ((127 - 15) << 10));
}

float E4m3ToFloat(uint8_t bits) {
  const float sign = (bits & 0x80) != 0 ? -1.f : 1.f;
  const int exponent = (bits >> 3) & 0xf;
  const int mantissa = bits & 7;
  if ((bits & 0x7f) == 0x7f) return std::bit_cast<float>(uint32_t{0x7fc00000});
  if (exponent == 0) return sign * static_cast<float>(mantissa) * 0x1p-9f;
  return sign * std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
}

uint8_t FloatToE4m3(float value) {
  const auto sign = static_cast<uint8_t>(std::signbit(value) ? 0x80 : 0);
  if (std::isnan(value)) return sign | 0x7f;
  const float magnitude = std::fabs(value);
  if (magnitude >= 448.f) return sign | 0x7e;
  if (magnitude < 0x1p-6f) {
    // Subnormal in units of 2^-9; 8 is the smallest normal.
    return sign | static_cast<uint8_t>(std::nearbyint(magnitude * 0x1p9f));
  }
  const uint32_t m = std::bit_cast<uint32_t>(magnitude);
  const uint32_t rounded = m + 0x7ffff + ((m >> 20) & 1);
  return sign | static_cast<uint8_t>((rounded >> 20) - ((127 - 7) << 3));
}

bool IsCacheType(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBf16 || dtype == DType::kF8E4m3;
}

double RoundingStep(DType dtype) {
  SB_CHECK(IsCacheType(dtype)) << ToString(dtype);
  return dtype == DType::kF32 ? 0 : dtype == DType::kBf16 ? 0x1p-7 : 0x1p-3;
}

void StoreFloats(const float* in, int64_t n, DType dtype, void* out) {
  SB_CHECK(IsCacheType(dtype)) << ToString(dtype);
  if (dtype == DType::kF32) {
    std::copy_n(in, n, static_cast<float*>(out));
  } else if (dtype == DType::kBf16) {
    std::transform(in, in + n, static_cast<uint16_t*>(out), FloatToBf16);
  } else {
    std::transform(in, in + n, static_cast<uint8_t*>(out), FloatToE4m3);
  }
}

void LoadFloats(const void* in, int64_t n, DType dtype, float* out) {
  SB_CHECK(IsCacheType(dtype)) << ToString(dtype);
  const auto load = [&](auto* from, auto to_float) {
    std::transform(from, from + n, out, to_float);
  };
  if (dtype == DType::kF32) {
    std::copy_n(static_cast<const float*>(in), n, out);
  } else if (dtype == DType::kBf16) {
    load(static_cast<const uint16_t*>(in), Bf16ToFloat);
  } else {
    load(static_cast<const uint8_t*>(in), E4m3ToFloat);
  }
}

uint8_t FloatToE2m1(float value) {
  const auto sign = static_cast<uint8_t>(std::signbit(value) ? 8 : 0);
  const float magnitude = std::fabs(value);
  // Midpoints between neighbours; a tie goes to the even code, so odd midpoints stay below.
  constexpr float kMidpoints[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.f};
  uint8_t code = 0;
  for (int i = 0; i < 7; ++i) {
    const bool up = i % 2 == 0 ? magnitude > kMidpoints[i] : magnitude >= kMidpoints[i];
    if (up) code = static_cast<uint8_t>(i + 1);
  }
  return sign | code;
}

}  // namespace signalbox
