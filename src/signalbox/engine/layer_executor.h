// SPDX-License-Identifier: Apache-2.0
//
// LayerExecutor: runs the steps of a plan on one rank, and nothing else. Operations of the model go
// to the layer math, layout steps to the communicator and the exchange; which steps there are, in
// which order, over which axes, is the plan's business. It checks nothing: that is the checker's,
// before the first token.
//
// On request it carries the addends of the layer's output along: every step that is linear is done
// to each of them as well, so that at the exit one can see which of them is not what it should be.
//
//   LayerExecutor executor(ctx, world, &observer);
//   SB_RETURN_IF_ERROR(executor.Run(plan, layer, x));   // x: this rank's rows of the residual
//   stream
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "signalbox/base/status.h"
#include "signalbox/comm/communicator.h"
#include "signalbox/engine/row_layout.h"
#include "signalbox/mesh/mesh.h"
#include "signalbox/model/layer_math.h"
#include "signalbox/moe/expert_exchange.h"
#include "signalbox/moe/placement.h"
#include "signalbox/plan/planner.h"
#include "signalbox/plan/step.h"

namespace signalbox {

// Snapshots of the residual between layers, rows as in the layers' input.
struct SnapshotBank {
  float* rows = nullptr;  // [rows, snapshots, hidden]; room for one more
  int64_t snapshots = 0;
};

// One layer's share of a forward pass.
struct LayerRun {
  int layer = 0;  // for observers; the draft layer is number facts.layers.size()
  const LayerFacts* facts = nullptr;
  const LayerWeights* weights = nullptr;
  const RopeTable* rope = nullptr;  // attention layers
  TokenBatch batch;
  AttentionState attention;
  DeltaNetState delta;
  const LayerCut* cut = nullptr;               // how the layer's weights are cut
  const ExpertPlacement* placement = nullptr;  // null without experts
  ExpertExchange* exchange = nullptr;          // null where rows are not exchanged
  SnapshotBank* bank = nullptr;                // null where no snapshots are kept
  // [slots] (token, expert) pairs so far; each row is counted by the first rank that holds it.
  std::span<int64_t> pairs = {};
};

// The ranks around this one, for a step of the engine.
struct RankWorld {
  const Mesh* mesh = nullptr;
  RankId rank;
  Communicator* comm = nullptr;  // null on one rank
  const RowLayout* rows = nullptr;
  AxisSet rows_in;             // axes that shard the residual rows of a layer's input
  bool first_replica = false;  // of an expert that has several; else rows take turns
  RowFaults faults;            // deliberate mistakes of the fault gallery
  ActivationPrecision precision = ActivationPrecision::kFloat;  // of the experts' inputs
};

// What one addend contributes to a layer's output, in the rows that this rank holds.
struct ExitAddend {
  std::string_view name;    // one of addend::
  std::vector<float> rows;  // [rows, hidden]
};

// What a step left in its destination.
struct StepTrace {
  int layer;
  const Step* step;
  const float* data;   // [rows, width]; for kRouting the weights [rows, lanes]
  const int32_t* ids;  // kRouting: [rows, lanes], else null
  int64_t rows;        // held by this rank
  int64_t width;
  std::span<const int64_t> numbers;  // [rows] row numbers in the batch (RowLayout)
};
using StepObserver = std::function<void(const StepTrace&)>;

class LayerExecutor {
 public:
  // `addends`: appends those of the output of every layer that is run. Collective: all ranks ask
  // for them or none.
  LayerExecutor(const MathContext& context, const RankWorld& world,
                const StepObserver* observer = nullptr, std::vector<ExitAddend>* addends = nullptr)
      : context_(context), world_(world), observer_(observer), addends_(addends) {}

  // x [rows, hidden]: the layer's input on entry, its output on return, both over world.rows_in.
  Status Run(const LayerPlan& plan, const LayerRun& run, float* x);

 private:
  struct Addend {
    std::string_view name;
    float* data;  // like the register's
  };
  struct Register {
    float* data = nullptr;  // [rows.size(), width]
    int64_t width = 0;
    AxisSet axes;                    // that shard the rows
    std::vector<int64_t> rows;       // numbers of the rows held
    int32_t* ids = nullptr;          // kRouting: [rows.size(), width]
    IdSpace space = IdSpace::kNone;  // of `ids`
    std::vector<Addend> addends;     // that sum to `data`, where they are carried
    int64_t count() const { return static_cast<int64_t>(rows.size()); }
    int64_t floats() const { return count() * width; }
  };
  Register& At(Reg reg) { return registers_[static_cast<size_t>(reg)]; }
  // Gives `reg` a buffer for rows sharded over `axes`.
  Register& Make(Reg reg, AxisSet axes, int64_t width);
  // The same with the rows of `like`.
  Register& MakeLike(Reg reg, const Register& like, int64_t width);

  Status Execute(const Step& step, const LayerRun& run);
  Status ExecuteWithAddends(const Step& step, const LayerRun& run);
  Result<std::vector<Addend>> CarryAddends(const Step& step, const Register& src,
                                           const LayerRun& run);
  void MergeAddends(const Register& src, Register* dst);
  Addend CopyOf(std::string_view name, const Register& reg, const float* data);
  Status ModelStep(const Step& step, const LayerRun& run);
  Status LayoutStep(const Step& step, const LayerRun& run);
  void Mixer(const Step& step, const LayerRun& run);
  void Route(const Step& step, const LayerRun& run);
  void Experts(const Step& step, const LayerRun& run);
  void AppendShared(const Step& step, const LayerRun& run);
  void Norm(const Step& step, const LayerRun& run);
  void Mix(const Step& step, const LayerRun& run);
  void Snapshot(const Step& step);
  Status AllReduce(const Step& step);
  Status ReduceScatter(const Step& step);
  Status AllGather(const Step& step);
  void Slice(Reg dst, const Register& src, AxisSet axes);
  void MaskPadding();
  void RemapRouting(const Step& step, const LayerRun& run);
  void CountPairs(const LayerRun& run);
  int32_t LocalSlot(int32_t id, IdSpace space, int position, const LayerRun& run) const;
  Status ExchangeStep(const Step& step, const LayerRun& run);

  MathContext context_;
  RankWorld world_;
  const StepObserver* observer_;
  std::vector<ExitAddend>* addends_;
  Register registers_[static_cast<size_t>(Reg::kCount)];
  Register input_;  // of the layer, where a step reads it again
  Register input_bank_;
};

}  // namespace signalbox
