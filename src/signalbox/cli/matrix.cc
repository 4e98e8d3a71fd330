// SPDX-License-Identifier: Apache-2.0
//
// matrix: every contract x ranks x attention groups x expert groups x redundant experts x place of
// the shared expert. A layout is refused with a reason, or it computes what one rank computes:
// every layer within the tolerance, in prefill, in decode and with ranks that have no row, and the
// same greedy text.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "signalbox/a2a/contract.h"
#include "signalbox/base/progress.h"
#include "signalbox/cli/answer.h"
#include "signalbox/cli/bench.h"
#include "signalbox/cli/commands.h"
#include "signalbox/engine/generator.h"
#include "signalbox/engine/verify.h"
#include "signalbox/model/config.h"

namespace signalbox {
namespace {

constexpr double kTolerance = 1e-5;
constexpr int64_t kTokens = 40;     // of the canary
constexpr int64_t kNewTokens = 24;  // of a greedy text
constexpr int64_t kParallel = 4;
// Four groups' prompts fit into the capacity of a contract that gathers them.
constexpr PlanLimits kLimits{
    .chunked_prefill_size = 64, .max_running_requests = 8, .capacity = 256};

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
    SB_RETURN_IF_ERROR(generator.Step([&](const Generated& g) {
      for (const SampledToken& t : g.tokens) texts[g.request].push_back(t.token);
      return true;
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
          ChatPrompt chat,
          s.text->EncodeChat({{.role = "user", .content = p.question}}, /*thinking=*/false));
      s.prompts.push_back(std::move(chat.ids));
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

// One layout of one model.
struct Case {
  size_t model;
  size_t back_end;
  Arrangement arrangement;
};
struct Outcome {
  bool tried = false;
  std::string refusal;  // why; empty when the layout ran
  bool same_text = false;
  double worst = 0;
  std::string failure;
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

Outcome Try(Subject& subject, const BackEnd& back_end, const Arrangement& arrangement) {
  Outcome outcome{.tried = true};
  EngineOptions options = Options();
  options.layout = {.parallel = arrangement.parallel,
                    .contracts = back_end.contracts,
                    .limits = kLimits,
                    .shared = arrangement.shared};
  const auto engine = Engine::Load(subject.directory, options);
  if (!engine.ok()) {
    const Status status = engine.status();
    (status.code() == StatusCode::kRefused ? outcome.refusal : outcome.failure) =
        status.code() == StatusCode::kRefused ? ReasonOf(status) : status.ToString();
    return outcome;
  }
  const auto report =
      VerifyLayout(**engine, subject.one(), {.tokens = kTokens, .tolerance = kTolerance});
  if (!report.ok()) {
    outcome.failure = report.status().ToString();
    return outcome;
  }
  outcome.worst = report->worst;
  if (report->first) outcome.failure = StatusOf(*report).message();
  const auto texts = GreedyTexts(**engine, subject.prompts);
  outcome.same_text = texts.ok() && *texts == subject.texts;
  if (!texts.ok()) {
    outcome.failure = texts.status().ToString();
  } else if (!outcome.same_text) {
    outcome.failure = "another greedy text than one rank's";
  }
  return outcome;
}

// Tries cases side by side; every worker has one-rank engines of its own.
class Runner {
 public:
  Runner(const Invocation& invocation, const std::vector<BackEnd>& back_ends,
         const std::vector<Case>& cases)
      : invocation_(invocation), back_ends_(back_ends), cases_(cases), outcomes_(cases.size()) {}

  Result<std::vector<Outcome>> Run() {
    Progress progress({.label = "matrix",
                       .total = static_cast<int64_t>(cases_.size()),
                       .quiet = invocation_.flags.Switch("quiet")});
    int64_t jobs = invocation_.flags.Int("jobs");
    if (jobs == 0) jobs = std::max(1u, std::thread::hardware_concurrency());
    std::vector<std::thread> workers;
    for (int64_t j = 0; j < jobs; ++j) workers.emplace_back([&] { Work(progress); });
    for (std::thread& w : workers) w.join();
    progress.Finish();
    SB_RETURN_IF_ERROR(status_);
    return std::move(outcomes_);
  }

 private:
  void Work(Progress& progress) {
    std::map<size_t, Subject> subjects;
    for (size_t i = next_++; i < cases_.size(); i = next_++) {
      const Case& c = cases_[i];
      if (!subjects.contains(c.model)) {
        auto subject =
            LoadSubject(invocation_.positionals[c.model], invocation_.flags.Int("problems"));
        if (!subject.ok()) {
          const std::lock_guard lock(mutex_);
          status_ = subject.status();
          next_ = cases_.size();
          return;
        }
        subjects.emplace(c.model, std::move(subject).value());
      }
      outcomes_[i] = Try(subjects.at(c.model), back_ends_[c.back_end], c.arrangement);
      const std::lock_guard lock(mutex_);
      progress.Update(++done_, back_ends_[c.back_end].name);
    }
  }

  const Invocation& invocation_;
  const std::vector<BackEnd>& back_ends_;
  const std::vector<Case>& cases_;
  std::vector<Outcome> outcomes_;
  std::atomic<size_t> next_ = 0;
  std::mutex mutex_;
  int64_t done_ = 0;
  Status status_;
};

// One row of the table.
struct Tally {
  int64_t tried = 0;
  int64_t refused = 0;
  int64_t same_text = 0;
  double worst = 0;
  std::string where;

  void Add(const Outcome& o, const std::string& layout) {
    ++tried;
    refused += !o.refusal.empty();
    same_text += o.same_text;
    if (o.worst <= worst) return;
    worst = o.worst;
    where = layout;
  }
  std::vector<BenchCell> Row(const std::string& name) const {
    return {name, tried, refused, tried - refused, same_text, fmt::format("{:.1e}", worst), where};
  }
};

BenchTable TableOf(const std::vector<BackEnd>& back_ends, const std::vector<Case>& cases,
                   const std::vector<Outcome>& outcomes, const Invocation& invocation) {
  BenchTable table{
      .title =
          fmt::format("layouts of {} on up to {} ranks against one rank",
                      fmt::join(invocation.positionals, ", "), invocation.flags.Int("max-ranks")),
      .columns = {"contract", "layouts", "refused", "ran", "same text", "largest error", "where"}};
  std::vector<Tally> rows(back_ends.size());
  Tally total;
  std::map<std::string, int64_t> refusals;
  int64_t wrong = 0;
  std::vector<std::string> failures;
  for (size_t i = 0; i < cases.size(); ++i) {
    const Outcome& o = outcomes[i];
    const std::string layout =
        fmt::format("{}, {}",
                    std::filesystem::path(invocation.positionals[cases[i].model])
                        .lexically_normal()
                        .filename()
                        .string(),
                    cases[i].arrangement.ToString());
    rows[cases[i].back_end].Add(o, layout);
    total.Add(o, "");
    if (!o.refusal.empty()) ++refusals[o.refusal];
    if (o.failure.empty()) continue;
    ++wrong;
    failures.push_back(
        fmt::format("WRONG {}, {}: {}", layout, back_ends[cases[i].back_end].name, o.failure));
  }
  for (size_t b = 0; b < rows.size(); ++b) table.rows.push_back(rows[b].Row(back_ends[b].name));
  table.rows.push_back(total.Row("all"));
  std::vector<std::pair<int64_t, std::string>> reasons;
  for (const auto& [reason, count] : refusals) reasons.emplace_back(count, reason);
  std::sort(reasons.rbegin(), reasons.rend());
  for (const auto& [count, reason] : reasons)
    table.notes.push_back(fmt::format("refused {:>5} x {}", count, reason));
  table.notes.insert(table.notes.end(), failures.begin(), failures.end());
  if (wrong > 0) {
    table.verdict =
        OutOfTolerance({.what = "layouts differ from one rank",
                        .found = fmt::format("{} of {}", wrong, total.tried - total.refused),
                        .expected = fmt::format(
                            "every layer within {:.0e} and the same greedy text", kTolerance)});
  }
  return table;
}

// Experts of a layer, for the redundancy that divides.
Result<int64_t> ExpertsOf(const std::string& directory) {
  SB_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(directory));
  int64_t experts = 1;
  for (const LayerFacts& layer : config.facts.layers) {
    if (const auto* moe = std::get_if<MoeFacts>(&layer.ffn)) experts = moe->experts;
  }
  return experts;
}

}  // namespace

Status RunMatrix(const Invocation& invocation) {
  const FlagValues& flags = invocation.flags;
  const int64_t every = std::max<int64_t>(flags.Int("every"), 1);
  SB_ASSIGN_OR_RETURN(const std::vector<BackEnd> back_ends, BackEnds());
  std::vector<Case> cases;
  int64_t number = 0;
  for (size_t m = 0; m < invocation.positionals.size(); ++m) {
    SB_ASSIGN_OR_RETURN(const int64_t experts, ExpertsOf(invocation.positionals[m]));
    const std::vector<Arrangement> arrangements =
        Arrangements(static_cast<int>(flags.Int("max-ranks")), experts);
    for (size_t b = 0; b < back_ends.size(); ++b) {
      for (const Arrangement& arrangement : arrangements) {
        if (number++ % every == 0) cases.push_back({m, b, arrangement});
      }
    }
  }
  SB_ASSIGN_OR_RETURN(const std::vector<Outcome> outcomes,
                      Runner(invocation, back_ends, cases).Run());
  const BenchTable table = TableOf(back_ends, cases, outcomes, invocation);
  fmt::print("{}\n", flags.Text("format") == "json" ? BenchToJson(table) : BenchToText(table));
  return table.verdict;
}

}  // namespace signalbox
