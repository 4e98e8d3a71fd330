// SPDX-License-Identifier: Apache-2.0
//
// The table against what is published, back end by back end.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "signalbox/a2a/contract.h"

namespace signalbox {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string YesNo(bool value) {
  return value ? "yes" : "no";
}

std::string CountNames(const Contract& c) {
  std::string names;
  for (size_t i = 0; i < std::size(EnumText<Counts>::kNames); ++i) {
    if (!c.counts.Has(static_cast<Counts>(i))) continue;
    names += (names.empty() ? "" : ",") + std::string(EnumText<Counts>::kNames[i]);
  }
  return names.empty() ? "none" : names;
}

std::string Line(const Contract& c) {
  return fmt::format("{}|{}|{},{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}", ContractId(c),
                     ToString(c.shape), YesNo(DedupRows(c.shape)), YesNo(c.dedup_wire),
                     ToString(c.order), ToString(c.ids), ToString(c.masked), ToString(c.weights),
                     ToString(c.tail), ToString(c.negative_ids), CountNames(c),
                     ToString(c.weighting), c.rounding_stages, YesNo(c.own_routing),
                     ToString(c.weights_back), ToString(c.overflow), ToString(c.sync),
                     ToString(c.capture), c.max_outstanding, c.limits.top_k_max);
}

TEST(ContractTable, EqualsThePublishedTables) {
  std::ifstream file(SIGNALBOX_TESTDATA "/contract_expectations.txt");
  std::vector<std::string> expected;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with('#')) expected.push_back(line);
  }
  std::vector<std::string> found;
  for (const Contract& c : AllContracts()) found.push_back(Line(c));
  EXPECT_THAT(found, ::testing::ElementsAreArray(expected));
}

Contract Find(std::string_view name, std::string_view mode, CallPhase phase) {
  const Result<Contract> found = FindContract(name, mode, phase);
  EXPECT_TRUE(found.ok()) << found.status().ToString();
  return found.ok() ? *found : Contract{};
}

TEST(ContractTable, AutoFollowsThePhase) {
  EXPECT_EQ(Find("deepep", "auto", CallPhase::kPrefill).mode, "normal");
  EXPECT_EQ(Find("deepep", "", CallPhase::kDecode).mode, "low_latency");
  EXPECT_EQ(Find("deepep", "auto", CallPhase::kVerify).mode, "low_latency");
  EXPECT_EQ(Find("deepep", "normal", CallPhase::kDecode).mode, "normal");
  EXPECT_EQ(Find("mori", "auto", CallPhase::kPrefill).mode, "native");
  EXPECT_EQ(Find("mori", "standard", CallPhase::kPrefill).mode, "standard");
  EXPECT_EQ(Find("nccl_ep", "auto", CallPhase::kPrefill).mode, "ht_flat");
  EXPECT_EQ(Find("nccl_ep", "auto", CallPhase::kDecode).mode, "ll_expert_major");
}

TEST(ContractTable, EveryNameHasExactlyOneAutoPerPhase) {
  for (const Contract& c : AllContracts()) {
    for (CallPhase phase : {CallPhase::kPrefill, CallPhase::kDecode, CallPhase::kVerify}) {
      EXPECT_EQ(std::ranges::count_if(AllContracts(),
                                      [&](const Contract& other) {
                                        return other.name == c.name && other.auto_phases.Has(phase);
                                      }),
                1)
          << c.name << " " << ToString(phase);
    }
  }
}

TEST(ContractTable, NamesOfOtherEnginesMeanOneMode) {
  for (const BackEndAlias& a : BackEndAliases()) {
    for (CallPhase phase : {CallPhase::kPrefill, CallPhase::kDecode}) {
      const Contract c = Find(a.alias, "auto", phase);
      EXPECT_EQ(c.name, a.name);
      EXPECT_EQ(c.mode, a.mode);
      EXPECT_EQ(Find(a.alias, a.mode, phase), c);
    }
    EXPECT_FALSE(FindContract(a.alias, "another", CallPhase::kDecode).ok());
  }
}

TEST(ContractTable, UnknownNamesListWhatThereIs) {
  EXPECT_THAT(FindContract("depeep", "auto", CallPhase::kPrefill).status().message(),
              AllOf(HasSubstr("depeep"), HasSubstr("mooncake"), HasSubstr("--moe-a2a-contract")));
  EXPECT_THAT(FindContract("mori", "fast", CallPhase::kPrefill).status().message(),
              AllOf(HasSubstr("no mode fast"), HasSubstr("native, standard")));
}

// A contract from a file with the fields of a known one is that one but for its name.
TEST(ContractTable, AContractNobodyHasHeardOf) {
  const Result<Contract> acme = ContractFromFile(SIGNALBOX_TESTDATA "/acme.contract");
  ASSERT_TRUE(acme.ok()) << acme.status().ToString();
  EXPECT_THAT(Differences(*acme, Find("mori", "native", CallPhase::kDecode)), IsEmpty());
}

TEST(ContractTable, TooLargeAChunkIsRefusedBeforeAnythingLoads) {
  const Contract mori = Find("mori", "auto", CallPhase::kPrefill);
  const Status refused = Eligible(mori, {.top_k = 8,
                                         .hidden = 4096,
                                         .slots = 512,
                                         .ranks = 2,
                                         .rows = {.flag = "--chunked-prefill-size", .value = 4096},
                                         .capacity = 2048});
  EXPECT_EQ(refused.code(), StatusCode::kRefused);
  EXPECT_THAT(refused.message(),
              AllOf(HasSubstr("--chunked-prefill-size 4096: 4096 rows exceed the capacity of 2048 "
                              "per rank"),
                    HasSubstr("largest that works is 2048")));
}

// What a large checkpoint (512 experts, ten per token, hidden 4096) may use on eight ranks.
TEST(ContractTable, EligibleForALargeModel) {
  std::vector<std::string> decode, refused;
  for (const Contract& c : AllContracts()) {
    const Status status =
        Eligible(c, {.top_k = 10,
                     .hidden = 4096,
                     .slots = 512,
                     .ranks = 8,
                     .phase = CallPhase::kDecode,
                     .rows = {.flag = "--max-running-requests", .value = 64, .tokens_each = 2},
                     .captured = true});
    (status.ok() ? decode : refused).push_back(ContractId(c));
  }
  EXPECT_THAT(decode,
              ElementsAre("none", "deepep/low_latency", "mori/native", "pplx", "nixl/low_latency",
                          "mooncake", "uccl/low_latency", "flashinfer/one_sided",
                          "flashinfer/two_sided", "nccl_ep/ht_flat", "nccl_ep/ht_expert_major",
                          "ascend/low_latency", "megamoe", "ascend_fuseep"));
  // Nine experts per token at most.
  EXPECT_THAT(refused, ::testing::IsSupersetOf({"mori/standard", "nccl_ep/ll_expert_major"}));
}

}  // namespace
}  // namespace signalbox
