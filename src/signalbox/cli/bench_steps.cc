// SPDX-License-Identifier: Apache-2.0
//
// bench decode and bench prefill.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>

#include "signalbox/base/read_probe.h"
#include "signalbox/cli/bench.h"
#include "signalbox/cli/commands.h"
#include "signalbox/engine/generator.h"
#include "signalbox/engine/step_bytes.h"

namespace signalbox {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMostSequences = 4096;
constexpr int64_t kMostStepTokens = int64_t{1} << 24;
constexpr double kMega = 1e6;
constexpr double kGiga = 1e9;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Sequences with pages and a slot of their own, whose length is the caller's to say: a step may run
// again and again at the same depth.
class Bench {
 public:
  // A cache for so many sequences of so many tokens each.
  static Result<std::unique_ptr<Bench>> Load(const Invocation& invocation, int64_t sequences,
                                             int64_t tokens);
  // Takes that cache, for Prefill, Decode and ReadRate beside them.
  Status Claim(int64_t sequences, int64_t tokens);
  ~Bench();

  Engine& engine() { return *engine_; }
  int threads() const { return threads_; }
  double ReadRate() { return probe_->Measure(); }
  std::vector<TokenId> RandomTokens(int64_t count);

  // Computes positions [begin, end) of the first `count` sequences in steps of at most the chunk
  // that the layout was planned for. Adds what the steps read.
  Status Prefill(int64_t count, int64_t begin, int64_t end, StepBytes* bytes);
  // One more token of the first `count` sequences behind `depth` others; seconds.
  Result<double> Decode(int64_t count, int64_t depth);

 private:
  struct Sequence {
    int32_t part;
    int32_t slot;
    std::vector<int32_t> pages;
  };
  Window WindowOf(const Sequence& s, int64_t past, int64_t tokens);

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<ReadProbe> probe_;
  int threads_ = 1;
  std::mt19937_64 random_;
  std::vector<Sequence> sequences_;
};

Result<std::unique_ptr<Bench>> Bench::Load(const Invocation& invocation, int64_t sequences,
                                           int64_t tokens) {
  const FlagValues& flags = invocation.flags;
  if (invocation.processes != nullptr) {
    return Refused({.what = "ranks are measured as threads of one process",
                    .where = invocation.command,
                    .remedy = "leave out mpirun and give --tp"});
  }
  SB_ASSIGN_OR_RETURN(EngineOptions options, EngineOptionsOf(flags, sequences));
  int64_t& running = options.layout.limits.max_running_requests;
  if (running == 0) running = sequences;
  if (running < sequences) {
    return InvalidArgument({.what = "fewer requests than a batch has",
                            .where = "--max-running-requests",
                            .found = fmt::format("{}", running),
                            .expected = fmt::format("at least {}", sequences)});
  }
  // Prompts are random: nothing begins alike.
  options.prefix_cache = false;
  // What drafts write behind a sequence is room too.
  if (options.budget.tokens == 0) {
    const int64_t drafts = options.layout.limits.draft_tokens;
    options.budget.tokens = sequences * (tokens + drafts);
  }
  auto bench = std::make_unique<Bench>();
  bench->threads_ = options.threads;
  bench->random_.seed(static_cast<uint64_t>(flags.Int("seed")));
  SB_ASSIGN_OR_RETURN(bench->engine_, Engine::Load(invocation.positionals[0], options));
  const int64_t longest = bench->engine_->config().facts.max_position;
  if (tokens > longest) {
    return InvalidArgument({.what = "longer than the model's context",
                            .found = fmt::format("{} tokens", tokens),
                            .expected = fmt::format("at most {}", longest)});
  }
  return bench;
}

Status Bench::Claim(int64_t sequences, int64_t tokens) {
  SB_ASSIGN_OR_RETURN(probe_, ReadProbe::Create({.threads = threads_}));
  std::vector<CacheAccount>& accounts = engine_->accounts();
  const int64_t pages = CacheBudget::PagesFor(tokens);
  for (int64_t i = 0; i < sequences; ++i) {
    const auto part = static_cast<int32_t>(i % std::ssize(accounts));
    CacheAccount& account = accounts[static_cast<size_t>(part)];
    if (account.free_pages() < pages) {
      return ResourceExhausted(
          {.what = "the cache is too small for the largest row",
           .found = fmt::format("{} pages in each part", account.size().pages),
           .expected = fmt::format("{} for each of {} sequences", pages, sequences)});
    }
    Sequence s{.part = part, .slot = account.TakeSlot()};
    for (int64_t p = 0; p < pages; ++p) s.pages.push_back(account.TakePage());
    sequences_.push_back(std::move(s));
  }
  return OkStatus();
}

Bench::~Bench() {
  for (const Sequence& s : sequences_) {
    CacheAccount& account = engine_->accounts()[static_cast<size_t>(s.part)];
    for (const int32_t page : s.pages) account.DropPage(page);
    account.DropSlot(s.slot);
  }
}

std::vector<TokenId> Bench::RandomTokens(int64_t count) {
  std::uniform_int_distribution<TokenId> any(
      0, static_cast<TokenId>(engine_->config().facts.vocab - 1));
  std::vector<TokenId> ids(static_cast<size_t>(count));
  for (TokenId& id : ids) id = any(random_);
  return ids;
}

Window Bench::WindowOf(const Sequence& s, int64_t past, int64_t tokens) {
  return {.part = s.part,
          .past = past,
          .tokens = RandomTokens(tokens),
          .pages = s.pages,
          .slot = s.slot};
}

Status Bench::Prefill(int64_t count, int64_t begin, int64_t end, StepBytes* bytes) {
  StepCommand step{.phase = Phase::kPrefill};
  StepLoad load;
  const auto run = [&] {
    const Result<StepOutput> output = engine_->Execute(step);
    *bytes += BytesOfStep(*engine_, load);
    step.windows.clear();
    load = {};
    return output.status();
  };
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t past = begin; past < end;) {
      const int64_t take = std::min(end - past, engine_->prefill_chunk() - load.tokens);
      step.windows.push_back(WindowOf(sequences_[static_cast<size_t>(i)], past, take));
      step.windows.back().logits = past + take == end ? LogitRows::kLast : LogitRows::kNone;
      past += take;
      load.tokens += take;
      load.kv_tokens += past;
      ++load.sequences;
      if (load.tokens == engine_->prefill_chunk()) SB_RETURN_IF_ERROR(run());
    }
  }
  return load.tokens > 0 ? run() : OkStatus();
}

Result<double> Bench::Decode(int64_t count, int64_t depth) {
  StepCommand step{.phase = Phase::kDecode};
  for (int64_t i = 0; i < count; ++i)
    step.windows.push_back(WindowOf(sequences_[static_cast<size_t>(i)], depth, 1));
  const auto start = Clock::now();
  SB_RETURN_IF_ERROR(engine_->Execute(step).status());
  return SecondsSince(start);
}

// Of times in seconds, not empty.
struct Spread {
  double median, least, most;
  explicit Spread(std::vector<double> times) {
    std::ranges::sort(times);
    const size_t n = times.size();
    median = (times[(n - 1) / 2] + times[n / 2]) / 2;
    least = times.front();
    most = times.back();
  }
};

// The cells that follow from the times of a step (or prompt) and what it reads.
std::vector<BenchCell> Cells(double tokens, const Spread& seconds, const StepBytes& bytes,
                             double read) {
  const double rate = bytes.total() / seconds.median;
  return {tokens / seconds.median,
          seconds.median * 1e3,
          seconds.least * 1e3,
          seconds.most * 1e3,
          (bytes.dense + bytes.experts) / kMega,
          bytes.kv / kMega,
          bytes.state / kMega,
          rate / kGiga,
          read / kGiga,
          100 * rate / read};
}

void Describe(const Invocation& invocation, Bench& bench, BenchTable* table) {
  const FlagValues& flags = invocation.flags;
  Engine& engine = bench.engine();
  table->facts = {{"model", invocation.positionals[0]},
                  {"family", engine.config().facts.family},
                  {"ranks", int64_t{engine.planned().layout.mesh().ranks()}},
                  {"threads", int64_t{bench.threads()}},
                  {"device", std::string(engine.runner().ops().name())},
                  {"temperature", 0.},
                  {"seed", flags.Int("seed")},
                  {"repeats", flags.Int("repeats")}};
}

constexpr const char* kNotes =
    "MB and GB are 10^6 and 10^9 bytes. weights: dense ones of every rank once, of the routed "
    "experts as many as so\nmany tokens hit when all are equally likely. read: 64-bit sums over a "
    "buffer larger than the caches, on as many\nthreads, right before and after the row; a model "
    "that the caches hold can be read faster.";

// The faster of two probes around what is timed: the machine may change its mind in between.
double Around(double before, double after) {
  return std::max(before, after);
}

Status DecodeRows(Bench& bench, const std::vector<int64_t>& batches,
                  const std::vector<int64_t>& depths, int64_t repeats, BenchTable* table) {
  StepBytes unused;
  int64_t known = 0;
  const int64_t most = *std::ranges::max_element(batches);
  for (const int64_t depth : depths) {
    if (depth > known) SB_RETURN_IF_ERROR(bench.Prefill(most, known, depth, &unused));
    known = depth;
    for (const int64_t batch : batches) {
      const double before = bench.ReadRate();
      SB_RETURN_IF_ERROR(bench.Decode(batch, depth).status());  // warms caches and scratch memory
      std::vector<double> seconds;
      for (int64_t i = 0; i < repeats; ++i) {
        SB_ASSIGN_OR_RETURN(const double took, bench.Decode(batch, depth));
        seconds.push_back(took);
      }
      const StepBytes bytes = BytesOfStep(
          bench.engine(), {.tokens = batch, .kv_tokens = batch * (depth + 1), .sequences = batch});
      std::vector<BenchCell> row = {batch, depth};
      const auto cells = Cells(static_cast<double>(batch), Spread(std::move(seconds)), bytes,
                               Around(before, bench.ReadRate()));
      row.insert(row.end(), cells.begin(), cells.end());
      table->rows.push_back(std::move(row));
    }
  }
  return OkStatus();
}

// Whole requests, as they are served: steps count once no prompt is left.
Status SpeculativeRows(Bench& bench, const std::vector<int64_t>& batches,
                       const std::vector<int64_t>& depths, int64_t new_tokens, BenchTable* table) {
  for (const int64_t depth : depths) {
    for (const int64_t batch : batches) {
      Generator generator(bench.engine(), {.parallel = batch});
      for (int64_t i = 0; i < batch; ++i) {
        SB_RETURN_IF_ERROR(generator
                               .Submit({.prompt = bench.RandomTokens(std::max<int64_t>(depth, 1)),
                                        .max_new_tokens = new_tokens + 1})
                               .status());
      }
      int64_t begun = 0;
      int64_t tokens = 0;
      RequestStats total;
      const auto on_tokens = [&](const Generated& g) {
        begun += g.stats.decode_steps == 0;
        if (g.finish) {
          total.decode_steps += g.stats.decode_steps;
          total.decode_tokens += g.stats.decode_tokens;
        }
        tokens += std::ssize(g.tokens);
        return true;
      };
      while (begun < batch) SB_RETURN_IF_ERROR(generator.Step(on_tokens));
      tokens = 0;
      std::vector<double> seconds;
      const auto start = Clock::now();
      while (!generator.idle()) {
        const auto step = Clock::now();
        SB_RETURN_IF_ERROR(generator.Step(on_tokens));
        seconds.push_back(SecondsSince(step));
      }
      const double took = SecondsSince(start);
      if (seconds.empty()) {
        return InvalidArgument({.what = "the first requests end before all prompts are computed",
                                .where = "--new-tokens",
                                .found = fmt::format("{}", new_tokens),
                                .remedy = "ask for more of them, or for a smaller batch"});
      }
      const Spread spread(std::move(seconds));
      table->rows.push_back({batch, depth, static_cast<double>(tokens) / took, spread.median * 1e3,
                             spread.least * 1e3, spread.most * 1e3, total.accept_length()});
    }
  }
  return OkStatus();
}

}  // namespace

Result<BenchTable> BenchDecode(const Invocation& invocation) {
  const FlagValues& flags = invocation.flags;
  SB_ASSIGN_OR_RETURN(const auto batches, NumbersOf(flags, "batch", 1, kMostSequences));
  SB_ASSIGN_OR_RETURN(auto depths, NumbersOf(flags, "depth", 0, kMostStepTokens));
  SB_ASSIGN_OR_RETURN(const int64_t repeats, NumberOf(flags, "repeats", 1, 100'000));
  SB_ASSIGN_OR_RETURN(const int64_t new_tokens, NumberOf(flags, "new-tokens", 1, kMostStepTokens));
  std::ranges::sort(depths);  // each goes on from the one before
  const bool drafts = flags.Text("speculative-algorithm") != "none";
  // A request of a speculative row has a prompt of one token at least.
  const int64_t longest =
      drafts ? std::max<int64_t>(depths.back(), 1) + new_tokens + 1 : depths.back() + 1;
  const int64_t most = *std::ranges::max_element(batches);
  SB_ASSIGN_OR_RETURN(const auto bench, Bench::Load(invocation, most, longest));
  BenchTable table;
  table.title = drafts ? "decode with drafts: whole requests, random prompts of `depth` tokens"
                       : "decode: one token of each of `batch` sequences of `depth` tokens";
  Describe(invocation, *bench, &table);
  table.columns = {"batch", "depth", "tok/s", "step ms", "least ms", "most ms"};
  if (drafts) {
    table.columns.emplace_back("accept length");
    table.facts.emplace_back("new tokens", new_tokens);
    table.notes = {
        "Steps count from where all prompts have been computed, drafting and sampling "
        "included. accept length: tokens\nof a request and step."};
    SB_RETURN_IF_ERROR(SpeculativeRows(*bench, batches, depths, new_tokens, &table));
    return table;
  }
  for (const char* name : {"weights MB", "KV MB", "state MB", "GB/s", "read GB/s", "% of read"})
    table.columns.emplace_back(name);
  table.notes = {kNotes};
  SB_RETURN_IF_ERROR(bench->Claim(most, longest));
  SB_RETURN_IF_ERROR(DecodeRows(*bench, batches, depths, repeats, &table));
  return table;
}

Result<BenchTable> BenchPrefill(const Invocation& invocation) {
  const FlagValues& flags = invocation.flags;
  SB_ASSIGN_OR_RETURN(const auto batches, NumbersOf(flags, "batch", 1, kMostSequences));
  SB_ASSIGN_OR_RETURN(const auto prompts, NumbersOf(flags, "prompt-tokens", 1, kMostStepTokens));
  SB_ASSIGN_OR_RETURN(const int64_t repeats, NumberOf(flags, "repeats", 1, 100'000));
  const int64_t longest = *std::ranges::max_element(prompts);
  const int64_t most = *std::ranges::max_element(batches);
  SB_ASSIGN_OR_RETURN(const auto bench, Bench::Load(invocation, most, longest));
  SB_RETURN_IF_ERROR(bench->Claim(most, longest));
  BenchTable table;
  table.title = fmt::format("prefill: `batch` prompts from an empty cache, {} tokens in a step",
                            bench->engine().prefill_chunk());
  Describe(invocation, *bench, &table);
  table.columns = {"batch",      "prompt", "tok/s",    "all ms", "least ms",  "most ms",
                   "weights MB", "KV MB",  "state MB", "GB/s",   "read GB/s", "% of read"};
  table.notes = {kNotes};
  for (const int64_t prompt : prompts) {
    for (const int64_t batch : batches) {
      const double before = bench->ReadRate();
      std::vector<double> seconds;
      StepBytes bytes;
      for (int64_t i = 0; i <= repeats; ++i) {  // the first warms caches and scratch memory
        bytes = {};
        const auto start = Clock::now();
        SB_RETURN_IF_ERROR(bench->Prefill(batch, 0, prompt, &bytes));
        if (i > 0) seconds.push_back(SecondsSince(start));
      }
      std::vector<BenchCell> row = {batch, prompt};
      const auto cells = Cells(static_cast<double>(batch * prompt), Spread(std::move(seconds)),
                               bytes, Around(before, bench->ReadRate()));
      row.insert(row.end(), cells.begin(), cells.end());
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

}  // namespace signalbox
