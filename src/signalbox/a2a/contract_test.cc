// SPDX-License-Identifier: Apache-2.0
#include "signalbox/a2a/contract.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include <nlohmann/json.hpp>

namespace signalbox {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string AcmeText() {
  std::ifstream file(SIGNALBOX_TESTDATA "/acme.contract");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

Contract Acme() {
  return *ContractFromText(AcmeText(), "acme.contract");
}

// The text with the first `from` replaced; it must be there.
std::string Replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string ParseError(const std::string& text) {
  const Result<Contract> result = ContractFromText(text, "file");
  return result.ok() ? "no error" : result.status().ToString();
}

TEST(ContractText, EveryKnownContractSurvivesPrintingAndParsing) {
  std::set<std::string> ids;
  for (const Contract& c : AllContracts()) {
    SCOPED_TRACE(ContractId(c));
    EXPECT_TRUE(Validate(c).ok()) << Validate(c).ToString();
    const Result<Contract> again = ContractFromText(ContractToText(c), "text");
    ASSERT_TRUE(again.ok()) << again.status().ToString();
    EXPECT_EQ(*again, c);
    EXPECT_TRUE(ids.insert(ContractId(c)).second);
  }
}

TEST(ContractText, VisitorCoversEveryField) {
  // Each printed line, changed alone, must make a contract that compares unequal: a field missing
  // from the visitor or from operator== would not.
  Contract acme = Acme();
  acme.mode = "fast";
  int fields = 0;
  VisitFields(acme, [&](std::string_view, const auto&, Need) { ++fields; });
  EXPECT_EQ(fields, std::ranges::count(ContractToText(acme), '\n'));
  Contract changed = acme;
  int different = 0;
  VisitFields(changed, [&](std::string_view key, auto& field, Need) {
    const auto before = field;
    using Field = std::remove_reference_t<decltype(field)>;
    if constexpr (std::is_same_v<Field, std::string>) {
      field += "x";
    } else if constexpr (std::is_same_v<Field, std::vector<int>>) {
      field.push_back(7);
    } else if constexpr (std::is_same_v<Field, bool>) {
      field = !field;
    } else if constexpr (std::is_same_v<Field, int>) {
      ++field;
    } else if constexpr (requires { field.Add({}); }) {
      field = field.empty() ? Field{{}} : Field{};
    } else {
      field = static_cast<Field>(field == Field{} ? 1 : 0);
    }
    EXPECT_NE(changed, acme) << key;
    const bool identity = key == "name" || key == "mode";
    EXPECT_EQ(Differences(changed, acme).size(), identity ? 0 : 1) << key;
    field = before;
    ++different;
  });
  EXPECT_EQ(different, fields);
}

TEST(ContractText, JsonHasEveryField) {
  const Contract acme = Acme();
  const auto json = nlohmann::json::parse(ContractToJson(acme));
  EXPECT_EQ(json["name"], "acme");
  EXPECT_EQ(json["shape"], "flat");
  EXPECT_EQ(json["own_routing"], true);
  EXPECT_EQ(json["top_k_max"], 63);
  EXPECT_EQ(json["capture_phases"], (std::vector<std::string>{"prefill", "decode", "verify"}));
  VisitFields(acme, [&](std::string_view key, const auto&, Need) {
    EXPECT_TRUE(json.contains(key)) << key;
  });
}

TEST(ContractText, DifferencesNameFieldsButNotTheName) {
  Contract other = Acme();
  other.name = "other";
  EXPECT_THAT(Differences(Acme(), other), IsEmpty());
  other.tail = TailRows::kMaskedIds;
  other.limits.top_k_max = 8;
  EXPECT_THAT(Differences(Acme(), other),
              ElementsAre("tail: poison | masked_ids", "top_k_max: 63 | 8"));
}

TEST(ContractText, ErrorsNameLineKeyAndNearestWord) {
  EXPECT_THAT(ParseError(Replaced(AcmeText(), "masked = none", "maskd = none")),
              testing::AllOf(HasSubstr("unknown key 'maskd'"), HasSubstr("file:8"),
                             HasSubstr("did you mean masked?")));
  EXPECT_THAT(ParseError(Replaced(AcmeText(), "order = arrival", "order = arival")),
              testing::AllOf(HasSubstr("key order"), HasSubstr("file:6"), HasSubstr("'arival'"),
                             HasSubstr("did you mean arrival?"), HasSubstr("source_sorted")));
  EXPECT_THAT(ParseError(Replaced(AcmeText(), "decode, verify", "decode, verfy")),
              testing::AllOf(HasSubstr("file:3"), HasSubstr("did you mean verify?")));
  EXPECT_THAT(ParseError(Replaced(AcmeText(), "top_k_max = 63", "top_k_max = -9")),
              testing::AllOf(HasSubstr("file:30"), HasSubstr("'-9'"), HasSubstr("whole number")));
  EXPECT_THAT(ParseError(Replaced(AcmeText(), "top_k_max = 63", "top_k_max = 99999999999")),
              HasSubstr("whole number"));
  EXPECT_THAT(ParseError(Replaced(AcmeText(), "own_routing = yes", "own_routing = true")),
              HasSubstr("expected yes or no"));
  EXPECT_THAT(ParseError(AcmeText() + "tail = poison\n"),
              testing::AllOf(HasSubstr("'tail' is given twice"), HasSubstr("line 12")));
  EXPECT_THAT(ParseError(Replaced(AcmeText(), "tail = poison", "tail poison")),
              HasSubstr("key = value"));
  EXPECT_THAT(ParseError(Replaced(AcmeText(), "tail = poison", "tail =")),
              HasSubstr("key = value"));
  EXPECT_THAT(ParseError(Replaced(AcmeText(), "weighting = caller\n", "")),
              HasSubstr("missing keys: weighting"));
  EXPECT_THAT(ParseError(""), HasSubstr("missing keys: name, shape"));
}

TEST(ContractText, ContradictingFieldsAreRefused) {
  const std::vector<std::pair<std::string, std::string>> edits = {
      {"dedup_wire = yes", "dedup_wire = no"},
      {"order = arrival", "order = expert_grouped"},
      {"ids = global", "ids = absent"},
      {"ids = global", "ids = local"},
      {"lanes_kept = yes", "lanes_kept = no"},
      {"id_bits_out = 32", "id_bits_out = 0"},
      {"id_bits_out = 32", "id_bits_out = 16"},
      {"weights = raw", "weights = absent"},
      {"weights = raw", "weights = dense_by_expert"},
      {"weights = raw", "weights = per_row"},
      {"tail = poison", "tail = masked_ids"},
      {"tail = poison", "tail = zeroed"},
      {"counts = dev_total", "counts = none"},
      {"counts = dev_total", "counts = dev_total, offsets"},
      {"counts = dev_total", "counts = dev_total, host_expert"},
      {"rows_bound = ranks_tokens", "rows_bound = local_ranks_tokens"},
      {"weighting = caller", "weighting = library_at_source"},
      {"weighting = caller", "weighting = inside_kernel"},
      {"uniform_capacity = yes", "uniform_capacity = no"},
      {"overflow = undefined", "overflow = drop_with_flag"},
      {"overflow = undefined", "overflow = impossible"},
      {"shape = flat", "shape = expert_major_padded"},
      {"shape = flat", "shape = fused"},
      {"name = acme", "name = Acme"},
      {"name = acme", "name = acme\nmode = auto"},
      {"tokens_default = 4096", "tokens_default = 4096\ntokens_max = 128"},
      {"fault = spin_forever", "row_align = 16"},
      {"fault = spin_forever", "rounding_stages = 0"},
  };
  for (const auto& [from, to] : edits) {
    EXPECT_THAT(ParseError(Replaced(AcmeText(), from, to)),
                HasSubstr("the fields of a contract contradict each other"))
        << to;
  }
}

TEST(ContractFile, MissingAndUnreadableFiles) {
  EXPECT_TRUE(ContractFromFile(SIGNALBOX_TESTDATA "/acme.contract").ok());
  EXPECT_EQ(ContractFromFile(SIGNALBOX_TESTDATA "/nowhere").status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(ContractFromFile(SIGNALBOX_TESTDATA).ok());
}

Request Asking() {
  return {.top_k = 8,
          .hidden = 4096,
          .slots = 64,
          .ranks = 2,
          .rows = {.flag = "--chunked-prefill-size", .value = 2048},
          .capacity = 2048};
}

TEST(Eligible, CapacityNamesFlagAndLargestValue) {
  Request r = Asking();
  EXPECT_TRUE(Eligible(Acme(), r).ok());
  r.rows.value = 4096;
  const Status refused = Eligible(Acme(), r);
  EXPECT_EQ(refused.code(), StatusCode::kRefused);
  EXPECT_EQ(refused.message(),
            "--chunked-prefill-size 4096: 4096 rows exceed the capacity of 2048 per rank "
            "(--moe-a2a-backend acme); largest that works is 2048, or give "
            "--max-dispatch-tokens-per-rank 4096");
  r.rows.value = 2048;
  r.rows.tokens_each = 3;
  EXPECT_THAT(Eligible(Acme(), r).message(),
              testing::AllOf(HasSubstr("2048 rows x 3 draft tokens exceed the capacity of 2048"),
                             HasSubstr("largest that works is 682")));
  r.rows.shared_by = 4;
  EXPECT_TRUE(Eligible(Acme(), r).ok());
  r.rows.value = 2731;
  EXPECT_THAT(Eligible(Acme(), r).message(), HasSubstr("largest that works is 2730"));
}

TEST(Eligible, NoCapacityWhereOverflowIsImpossible) {
  Contract c = Acme();
  c.rows_bound = RowsBound::kExact;
  c.sync = HostSync::kAlways;
  c.overflow = OverflowPolicy::kImpossible;
  Request r = Asking();
  r.rows.value = 1 << 20;
  EXPECT_TRUE(Eligible(c, r).ok());
}

struct LimitCase {
  std::string name;
  void (*change)(Contract&, Request&);
  std::string message;
  bool holds_when_emulated;  // a property of the design, not of the compiled kernels
};

TEST(Eligible, EveryLimitRefusesWithItsNumber) {
  const std::vector<LimitCase> cases = {
      {"top-k", [](Contract&, Request& r) { r.top_k = 64; }, "64 experts per token exceed", true},
      {"slots", [](Contract&, Request& r) { r.slots = 65; }, "65 expert slots do not divide", true},
      {"slots max", [](Contract& c, Request&) { c.limits.slots_max = 63; },
       "64 expert slots exceed the limit of 63", true},
      {"local slots", [](Contract& c, Request&) { c.limits.local_slots_max = 31; },
       "32 expert slots per rank exceed the limit of 31", true},
      {"tokens max", [](Contract& c, Request&) { c.limits.tokens_max = 1024; },
       "--max-dispatch-tokens-per-rank 2048 exceeds the limit of 1024", true},
      {"rows multiple",
       [](Contract& c, Request& r) { c.limits.rows_multiple = 4, r.capacity = 2049; },
       "2 ranks x 2049 tokens are not a multiple of 4", true},
      {"equal tokens", [](Contract& c, Request&) { c.limits.equal_tokens = true; },
       "different numbers of rows", true},
      {"router", [](Contract& c, Request&) { c.own_router = true; }, "routing itself", true},
      {"drops", [](Contract& c, Request&) { c.overflow = OverflowPolicy::kDropByPolicy; },
       "drops tokens", true},
      {"capture",
       [](Contract& c, Request& r) { c.capture = CapturePolicy::kNo, r.captured = true; },
       "cannot be captured", true},
      {"capture phase",
       [](Contract& c, Request& r) { c.capture_phases = {CallPhase::kDecode}, r.captured = true; },
       "in the prefill phase", true},
      {"worst case",
       [](Contract& c, Request& r) {
         c.capture = CapturePolicy::kWorstCaseOnly;
         r.captured = true;
       },
       "worst-case buffers only", true},
      {"hidden list",
       [](Contract& c, Request&) {
         c.limits.hidden_list = {2048, 7168};
       },
       "hidden size 4096 has no kernel", false},
      {"hidden multiple", [](Contract& c, Request&) { c.limits.hidden_multiple = 513; },
       "not a multiple of 513", false},
      {"hidden bytes", [](Contract&, Request& r) { r.hidden = 4095; }, "bytes", false},
      {"hidden min", [](Contract& c, Request&) { c.limits.hidden_min = 4097; }, "too small", false},
      {"hidden max", [](Contract& c, Request&) { c.limits.hidden_max = 4095; }, "too large", false},
      {"ranks list",
       [](Contract& c, Request&) {
         c.limits.ranks_list = {4, 8};
       },
       "no kernel for 2 ranks", false},
      {"ranks min", [](Contract& c, Request&) { c.limits.ranks_min = 4; }, "too few", false},
      {"ranks max", [](Contract& c, Request&) { c.limits.ranks_max = 1; }, "too many", false},
      {"payload", [](Contract&, Request& r) { r.payload = Payload::kInt8; }, "int8 rows", false},
  };
  for (const LimitCase& test : cases) {
    SCOPED_TRACE(test.name);
    Contract c = Acme();
    Request r = Asking();
    test.change(c, r);
    const Status status = Eligible(c, r);
    EXPECT_EQ(status.code(), StatusCode::kRefused);
    EXPECT_THAT(status.message(), HasSubstr(test.message));
    EXPECT_THAT(status.message(), HasSubstr("--moe-a2a-backend acme"));
    r.emulated = true;
    EXPECT_EQ(Eligible(c, r).ok(), !test.holds_when_emulated);
  }
}

}  // namespace
}  // namespace signalbox
