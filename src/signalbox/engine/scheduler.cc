// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/scheduler.h"

#include <fmt/format.h>

#include <algorithm>

#include "signalbox/base/check.h"

namespace signalbox {
namespace {

// Rows of logits that are held at a time for the log-probabilities of a prompt.
constexpr int64_t kPromptLogitRows = 128;

// The prefix cache gives way by so many pages at a time.
constexpr int64_t kPagesEvicted = 16;

int64_t WholePages(int64_t tokens) {
  return tokens / kBlockTokens * kBlockTokens;
}

std::span<const int32_t> PagesOf(const Sequence& s, int64_t tokens) {
  return std::span(s.pages).first(static_cast<size_t>(tokens / kBlockTokens));
}

std::span<const TokenId> First(const Sequence& s, int64_t tokens) {
  return std::span(s.ids).first(static_cast<size_t>(tokens));
}

}  // namespace

Scheduler::Scheduler(std::vector<CacheAccount>& accounts, const SchedulerOptions& options)
    : accounts_(accounts), options_(options), running_of_part_(accounts.size(), 0) {
  for (CacheAccount& a : accounts_)
    prefixes_.push_back(std::make_unique<PrefixCache>(a, options_.has_state));
}

Scheduler::~Scheduler() {
  for (const auto& s : running_) ReleaseCache(*s, /*keep=*/false);
}

int64_t Scheduler::NewTokensAtMost(const GenerationRequest& request) const {
  return std::min(request.max_new_tokens, options_.max_position - std::ssize(request.prompt));
}

Status Scheduler::Check(const GenerationRequest& request) const {
  const int64_t prompt = std::ssize(request.prompt);
  if (prompt == 0) {
    return InvalidArgument({.what = "empty prompt", .expected = "at least one token"});
  }
  if (prompt >= options_.max_position) {
    return InvalidArgument({.what = "prompt does not fit the model's context",
                            .found = fmt::format("{} tokens", prompt),
                            .expected = fmt::format("fewer than {}", options_.max_position)});
  }
  const int64_t most = NewTokensAtMost(request);
  if (most < 1) {
    return InvalidArgument({.what = "no token is asked for",
                            .where = "max_new_tokens",
                            .found = fmt::format("{}", request.max_new_tokens),
                            .expected = "at least 1"});
  }
  const int64_t pages = PagesNeeded(prompt + most);
  if (pages <= accounts_[0].size().pages) return OkStatus();
  return InvalidArgument(
      {.what = "request can never fit the KV cache",
       .found = fmt::format("{} prompt and up to {} new tokens: {} pages of {} tokens", prompt,
                            most, pages, kBlockTokens),
       .expected = fmt::format("at most {} pages", accounts_[0].size().pages),
       .remedy = "ask for fewer tokens, or start with more --max-total-tokens"});
}

int64_t Scheduler::Submit(GenerationRequest request) {
  request.max_new_tokens = NewTokensAtMost(request);
  auto sequence = std::make_unique<Sequence>();
  sequence->id = next_id_++;
  sequence->ids = request.prompt;
  sequence->stats.prompt_tokens = std::ssize(request.prompt);
  sequence->request = std::move(request);
  waiting_.push_back(std::move(sequence));
  return waiting_.back()->id;
}

// For so many tokens and what a draft may write behind them.
int64_t Scheduler::PagesNeeded(int64_t tokens) const {
  return CacheBudget::PagesFor(std::min(tokens + options_.drafts, options_.max_position));
}

std::unique_ptr<Sequence> Scheduler::Remove(int64_t id, bool keep) {
  const auto is = [id](const auto& s) { return s->id == id; };
  std::unique_ptr<Sequence> found;
  if (const auto w = std::find_if(waiting_.begin(), waiting_.end(), is); w != waiting_.end()) {
    found = std::move(*w);
    waiting_.erase(w);
  } else if (const auto r = std::find_if(running_.begin(), running_.end(), is);
             r != running_.end()) {
    ReleaseCache(**r, keep);
    found = std::move(*r);
    running_.erase(r);
  }
  if (found) ++stats_.finished;
  return found;
}

// What it has computed is left to the prefix cache, as far as that can start from it.
void Scheduler::ReleaseCache(Sequence& s, bool keep) {
  CacheAccount& account = accounts_[static_cast<size_t>(s.part)];
  if (keep && options_.prefix_cache) {
    const int64_t whole = options_.has_state ? s.snapshot_length : WholePages(s.length);
    if (whole > 0 && prefixes(s.part).Insert(First(s, whole), PagesOf(s, whole), s.snapshot))
      s.snapshot = -1;
  }
  if (s.snapshot >= 0) account.DropSlot(s.snapshot);
  for (int32_t page : s.pages) account.DropPage(page);
  for (int32_t slot : s.slots) account.DropSlot(slot);
  --running_of_part_[static_cast<size_t>(s.part)];
  s.part = -1;
  s.length = 0;
  s.snapshot = -1;
  s.snapshot_length = 0;
  s.pages.clear();
  s.slots.clear();
  s.drafts.clear();
}

void Scheduler::Preempt(Sequence& s) {
  ReleaseCache(s, /*keep=*/true);
  ++s.stats.preemptions;
  ++stats_.preemptions;
  const auto it =
      std::find_if(running_.begin(), running_.end(), [&](const auto& r) { return r.get() == &s; });
  const auto place =
      std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& w) { return w->id > s.id; });
  waiting_.insert(place, std::move(*it));
  running_.erase(it);
}

int32_t Scheduler::TakePage(int part) {
  CacheAccount& account = accounts_[static_cast<size_t>(part)];
  if (account.free_pages() == 0) prefixes(part).EvictPages(kPagesEvicted);
  return account.TakePage();
}

int32_t Scheduler::TakeSlot(int part) {
  CacheAccount& account = accounts_[static_cast<size_t>(part)];
  if (account.free_slots() == 0) prefixes(part).EvictSnapshot();
  return account.TakeSlot();
}

bool Scheduler::EnsurePages(Sequence& s, int64_t tokens) {
  const int64_t pages = PagesNeeded(tokens);
  while (std::ssize(s.pages) < pages) {
    if (const int32_t page = TakePage(s.part); page >= 0) {
      s.pages.push_back(page);
      continue;
    }
    // The youngest of the part goes; that may be this one.
    const auto victim = std::find_if(running_.rbegin(), running_.rend(),
                                     [&](const auto& r) { return r->part == s.part; });
    const bool itself = victim->get() == &s;
    Preempt(**victim);
    if (itself) return false;
  }
  return true;
}

int64_t Scheduler::SlotsNeeded() const {
  return options_.has_state ? 1 + options_.drafts : 0;
}

// The part with the longest prefix, of those with room; -1: there is none.
int Scheduler::BestPart(const Sequence& s) const {
  int best = -1;
  std::pair<int64_t, int64_t> best_score;
  for (size_t p = 0; p < accounts_.size(); ++p) {
    const PrefixCache& prefix = *prefixes_[p];
    const int64_t hit = CanReuse(s) ? prefix.Find(s.ids, std::ssize(s.ids) - 1) : 0;
    const int64_t hit_pages = hit / kBlockTokens;
    const int64_t spare =
        accounts_[p].free_pages() + std::max<int64_t>(0, prefix.evictable_pages() - hit_pages);
    // One page for everybody who runs, so that a start is not followed by a pre-emption.
    const int64_t others = running_of_part_[p];
    const bool fits = PagesNeeded(std::ssize(s.ids) + 1) - hit_pages + others <= spare &&
                      SlotsNeeded() <= accounts_[p].free_slots() + prefix.stats().snapshots;
    const std::pair<int64_t, int64_t> score = {hit, -others};
    if (!fits || (best >= 0 && score <= best_score)) continue;
    best = static_cast<int>(p);
    best_score = score;
  }
  return best;
}

bool Scheduler::CanReuse(const Sequence& s) const {
  return options_.prefix_cache && s.request.prompt_logprobs < 0;
}

bool Scheduler::Admit(Sequence& s) {
  const int part = BestPart(s);
  if (part < 0) return false;
  s.part = part;
  ++running_of_part_[static_cast<size_t>(part)];
  PrefixHit hit;
  if (CanReuse(s)) {
    hit = prefixes(part).Take(s.ids, std::ssize(s.ids) - 1);
    ++stats_.prefix_lookups;
    stats_.lookup_tokens += std::ssize(s.ids);
    stats_.prefix_hits += hit.tokens > 0;
    stats_.cached_tokens += hit.tokens;
  }
  if (s.stats.preemptions == 0) s.stats.cached_tokens = hit.tokens;
  s.length = hit.tokens;
  s.pages = std::move(hit.pages);
  for (int64_t i = 0; i < SlotsNeeded(); ++i) s.slots.push_back(TakeSlot(part));
  // Copies run in order before everything else of a step, so it does no harm if the snapshot's slot
  // was just taken.
  if (hit.snapshot >= 0) copies_.push_back({part, hit.snapshot, s.slots[0]});
  const int64_t pages = PagesNeeded(std::ssize(s.ids) + 1);
  while (std::ssize(s.pages) < pages) {
    const int32_t page = TakePage(part);
    SB_CHECK(page >= 0) << "admitted without room";
    s.pages.push_back(page);
  }
  return true;
}

// Drafts that it may still use.
int64_t Scheduler::DraftsWanted(const Sequence& s) const {
  const int64_t left = std::min(s.request.max_new_tokens - s.generated(),
                                options_.max_position - std::ssize(s.ids)) -
                       1;
  return std::clamp<int64_t>(left, 0, options_.drafts);
}

// Tokens of its next chunk. It ends where a state is wanted, else at the end of a page, so that
// another sequence can start there; if that is too far, anywhere: it always goes on.
int64_t Scheduler::ChunkOf(const Sequence& s, int64_t room) const {
  int64_t take = std::min(s.pending(), room);
  if (s.request.prompt_logprobs >= 0) take = std::min(take, kPromptLogitRows);
  if (!options_.has_state || !options_.prefix_cache) return take;
  int64_t end = s.length + take;
  const int64_t prompt = std::ssize(s.request.prompt);
  const auto stop_at = [&](int64_t position) {
    const int64_t whole = WholePages(position);
    if (whole > s.length && whole < end) end = whole;
  };
  stop_at(prompt - 1);
  for (int64_t turn : s.request.turn_ends) stop_at(std::min(turn, prompt - 1));
  if (end < std::ssize(s.ids) && WholePages(end) > s.length) end = WholePages(end);
  return end - s.length;
}

void Scheduler::AddWindow(Sequence& s, int64_t tokens, ScheduledStep& step) {
  Window w{.part = s.part, .past = s.length, .pages = s.pages};
  if (options_.has_state) w.slot = s.slots[0];
  w.tokens.assign(s.ids.begin() + s.length, s.ids.begin() + s.length + tokens);
  const bool ends = s.length + tokens == std::ssize(s.ids);
  w.logits = ends ? LogitRows::kLast : LogitRows::kNone;
  if (s.request.prompt_logprobs >= 0 && s.length < std::ssize(s.request.prompt))
    w.logits = LogitRows::kAll;
  if (ends && !s.drafts.empty()) {
    w.tokens.insert(w.tokens.end(), s.drafts.begin(), s.drafts.end());
    w.logits = LogitRows::kAll;
    for (size_t i = 0; i < w.tokens.size() && options_.has_state; ++i)
      w.after.push_back(s.slots[(i + 1) % s.slots.size()]);
  }
  step.command.windows.push_back(std::move(w));
  step.sequences.push_back(&s);
}

ScheduledStep Scheduler::Next() {
  ScheduledStep step;
  std::vector<Sequence*> order;
  bool prompts = !waiting_.empty() && running() < options_.parallel;
  int64_t decoding = 0;
  int64_t drafted = 0;
  for (const auto& s : running_) {
    order.push_back(s.get());
    prompts |= !s->decodes();
    if (!s->decodes()) continue;
    ++decoding;
    drafted += std::ssize(s->drafts);
  }
  // Drafts leave prompts half of the step.
  const bool no_drafts = prompts && decoding + drafted > options_.prefill_chunk / 2;
  int64_t room = options_.prefill_chunk - decoding - (no_drafts ? 0 : drafted);
  bool any_prompt = false;
  bool any_draft = false;
  const auto prefill = [&](Sequence& s) {
    const int64_t take = ChunkOf(s, room);
    if (take <= 0) return;
    any_prompt |= take > 1;
    room -= take;
    stats_.prefill_tokens += take;
    AddWindow(s, take, step);
  };
  for (Sequence* s : order) {
    if (!s->running()) continue;  // made room for an older one
    if (!s->decodes()) {
      prefill(*s);
      continue;
    }
    if (no_drafts) s->drafts.clear();
    if (!EnsurePages(*s, std::ssize(s->ids) + std::ssize(s->drafts))) continue;
    any_draft |= !s->drafts.empty();
    AddWindow(*s, 1, step);
  }
  while (room > 0 && !waiting_.empty() && running() < options_.parallel) {
    Sequence& s = *waiting_.front();
    if (!Admit(s)) break;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    prefill(s);
  }
  // One that was pre-empted may be older than others.
  running_.sort([](const auto& a, const auto& b) { return a->id < b->id; });
  step.command.phase = any_prompt ? Phase::kPrefill : any_draft ? Phase::kVerify : Phase::kDecode;
  if (!step.sequences.empty()) {
    step.command.copies = std::exchange(copies_, {});
    ++stats_.steps;
  }
  return step;
}

void Scheduler::Advance(const Window& window, Sequence& s, int64_t sampled) {
  const int64_t before = s.length;
  const bool prompt = before < std::ssize(s.request.prompt);
  s.length = sampled > 0 ? std::ssize(s.ids) - 1 : before + std::ssize(window.tokens);
  s.drafts.clear();
  if (!window.after.empty()) {
    const auto current = std::find(s.slots.begin(), s.slots.end(),
                                   window.after[static_cast<size_t>(s.length - before - 1)]);
    std::rotate(s.slots.begin(), current, s.slots.end());
  }
  if (!options_.prefix_cache) return;
  if (prompt && s.length <= std::ssize(s.request.prompt)) {
    KeepPromptState(s);
  } else {
    KeepRunningState(s, before, window.after);
  }
}

// Of prompts that the prefix cache keeps: what is left when everybody runs and leaves one behind.
// So a sequence on its way does not push out the state of its own prompt.
int64_t Scheduler::PromptSnapshots(int part) const {
  const int64_t slots = accounts_[static_cast<size_t>(part)].size().slots;
  return std::max<int64_t>(1, slots - options_.parallel * (SlotsNeeded() + 1));
}

void Scheduler::KeepPromptState(Sequence& s) {
  const int64_t whole = WholePages(s.length);
  if (whole == 0 || (options_.has_state && whole != s.length)) return;
  PrefixCache& prefix = prefixes(s.part);
  if (prefix.Find(s.ids, whole) == whole) return;
  int32_t snapshot = -1;
  if (options_.has_state) {
    if (prefix.stats().snapshots >= PromptSnapshots(s.part)) prefix.EvictSnapshot();
    snapshot = TakeSlot(s.part);
    if (snapshot < 0) return;
    copies_.push_back({s.part, s.slots[0], snapshot});
  }
  if (!prefix.Insert(First(s, whole), PagesOf(s, whole), snapshot) && snapshot >= 0)
    accounts_[static_cast<size_t>(s.part)].DropSlot(snapshot);
}

// The state at the last whole page; it is left behind when the sequence gives its cache back.
void Scheduler::KeepRunningState(Sequence& s, int64_t before, std::span<const int32_t> after) {
  const int64_t whole = WholePages(s.length);
  if (!options_.has_state || whole <= before) return;
  int32_t from = s.slots[0];
  if (!after.empty()) {
    from = after[static_cast<size_t>(whole - before - 1)];
  } else if (whole != s.length) {
    return;
  }
  if (s.snapshot < 0) s.snapshot = TakeSlot(s.part);
  if (s.snapshot < 0) return;
  s.snapshot_length = whole;
  copies_.push_back({s.part, from, s.snapshot});
}

void Scheduler::ClearPrefixes() {
  for (auto& p : prefixes_) p->Clear();
}

}  // namespace signalbox
