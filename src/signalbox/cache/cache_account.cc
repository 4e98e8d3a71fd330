// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cache/cache_account.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "signalbox/base/check.h"

namespace signalbox {
namespace {

int32_t TakeLowest(std::vector<int32_t>* heap) {
  if (heap->empty()) return -1;
  std::pop_heap(heap->begin(), heap->end(), std::greater<>());
  const int32_t lowest = heap->back();
  heap->pop_back();
  return lowest;
}

void PutBack(std::vector<int32_t>* heap, int32_t number) {
  heap->push_back(number);
  std::push_heap(heap->begin(), heap->end(), std::greater<>());
}

}  // namespace

CacheAccount::CacheAccount(const CacheSize& size)
    : size_(size),
      free_pages_(static_cast<size_t>(size.pages)),
      free_slots_(static_cast<size_t>(size.slots)),
      owners_(static_cast<size_t>(size.pages), 0),
      taken_(static_cast<size_t>(size.slots), false) {
  // An ascending list is such a heap.
  std::iota(free_pages_.begin(), free_pages_.end(), 0);
  std::iota(free_slots_.begin(), free_slots_.end(), 0);
}

int32_t CacheAccount::TakePage() {
  const int32_t page = TakeLowest(&free_pages_);
  if (page >= 0) owners_[static_cast<size_t>(page)] = 1;
  return page;
}

int32_t CacheAccount::TakeSlot() {
  const int32_t slot = TakeLowest(&free_slots_);
  if (slot >= 0) taken_[static_cast<size_t>(slot)] = true;
  return slot;
}

void CacheAccount::SharePage(int32_t page) {
  SB_CHECK(owners(page) > 0) << page;
  ++owners_[static_cast<size_t>(page)];
}

void CacheAccount::DropPage(int32_t page) {
  SB_CHECK(owners(page) > 0) << page;
  if (--owners_[static_cast<size_t>(page)] == 0) PutBack(&free_pages_, page);
}

void CacheAccount::DropSlot(int32_t slot) {
  SB_CHECK(taken_[static_cast<size_t>(slot)]) << slot;
  taken_[static_cast<size_t>(slot)] = false;
  PutBack(&free_slots_, slot);
}

}  // namespace signalbox
