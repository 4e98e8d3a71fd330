// SPDX-License-Identifier: Apache-2.0
//
// LayerExecutor: runs the steps of a plan, and nothing else. It maps each step to the layer math
// and keeps the layer's registers; which steps there are, in which order, is the plan's business.
//
//   LayerExecutor executor(ctx);
//   SB_RETURN_IF_ERROR(executor.Run(plan, layer, x));   // x [tokens, hidden], updated in place
#pragma once

#include <functional>

#include "signalbox/base/status.h"
#include "signalbox/model/layer_math.h"
#include "signalbox/plan/step.h"

namespace signalbox {

// One layer's share of a forward pass.
struct LayerRun {
  int layer = 0;  // for observers; the draft layer is number facts.layers.size()
  const LayerFacts* facts = nullptr;
  const LayerWeights* weights = nullptr;
  const RopeTable* rope = nullptr;  // attention layers
  TokenBatch batch;
  AttentionState attention;
  DeltaNetState delta;
};

// What a step left in its destination.
struct StepTrace {
  int layer;
  const Step* step;
  const float* data;   // [rows, width]; for kRoute the weights [rows, top_k]
  const int32_t* ids;  // kRoute: [rows, top_k], else null
  int64_t rows;
  int64_t width;
};
using StepObserver = std::function<void(const StepTrace&)>;

class LayerExecutor {
 public:
  explicit LayerExecutor(const MathContext& context, const StepObserver* observer = nullptr)
      : context_(context), observer_(observer) {}

  Status Run(const LayerPlan& plan, const LayerRun& run, float* x);

 private:
  // Registers of the layer at hand; buffers live in the scratch of one Run.
  struct Registers {
    float* data[static_cast<size_t>(Reg::kCount)] = {};
    int32_t* ids = nullptr;  // of kRouting
    float*& operator[](Reg reg) { return data[static_cast<size_t>(reg)]; }
  };
  Status Execute(const Step& step, const LayerRun& run, Registers& regs);
  float* Buffer(Reg reg, Registers& regs, int64_t floats);

  MathContext context_;
  const StepObserver* observer_;
};

}  // namespace signalbox
