// SPDX-License-Identifier: Apache-2.0
#include "signalbox/tensor/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace signalbox {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

TEST(DType, NamesAndSizes) {
  for (int i = 0; i <= static_cast<int>(DType::kBool); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(ParseDType(ToString(dtype)), dtype);
  }
  EXPECT_EQ(ToString(DType::kF8E4m3), "F8_E4M3");
  EXPECT_EQ(ByteSize(DType::kBf16), 2);
  EXPECT_EQ(ByteSize(DType::kI64), 8);
  EXPECT_EQ(ParseDType("F4"), std::nullopt);
}

TEST(DType, Bf16EveryCodeRoundTrips) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const float value = Bf16ToFloat(static_cast<uint16_t>(code));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(value))));
    } else {
      EXPECT_EQ(FloatToBf16(value), code);
    }
  }
}

TEST(DType, Bf16RoundsToNearestEven) {
  EXPECT_EQ(FloatToBf16(1.f + 0x1p-8f), 0x3f80);    // tie, down to even
  EXPECT_EQ(FloatToBf16(1.f + 0x3p-8f), 0x3f82);    // tie, up to even
  EXPECT_EQ(FloatToBf16(1.f + 0x1.1p-8f), 0x3f81);  // above the tie
  EXPECT_EQ(FloatToBf16(std::numeric_limits<float>::max()), 0x7f80);
  // A NaN whose payload sits in the low half only must not become an infinity.
  EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(std::bit_cast<float>(0x7f800001u)))));
}

// The value of a half by its definition.
double F16Definition(uint32_t code) {
  const double sign = (code & 0x8000) != 0 ? -1 : 1;
  const int exponent = (code >> 10) & 0x1f;
  const int mantissa = code & 0x3ff;
  if (exponent == 31) return mantissa == 0 ? sign * kInf : kNan;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(DType, F16EveryCodeRoundTrips) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const float value = F16ToFloat(static_cast<uint16_t>(code));
    if (std::isnan(F16Definition(code))) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_TRUE(std::isnan(F16ToFloat(FloatToF16(value))));
      continue;
    }
    ASSERT_EQ(value, F16Definition(code)) << code;
    ASSERT_EQ(FloatToF16(value), code);
    // The midpoint to the next code goes to the even one of the two; a hair above it goes up.
    if (code < 0x7bff) {
      const float next = F16ToFloat(static_cast<uint16_t>(code + 1));
      const float middle = (value + next) / 2;
      ASSERT_EQ(FloatToF16(middle), code % 2 == 0 ? code : code + 1);
      ASSERT_EQ(FloatToF16(std::nextafter(middle, kInf)), code + 1);
    }
  }
  EXPECT_EQ(FloatToF16(65519.f), 0x7bff);
  EXPECT_EQ(FloatToF16(65520.f), 0x7c00);
  EXPECT_EQ(FloatToF16(-kInf), 0xfc00);
}

TEST(DType, E4m3EveryCode) {
  for (uint32_t code = 0; code < 256; ++code) {
    const float value = E4m3ToFloat(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value));
      continue;
    }
    const int exponent = (code >> 3) & 0xf;
    const int mantissa = code & 7;
    const double magnitude = exponent == 0 ? std::ldexp(mantissa / 8.0, -6)
                                           : std::ldexp(1 + mantissa / 8.0, exponent - 7);
    EXPECT_EQ(value, code >= 128 ? -magnitude : magnitude);
    EXPECT_EQ(FloatToE4m3(value), code);
    if (code < 0x7e) {
      const float middle = (value + E4m3ToFloat(static_cast<uint8_t>(code + 1))) / 2;
      EXPECT_EQ(FloatToE4m3(middle), code % 2 == 0 ? code : code + 1);
      EXPECT_EQ(FloatToE4m3(std::nextafter(middle, kInf)), code + 1);
      EXPECT_EQ(FloatToE4m3(std::nextafter(middle, 0.f)), code);
    }
  }
  EXPECT_EQ(E4m3ToFloat(0x7e), 448.f);
  EXPECT_EQ(FloatToE4m3(1e9f), 0x7e);
  EXPECT_EQ(FloatToE4m3(-kInf), 0xfe);
  EXPECT_EQ(FloatToE4m3(kNan) & 0x7f, 0x7f);
}

TEST(DType, E8m0EveryCode) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(E8m0ToFloat(static_cast<uint8_t>(code)), std::ldexp(1.0, code - 127));
  }
  EXPECT_TRUE(std::isnan(E8m0ToFloat(255)));
}

TEST(DType, E2m1EveryCodeAndTie) {
  for (uint8_t code = 0; code < 16; ++code) {
    const int exponent = (code >> 1) & 3;
    const int mantissa = code & 1;
    const float magnitude =
        exponent == 0 ? 0.5f * mantissa : std::ldexp(1 + 0.5f * mantissa, exponent - 1);
    EXPECT_EQ(kE2m1Values[code], code >= 8 ? -magnitude : magnitude);
    EXPECT_EQ(std::signbit(kE2m1Values[code]), code >= 8);
    EXPECT_EQ(FloatToE2m1(kE2m1Values[code]), code);
    if (code < 7) {
      const float middle = (kE2m1Values[code] + kE2m1Values[code + 1]) / 2;
      EXPECT_EQ(FloatToE2m1(middle), code % 2 == 0 ? code : code + 1) << middle;
      EXPECT_EQ(FloatToE2m1(std::nextafter(middle, kInf)), code + 1);
      EXPECT_EQ(FloatToE2m1(std::nextafter(middle, 0.f)), code);
      EXPECT_EQ(FloatToE2m1(-middle), FloatToE2m1(middle) | 8);
    }
  }
  EXPECT_EQ(FloatToE2m1(2.7f), 5);
  EXPECT_EQ(FloatToE2m1(1e9f), 7);
  EXPECT_EQ(FloatToE2m1(-kInf), 15);
}

TEST(DType, CacheTypesHoldWhatTheirConversionsSay) {
  const std::vector<float> x = {0.f, -0.f, 1.06f, -3.1f, 0x1p-9f, 447.f, 460.f, -1e9f, kInf, kNan};
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF8E4m3}) {
    ASSERT_TRUE(IsCacheType(dtype));
    std::vector<std::byte> bytes(x.size() * ByteSize(dtype));
    std::vector<float> got(x.size());
    StoreFloats(x.data(), static_cast<int64_t>(x.size()), dtype, bytes.data());
    LoadFloats(bytes.data(), static_cast<int64_t>(x.size()), dtype, got.data());
    for (size_t i = 0; i < x.size(); ++i) {
      const float want = dtype == DType::kF32    ? x[i]
                         : dtype == DType::kBf16 ? Bf16ToFloat(FloatToBf16(x[i]))
                                                 : E4m3ToFloat(FloatToE4m3(x[i]));
      EXPECT_TRUE(got[i] == want || (std::isnan(got[i]) && std::isnan(want)))
          << ToString(dtype) << " " << x[i] << " is " << got[i] << ", not " << want;
    }
    // Storing what was loaded changes nothing.
    std::vector<std::byte> again(bytes.size());
    StoreFloats(got.data(), static_cast<int64_t>(x.size()), dtype, again.data());
    EXPECT_EQ(again, bytes);
    EXPECT_EQ(*static_cast<const std::byte*>(ElementAt(bytes.data(), 3, dtype)),
              bytes[3 * ByteSize(dtype)]);
  }
  EXPECT_FALSE(IsCacheType(DType::kF16));
}

// Neighbours 1 and 1 + step, and none between.
TEST(DType, RoundingStepIsTheDistanceOfNeighbours) {
  const auto round = [](float x, DType dtype) {
    return dtype == DType::kBf16 ? Bf16ToFloat(FloatToBf16(x)) : E4m3ToFloat(FloatToE4m3(x));
  };
  for (const DType dtype : {DType::kBf16, DType::kF8E4m3}) {
    const auto step = static_cast<float>(RoundingStep(dtype));
    EXPECT_EQ(round(1.f + step, dtype), 1.f + step);
    EXPECT_EQ(round(1.f + 0.49f * step, dtype), 1.f);
    EXPECT_EQ(round(1.f + 0.51f * step, dtype), 1.f + step);
  }
  EXPECT_EQ(RoundingStep(DType::kF32), 0);
}

}  // namespace
}  // namespace signalbox
