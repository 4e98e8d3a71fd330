// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cache/prefix_cache.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <string_view>
#include <type_traits>

#include "signalbox/base/check.h"

namespace signalbox {
namespace {

std::array<TokenId, kBlockTokens> PageOf(std::span<const TokenId> tokens, int64_t page) {
  std::array<TokenId, kBlockTokens> out;
  std::copy_n(tokens.begin() + page * kBlockTokens, kBlockTokens, out.begin());
  return out;
}

}  // namespace

size_t PrefixCache::NameHash::operator()(const Name& name) const {
  static_assert(std::has_unique_object_representations_v<Name>, "its bytes are its value");
  return std::hash<std::string_view>{}({reinterpret_cast<const char*>(&name), sizeof(name)});
}

PrefixCache::PrefixCache(CacheAccount& account, bool needs_state)
    : account_(account),
      needs_state_(needs_state),
      nodes_(static_cast<size_t>(account.size().pages)) {}

PrefixCache::~PrefixCache() {
  Clear();
}

int64_t PrefixCache::Find(std::span<const TokenId> tokens, int64_t limit) const {
  return std::ssize(Match(tokens, limit)) * kBlockTokens;
}

PrefixHit PrefixCache::Take(std::span<const TokenId> tokens, int64_t limit) {
  PrefixHit hit{.pages = Match(tokens, limit)};
  if (hit.pages.empty()) return hit;
  hit.tokens = std::ssize(hit.pages) * kBlockTokens;
  hit.snapshot = node(hit.pages.back()).snapshot;
  for (const int32_t page : hit.pages) account_.SharePage(page);
  MarkUsed(hit.pages);
  return hit;
}

bool PrefixCache::Insert(std::span<const TokenId> tokens, std::span<const int32_t> pages,
                         int32_t snapshot) {
  SB_CHECK(tokens.size() == pages.size() * kBlockTokens) << tokens.size() << " " << pages.size();
  SB_CHECK((snapshot >= 0) == needs_state_) << snapshot;
  if (pages.empty()) return false;
  std::vector<int32_t> path;
  path.reserve(pages.size());
  for (const int32_t page : pages) {
    const Name name{.parent = path.empty() ? -1 : path.back(),
                    .tokens = PageOf(tokens, std::ssize(path))};
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) Add(name, page);
    path.push_back(found == by_name_.end() ? page : found->second);
  }
  Node& last = node(path.back());
  const bool takes_snapshot = needs_state_ && last.snapshot < 0;
  if (takes_snapshot) {
    last.snapshot = snapshot;
    last.snapshot_use = snapshots_by_use_.insert(snapshots_by_use_.end(), path.back());
  }
  MarkUsed(path);
  return takes_snapshot;
}

int64_t PrefixCache::EvictPages(int64_t wanted) {
  const int64_t free_before = account_.free_pages();
  auto at = by_use_.begin();
  while (at != by_use_.end() && account_.free_pages() - free_before < wanted) {
    at = account_.owners(*at) > 1 ? std::next(at) : EvictTree(*at);
  }
  return account_.free_pages() - free_before;
}

bool PrefixCache::EvictSnapshot() {
  if (snapshots_by_use_.empty()) return false;
  const int32_t page = snapshots_by_use_.front();
  if (node(page).first_child < 0) {
    EvictTree(page);
  } else {
    DropSnapshot(page);
  }
  return true;
}

int64_t PrefixCache::evictable_pages() const {
  return std::count_if(by_use_.begin(), by_use_.end(),
                       [&](int32_t page) { return account_.owners(page) == 1; });
}

PrefixStats PrefixCache::stats() const {
  return {.pages = std::ssize(by_use_),
          .snapshots = std::ssize(snapshots_by_use_),
          .evicted_pages = evicted_pages_,
          .evicted_snapshots = evicted_snapshots_};
}

void PrefixCache::Clear() {
  for (const int32_t page : snapshots_by_use_) account_.DropSlot(node(page).snapshot);
  for (const int32_t page : by_use_) {
    account_.DropPage(page);
    node(page) = {};
  }
  snapshots_by_use_.clear();
  by_use_.clear();
  by_name_.clear();
  first_ = -1;
}

// The pages of the longest beginning that a sequence can start behind.
std::vector<int32_t> PrefixCache::Match(std::span<const TokenId> tokens, int64_t limit) const {
  const int64_t whole = std::min(std::ssize(tokens), limit) / kBlockTokens;
  std::vector<int32_t> path;
  size_t usable = 0;
  while (std::ssize(path) < whole) {
    const auto found = by_name_.find(
        {.parent = path.empty() ? -1 : path.back(), .tokens = PageOf(tokens, std::ssize(path))});
    if (found == by_name_.end()) break;
    path.push_back(found->second);
    if (!needs_state_ || node(found->second).snapshot >= 0) usable = path.size();
  }
  path.resize(usable);
  return path;
}

// Of a path from the beginning: its nodes, last first, and the snapshot at its end.
void PrefixCache::MarkUsed(std::span<const int32_t> path) {
  for (auto page = path.rbegin(); page != path.rend(); ++page) {
    by_use_.splice(by_use_.end(), by_use_, node(*page).use);
  }
  if (const Node& last = node(path.back()); last.snapshot >= 0) {
    snapshots_by_use_.splice(snapshots_by_use_.end(), snapshots_by_use_, last.snapshot_use);
  }
}

void PrefixCache::Add(const Name& name, int32_t page) {
  SB_CHECK(!node(page).kept) << "page " << page << " is in the cache with other tokens";
  account_.SharePage(page);
  int32_t& first = FirstChild(name.parent);
  node(page) = {.kept = true,
                .name = name,
                .next_sibling = first,
                .use = by_use_.insert(by_use_.end(), page)};
  if (first >= 0) node(first).previous_sibling = page;
  first = page;
  by_name_.emplace(name, page);
}

// Returns its parent.
int32_t PrefixCache::EvictLeaf(int32_t page) {
  const Node leaf = node(page);
  SB_CHECK(leaf.first_child < 0) << page;
  if (leaf.snapshot >= 0) DropSnapshot(page);
  (leaf.previous_sibling < 0 ? FirstChild(leaf.name.parent)
                             : node(leaf.previous_sibling).next_sibling) = leaf.next_sibling;
  if (leaf.next_sibling >= 0) node(leaf.next_sibling).previous_sibling = leaf.previous_sibling;
  by_name_.erase(leaf.name);
  by_use_.erase(leaf.use);
  node(page) = {};
  account_.DropPage(page);
  ++evicted_pages_;
  return leaf.name.parent;
}

void PrefixCache::DropSnapshot(int32_t page) {
  account_.DropSlot(node(page).snapshot);
  node(page).snapshot = -1;
  snapshots_by_use_.erase(node(page).snapshot_use);
  ++evicted_snapshots_;
}

// Evicts a node, all behind it, and with state those above it that lead to no snapshot any more.
// Returns the next in the order of use that is left.
PrefixCache::UseOrder::iterator PrefixCache::EvictTree(int32_t page) {
  UseOrder::iterator next = std::next(node(page).use);
  int32_t at = page;
  while (node(page).kept) {
    while (node(at).first_child >= 0) at = node(at).first_child;
    at = EvictLeaf(at);
  }
  while (needs_state_ && at >= 0 && node(at).first_child < 0 && node(at).snapshot < 0) {
    if (next == node(at).use) ++next;
    at = EvictLeaf(at);
  }
  return next;
}

}  // namespace signalbox
