// SPDX-License-Identifier: Apache-2.0
//
// Sequence: a request on its way, and what it has of the cache. One rule says what it needs next:
// its tokens [length, ids) computed. A prompt, a sequence that was pre-empted and one that decodes
// differ in how many these are.
#pragma once

#include <cstdint>
#include <vector>

#include "signalbox/engine/request.h"

namespace signalbox {

struct Sequence {
  int64_t id = 0;
  GenerationRequest request;
  std::vector<TokenId> ids;     // prompt and generated
  std::vector<TokenId> drafts;  // guesses of what follows ids

  // Of the cache; empty while it waits.
  int32_t part = -1;
  int64_t length = 0;           // of ids, in the cache
  std::vector<int32_t> pages;   // of its part
  std::vector<int32_t> slots;   // the state at `length` is in the first; the others are for windows
  int64_t snapshot_length = 0;  // whole pages
  int32_t snapshot = -1;        // state there, to be left behind for others
  int64_t started_in_cache = -1;  // tokens found in the prefix cache when it was last started

  RequestStats stats;
  bool cancelled = false;

  bool running() const { return part >= 0; }
  int64_t pending() const { return std::ssize(ids) - length; }
  // Its next step samples, and nothing but the last token is to be computed.
  bool decodes() const { return pending() == 1; }
  int64_t generated() const { return std::ssize(ids) - std::ssize(request.prompt); }
  std::span<const TokenId> generated_ids() const {
    return std::span(ids).subspan(request.prompt.size());
  }
};

}  // namespace signalbox
