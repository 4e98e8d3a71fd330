// SPDX-License-Identifier: Apache-2.0
//
// Element types as files store them, and their conversion to float.
//
//   float x = Bf16ToFloat(bits);  uint8_t c = FloatToE2m1(2.7f);  // 3.0 -> code 5
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace signalbox {

enum class DType : uint8_t {
  kF64,
  kF32,
  kBf16,
  kF16,
  kF8E4m3,
  kF8E8m0,
  kU8,
  kI8,
  kI32,
  kI64,
  kBool
};

// Bytes of one element.
int64_t ByteSize(DType dtype);
// Safetensors spelling: "BF16", "F8_E4M3", ...
std::string_view ToString(DType dtype);
std::optional<DType> ParseDType(std::string_view name);

inline float Bf16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}
// Round to nearest even; NaN stays NaN.
uint16_t FloatToBf16(float value);

float F16ToFloat(uint16_t bits);
uint16_t FloatToF16(float value);

// OCP FP8 E4M3 (finite, bias 7; 0x7f and 0xff are NaN).
float E4m3ToFloat(uint8_t bits);
uint8_t FloatToE4m3(float value);  // nearest even, saturates at 448 (infinities too)

// The types that a cache may hold numbers in: kF32, kBf16, kF8E4m3. What follows is for these.
bool IsCacheType(DType dtype);
// The largest distance of neighbours relative to the smaller, among numbers with all their bits of
// precision; 0 for kF32, which holds what it is given.
double RoundingStep(DType dtype);
// `out` [n] of `dtype` <- `in`, and back.
void StoreFloats(const float* in, int64_t n, DType dtype, void* out);
void LoadFloats(const void* in, int64_t n, DType dtype, float* out);
// Number `i` of an array.
inline void* ElementAt(void* array, int64_t i, DType dtype) {
  return static_cast<std::byte*>(array) + i * ByteSize(dtype);
}
inline const void* ElementAt(const void* array, int64_t i, DType dtype) {
  return static_cast<const std::byte*>(array) + i * ByteSize(dtype);
}

// OCP MX scale: 2^(bits - 127); 255 is NaN.
inline float E8m0ToFloat(uint8_t bits) {
  // 2^-127 is subnormal in float: bit 22 of the mantissa.
  if (bits == 0) return std::bit_cast<float>(uint32_t{1} << 22);
  if (bits == 255) return std::bit_cast<float>(uint32_t{0x7fc00000});
  return std::bit_cast<float>(uint32_t{bits} << 23);
}

// OCP FP4 E2M1, code s.ee.m: 0 .5 1 1.5 2 3 4 6, then the negatives.
inline constexpr float kE2m1Values[16] = {0.f,  0.5f,  1.f,  1.5f,  2.f,  3.f,  4.f,  6.f,
                                          -0.f, -0.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f};
uint8_t FloatToE2m1(float value);  // nearest, ties to even code, saturates at 6

}  // namespace signalbox
