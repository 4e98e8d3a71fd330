// SPDX-License-Identifier: Apache-2.0
#include "signalbox/plan/exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <regex>
#include <string>

#include <nlohmann/json.hpp>

namespace signalbox {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// The reference stops at the first axis over which an addend is whole; we name them all.
std::string FirstAxisOnly(const std::string& what, const Mesh& mesh) {
  static const std::regex kCounted(R"((.*) counted \d+ times: it is replicated over (\w+)\+.*)");
  std::smatch match;
  if (!std::regex_match(what, match, kCounted)) return what;
  const std::string axis = match[2];
  return match[1].str() + " counted " + std::to_string(mesh.Size(*mesh.Find(axis))) +
         " times: it is replicated over " + axis + " but summed over " + axis;
}

void ExpectAgreement(const json& c) {
  Result<ReferenceCase> read = ReferenceCaseFromJson(c.dump());
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  const Result<CheckedPlan> checked = CheckPlan(read->plan, read->context);
  const std::string verdict = c["verdict"];
  const Status status = checked.status();
  if (verdict == "malformed") {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.ToString();
    return;
  }
  if (verdict == "refused") {
    ASSERT_EQ(status.code(), StatusCode::kRefused) << status.ToString();
    EXPECT_EQ(FirstAxisOnly(status.detail().what, read->context.mesh), c["what"]);
    if (c.contains("found")) {
      EXPECT_EQ(status.detail().found, c["found"]);
    }
    return;
  }
  ASSERT_TRUE(checked.ok()) << status.ToString();
  const std::string exit = checked->exit().ToString(read->context.mesh);
  EXPECT_EQ(exit.substr(0, exit.find(" | weighted by")), c["final"]);
  EXPECT_EQ(json(checked->warnings), c["warnings"]);
}

// tools/make_algebra_cases.py writes the file; SIGNALBOX_ALGEBRA_CASES names a longer one.
TEST(Reference, AgreesOnEveryCase) {
  const char* other = std::getenv("SIGNALBOX_ALGEBRA_CASES");
  const std::string path = other ? other : SIGNALBOX_TESTDATA "/algebra_cases.jsonl";
  std::ifstream in(path);
  ASSERT_TRUE(in) << path;
  std::map<std::string, int> verdicts;
  for (std::string line; std::getline(in, line);) {
    const json c = json::parse(line);
    SCOPED_TRACE(line);
    ExpectAgreement(c);
    ++verdicts[c["verdict"]];
    if (HasFailure()) break;
  }
  EXPECT_GT(verdicts["typed"], 50);
  EXPECT_GT(verdicts["refused"], 100);
  EXPECT_GT(verdicts["malformed"], 100);
}

}  // namespace
}  // namespace signalbox
