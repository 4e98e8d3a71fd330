// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/row_layout.h"

#include <algorithm>

#include "signalbox/base/check.h"

namespace signalbox {

RowLayout::RowLayout(const Mesh& mesh, AxisSet sequence_axes, RankId rank, const BatchParts& parts)
    : mesh_(mesh),
      sequence_axes_(sequence_axes),
      part_(mesh.Position(rank, sequence_axes)),
      tokens_(parts.tokens) {
  SB_CHECK(static_cast<int>(tokens_.size()) == mesh.Size(sequence_axes)) << tokens_.size();
  const int64_t longest = *std::max_element(tokens_.begin(), tokens_.end());
  begin_.push_back(0);
  for (int64_t tokens : tokens_) {
    const int64_t rows = parts.equal ? std::max<int64_t>(longest, 1) : tokens;
    begin_.push_back(begin_.back() + (rows + parts.multiple - 1) / parts.multiple * parts.multiple);
  }
}

std::vector<int64_t> RowLayout::RowsOf(RankId rank, AxisSet rows) const {
  const AxisSet block_axes = mesh_.all() - sequence_axes_;
  const auto agrees = [&](RankId other, AxisSet axes) {
    return mesh_.Position(other, axes & rows) == mesh_.Position(rank, axes & rows);
  };
  const std::vector<RankId> parts = mesh_.Group(rank, sequence_axes_);  // one rank of each part
  const std::vector<RankId> blocks = mesh_.Group(rank, block_axes);     // one rank of each block
  const bool whole = (block_axes & rows).empty();
  std::vector<int64_t> result;
  for (size_t p = 0; p < parts.size(); ++p) {
    if (!agrees(parts[p], sequence_axes_)) continue;
    const int64_t length = begin_[p + 1] - begin_[p];
    const int64_t block = whole ? length : length / static_cast<int64_t>(blocks.size());
    SB_CHECK(whole || block * static_cast<int64_t>(blocks.size()) == length)
        << "rows are not padded: " << length;
    for (size_t b = 0; b < (whole ? 1 : blocks.size()); ++b) {
      if (!whole && !agrees(blocks[b], block_axes)) continue;
      for (int64_t i = 0; i < block; ++i)
        result.push_back(begin_[p] + static_cast<int64_t>(b) * block + i);
    }
  }
  return result;
}

bool RowLayout::IsPadding(int64_t row) const {
  const auto it = std::upper_bound(begin_.begin(), begin_.end(), row) - 1;
  return row - *it >= tokens_[static_cast<size_t>(it - begin_.begin())];
}

}  // namespace signalbox
