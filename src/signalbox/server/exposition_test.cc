// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/exposition.h"

#include <gtest/gtest.h>

#include <cmath>

namespace signalbox::exposition_test {
namespace {

TEST(Exposition, WritesFamiliesAsPrometheusReadsThem) {
  Exposition out(MetricLabels{{"model_name", "tiny"}});
  out.Family("a_total", MetricType::kCounter, "Things.");
  out.Sample("a_total", {}, 12);
  out.Sample("a_total", {{"route", "/x"}}, 0.5);
  EXPECT_EQ(out.text(),
            "# HELP a_total Things.\n"
            "# TYPE a_total counter\n"
            "a_total{model_name=\"tiny\"} 12\n"
            "a_total{model_name=\"tiny\",route=\"/x\"} 0.5\n");
}

TEST(Exposition, EscapesWhatWouldEndALabelOrALine) {
  Exposition out(MetricLabels{{"model_name", "a\"b\\c\nd"}});
  out.Family("x", MetricType::kGauge, "Quotes \" stay, \\ and\nlines do not.");
  out.Sample("x", {}, 1);
  EXPECT_EQ(out.text(),
            "# HELP x Quotes \" stay, \\\\ and\\nlines do not.\n"
            "# TYPE x gauge\n"
            "x{model_name=\"a\\\"b\\\\c\\nd\"} 1\n");
}

TEST(Exposition, SaysNumbersThatAreNone) {
  Exposition out(MetricLabels{});
  out.Sample("x", {}, std::nan(""));
  out.Sample("x", {}, -INFINITY);
  out.Sample("x", {}, 9007199254740991.);
  EXPECT_EQ(out.text(), "x{} NaN\nx{} -Inf\nx{} 9007199254740991\n");
}

TEST(Exposition, BucketsAreCumulativeAndABoundBelongsToItsBucket) {
  Histogram histogram({0.1, 1});
  histogram.Add(0.1);
  histogram.Add(0.5, 3);
  histogram.Add(7);
  Exposition out(MetricLabels{});
  out.Samples("h", {{"k", "v"}}, histogram);
  EXPECT_EQ(out.text(),
            "h_bucket{k=\"v\",le=\"0.1\"} 1\n"
            "h_bucket{k=\"v\",le=\"1\"} 4\n"
            "h_bucket{k=\"v\",le=\"+Inf\"} 5\n"
            "h_sum{k=\"v\"} 8.6\n"
            "h_count{k=\"v\"} 5\n");
}

}  // namespace
}  // namespace signalbox::exposition_test
