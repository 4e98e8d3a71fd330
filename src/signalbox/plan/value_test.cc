// SPDX-License-Identifier: Apache-2.0
#include "signalbox/plan/value.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace signalbox {
namespace {

TEST(Rational, PrintsDecimalsWhereTheyAreExact) {
  EXPECT_EQ(Rational{}.ToString(), "1");
  EXPECT_EQ((Rational{5, 2}.ToString()), "2.5");
  EXPECT_EQ((Rational{-1, 8}.ToString()), "-0.125");
  EXPECT_EQ((Rational{1, 3}.ToString()), "1/3");
  EXPECT_EQ((Rational{1, 1 << 20}.ToString()), "1/1048576");
}

TEST(Rational, RefusesWhatIsNoFraction) {
  for (const char* text : {"", "/", "1/0", "1/", "a", "1.", ".5x", "1e3", "2.5.1", "1.-5",
                           "99999999999999999999", "0.12345678901"}) {
    EXPECT_EQ(Rational::Parse(text), std::nullopt) << text;
  }
  EXPECT_EQ(Rational::Product({INT64_MAX, 1}, {2, 1}), std::nullopt);
  EXPECT_EQ(Rational::Sum({INT64_MAX, 1}, {1, 1}), std::nullopt);
  EXPECT_EQ(Rational::Make(INT64_MIN, -1), std::nullopt);
}

RC_GTEST_PROP(Rational, ParsesWhatItPrintsAndAddsAsFractionsDo, ()) {
  const auto any = [] {
    return *Rational::Make(*rc::gen::inRange(-1000, 1000), *rc::gen::inRange(1, 1000));
  };
  const Rational a = any(), b = any();
  RC_ASSERT(Rational::Parse(a.ToString()) == a);
  const Rational sum = *Rational::Sum(a, b);
  RC_ASSERT(sum.num * a.den * b.den == (a.num * b.den + b.num * a.den) * sum.den);
  const Rational product = *Rational::Product(a, b);
  RC_ASSERT(product.num * a.den * b.den == a.num * b.num * product.den);
}

TEST(Value, PrintsRowsAddendsAndFacts) {
  const Mesh mesh = *Mesh::Create({{"attn_dp", 2}, {"attn_tp", 2}});
  const AxisSet dp = AxisSet::Single(0), tp = AxisSet::Single(1);
  EXPECT_EQ((Value{.terms = {{.name = "mixer", .part = tp}}}.ToString(mesh)),
            "rows: all | mixer partial over attn_tp");
  EXPECT_EQ((Value{.rows = dp | tp,
                   .terms = {{.name = "residual"},
                             {.name = "shared expert", .coefficient = {1, 2}, .part = {}}},
                   .facts = {.pad = PadRows::kMasked}}
                 .ToString(mesh)),
            "rows: attn_dp+attn_tp | residual + 0.5 shared expert | padding masked");
  EXPECT_EQ((Value{.rows = tp,
                   .terms = {{.name = "routed experts"}},
                   .facts = {.shape = RowShape::kFlat,
                             .pad = PadRows::kPoison,
                             .ids = IdSpace::kGlobal,
                             .dispatched = tp}}
                 .ToString(mesh)),
            "rows: attn_tp | routed experts | flat rows over attn_tp, global ids, padding poison");
  EXPECT_EQ((Value{.cols = tp}.ToString(mesh)), "rows: all, features: attn_tp | nothing");
}

}  // namespace
}  // namespace signalbox
