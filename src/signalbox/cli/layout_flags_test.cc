// SPDX-License-Identifier: Apache-2.0
//
// testdata/layout_flags.case says what flags come to.
#include "signalbox/cli/layout_flags.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "signalbox/base/host_memory.h"
#include "signalbox/cli/flag_help.h"

namespace signalbox::layout_flags_test {
namespace {

using testing::HasSubstr;

std::string WithPlaceholders(std::string text) {
  const auto all = AllContracts();
  const auto moves = std::ranges::find_if(all, [](const Contract& c) {
    return c.auto_phases.Has(CallPhase::kPrefill) && c.auto_phases.Has(CallPhase::kDecode) &&
           c.shape == RowShape::kFlat;
  });
  const BackEndAlias& alias = BackEndAliases().back();
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
           {"{moves}", moves->name},
           {"{mode-flag}", std::string(ModeFlagAlias())},
           {"{word}", std::string(alias.alias)},
           {"{that}", fmt::format("{}/{}", alias.name, alias.mode)}}) {
    for (size_t at; (at = text.find(key)) != text.npos;) text.replace(at, key.size(), value);
  }
  return text;
}

// "tp=2 a2a=NAME/MODE shared=auto": the back end is that of prefill.
std::string Describe(const LayoutOptions& layout) {
  const ParallelConfig& p = layout.parallel;
  const PlanLimits& l = layout.limits;
  return fmt::format(
      " tp={} dp={} ep={} redundant={} a2a={} shared={} chunk={} requests={} captured={} drafts={} "
      "capacity={} runners={} ",
      p.tp, p.dp, p.ep, p.redundant_experts,
      layout.contracts[0] ? ContractId(*layout.contracts[0]) : "-", ToString(layout.shared),
      l.chunked_prefill_size, l.max_running_requests, l.captured_requests, l.draft_tokens,
      l.capacity, layout.runners.size());
}

// Of `plan`, or of a command that runs the model; with the notes.
Result<std::string> Outcome(const std::string& flags, bool runs, std::vector<std::string>* notes) {
  std::vector<std::string> words = {"signalbox", runs ? "generate" : "plan", "model"};
  std::istringstream stream(flags);
  for (std::string word; stream >> word;) words.push_back(word);
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  SB_ASSIGN_OR_RETURN(const Invocation invocation,
                      ParseCommandLine(static_cast<int>(arguments.size()), arguments.data()));
  if (!runs) {
    SB_ASSIGN_OR_RETURN(const LayoutOptions layout, LayoutOptionsOf(invocation.flags, notes));
    return Describe(layout);
  }
  SB_ASSIGN_OR_RETURN(const EngineOptions options, EngineOptionsOf(invocation.flags, 1, notes));
  const CacheBudget& b = options.budget;
  return Describe(options.layout) +
         fmt::format(
             "device={} context={} tokens={} sequences={} snapshots={} "
             "memory={} prefix={} timeout={} "
             "kv={} experts={} ",
             options.device == Device::kCpu ? "cpu" : "reference", options.context, b.tokens,
             b.sequences, b.snapshots ? std::to_string(*b.snapshots) : "auto", options.memory,
             options.prefix_cache ? "on" : "off", options.rank_timeout.count(),
             ToString(options.kv_dtype), ToString(options.expert_activations));
}

TEST(LayoutFlags, Cases) {
  std::ifstream file(SIGNALBOX_TESTDATA "/layout_flags.case");
  ASSERT_TRUE(file.good());
  int cases = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    SCOPED_TRACE(line);
    line = WithPlaceholders(line);
    const size_t bar = line.find("| ");
    ASSERT_NE(bar, line.npos);
    std::string flags = line.substr(0, bar);
    const bool runs = flags.starts_with("run");
    if (runs) flags.erase(0, 3);
    const size_t space = line.find(' ', bar + 2);
    const std::string kind = line.substr(bar + 2, space - bar - 2);
    const std::string expected = line.substr(space + 1);
    std::vector<std::string> notes;
    const Result<std::string> outcome = Outcome(flags, runs, &notes);
    ++cases;
    if (kind == "ok" || kind == "note") {
      ASSERT_TRUE(outcome.ok()) << outcome.status().ToString();
      EXPECT_EQ(notes.size(), kind == "note" ? 1u : 0u);
      std::istringstream words(kind == "ok" ? expected : "");
      for (std::string word; words >> word;) {
        // The mode of a back end may be left out.
        const bool whole =
            !word.starts_with("a2a=") || word.find('/') != word.npos || word == "a2a=-";
        EXPECT_THAT(*outcome, HasSubstr(" " + word + (whole ? " " : "")));
      }
      for (const std::string& note : notes) EXPECT_THAT(note, HasSubstr(expected));
      continue;
    }
    ASSERT_FALSE(outcome.ok()) << *outcome;
    EXPECT_EQ(std::to_string(ExitCode(outcome.status().code())), kind);
    EXPECT_THAT(outcome.status().message(), HasSubstr(expected));
  }
  EXPECT_GT(cases, 50);
}

// Every value that the table offers, beside every other one: honoured, or refused by a message that
// names a flag, and nothing is run for it.
TEST(LayoutFlags, Cfg01EveryPairOfValuesIsTakenOrRefused) {
  std::vector<std::string> words;
  const auto generate = std::ranges::find(CommandTable(), "generate", &CommandSpec::name);
  for (const FlagSpec* flag : RowsOf(*generate)) {
    if (flag->group == kCarriedGroup || flag->name == "print-config") continue;
    if (flag->kind == FlagKind::kSwitch) words.push_back("--" + flag->name);
    for (const std::string& choice : flag->choices)
      words.push_back("--" + flag->name + "=" + choice);
  }
  int refused = 0;
  for (const std::string& one : words) {
    for (const std::string& other : words) {
      if (one.substr(0, one.find('=')) >= other.substr(0, other.find('='))) continue;
      SCOPED_TRACE(one + " " + other);
      const char* arguments[] = {"signalbox", "generate", "m", one.c_str(), other.c_str()};
      const auto invocation = ParseCommandLine(5, arguments);
      std::vector<std::string> notes;
      const Status status = invocation.ok() ? EngineOptionsOf(invocation->flags, 1, &notes).status()
                                            : invocation.status();
      if (status.ok()) continue;
      ++refused;
      EXPECT_THAT(status.message(), HasSubstr("--"));
      EXPECT_THAT(ExitCode(status.code()), testing::AnyOf(2, 3));
    }
  }
  EXPECT_GT(words.size(), 40u);
  EXPECT_GT(refused, 0);
}

// A share of what there is, never more than is free; the note has the numbers.
TEST(LayoutFlags, AShareOfTheMemory) {
  const auto memory = [](const char* share) {
    const char* arguments[] = {"signalbox", "generate", "model", "--mem-fraction-static", share};
    std::vector<std::string> notes;
    const auto cache = CacheOptionsOf(ParseCommandLine(5, arguments)->flags, 2, &notes);
    EXPECT_TRUE(cache.ok()) << cache.status().ToString();
    return cache.ok() ? cache->memory : 0;
  };
  const auto host = ReadHostMemory();
  if (!host.ok()) GTEST_SKIP() << host.status().ToString();
  const auto tenth = static_cast<double>(host->total) * 0.1;
  EXPECT_GT(memory("0.001"), 0);
  EXPECT_LE(static_cast<double>(memory("0.1")), tenth);
  EXPECT_LE(memory("0.1"), memory("1"));
  EXPECT_LE(memory("1"), host->total);
}

TEST(LayoutFlags, TheContextIsNoLongerThanTheModels) {
  ModelFacts facts{.max_position = 100};
  EXPECT_TRUE(LimitContext(0, &facts).ok());
  EXPECT_EQ(facts.max_position, 100);
  EXPECT_TRUE(LimitContext(40, &facts).ok());
  EXPECT_EQ(facts.max_position, 40);
  EXPECT_EQ(ExitCode(LimitContext(41, &facts).code()), 3);
  EXPECT_THAT(LimitContext(41, &facts).message(), HasSubstr("at most 40"));
}

TEST(LayoutFlags, MemoryIsToldWithItsNumbers) {
  const char* arguments[] = {
      "signalbox", "plan", "model", "--max-total-tokens", "4096", "--gpu-memory-utilization",
      "0.5"};
  const FlagValues flags = ParseCommandLine(7, arguments)->flags;
  const RankMemory rank{
      .weights = 3 << 20, .size = {.pages = 10, .slots = 4}, .page_bytes = 2048, .slot_bytes = 512};
  EXPECT_EQ(MemoryText(flags, rank, 2, 4096),
            "memory of each of 2 ranks: weights 3.0 MiB, KV 10 pages of 16 tokens x 2.0 KiB = "
            "20.0 KiB, state 4 slots x 512 B = 2.0 KiB\n");
  const std::string cut = MemoryText(flags, {.weights = 1024}, 1, 160);
  EXPECT_THAT(cut, HasSubstr("memory of the rank: weights 1.0 KiB\n"));
  EXPECT_THAT(cut, HasSubstr("--max-total-tokens 4096 is more than --mem-fraction-static 0.5 "
                             "leaves room for; it is 160"));
}

TEST(LayoutFlags, LauncherMustFitTheProcess) {
  const auto flags = [](const char* launcher) {
    const char* arguments[] = {"signalbox", "generate", "model", "--launcher", launcher};
    return ParseCommandLine(5, arguments)->flags;
  };
  EXPECT_TRUE(CheckLauncher(flags("threads"), false).ok());
  EXPECT_TRUE(CheckLauncher(flags("mpi"), true).ok());
  EXPECT_THAT(CheckLauncher(flags("mpi"), false).message(), HasSubstr("mpirun -np"));
  EXPECT_THAT(CheckLauncher(flags("threads"), true).message(), HasSubstr("without mpirun"));
  const char* none[] = {"signalbox", "generate", "model"};
  const FlagValues unset = ParseCommandLine(3, none)->flags;
  EXPECT_TRUE(CheckLauncher(unset, false).ok());
  EXPECT_TRUE(CheckLauncher(unset, true).ok());
}

}  // namespace
}  // namespace signalbox::layout_flags_test
