// SPDX-License-Identifier: Apache-2.0
//
// CacheAccount: who has which page and which state slot of one part. It is kept by the leading
// process alone and holds no memory; CachePool is the memory, on every rank of the part, under the
// same numbers. A page may be shared, a slot may not.
//
//   CacheAccount account({.pages = 64, .slots = 8});
//   int32_t page = account.TakePage();   // -1: none is free
//   account.SharePage(page); account.DropPage(page); account.DropPage(page);   // free again
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "signalbox/cache/cache_pool.h"

namespace signalbox {

class CacheAccount {
 public:
  explicit CacheAccount(const CacheSize& size);

  // -1 when none is free. Lowest numbers go first, so an idle budget stays untouched memory.
  int32_t TakePage();
  int32_t TakeSlot();
  // One more owner. REQUIRES: the page has one.
  void SharePage(int32_t page);
  // One owner less; the page is free when it was the last. REQUIRES: as above.
  void DropPage(int32_t page);
  void DropSlot(int32_t slot);

  int32_t owners(int32_t page) const { return owners_[static_cast<size_t>(page)]; }
  int64_t free_pages() const { return static_cast<int64_t>(free_pages_.size()); }
  int64_t free_slots() const { return static_cast<int64_t>(free_slots_.size()); }
  const CacheSize& size() const { return size_; }

 private:
  CacheSize size_;
  std::vector<int32_t> free_pages_;  // heaps, lowest first
  std::vector<int32_t> free_slots_;
  std::vector<int32_t> owners_;  // [pages]
  std::vector<bool> taken_;      // [slots]
};

}  // namespace signalbox
