// SPDX-License-Identifier: Apache-2.0
//
// TokenConstraint: what a request's next token may be, as somebody outside the engine says (a
// grammar over text). The engine asks before each token is sampled and tells which one was chosen,
// in the order of the sequence; a constraint is of one request and has its state.
//
//   SB_RETURN_IF_ERROR(constraint->Allowed(mask));           // [(usable vocab + 31) / 32] words
//   SB_ASSIGN_OR_RETURN(auto next, Sample(params, {.logits = row, .allowed = mask}));
//   SB_RETURN_IF_ERROR(constraint->Accept(next.token));      // stop ids too
#pragma once

#include <cstdint>
#include <span>

#include "signalbox/base/ids.h"
#include "signalbox/base/status.h"

namespace signalbox {

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Writes every word of `mask`: id i is bit i % 32 of word i / 32 (SampleInput::allowed).
  // An error ends the request: what its grammar allows takes too long to find out.
  virtual Status Allowed(std::span<uint32_t> mask) = 0;
  // The token that was sampled. An error where it was not allowed; the constraint is then as
  // before.
  virtual Status Accept(TokenId token) = 0;

 protected:
  TokenConstraint() = default;
  TokenConstraint(const TokenConstraint&) = default;
  TokenConstraint& operator=(const TokenConstraint&) = default;
};

}  // namespace signalbox
