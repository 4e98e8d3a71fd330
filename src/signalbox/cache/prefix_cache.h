// SPDX-License-Identifier: Apache-2.0
//
// PrefixCache: which pages and snapshots of one part hold the beginnings of earlier prompts, so
// that a prompt that begins alike need not compute them again. A tree: a node is one page, named by
// its parent and its 16 tokens, and perhaps has a snapshot of the state after them. It is
// bookkeeping of the leading process, like CacheAccount: no memory, no device.
//
// Laws, of a model with linear layers ("with state"):
//   - a sequence starts where a snapshot is, so every leaf has one;
//   - pages and snapshot of a hit are of the same position;
//   - an eviction takes what has become useless with what it evicts: never one half of a leaf.
// Without state there are no snapshots, and a sequence starts behind any node.
//
// The cache is one owner of each of its pages. Sequences may be others; a page of theirs can leave
// the cache and stays theirs. Least recently used goes first. A node is used when a hit or an
// insertion goes through it, its snapshot when one ends there.
//
// Cost: every call is linear in the pages of its prompt or in what it evicts, but for the two that
// say so. Nothing recurses.
//
//   PrefixCache cache(account, /*needs_state=*/true);
//   if (!cache.Insert(tokens, pages, slot)) account.DropSlot(slot);   // it has such a snapshot
//   PrefixHit hit = cache.Take(prompt, prompt.size() - 1);            // somebody computes logits
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "signalbox/base/ids.h"
#include "signalbox/cache/cache_account.h"

namespace signalbox {

// A beginning of a prompt that is in the cache.
struct PrefixHit {
  int64_t tokens = 0;          // whole pages
  std::vector<int32_t> pages;  // tokens / kBlockTokens, in order
  int32_t snapshot = -1;       // slot with the state after them; -1: no hit, or no state
};

struct PrefixStats {
  int64_t pages = 0;              // in the cache now
  int64_t snapshots = 0;          // in the cache now
  int64_t evicted_pages = 0;      // ever, those included that sequences went on using
  int64_t evicted_snapshots = 0;  // ever
};

class PrefixCache {
 public:
  // needs_state: the model has linear layers. The account outlives the cache.
  PrefixCache(CacheAccount& account, bool needs_state);
  ~PrefixCache();  // gives everything back
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // How many of the first `limit` tokens Take would find. Changes nothing.
  int64_t Find(std::span<const TokenId> tokens, int64_t limit) const;

  // The longest beginning of at most `limit` tokens that a sequence can start behind. It counts as
  // used, and the caller becomes an owner of every page. The snapshot stays the cache's, and the
  // caller copies from it in the step that is being put together. It may be evicted and its slot
  // given away before that step runs: copies happen in order and before everything else, so who
  // writes the slot next does so after the copy.
  PrefixHit Take(std::span<const TokenId> tokens, int64_t limit);

  // Keeps `tokens`, whole pages of them, for others. Of the caller's pages, tokens / kBlockTokens,
  // the cache becomes an owner where it has none yet for the same tokens; where it has, its own
  // stays. With state `snapshot` is a slot with the state after `tokens`, else -1. Returns whether
  // the cache has become the owner of that slot; if not, it is the caller's as before.
  bool Insert(std::span<const TokenId> tokens, std::span<const int32_t> pages, int32_t snapshot);

  // Frees at least `wanted` pages, or all that only the cache owns when these are fewer; returns
  // how many. Pages that sequences own stay, unless they lie behind one that goes or lead nowhere
  // any more. Such pages, when used longer ago than those that go, are passed over once a call: ask
  // for many pages at once.
  int64_t EvictPages(int64_t wanted);

  // Frees one slot, and the pages that led to this snapshot alone. False: there is no snapshot.
  bool EvictSnapshot();

  // What EvictPages can free: pages that only the cache owns. Linear in the pages of the cache, as
  // sequences give pages back without asking it.
  int64_t evictable_pages() const;

  PrefixStats stats() const;
  void Clear();

 private:
  using UseOrder = std::list<int32_t>;  // least recently used first

  struct Name {
    int32_t parent;  // its page; -1: the beginning
    std::array<TokenId, kBlockTokens> tokens;
    bool operator==(const Name&) const = default;
  };
  struct NameHash {
    size_t operator()(const Name& name) const;
  };
  struct Node {
    bool kept = false;  // the page is in the cache
    Name name = {};
    int32_t snapshot = -1;
    int32_t first_child = -1;
    int32_t previous_sibling = -1;
    int32_t next_sibling = -1;
    UseOrder::iterator use;
    UseOrder::iterator snapshot_use;  // if it has one
  };

  Node& node(int32_t page) { return nodes_[static_cast<size_t>(page)]; }
  const Node& node(int32_t page) const { return nodes_[static_cast<size_t>(page)]; }
  int32_t& FirstChild(int32_t parent) { return parent < 0 ? first_ : node(parent).first_child; }

  std::vector<int32_t> Match(std::span<const TokenId> tokens, int64_t limit) const;
  void MarkUsed(std::span<const int32_t> path);
  void Add(const Name& name, int32_t page);
  int32_t EvictLeaf(int32_t page);
  void DropSnapshot(int32_t page);
  UseOrder::iterator EvictTree(int32_t page);

  CacheAccount& account_;
  bool needs_state_;
  std::vector<Node> nodes_;  // by page: a page is in the cache once at most
  int32_t first_ = -1;       // of the nodes at the beginning of prompts
  std::unordered_map<Name, int32_t, NameHash> by_name_;
  // Parents are behind their children in it: who uses a node uses all above it. So the first is a
  // leaf, and what is behind a node in the tree is before it here.
  UseOrder by_use_;
  UseOrder snapshots_by_use_;  // of the nodes that have one
  int64_t evicted_pages_ = 0;
  int64_t evicted_snapshots_ = 0;
};

}  // namespace signalbox
