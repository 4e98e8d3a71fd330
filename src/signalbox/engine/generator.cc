// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/generator.h"

#include <fmt/format.h>

#include <algorithm>

namespace signalbox {
namespace {

bool Contains(const std::vector<TokenId>& ids, TokenId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

SchedulerOptions SchedulerOptionsOf(const StepRuntime& runtime, const GeneratorOptions& options) {
  return {
      .max_position = runtime.max_position,
      .parallel = options.parallel,
      .prefill_chunk = options.prefill_chunk > 0 ? options.prefill_chunk : runtime.prefill_chunk,
      .drafts = options.speculate ? runtime.drafts : 0,
      .has_state = runtime.has_state,
      .prefix_cache = options.prefix_cache && runtime.prefix_cache};
}

int64_t RowsOf(const Window& w) {
  return w.logits == LogitRows::kNone ? 0 : w.logits == LogitRows::kLast ? 1 : std::ssize(w.tokens);
}

}  // namespace

std::string_view ToString(FinishReason reason) {
  static constexpr std::string_view kNames[] = {"stop", "length", "cancelled", "failed"};
  return kNames[static_cast<size_t>(reason)];
}

StepRuntime RuntimeOf(Engine& engine) {
  const ModelFacts& facts = engine.config().facts;
  const bool has_state = std::any_of(facts.layers.begin(), facts.layers.end(),
                                     [](const LayerFacts& layer) { return !layer.is_attention(); });
  return {.execute = [&engine](const StepCommand& command) { return engine.Execute(command); },
          .accounts = &engine.accounts(),
          .vocab = facts.vocab,
          .max_position = facts.max_position,
          .prefill_chunk = engine.prefill_chunk(),
          .drafts = engine.drafts(),
          .has_state = has_state,
          .prefix_cache = engine.prefix_cache(),
          .end_ids = engine.config().stop_ids};
}

Generator::Generator(StepRuntime runtime, const GeneratorOptions& options)
    : runtime_(std::move(runtime)),
      usable_vocab_(options.usable_vocab > 0 ? std::min(options.usable_vocab, runtime_.vocab)
                                             : runtime_.vocab),
      drafts_(options.speculate ? runtime_.drafts : 0),
      scheduler_(*runtime_.accounts, SchedulerOptionsOf(runtime_, options)) {
  stats_.drafted.assign(static_cast<size_t>(drafts_), 0);
  stats_.accepted.assign(static_cast<size_t>(drafts_), 0);
}

Status Generator::Check(const GenerationRequest& request) const {
  for (TokenId id : request.prompt) {
    if (id >= 0 && id < runtime_.vocab) continue;
    return InvalidArgument({.what = "token id outside the vocabulary",
                            .where = "prompt",
                            .found = fmt::format("{}", id),
                            .expected = fmt::format("an id in [0, {})", runtime_.vocab)});
  }
  SB_RETURN_IF_ERROR(CheckSampling(request.sampling, usable_vocab_));
  SB_RETURN_IF_ERROR(scheduler_.Check(request));
  const int64_t most = scheduler_.NewTokensAtMost(request);
  if (request.min_new_tokens <= most) return OkStatus();
  return InvalidArgument({.what = "more new tokens asked for than there can be",
                          .where = "min_new_tokens",
                          .found = fmt::format("{}", request.min_new_tokens),
                          .expected = fmt::format("at most {}", most)});
}

Result<int64_t> Generator::Submit(GenerationRequest request) {
  SB_RETURN_IF_ERROR(Check(request));
  if (request.ignore_eos) {
    std::erase_if(request.stop_ids, [&](TokenId id) { return Contains(runtime_.end_ids, id); });
  }
  return scheduler_.Submit(std::move(request));
}

GeneratorStats Generator::stats() const {
  GeneratorStats stats = stats_;
  stats.scheduler = scheduler_.stats();
  return stats;
}

Status Generator::Step(const OnTokens& on_tokens) {
  for (int64_t id : std::exchange(cancelled_, {})) {
    const auto s = scheduler_.Remove(id);
    if (s == nullptr) continue;
    on_tokens({.request = id, .finish = FinishReason::kCancelled, .stats = s->stats});
  }
  ScheduledStep step = scheduler_.Next();
  if (step.sequences.empty()) return OkStatus();
  step.command.keep_hidden = drafts_ > 0;
  const auto now = std::chrono::steady_clock::now();
  for (Sequence* s : step.sequences) s->stats.started = s->stats.started.value_or(now);
  SB_ASSIGN_OR_RETURN(const StepOutput output, runtime_.execute(step.command));
  const int64_t vocab = runtime_.vocab;
  std::span<const float> left = output.logits;
  std::vector<Drafting> drafting;
  int64_t place = 0;
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    const Window& window = step.command.windows[i];
    const size_t floats = static_cast<size_t>(RowsOf(window) * vocab);
    Sequence& sequence = *step.sequences[i];
    const bool goes_on = Take(window, sequence, left.first(floats), on_tokens);
    left = left.subspan(floats);
    if (goes_on) drafting.push_back({&sequence, window.past, place});
    place += std::ssize(window.tokens);
  }
  return drafts_ > 0 ? Draft(drafting) : OkStatus();
}

Result<SampledToken> Generator::SampleNext(const Sequence& s, std::span<const float> row) {
  const GenerationRequest& request = s.request;
  SampleInput input{.logits = row.first(static_cast<size_t>(usable_vocab_)),
                    .prompt = request.prompt,
                    .generated = s.generated_ids()};
  if (s.generated() < request.min_new_tokens) input.banned = request.stop_ids;
  std::vector<uint32_t> mask;
  if (request.constraint) {
    mask.resize((input.logits.size() + 31) / 32);
    SB_RETURN_IF_ERROR(request.constraint->Allowed(mask));
    input.allowed = mask;
  }
  SB_ASSIGN_OR_RETURN(SampledToken sampled, Sample(request.sampling, input));
  if (request.constraint) SB_RETURN_IF_ERROR(request.constraint->Accept(sampled.token));
  return sampled;
}

// Row i of the window is about token past + i + 1.
std::vector<SampledToken> Generator::PromptLogprobs(const Window& window, const Sequence& s,
                                                    std::span<const float> logits) const {
  std::vector<SampledToken> found;
  if (window.logits != LogitRows::kAll || s.request.prompt_logprobs < 0) return found;
  const int64_t vocab = runtime_.vocab;
  const int64_t end =
      std::min(window.past + std::ssize(window.tokens), std::ssize(s.request.prompt) - 1);
  for (int64_t p = window.past; p < end; ++p) {
    const auto row =
        logits.subspan(static_cast<size_t>((p - window.past) * vocab), static_cast<size_t>(vocab));
    found.push_back(
        LogprobOf(row, s.request.prompt[static_cast<size_t>(p + 1)], s.request.prompt_logprobs));
  }
  return found;
}

bool Generator::Take(const Window& window, Sequence& s, std::span<const float> logits,
                     const OnTokens& on_tokens) {
  const int64_t vocab = runtime_.vocab;
  const bool decodes = s.decodes() && s.generated() > 0;
  const int64_t drafted = std::ssize(s.drafts);
  const std::vector<SampledToken> prompt = PromptLogprobs(window, s, logits);
  std::vector<SampledToken> tokens;
  Generated got{.request = s.id, .prompt = prompt};
  int64_t sampled = 0;
  if (s.pending() + drafted == std::ssize(window.tokens)) {
    // The rows of the last token and the drafts come last.
    std::span<const float> rows = logits.last(static_cast<size_t>((drafted + 1) * vocab));
    for (int64_t i = 0; i <= drafted && !got.finish; ++i) {
      const Result<SampledToken> next =
          SampleNext(s, rows.subspan(static_cast<size_t>(i * vocab), static_cast<size_t>(vocab)));
      if (!next.ok()) {
        got.finish = FinishReason::kFailed;
        got.status = next.status();
        break;
      }
      s.ids.push_back(next->token);
      ++sampled;
      if (Contains(s.request.stop_ids, next->token)) {
        got.finish = FinishReason::kStop;
        got.stop_id = next->token;
        break;
      }
      tokens.push_back(*next);
      if (s.generated() >= s.request.max_new_tokens) got.finish = FinishReason::kLength;
      const bool accepted = i < drafted && next->token == s.drafts[static_cast<size_t>(i)];
      if (i < drafted) ++stats_.drafted[static_cast<size_t>(i)];
      if (!accepted) break;
      ++stats_.accepted[static_cast<size_t>(i)];
      ++s.stats.accepted_tokens;
    }
    s.stats.drafted_tokens += drafted;
    stats_.drafted_tokens += drafted;
    s.stats.new_tokens += std::ssize(tokens);
    stats_.new_tokens += std::ssize(tokens);
    if (decodes) {
      ++s.stats.decode_steps;
      s.stats.decode_tokens += sampled;
      ++stats_.decode_steps;
      stats_.decode_tokens += sampled;
    }
  }
  if (got.finish != FinishReason::kFailed) scheduler_.Advance(window, s, sampled);
  got.tokens = tokens;
  got.stats = s.stats;
  // Before it is told, so that whoever counts then counts right. What a request left behind whose
  // logits are not numbers is of use to nobody.
  const int64_t id = s.id;
  if (got.finish) scheduler_.Remove(id, /*keep=*/got.finish != FinishReason::kFailed);
  if (tokens.empty() && prompt.empty() && !got.finish) return true;
  const bool enough = !on_tokens(got);
  if (enough && !got.finish) scheduler_.Remove(id);
  return !enough && !got.finish;
}

// The draft layer takes, at each position of the step's windows, the hidden row of that position
// and the token behind it. For those that decode, its last row is the first guess; each further one
// follows from the guess before, in a step of its own.
Status Generator::Draft(const std::vector<Drafting>& windows) {
  StepCommand step{.kind = StepCommand::Kind::kDraft, .phase = Phase::kDecode};
  std::vector<Sequence*> guessing;
  int64_t place = 0;
  std::vector<int64_t> rows;  // the last row of each that is guessing
  for (const Drafting& d : windows) {
    const Sequence& s = *d.sequence;
    const bool guesses = s.decodes() && scheduler_.DraftsWanted(s) > 0;
    if (s.decodes() && !guesses) continue;  // it will never ask again
    Window w{.part = s.part, .past = d.past, .pages = s.pages, .hidden = d.place};
    w.tokens.assign(s.ids.begin() + d.past + 1, s.ids.begin() + s.length + 1);
    w.logits = guesses ? LogitRows::kLast : LogitRows::kNone;
    const int64_t count = std::ssize(w.tokens);
    if (count > drafts_ + 1) step.phase = Phase::kPrefill;
    if (count > 1 && step.phase == Phase::kDecode) step.phase = Phase::kVerify;
    place += count;
    if (guesses) {
      guessing.push_back(d.sequence);
      rows.push_back(place - 1);
    }
    step.windows.push_back(std::move(w));
  }
  for (int64_t guess = 0; !step.windows.empty(); ++guess) {
    SB_ASSIGN_OR_RETURN(const StepOutput output, runtime_.execute(step));
    step.windows.clear();
    step.phase = Phase::kDecode;
    std::vector<Sequence*> more;
    std::vector<int64_t> next_rows;
    for (size_t i = 0; i < guessing.size(); ++i) {
      Sequence& s = *guessing[i];
      const size_t vocab = static_cast<size_t>(runtime_.vocab);
      s.drafts.push_back(ArgMax(std::span(output.logits)
                                    .subspan(i * vocab, vocab)
                                    .first(static_cast<size_t>(usable_vocab_))));
      if (std::ssize(s.drafts) >= scheduler_.DraftsWanted(s)) continue;
      step.windows.push_back({.part = s.part,
                              .past = s.length + guess,
                              .tokens = {s.drafts.back()},
                              .pages = s.pages,
                              .hidden = rows[i]});
      next_rows.push_back(std::ssize(more));
      more.push_back(&s);
    }
    guessing = std::move(more);
    rows = std::move(next_rows);
  }
  return OkStatus();
}

}  // namespace signalbox
