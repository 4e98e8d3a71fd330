// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cache/prefix_cache.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace signalbox {
namespace {

// A page of tokens for each letter. Pages differ in one token only.
std::vector<TokenId> Tokens(const std::string& letters) {
  std::vector<TokenId> out;
  for (const unsigned char letter : letters) {
    out.insert(out.end(), kBlockTokens, 7);
    out[out.size() - 3] = letter;
  }
  return out;
}

std::vector<int32_t> TakePages(CacheAccount& account, size_t count) {
  std::vector<int32_t> pages(count);
  for (int32_t& page : pages) page = account.TakePage();
  return pages;
}

void DropPages(CacheAccount& account, const std::vector<int32_t>& pages) {
  for (const int32_t page : pages) account.DropPage(page);
}

// What a sequence that computes all of `letters` and ends leaves in the cache. Returns the
// snapshot.
int32_t Leave(CacheAccount& account, PrefixCache& cache, const std::string& letters,
              bool with_state = true) {
  const std::vector<int32_t> pages = TakePages(account, letters.size());
  const int32_t slot = with_state ? account.TakeSlot() : -1;
  const bool taken = cache.Insert(Tokens(letters), pages, slot);
  if (with_state && !taken) account.DropSlot(slot);
  DropPages(account, pages);
  return slot;
}

int64_t Find(const PrefixCache& cache, const std::string& letters) {
  return cache.Find(Tokens(letters), kBlockTokens * std::ssize(letters));
}

TEST(PrefixCache, Hyb08AnExtensionOfACachedPromptHits) {
  for (const bool with_state : {false, true}) {
    CacheAccount account({.pages = 8, .slots = 4});
    PrefixCache cache(account, with_state);
    const int32_t slot = Leave(account, cache, "abc", with_state);
    const std::vector<TokenId> longer = Tokens("abcde");
    const PrefixHit hit = cache.Take(longer, std::ssize(longer) - 1);
    EXPECT_EQ(hit.tokens, 3 * kBlockTokens);
    EXPECT_EQ(hit.pages, (std::vector<int32_t>{0, 1, 2}));
    EXPECT_EQ(hit.snapshot, slot);
    DropPages(account, hit.pages);
  }
}

TEST(PrefixCache, AnExactRepeatLeavesATokenToCompute) {
  CacheAccount account({.pages = 8, .slots = 4});
  PrefixCache cache(account, false);
  Leave(account, cache, "abc", false);
  const std::vector<TokenId> same = Tokens("abc");
  EXPECT_EQ(cache.Find(same, 3 * kBlockTokens - 1), 2 * kBlockTokens);
  std::vector<TokenId> one_more = same;
  one_more.push_back(1);
  EXPECT_EQ(cache.Find(one_more, 3 * kBlockTokens), 3 * kBlockTokens);
  EXPECT_EQ(cache.Find(same, 0), 0);
  EXPECT_EQ(cache.Find(same, -1), 0);
  EXPECT_EQ(cache.Find({}, 100), 0);
}

TEST(PrefixCache, WithStateAHitEndsWhereASnapshotIs) {
  CacheAccount account({.pages = 9, .slots = 4});
  PrefixCache cache(account, true);
  const int32_t whole = Leave(account, cache, "abcd");
  EXPECT_EQ(Find(cache, "abcx"), 0);
  const int32_t half = Leave(account, cache, "ab");
  EXPECT_EQ(Find(cache, "abcx"), 2 * kBlockTokens);
  EXPECT_EQ(cache.Take(Tokens("abcx"), 64).snapshot, half);
  EXPECT_EQ(cache.Take(Tokens("abcd"), 64).snapshot, whole);
  EXPECT_EQ(cache.Take(Tokens("abcd"), 63).snapshot, half);
}

TEST(PrefixCache, OneOtherTokenIsNoHit) {
  CacheAccount account({.pages = 4, .slots = 0});
  PrefixCache cache(account, false);
  Leave(account, cache, "ab", false);
  for (size_t i = 0; i < 2 * kBlockTokens; ++i) {
    std::vector<TokenId> other = Tokens("ab");
    ++other[i];
    EXPECT_EQ(cache.Find(other, 32), i < kBlockTokens ? 0 : kBlockTokens) << i;
  }
  EXPECT_EQ(Find(cache, "b"), 0) << "same tokens at another position";
}

TEST(PrefixCache, OfEqualPagesAndSnapshotsTheFirstStay) {
  CacheAccount account({.pages = 8, .slots = 4});
  PrefixCache cache(account, true);
  const int32_t slot = Leave(account, cache, "ab");
  const std::vector<int32_t> own = TakePages(account, 3);
  const int32_t other_slot = account.TakeSlot();
  EXPECT_FALSE(cache.Insert(Tokens("ab"), std::span(own).first(2), other_slot));
  EXPECT_TRUE(cache.Insert(Tokens("abc"), own, other_slot));
  DropPages(account, own);
  EXPECT_EQ(account.free_pages(), 5);
  EXPECT_EQ(cache.Take(Tokens("ab"), 32).snapshot, slot);
  EXPECT_EQ(cache.Take(Tokens("abc"), 48).pages, (std::vector<int32_t>{0, 1, own[2]}));
}

TEST(PrefixCache, NothingIsKeptOfLessThanAPage) {
  CacheAccount account({.pages = 1, .slots = 1});
  PrefixCache cache(account, true);
  const int32_t slot = account.TakeSlot();
  EXPECT_FALSE(cache.Insert({}, {}, slot));
  account.DropSlot(slot);
  EXPECT_EQ(cache.stats().pages, 0);
}

TEST(PrefixCache, Hyb05AnEvictionMovesBothCachesOrNeither) {
  for (const bool by_pages : {false, true}) {
    CacheAccount account({.pages = 16, .slots = 6});
    PrefixCache cache(account, true);
    std::map<int32_t, std::string> prefix_of;  // by snapshot
    for (const std::string prefix : {"abcd", "abx", "ab", "ayz", "q"}) {
      prefix_of[Leave(account, cache, prefix)] = prefix;
    }
    // abcd goes with c and d; abx with x; ab is a leaf then and goes with b, as a leads to ayz.
    const std::vector<int64_t> pages_left = {6, 5, 4, 1, 0};
    for (const int64_t left : pages_left) {
      const int64_t snapshots = cache.stats().snapshots;
      ASSERT_TRUE(by_pages ? cache.EvictPages(1) > 0 : cache.EvictSnapshot());
      EXPECT_EQ(cache.stats().pages, left);
      EXPECT_EQ(cache.stats().snapshots, snapshots - 1);
      EXPECT_EQ(account.free_pages(), 16 - left);
      EXPECT_EQ(account.free_slots(), 6 - (snapshots - 1));
      for (const std::string prompt : {"abcd", "abx", "ab", "ayz", "q"}) {
        const PrefixHit hit = cache.Take(Tokens(prompt), kBlockTokens * std::ssize(prompt));
        DropPages(account, hit.pages);
        EXPECT_EQ(std::ssize(hit.pages) * kBlockTokens, hit.tokens);
        EXPECT_EQ(hit.tokens == 0, hit.snapshot < 0);
        if (hit.tokens > 0) {
          EXPECT_EQ(prefix_of.at(hit.snapshot), prompt.substr(0, hit.pages.size()));
        }
      }
    }
    EXPECT_EQ(cache.EvictPages(1), 0);
    EXPECT_FALSE(cache.EvictSnapshot());
  }
}

TEST(PrefixCache, PagesOfSequencesStayTheirs) {
  CacheAccount account({.pages = 4, .slots = 2});
  PrefixCache cache(account, true);
  Leave(account, cache, "ab");
  const PrefixHit hit = cache.Take(Tokens("ab"), 32);
  EXPECT_EQ(cache.evictable_pages(), 0);
  EXPECT_EQ(cache.EvictPages(1), 0);
  EXPECT_EQ(Find(cache, "ab"), 32) << "what frees nothing changes nothing";
  EXPECT_TRUE(cache.EvictSnapshot());
  EXPECT_EQ(cache.stats().pages, 0);
  EXPECT_EQ(account.free_pages(), 2);
  DropPages(account, hit.pages);
  EXPECT_EQ(account.free_pages(), 4);
}

TEST(PrefixCache, APromptOf20000Pages) {
  constexpr int64_t kPages = 20'000;
  const auto start = std::chrono::steady_clock::now();
  for (const bool with_state : {false, true}) {
    CacheAccount account({.pages = 2 * kPages, .slots = 3});
    std::vector<TokenId> tokens(kPages * kBlockTokens);
    std::iota(tokens.begin(), tokens.end(), 0);
    PrefixCache cache(account, with_state);
    std::vector<int32_t> pages = TakePages(account, kPages);
    cache.Insert(tokens, pages, with_state ? account.TakeSlot() : -1);
    DropPages(account, pages);
    const PrefixHit hit = cache.Take(tokens, std::ssize(tokens));
    EXPECT_EQ(hit.pages, pages);
    EXPECT_EQ(cache.evictable_pages(), 0);
    DropPages(account, hit.pages);
    EXPECT_EQ(cache.evictable_pages(), kPages);
    if (with_state) {
      EXPECT_EQ(cache.EvictPages(1), kPages);
    } else {
      for (int64_t i = 0; i < kPages / 2; ++i) ASSERT_EQ(cache.EvictPages(1), 1);
      EXPECT_EQ(cache.Find(tokens, std::ssize(tokens)), kPages / 2 * kBlockTokens);
    }
    pages = TakePages(account, kPages);
    cache.Insert(tokens, pages, with_state ? account.TakeSlot() : -1);
    DropPages(account, pages);
    cache.Clear();
    EXPECT_EQ(account.free_pages(), 2 * kPages);
    EXPECT_EQ(account.free_slots(), 3);
  }
  // Quadratic work would be some 10^9 steps.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

// The cache as a plain list of prefixes.
struct Model {
  struct Entry {
    int32_t page;
    int32_t snapshot = -1;
    int used = 0;
    int snapshot_used = 0;
  };
  bool with_state;
  std::map<std::string, Entry> entries = {};
  std::map<int32_t, int> others = {};  // owners of a page besides the cache
  int now = 0;

  bool Leads(const std::string& prefix, bool to_snapshot) const {
    return std::any_of(entries.begin(), entries.end(), [&](const auto& e) {
      return e.first.starts_with(prefix) && (to_snapshot ? e.second.snapshot >= 0 : true);
    });
  }
  int64_t Find(const std::string& letters, int64_t limit) const {
    for (int64_t n = std::min(std::ssize(letters), limit / kBlockTokens); n > 0; --n) {
      const auto e = entries.find(letters.substr(0, static_cast<size_t>(n)));
      if (e != entries.end() && (!with_state || e->second.snapshot >= 0)) return n;
    }
    return 0;
  }
  void Use(const std::string& letters) {
    ++now;
    for (size_t n = 1; n <= letters.size(); ++n) entries.at(letters.substr(0, n)).used = now;
    entries.at(letters).snapshot_used = now;
  }
  bool Insert(const std::string& letters, const std::vector<int32_t>& pages, int32_t snapshot) {
    for (size_t n = 1; n <= letters.size(); ++n) {
      entries.emplace(letters.substr(0, n), Entry{.page = pages[n - 1]});
    }
    Entry& last = entries.at(letters);
    const bool taken = with_state && last.snapshot < 0;
    if (taken) last.snapshot = snapshot;
    Use(letters);
    return taken;
  }
  void Evict(const std::string& prefix) {
    std::erase_if(entries, [&](const auto& e) { return e.first.starts_with(prefix); });
    Prune();
  }
  void Prune() {
    if (!with_state) return;
    std::vector<std::string> useless;
    for (const auto& [prefix, entry] : entries) {
      if (!Leads(prefix, true)) useless.push_back(prefix);
    }
    for (const std::string& prefix : useless) entries.erase(prefix);
  }
  int Others(int32_t page) const { return others.contains(page) ? others.at(page) : 0; }
  int64_t Evictable() const {
    return std::count_if(entries.begin(), entries.end(),
                         [&](const auto& e) { return Others(e.second.page) == 0; });
  }
  int64_t EvictPages(int64_t wanted) {
    const int64_t before = Evictable();
    while (Evictable() > 0 && before - Evictable() < wanted) {
      const std::string* oldest = nullptr;  // of equally old ones the longest
      for (const auto& [prefix, entry] : entries) {
        if (Others(entry.page) > 0) continue;
        if (oldest == nullptr || std::tuple(entry.used, -std::ssize(prefix)) <
                                     std::tuple(entries.at(*oldest).used, -std::ssize(*oldest))) {
          oldest = &prefix;
        }
      }
      Evict(std::string(*oldest));
    }
    return before - Evictable();
  }
  bool EvictSnapshot() {
    Entry* oldest = nullptr;
    for (auto& [prefix, entry] : entries) {
      if (entry.snapshot < 0) continue;
      if (oldest == nullptr || entry.snapshot_used < oldest->snapshot_used) oldest = &entry;
    }
    if (oldest == nullptr) return false;
    oldest->snapshot = -1;
    Prune();
    return true;
  }
  int64_t Snapshots() const {
    return std::count_if(entries.begin(), entries.end(),
                         [](const auto& e) { return e.second.snapshot >= 0; });
  }
};

// One part with its cache, the model of it, and the sequences that run.
struct Part {
  static constexpr int64_t kPages = 24;
  static constexpr int64_t kSlots = 6;
  bool with_state;
  CacheAccount account{{.pages = kPages, .slots = kSlots}};
  PrefixCache cache{account, with_state};
  Model model{.with_state = with_state};
  std::vector<std::vector<int32_t>> running = {};

  void End(size_t sequence) {
    for (const int32_t page : running[sequence]) {
      account.DropPage(page);
      if (--model.others[page] == 0) model.others.erase(page);
    }
    running.erase(running.begin() + static_cast<std::ptrdiff_t>(sequence));
  }
  void EvictPages(int64_t wanted) {
    const int64_t evictable = model.Evictable();
    const int64_t freed = cache.EvictPages(wanted);
    RC_ASSERT(freed >= std::min(wanted, evictable));
    RC_ASSERT(freed == model.EvictPages(wanted));
  }
  // A sequence starts with what the cache has.
  void Take(const std::string& letters, int64_t limit) {
    const int64_t pages = model.Find(letters, limit);
    const PrefixHit hit = cache.Take(Tokens(letters), limit);
    RC_ASSERT(hit.tokens == pages * kBlockTokens);
    RC_ASSERT(std::ssize(hit.pages) == pages);
    if (pages == 0) {
      RC_ASSERT(hit.snapshot == -1);
      running.emplace_back();
      return;
    }
    const std::string prefix = letters.substr(0, static_cast<size_t>(pages));
    for (size_t n = 1; n <= prefix.size(); ++n) {
      RC_ASSERT(hit.pages[n - 1] == model.entries.at(prefix.substr(0, n)).page);
    }
    RC_ASSERT(hit.snapshot == model.entries.at(prefix).snapshot);
    model.Use(prefix);
    for (const int32_t page : hit.pages) ++model.others[page];
    running.push_back(hit.pages);
  }
  // The last sequence computes the rest of `letters`, as far as there is room, and they are kept.
  void Run(const std::string& letters) {
    std::vector<int32_t>& pages = running.back();
    const int64_t more = std::ssize(letters) - std::ssize(pages);
    if (account.free_pages() < more) EvictPages(more - account.free_pages());
    if (with_state && account.free_slots() == 0) {
      RC_ASSERT(cache.EvictSnapshot());
      RC_ASSERT(model.EvictSnapshot());
    }
    while (std::ssize(pages) < std::ssize(letters) && account.free_pages() > 0) {
      pages.push_back(account.TakePage());
      ++model.others[pages.back()];
    }
    const std::string kept = letters.substr(0, pages.size());
    if (kept.empty()) return;
    const int32_t slot = with_state ? account.TakeSlot() : -1;
    const bool taken = cache.Insert(Tokens(kept), pages, slot);
    RC_ASSERT(taken == model.Insert(kept, pages, slot));
    if (with_state && !taken) account.DropSlot(slot);
  }
  void Check() const {
    std::map<int32_t, int> owners = model.others;
    for (const auto& [prefix, entry] : model.entries) {
      ++owners[entry.page];
      RC_ASSERT(!with_state || model.Leads(prefix, true));
    }
    for (int32_t page = 0; page < kPages; ++page) {
      RC_ASSERT(account.owners(page) == (owners.contains(page) ? owners.at(page) : 0));
    }
    RC_ASSERT(account.free_pages() == kPages - std::ssize(owners));
    RC_ASSERT(account.free_slots() == kSlots - model.Snapshots());
    RC_ASSERT(cache.stats().pages == std::ssize(model.entries));
    RC_ASSERT(cache.stats().snapshots == model.Snapshots());
    RC_ASSERT(cache.evictable_pages() == model.Evictable());
  }
};

void ActsLikeItsModel(bool with_state) {
  Part part{.with_state = with_state};
  const auto letters =
      rc::gen::resize(5, rc::gen::container<std::string>(rc::gen::element('a', 'b')));
  const int steps = *rc::gen::inRange(1, 80);
  for (int i = 0; i < steps; ++i) {
    const std::string prompt = *letters;
    const int64_t limit = *rc::gen::inRange<int64_t>(0, kBlockTokens * 6);
    RC_ASSERT(part.cache.Find(Tokens(prompt), limit) ==
              kBlockTokens * part.model.Find(prompt, limit));
    switch (*rc::gen::inRange(0, 8)) {
      case 0:
        part.Take(prompt, limit);
        break;
      case 1:
      case 2:
        part.Take(prompt, limit);
        part.Run(prompt);
        break;
      case 3:  // as one that started before the others had left anything
        part.running.emplace_back();
        part.Run(prompt);
        break;
      case 4:
      case 5:
        if (!part.running.empty()) part.End(*rc::gen::inRange<size_t>(0, part.running.size()));
        break;
      case 6:
        part.EvictPages(*rc::gen::inRange<int64_t>(0, 5));
        break;
      default:
        RC_ASSERT(part.cache.EvictSnapshot() == part.model.EvictSnapshot());
    }
    part.Check();
  }
  part.cache.Clear();
  part.model.entries.clear();
  part.Check();
  while (!part.running.empty()) part.End(0);
  RC_ASSERT(part.account.free_pages() == Part::kPages);
  RC_ASSERT(part.account.free_slots() == Part::kSlots);
}

RC_GTEST_PROP(PrefixCache, ActsLikeItsModelWithState, ()) {
  ActsLikeItsModel(true);
}

RC_GTEST_PROP(PrefixCache, ActsLikeItsModelWithoutState, ()) {
  ActsLikeItsModel(false);
}

}  // namespace
}  // namespace signalbox
