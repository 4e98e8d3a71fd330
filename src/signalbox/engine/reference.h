// SPDX-License-Identifier: Apache-2.0
//
// Comparison with a reference: a safetensors file with ids.N [tokens] I32 and logits.N [tokens,
// vocab] F32.
//
//   SB_ASSIGN_OR_RETURN(auto sequences, ReadReference("reference_logits.safetensors", vocab));
//   SB_ASSIGN_OR_RETURN(auto logits, AllLogits(*engine, sequences[0].ids, /*chunk=*/64));
//   RelativeError(logits, sequences[0].logits) <= 1e-4;
#pragma once

#include <span>
#include <string>
#include <vector>

#include "signalbox/base/ids.h"
#include "signalbox/base/status.h"
#include "signalbox/engine/engine.h"

namespace signalbox {

struct ReferenceSequence {
  std::vector<TokenId> ids;   // [tokens]
  std::vector<float> logits;  // [tokens, vocab]
};

// kInvalidArgument when the file has other tensors or shapes, kBadCheckpoint when it is damaged.
Result<std::vector<ReferenceSequence>> ReadReference(const std::string& path, int64_t vocab);

// Logits of every position [tokens, vocab], the sequence fed in pieces of at most `chunk` tokens.
Result<std::vector<float>> AllLogits(Engine& engine, const std::vector<TokenId>& ids,
                                     int64_t chunk);

// Relative Frobenius error |got - want| / |want|. A NaN in either gives NaN, which passes no
// tolerance. REQUIRES: equal sizes.
double RelativeError(std::span<const float> got, std::span<const float> want);

}  // namespace signalbox
