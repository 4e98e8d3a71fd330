// SPDX-License-Identifier: Apache-2.0
//
// The values of one dispatch/combine exchange: what a sender gives, what a receiver gets. Shared by
// the oracle, the transport and whoever consumes rows; contracts say which parts are filled and
// how.
//
// Expert slots are numbered over all ranks: slot s lies on rank s / slots, at place s % slots.
// Values travel as float and ids as int32 here; id_bits and payloads of a contract say what a real
// library moves.
//
// Memory of received rows, by shape (row index -> meaning):
//   flat                  i                       the i-th row
//   rank_major_padded     s * T + i               the i-th row of sender s
//   expert_major_padded   e * R*T + i             the i-th row of local expert e
//   expert_major_compact  zone_begin[e] + i       the same; zones start at multiples of row_align
// Whatever a library leaves unwritten holds quiet NaNs, and kPoisonId where an id would be.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "signalbox/a2a/contract.h"
#include "signalbox/base/status.h"

namespace signalbox {

// Never an expert, never a spelling of "masked".
inline constexpr int32_t kPoisonId = 0x6e6e6e6e;
inline constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

// The sizes that all ranks of an exchange agree on.
struct ExchangeShape {
  int ranks = 1;
  int slots = 1;  // expert slots of one rank
  int hidden = 1;
  int top_k = 1;
  int64_t capacity = 0;     // T; 0 for contracts without one
  int64_t row_budget = 0;   // rows_bound = caller_budget: rows a rank sets aside; 0 = worst case
  bool worst_case = false;  // rows_bound = exact: fixed buffers of the worst case, no host counts
  bool round_bf16 = false;  // values are rounded where a library with 16-bit rows rounds them; off:
                            // float all the way, for comparison with one rank

  int total_slots() const { return ranks * slots; }
};

// The routing of a rank's own tokens, or of rows it received.
struct Routing {
  std::span<const int32_t> ids;    // [tokens, top_k] slots; -1 = masked
  std::span<const float> weights;  // [tokens, top_k]
};

// Where a row came from. lane -1: the row stands for all lanes of the token on this rank. source
// -1: nothing was written to the row.
struct Origin {
  int32_t source = -1;
  int32_t token = -1;
  int32_t lane = -1;
  friend bool operator==(const Origin&, const Origin&) = default;
};

// What one rank receives. Parts that the contract does not deliver are empty.
struct Delivered {
  RowShape shape = RowShape::kFlat;
  int64_t capacity = 0;              // rows of the buffers
  std::vector<float> rows;           // [capacity, hidden]
  std::vector<int32_t> ids;          // [capacity, top_k]
  std::vector<float> weights;        // [capacity, weight_cols]
  int weight_cols = 0;               // top_k, 1 (per row) or total_slots (dense)
  std::vector<int64_t> expert_rows;  // [slots]
  std::vector<int64_t> source_rows;  // [ranks]; expert-major shapes: [slots, ranks]
  std::optional<int64_t> total_rows;
  std::vector<int64_t> zone_begin;  // [slots], with zone_end: the rows of each expert
  std::vector<int64_t> zone_end;
  std::optional<int32_t> sanitised;  // masked = caller_id: the id now in all rows without a token
  bool overflow = false;             // overflow = drop_with_flag: rows were lost
  // The handle that combine needs. Consumers do not read it.
  std::vector<Origin> origins;  // [capacity]
};

// The rows of Delivered's buffers when `arrived` rows (with zone padding) arrive.
int64_t RowCapacity(const Contract& contract, const ExchangeShape& shape, int64_t arrived);
// Columns of Delivered::weights.
int WeightColumns(const Contract& contract, const ExchangeShape& shape);

// Where the rows of each local expert begin, in the expert-major shapes. REQUIRES: expert_rows or
// zone_begin.
std::vector<int64_t> ZoneBegins(const Contract& contract, const ExchangeShape& shape,
                                const Delivered& delivered);

// OK, or why a rank's tokens cannot be given to dispatch under this contract: token counts, span
// sizes, masked ids where they are not allowed, ids of no slot, and one expert twice in a token
// where that takes a second row (bounds on rows count distinct experts).
Status CheckInput(const Contract& contract, const ExchangeShape& shape, int64_t tokens,
                  int64_t x_size, const Routing& routing);

// OK, or why no exchange can be run with these sizes.
Status CheckShape(const Contract& contract, const ExchangeShape& shape);

// A routing without -1, for contracts that forbid it. Masked lanes take weight 0 and an expert that
// the token does not use yet, on a rank that it goes to anyway when there is one, so that one row
// per (token, rank) costs nothing and one row per (token, expert) one row. Tokens without any
// expert are left out. A library then computes 0 * expert(x), so x must be finite.
struct UnmaskedRouting {
  std::vector<int64_t> tokens;  // kept tokens: row i below belongs to token tokens[i]
  std::vector<int32_t> ids;     // [tokens.size(), top_k]
  std::vector<float> weights;   // [tokens.size(), top_k]
};
UnmaskedRouting WithoutMasked(const Routing& routing, const ExchangeShape& shape);

// The router weights that come back through combine, [tokens, top_k]; empty when none do.
std::vector<float> WeightsReturned(const Contract& contract, const ExchangeShape& shape,
                                   const Routing& routing);

// A fused contract seen as an exchange of compact rows whose weights are applied on the expert's
// rank: how this project executes it.
Contract FusedAsExchange(const Contract& fused);

// The arithmetic of combine, in one place so that every user rounds alike.
// Set: the bits that Add leaves in a cleared sum, without reading it.
void SetRow(std::span<const float> row, std::span<float> sum);                      // sum = 0 + row
void SetScaledRow(std::span<const float> row, float weight, std::span<float> sum);  // 0 + w * row
void AddRow(std::span<const float> row, std::span<float> sum);                      // sum += row
void AddScaledRow(std::span<const float> row, float weight, std::span<float> sum);  // += w * row
void RoundToBf16(std::span<float> values);

}  // namespace signalbox
