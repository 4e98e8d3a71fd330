// SPDX-License-Identifier: Apache-2.0
//
// From a model to what the planner has to know: kinds of layers, head counts, widths and their
// formats as the tensors have them, bytes. Formats are read from the weights, never from a config's
// claims.
//
//   SB_ASSIGN_OR_RETURN(ModelWeights whole, BindWeights(checkpoint, facts));
//   ModelLayout layout = DescribeLayout(facts, whole);
//   layout.facts.kinds[layout.kind_of_layer[3]].kind;   // "attention + moe with shared expert"
#pragma once

#include <vector>

#include "signalbox/model/facts.h"
#include "signalbox/model/weights.h"
#include "signalbox/plan/facts.h"
#include "signalbox/tensor/dtype.h"

namespace signalbox {

struct ModelLayout {
  LayoutFacts facts;
  std::vector<size_t> kind_of_layer;  // [layers, then the draft layer where there is one]
};

// `whole` is loaded without a cut; keys and values are cached in `kv_dtype`.
ModelLayout DescribeLayout(const ModelFacts& facts, const ModelWeights& whole,
                           DType kv_dtype = DType::kF32);

}  // namespace signalbox
