// SPDX-License-Identifier: Apache-2.0
//
// matrix: every contract x ranks x attention groups x expert groups x redundant experts x place of
// the shared expert. A layout is refused with a reason, or it computes what one rank computes:
// every layer within the tolerance, in prefill, in decode and with ranks that have no row, and the
// same greedy text.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <random>

#include "signalbox/a2a/contract.h"
#include "signalbox/base/progress.h"
#include "signalbox/cli/answer.h"
#include "signalbox/cli/bench.h"
#include "signalbox/cli/commands.h"
#include "signalbox/engine/generator.h"
#include "signalbox/engine/verify.h"

namespace signalbox {
namespace {

constexpr double kTolerance = 1e-5;
constexpr int64_t kTokens = 40;     // of the canary
constexpr int64_t kNewTokens = 24;  // of a greedy text
constexpr int64_t kParallel = 4;
// Four groups' prompts fit into the capacity of a contract that gathers them.
constexpr PlanLimits kLimits{.chunked_prefill_size = 64, .max_running_requests = 8, .capacity = 256};

// A contract by phase, or none.
struct BackEnd {
  std::string name;
  std::array<std::optional<Contract>, 3> contracts;
};

// Every contract alone, and every back end that picks one of several by phase.
Result<std::vector<BackEnd>> BackEnds() {
  std::vector<BackEnd> all = {{"no contract", {}}};
  std::map<std::string, int> modes;
  for (const Contract& c : AllContracts()) {
    ++modes[c.name];
    all.push_back({ContractId(c), {}});
    all.back().contracts.fill(c);
  }
  for (const auto& [name, count] : modes) {
    if (count == 1) continue;
    all.push_back({name + "/by phase", {}});
    for (const CallPhase phase : {CallPhase::kPrefill, CallPhase::kDecode, CallPhase::kVerify}) {
      SB_ASSIGN_OR_RETURN(all.back().contracts[static_cast<size_t>(phase)],
                          FindContract(name, "auto", phase));
    }
  }
  return all;
}

struct Arrangement {
  ParallelConfig parallel;
  SharedChoice shared;
  std::string ToString() const {
    return fmt::format("tp {} dp {} ep {} +{} {}", parallel.tp, parallel.dp, parallel.ep,
                       parallel.redundant_experts, signalbox::ToString(shared));
  }
};

// The fewest slots beyond one per expert that divide by the ranks, and are some.
int Redundant(int64_t experts, int ep) {
  int redundant = 1;
  while ((experts + redundant) % ep != 0) ++redundant;
  return redundant;
}

std::vector<Arrangement> Arrangements(int max_ranks, int64_t experts) {
  std::vector<Arrangement> all;
  for (int tp = 1; tp <= max_ranks; ++tp) {
    for (int dp = 1; dp <= tp; ++dp) {
      for (int ep = 1; ep <= tp; ++ep) {
        if (tp % dp != 0 || tp % ep != 0) continue;
        for (const int redundant : {0, Redundant(experts, ep)}) {
          for (const SharedChoice shared : {SharedChoice::kAuto, SharedChoice::kReplicated,
                                            SharedChoice::kSharded, SharedChoice::kFused}) {
            all.push_back({{.tp = tp, .dp = dp, .ep = ep, .redundant_experts = redundant}, shared});
          }
        }
      }
    }
  }
  return all;
}

using Texts = std::map<int64_t, std::vector<TokenId>>;

Result<Texts> GreedyTexts(Engine& engine, const std::vector<std::vector<TokenId>>& prompts) {
  Generator generator(engine,
                      {.parallel = kParallel, .prefill_chunk = kLimits.chunked_prefill_size});
  for (const std::vector<TokenId>& prompt : prompts) {
    SB_RETURN_IF_ERROR(generator.Submit({.prompt = prompt, .max_new_tokens = kNewTokens}).status());
  }
  Texts texts;
  while (!generator.idle()) {
    SB_RETURN_IF_ERROR(
        generator.Step([&](int64_t id, std::optional<TokenId> token, std::optional<FinishReason>) {
          if (token) texts[id].push_back(*token);
        }));
  }
  return texts;
}

// One model on one rank, and what it says.
struct Subject {
  std::string directory;
  std::unique_ptr<TextModel> text;  // null where the model has no text
  std::unique_ptr<Engine> alone;    // where it has none
  std::vector<std::vector<TokenId>> prompts;
  Texts texts;

  Engine& one() { return text != nullptr ? text->engine() : *alone; }
};

EngineOptions Options() {
  return {.budget = {.tokens = 1024, .sequences = kParallel}};
}

Result<Subject> LoadSubject(const std::string& directory, int64_t problems) {
  Subject s{.directory = directory};
  const std::string data = directory + "/eval.jsonl";
  std::error_code error;
  if (std::filesystem::exists(data, error)) {
    SB_ASSIGN_OR_RETURN(s.text, TextModel::Load(directory, Options()));
    SB_ASSIGN_OR_RETURN(const std::vector<Problem> asked, ReadProblems(data, problems));
    for (const Problem& p : asked) {
      SB_ASSIGN_OR_RETURN(
          std::vector<TokenId> prompt,
          s.text->EncodeChat({{.role = "user", .content = p.question}}, /*thinking=*/false));
      s.prompts.push_back(std::move(prompt));
    }
  } else {
    SB_ASSIGN_OR_RETURN(s.alone, Engine::Load(directory, Options()));
    std::mt19937_64 random(1);
    const auto vocab = static_cast<uint64_t>(s.alone->config().facts.vocab);
    for (int64_t i = 0; i < problems; ++i) {
      s.prompts.emplace_back(5 + random() % 20);
      for (TokenId& id : s.prompts.back()) id = static_cast<TokenId>(random() % vocab);
    }
  }
  SB_ASSIGN_OR_RETURN(s.texts, GreedyTexts(s.one(), s.prompts));
  return s;
}

// One row of the table, and what was said in its layouts.
struct Tally {
  int64_t tried = 0;
  int64_t ran = 0;
  int64_t same_text = 0;
  double worst = 0;
  std::string worst_layout;
};
struct Record {
  std::map<std::string, int64_t> refusals;
  std::vector<std::string> failures;
};

// What a refusal is about, without the sizes of the case.
std::string ReasonOf(const Status& status) {
  std::string reason;
  for (const char c : status.detail().what) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit) {
      reason += c;
    } else if (reason.empty() || reason.back() != 'N') {
      reason += 'N';
    }
  }
  return reason;
}

void Try(Subject& subject, const BackEnd& back_end, const Arrangement& arrangement, Tally& tally,
         Record& record) {
  ++tally.tried;
  EngineOptions options = Options();
  options.layout = {.parallel = arrangement.parallel,
                    .contracts = back_end.contracts,
                    .limits = kLimits,
                    .shared = arrangement.shared};
  const auto fail = [&](const std::string& why) {
    record.failures.push_back(fmt::format("{}, {}, {}: {}", subject.directory, back_end.name,
                                          arrangement.ToString(), why));
  };
  const auto engine = Engine::Load(subject.directory, options);
  if (!engine.ok()) {
    const Status& status = engine.status();
    if (status.code() != StatusCode::kRefused) return fail(status.ToString());
    ++record.refusals[ReasonOf(status)];
    return;
  }
  ++tally.ran;
  const auto report =
      VerifyLayout(**engine, subject.one(), {.tokens = kTokens, .tolerance = kTolerance});
  if (!report.ok()) return fail(report.status().ToString());
  if (!(report->worst <= tally.worst)) {
    tally.worst = report->worst;
    tally.worst_layout = arrangement.ToString();
  }
  if (report->first) fail(StatusOf(*report, kTolerance).message());
  const auto texts = GreedyTexts(**engine, subject.prompts);
  if (!texts.ok()) return fail(texts.status().ToString());
  if (*texts == subject.texts) {
    ++tally.same_text;
  } else {
    fail("another greedy text than one rank's");
  }
}

BenchTable TableOf(const std::vector<std::pair<std::string, Tally>>& rows, const Record& record,
                   const Invocation& invocation) {
  BenchTable table{
      .title =
          fmt::format("layouts of {} on up to {} ranks against one rank",
                      fmt::join(invocation.positionals, ", "), invocation.flags.Int("max-ranks")),
      .columns = {"contract", "layouts", "refused", "ran", "same text", "largest error", "where"}};
  Tally total;
  for (const auto& [name, t] : rows) {
    table.rows.push_back({name, t.tried, t.tried - t.ran, t.ran, t.same_text,
                          fmt::format("{:.1e}", t.worst), t.worst_layout});
    total.tried += t.tried;
    total.ran += t.ran;
    total.same_text += t.same_text;
    if (!(t.worst <= total.worst)) total.worst = t.worst;
  }
  table.rows.push_back({"all", total.tried, total.tried - total.ran, total.ran, total.same_text,
                        fmt::format("{:.1e}", total.worst), ""});
  std::vector<std::pair<int64_t, std::string>> reasons;
  for (const auto& [reason, count] : record.refusals) reasons.emplace_back(count, reason);
  std::sort(reasons.rbegin(), reasons.rend());
  for (const auto& [count, reason] : reasons)
    table.notes.push_back(fmt::format("refused {:>5} x {}", count, reason));
  for (const std::string& failure : record.failures) table.notes.push_back("WRONG " + failure);
  if (!record.failures.empty()) {
    table.verdict =
        OutOfTolerance({.what = "layouts differ from one rank",
                        .found = fmt::format("{} of {}", record.failures.size(), total.ran),
                        .expected = fmt::format("every layer within {:.0e} and the "
                                                "same greedy text",
                                                kTolerance)});
  }
  return table;
}

}  // namespace

Status RunMatrix(const Invocation& invocation) {
  const FlagValues& flags = invocation.flags;
  const int64_t every = std::max<int64_t>(flags.Int("every"), 1);
  SB_ASSIGN_OR_RETURN(const std::vector<BackEnd> back_ends, BackEnds());
  std::vector<std::pair<std::string, Tally>> rows;
  for (const BackEnd& b : back_ends) rows.emplace_back(b.name, Tally());
  Record record;
  int64_t number = 0;
  for (const std::string& directory : invocation.positionals) {
    SB_ASSIGN_OR_RETURN(Subject subject, LoadSubject(directory, flags.Int("problems")));
    int64_t experts = 1;
    for (const LayerKindFacts& kind : subject.one().planned().model.facts.kinds) {
      if (kind.moe) experts = kind.moe->experts;
    }
    const std::vector<Arrangement> arrangements =
        Arrangements(static_cast<int>(flags.Int("max-ranks")), experts);
    Progress progress({.label = directory,
                       .total = static_cast<int64_t>(back_ends.size() * arrangements.size()),
                       .quiet = flags.Switch("quiet")});
    int64_t done = 0;
    for (size_t b = 0; b < back_ends.size(); ++b) {
      for (const Arrangement& arrangement : arrangements) {
        if (number++ % every == 0) Try(subject, back_ends[b], arrangement, rows[b].second, record);
        progress.Update(++done, back_ends[b].name);
      }
    }
    progress.Finish();
  }
  const BenchTable table = TableOf(rows, record, invocation);
  fmt::print("{}\n", flags.Text("format") == "json" ? BenchToJson(table) : BenchToText(table));
  return table.verdict;
}

}  // namespace signalbox
