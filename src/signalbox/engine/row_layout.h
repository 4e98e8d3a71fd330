// SPDX-License-Identifier: Apache-2.0
//
// RowLayout: which rows of a step each rank holds, for any set of axes that shards them. Every rank
// knows the whole batch, so nobody has to ask anybody.
//
// Axes that hand out whole sequences split the batch into parts; a part is padded and seen as an
// array with one block per rank along the other axes, in mesh order (plan/value.h). Rows are
// numbered over all parts.
//
//   RowLayout layout(mesh, attn_dp, RankId(1), {.tokens = {5, 3}, .multiple = 2});
//   layout.RowsOf(RankId(1), attn_dp | attn_tp);   // e.g. {3, 4, 5}
#pragma once

#include <cstdint>
#include <vector>

#include "signalbox/base/ids.h"
#include "signalbox/mesh/mesh.h"

namespace signalbox {

struct BatchParts {
  std::vector<int64_t> tokens;  // new tokens of each part, by position over the sequence axes
  int64_t multiple = 1;         // parts are padded to a multiple of it
  bool equal = false;           // and to the length of the longest, one row at least
};

class RowLayout {
 public:
  RowLayout(const Mesh& mesh, AxisSet sequence_axes, RankId rank, const BatchParts& parts);

  // Own tokens, without padding: the first rows of RowsOf(rank, sequence_axes).
  int64_t tokens() const { return tokens_[static_cast<size_t>(part_)]; }
  // Number of the first of them.
  int64_t first() const { return begin_[static_cast<size_t>(part_)]; }
  // Numbers of the rows that `rank` holds, ascending.
  std::vector<int64_t> RowsOf(RankId rank, AxisSet rows) const;
  bool IsPadding(int64_t row) const;

 private:
  const Mesh& mesh_;
  AxisSet sequence_axes_;
  int part_;                     // own position over the sequence axes
  std::vector<int64_t> tokens_;  // per part
  std::vector<int64_t> begin_;   // first row of each part, and the end
};

}  // namespace signalbox
