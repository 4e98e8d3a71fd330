// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/lifecycle.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace signalbox::lifecycle_test {
namespace {

using Json = nlohmann::json;

TEST(Lifecycle, SaysHowFarLoadingIs) {
  Lifecycle::Clock::time_point now{};
  Lifecycle lifecycle([&] { return now; });
  lifecycle.SetLoading("reading weights", 0, 1000);
  now += std::chrono::seconds(6);
  lifecycle.SetLoading("reading weights", 250, 1000);
  const auto refusal = lifecycle.Refusal();
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->status, 503);
  const Json error = Json::parse(refusal->body).at("error");
  EXPECT_EQ(error.at("type"), "unavailable_error");
  EXPECT_EQ(error.at("code"), "loading");
  EXPECT_EQ(error.at("phase"), "reading weights");
  EXPECT_EQ(error.at("percent"), 25.);
  EXPECT_EQ(error.at("eta_seconds"), 18.);
  EXPECT_EQ(error.at("bytes_done"), 250);
  EXPECT_EQ(error.at("bytes_total"), 1000);
  EXPECT_EQ(refusal->headers.at(0).name, "Retry-After");
  EXPECT_EQ(refusal->headers.at(0).value, "18");
  // The next step is timed from its own beginning, and may not know its size.
  lifecycle.SetLoading("start-up check");
  EXPECT_TRUE(Json::parse(lifecycle.Refusal()->body).at("error").at("percent").is_null());
}

TEST(Lifecycle, OnlyReadyTakesRequestsAndDrainingIsForGood) {
  Lifecycle lifecycle;
  EXPECT_EQ(lifecycle.phase(), ServerPhase::kLoading);
  lifecycle.SetReady();
  EXPECT_FALSE(lifecycle.Refusal());
  lifecycle.SetDraining();
  lifecycle.SetReady();
  EXPECT_EQ(lifecycle.phase(), ServerPhase::kDraining);
  const auto refusal = lifecycle.Refusal();
  ASSERT_TRUE(refusal);
  EXPECT_EQ(Json::parse(refusal->body).at("error").at("code"), "draining");
  EXPECT_EQ(refusal->headers.at(0).name, "Retry-After");
}

}  // namespace
}  // namespace signalbox::lifecycle_test
