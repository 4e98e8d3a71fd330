// SPDX-License-Identifier: Apache-2.0
#include "signalbox/mesh/parallel_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace signalbox {
namespace {

bool Nests(int a, int b) {
  return a % b == 0 || b % a == 0;
}

// The largest divisor of `tp` below `value` and the smallest above it that nest with `other`, as
// "--ep 2 or --ep 6".
std::string Nearest(std::string_view flag, int tp, int value, int other) {
  int below = 0;
  int above = 0;
  for (int size = 1; size <= tp; ++size) {
    if (tp % size != 0 || !Nests(size, other)) continue;
    if (size < value) below = size;
    if (size > value && above == 0) above = size;
  }
  std::vector<std::string> choices;
  for (int size : {below, above}) {
    if (size != 0) choices.push_back(fmt::format("{} {}", flag, size));
  }
  return fmt::format("{}", fmt::join(choices, " or "));
}

Status CheckSizes(const ParallelConfig& config) {
  struct Flag {
    std::string_view name;
    int value;
    int least;
  };
  for (const Flag& flag :
       {Flag{"--tp", config.tp, 1}, Flag{"--dp", config.dp, 1}, Flag{"--ep", config.ep, 1},
        Flag{"--ep-num-redundant-experts", config.redundant_experts, 0}}) {
    if (flag.value < flag.least || flag.value > kMaxRanks) {
      return InvalidArgument({.what = "size out of range",
                              .where = std::string(flag.name),
                              .found = std::to_string(flag.value),
                              .expected = fmt::format("{} to {}", flag.least, kMaxRanks)});
    }
  }
  for (const Flag& flag : {Flag{"--dp", config.dp, 1}, Flag{"--ep", config.ep, 1}}) {
    if (config.tp % flag.value != 0) {
      return Refused({.what = fmt::format("{} ranks cannot be cut into {} equal groups", config.tp,
                                          flag.value),
                      .where = std::string(flag.name),
                      .found = std::to_string(flag.value),
                      .expected = fmt::format("a divisor of --tp {}", config.tp),
                      .remedy = "use " + Nearest(flag.name, config.tp, flag.value, 1)});
    }
  }
  return OkStatus();
}

}  // namespace

Result<ParallelMesh> CreateParallelMesh(const ParallelConfig& config) {
  SB_RETURN_IF_ERROR(CheckSizes(config));
  if (!Nests(config.dp, config.ep)) {
    return Refused(
        {.what = fmt::format("attention groups of --dp {} and expert groups of --ep {} cross: no "
                             "common axes make both",
                             config.dp, config.ep),
         .expected = "one of --dp and --ep divides the other",
         .remedy = fmt::format("use {} with --dp {}, or {} with --ep {}",
                               Nearest("--ep", config.tp, config.ep, config.dp), config.dp,
                               Nearest("--dp", config.tp, config.dp, config.ep), config.ep)});
  }

  // The major cut points of both factorisations, in order, bound at most three base axes.
  const int first = std::min(config.dp, config.ep);
  const int second = std::max(config.dp, config.ep);
  struct Piece {
    int size;
    bool in_dp;
    bool in_ep;
  };
  std::vector<Piece> pieces = {{first, true, true},
                               {second / first, config.dp > config.ep, config.ep > config.dp},
                               {config.tp / second, false, false}};
  std::erase_if(pieces, [](const Piece& piece) { return piece.size == 1; });

  auto count = [&](bool in_dp) {
    return std::ranges::count_if(pieces, [&](const Piece& p) { return p.in_dp == in_dp; });
  };
  ParallelMesh result;
  std::vector<Mesh::Axis> axes;
  for (const Piece& piece : pieces) {
    std::string name = piece.in_dp ? "attn_dp" : "attn_tp";
    if (count(piece.in_dp) > 1) name += piece.in_ep ? ".ep" : ".tp";
    const AxisSet axis = AxisSet::Single(int(axes.size()));
    (piece.in_dp ? result.attn_dp : result.attn_tp) =
        (piece.in_dp ? result.attn_dp : result.attn_tp) | axis;
    (piece.in_ep ? result.moe_ep : result.moe_tp) =
        (piece.in_ep ? result.moe_ep : result.moe_tp) | axis;
    axes.push_back({std::move(name), piece.size});
  }
  SB_ASSIGN_OR_RETURN(result.mesh, Mesh::Create(std::move(axes), {{"attn_dp", result.attn_dp},
                                                                  {"attn_tp", result.attn_tp},
                                                                  {"moe_ep", result.moe_ep},
                                                                  {"moe_tp", result.moe_tp}}));
  return result;
}

}  // namespace signalbox
