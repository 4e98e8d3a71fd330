// SPDX-License-Identifier: Apache-2.0
//
// DeliveredRows: the rows that one rank was given by a dispatch, on their way through its experts.
// Its functions are the layout steps of a plan between dispatch and combine, by the fields of the
// contract alone.
//
// No step moves a row. A layout is a list of delivered rows in the order of the current shape; the
// runner gathers by it, and results are summed back along it. Which rows are valid follows from
// what the contract promises to a consumer: counts, zones of experts, ids spelt as masked.
//
//   DeliveredRows rows(contract, shape, position);
//   SB_RETURN_IF_ERROR(rows.Reset(dispatched.rows()));
//   SB_RETURN_IF_ERROR(rows.RemapIds(SlotSpace::kLocal));
//   SB_RETURN_IF_ERROR(rows.Permute(RowShape::kExpertMajorCompact));
//   SB_RETURN_IF_ERROR(rows.Run(ops, scratch, experts, /*weigh=*/true));
//   SB_RETURN_IF_ERROR(rows.PermuteResults(contract.shape, /*weigh=*/false));
//   SB_ASSIGN_OR_RETURN(std::span<const float> expert_out, rows.Results());
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "signalbox/a2a/exchange.h"
#include "signalbox/base/status.h"
#include "signalbox/ops/ops.h"
#include "signalbox/tensor/scratch.h"

namespace signalbox {

// Whose numbering of expert slots ids are in.
enum class SlotSpace : uint8_t { kGlobal, kLocal };

class DeliveredRows {
 public:
  // `contract` is not fused. Contract and shape must outlive this. `read_too_far` is a deliberate
  // mistake for tests of verifications: the last valid row of every group is read from the row
  // after it.
  DeliveredRows(const Contract& contract, const ExchangeShape& shape, int position,
                bool read_too_far = false)
      : contract_(contract), shape_(shape), position_(position), read_too_far_(read_too_far) {}

  // Starts over with what a dispatch delivered, which must live until Results() were combined.
  // Internal when counts or ids contradict the contract.
  Status Reset(const Delivered& delivered);

  // The ids of rows in flat or rank-major shape, in slots of `to`. Local: other ranks' experts
  // become -1. Weights that arrive dense by expert are local from the start.
  Status RemapIds(SlotSpace to);
  // Rows beyond the valid ones read as zeros that ask for no expert.
  void MaskTail() { tail_masked_ = true; }
  // Rows in shape `to`. From one row per token to one per (token, local expert) where `to` is
  // expert-major; that needs local ids. There is no way back for rows.
  Status Permute(RowShape to);

  // The runner of the current shape, flat (local ids) or expert-major. REQUIRES: `experts` are
  // those of this rank, [slots]. `weigh`: multiplies by the router weights. Flat rows give the sum
  // over their experts.
  Status Run(Ops& ops, Scratch& scratch, std::span<const ExpertWeights> experts, bool weigh,
             const Activation& activation = {},
             ActivationPrecision precision = ActivationPrecision::kFloat);

  // Results in shape `to`, summed where several become one row.
  Status PermuteResults(RowShape to, bool weigh);

  // [capacity, hidden], in the rows that were delivered, for combine: rows that are not valid are
  // zeros. Once after each Run(), when the results are in the contract's shape.
  Result<std::span<const float>> Results();

  RowShape shape() const { return current_; }
  // Delivered rows in the order of the current shape, without gaps.
  std::span<const int64_t> rows() const { return rows_; }
  std::span<const int32_t> ids() const { return ids_; }          // [rows, top_k]; flat, rank-major
  std::span<const int64_t> offsets() const { return offsets_; }  // [slots + 1]; expert-major

 private:
  enum class Stage : uint8_t { kEmpty, kRows, kResults };

  Status ListZones();
  Status ListTokenRows();
  Status ReadLanes();
  Status ReadDenseLanes();
  bool IsMasked(int32_t id) const;
  void GroupByExpert();
  Status CheckRun(bool weigh) const;
  const float* GatherInput(Ops& ops, Scratch& scratch) const;
  void ReadTooFar(std::vector<int64_t>& reads) const;
  void WeighResults();
  ErrorDetail Error() const;

  const Contract& contract_;
  const ExchangeShape& shape_;
  const int position_;
  const bool read_too_far_;

  const Delivered* delivered_ = nullptr;
  Stage stage_ = Stage::kEmpty;
  RowShape current_ = RowShape::kNone;
  SlotSpace space_ = SlotSpace::kGlobal;
  bool tail_masked_ = false;
  std::vector<int64_t> valid_;    // delivered rows that combine will read, ascending
  std::vector<int64_t> rows_;     // [n] delivered row of each row in the current shape
  std::vector<int32_t> ids_;      // [n, top_k]; -1 = masked; empty in expert-major shapes
  std::vector<float> weights_;    // [n, top_k], expert-major [n]; empty when none arrived
  std::vector<int64_t> offsets_;  // [slots + 1] rows of each expert, in expert-major shapes
  std::vector<float> y_;          // [n, hidden] results
  std::vector<float> results_;    // [capacity, hidden]
};

}  // namespace signalbox
