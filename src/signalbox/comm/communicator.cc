// SPDX-License-Identifier: Apache-2.0
#include "signalbox/comm/communicator.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace signalbox {
namespace {

std::string RankList(std::span<const RankId> group) {
  std::vector<int> ranks;
  for (RankId r : group) ranks.push_back(r.value());
  return fmt::format("{{{}}}", fmt::join(ranks, ", "));
}

Status BadArgument(const OpTag& tag, std::string what, std::string found, std::string expected) {
  return InvalidArgument({.what = std::move(what),
                          .where = std::string(ToString(tag.kind)),
                          .found = std::move(found),
                          .expected = std::move(expected)});
}

// `counts` has one entry per member, none negative, and adds up to `total`.
Status CheckCounts(const OpTag& tag, std::string_view name, std::span<const int64_t> counts,
                   size_t total) {
  if (counts.size() != tag.group.size()) {
    return BadArgument(tag, fmt::format("{} must have one entry per member", name),
                       fmt::format("{} entries", counts.size()),
                       fmt::format("{}", tag.group.size()));
  }
  auto left = static_cast<int64_t>(total);
  for (int64_t c : counts) {
    if (c < 0 || c > left) {
      left = -1;
      break;
    }
    left -= c;
  }
  if (left == 0) return OkStatus();
  return BadArgument(tag, fmt::format("{} must add up to the buffer", name),
                     fmt::format("{{{}}}", fmt::join(counts, ", ")), fmt::format("{}", total));
}

// An array of counts says what it expects of the own block.
Status CheckOwnBlock(const OpTag& tag, std::string_view name, int64_t count, size_t size) {
  if (count == static_cast<int64_t>(size)) return OkStatus();
  return BadArgument(tag, fmt::format("{} must hold the own block", name),
                     fmt::format("{} elements", size), fmt::format("{}", count));
}

}  // namespace

std::string_view ToString(OpKind kind) {
  switch (kind) {
    case OpKind::kAllReduceSum:
      return "all-reduce";
    case OpKind::kReduceScatterSum:
      return "reduce-scatter";
    case OpKind::kAllGather:
      return "all-gather";
    case OpKind::kBroadcast:
      return "broadcast";
    case OpKind::kAllToAll:
      return "all-to-all";
    case OpKind::kAgree:
      return "agree";
    case OpKind::kBarrier:
      return "barrier";
  }
  return "unknown operation";
}

std::string OpTag::ToString() const {
  std::string s(signalbox::ToString(kind));
  if (kind == OpKind::kAgree) {
    constexpr const char* kNames[] = {" on the minimum", " on the maximum", " on the sum"};
    if (arg >= 0 && arg < 3) s += kNames[arg];
  }
  if (kind == OpKind::kBroadcast && arg >= 0 && static_cast<size_t>(arg) < group.size()) {
    s += fmt::format(" from rank {}", group[arg].value());
  }
  s += " over ranks " + RankList(group);
  if (kind != OpKind::kBarrier) {
    s += fmt::format(", gives {{{}}} bytes, takes {{{}}} bytes", fmt::join(give, ", "),
                     fmt::join(take, ", "));
  }
  if (step != 0) s += fmt::format(", at step {}", step);
  return s;
}

Status CompareTags(const OpTag& mine, int mine_at, const OpTag& theirs, int theirs_at) {
  const bool same_call = mine.kind == theirs.kind && mine.arg == theirs.arg &&
                         mine.step == theirs.step && std::ranges::equal(mine.group, theirs.group);
  if (same_call && mine.give[theirs_at] == theirs.take[mine_at] &&
      mine.take[theirs_at] == theirs.give[mine_at]) {
    return OkStatus();
  }
  const int me = mine.group[mine_at].value();
  const int other = mine.group[theirs_at].value();
  return Internal({.what = "ranks do not make the same call",
                   .where = fmt::format("ranks {} and {}", me, other),
                   .found = fmt::format("rank {}: {}", other, theirs.ToString()),
                   .expected = fmt::format("as on rank {}: {}", me, mine.ToString()),
                   .remedy = "all members of a group must take the same path with the same sizes"});
}

Result<Collective> Communicator::Begin(OpKind kind, Group group, int arg) {
  Collective op{.tag = {.kind = kind, .arg = arg, .step = step_, .group = group}};
  const auto self = std::ranges::find(group, rank());
  const bool ascending = std::ranges::adjacent_find(group, std::greater_equal<>()) == group.end();
  if (self == group.end() || !ascending || group.front().value() < 0 ||
      group.back().value() >= size()) {
    return BadArgument(
        op.tag, fmt::format("rank {} was given a wrong group", rank().value()), RankList(group),
        fmt::format("different ranks below {}, ascending, {} among them", size(), rank().value()));
  }
  op.position = static_cast<int>(self - group.begin());
  give_.assign(group.size(), 0);
  take_.assign(group.size(), 0);
  op.tag.give = give_;
  op.tag.take = take_;
  return op;
}

Status Communicator::AllReduceSum(Group group, std::span<float> data) {
  SB_ASSIGN_OR_RETURN(Collective op, Begin(OpKind::kAllReduceSum, group));
  std::ranges::fill(give_, static_cast<int64_t>(data.size_bytes()));
  std::ranges::fill(take_, static_cast<int64_t>(data.size_bytes()));
  op.recv = std::as_writable_bytes(data).data();
  op.send = op.recv;
  return Run(op);
}

Status Communicator::ReduceScatterSum(Group group, std::span<const float> input,
                                      std::span<const int64_t> counts, std::span<float> output) {
  SB_ASSIGN_OR_RETURN(Collective op, Begin(OpKind::kReduceScatterSum, group));
  SB_RETURN_IF_ERROR(CheckCounts(op.tag, "counts", counts, input.size()));
  SB_RETURN_IF_ERROR(CheckOwnBlock(op.tag, "output", counts[op.position], output.size()));
  constexpr int64_t kFloat = sizeof(float);
  std::ranges::transform(counts, give_.begin(), [](int64_t c) { return c * kFloat; });
  std::ranges::fill(take_, give_[op.position]);
  op.send = std::as_bytes(input).data();
  op.recv = std::as_writable_bytes(output).data();
  return Run(op);
}

Status Communicator::AllGather(Group group, std::span<const std::byte> send,
                               std::span<const int64_t> bytes, std::span<std::byte> recv) {
  SB_ASSIGN_OR_RETURN(Collective op, Begin(OpKind::kAllGather, group));
  SB_RETURN_IF_ERROR(CheckCounts(op.tag, "bytes", bytes, recv.size()));
  SB_RETURN_IF_ERROR(CheckOwnBlock(op.tag, "send", bytes[op.position], send.size()));
  std::ranges::fill(give_, bytes[op.position]);
  std::ranges::copy(bytes, take_.begin());
  op.send = send.data();
  op.recv = recv.data();
  return Run(op);
}

Status Communicator::Broadcast(Group group, RankId root, std::span<std::byte> data, bool idle) {
  const int root_at = static_cast<int>(std::ranges::find(group, root) - group.begin());
  SB_ASSIGN_OR_RETURN(Collective op, Begin(OpKind::kBroadcast, group, root_at));
  if (root_at == static_cast<int>(group.size())) {
    return BadArgument(op.tag, "the root must be a member", fmt::format("rank {}", root.value()),
                       "one of " + RankList(group));
  }
  const auto bytes = static_cast<int64_t>(data.size());
  if (op.position == root_at) std::ranges::fill(give_, bytes);
  take_[root_at] = bytes;
  op.send = op.recv = data.data();
  op.idle = idle;
  return Run(op);
}

Status Communicator::AllToAll(Group group, std::span<const std::byte> send,
                              std::span<const int64_t> send_bytes, std::span<std::byte> recv,
                              std::span<const int64_t> recv_bytes) {
  SB_ASSIGN_OR_RETURN(Collective op, Begin(OpKind::kAllToAll, group));
  SB_RETURN_IF_ERROR(CheckCounts(op.tag, "send_bytes", send_bytes, send.size()));
  SB_RETURN_IF_ERROR(CheckCounts(op.tag, "recv_bytes", recv_bytes, recv.size()));
  op.tag.give = send_bytes;
  op.tag.take = recv_bytes;
  op.send = send.data();
  op.recv = recv.data();
  return Run(op);
}

Status Communicator::AllToAllLearn(Group group, std::span<const std::byte> send,
                                   std::span<const int64_t> send_bytes,
                                   std::vector<std::byte>& recv, std::vector<int64_t>& recv_bytes) {
  const OpTag tag{.kind = OpKind::kAllToAll, .group = group};
  SB_RETURN_IF_ERROR(CheckCounts(tag, "send_bytes", send_bytes, send.size()));
  recv_bytes.assign(group.size(), 0);
  const std::vector<int64_t> one_each(group.size(), sizeof(int64_t));
  SB_RETURN_IF_ERROR(
      AllToAll(group, std::as_bytes(send_bytes), one_each, WritableBytesOf(recv_bytes), one_each));
  int64_t total = 0;
  for (int64_t b : recv_bytes) total += b;
  recv.resize(total);
  return AllToAll(group, send, send_bytes, recv, recv_bytes);
}

Status Communicator::Agree(Group group, Agreement how, std::span<int64_t> values) {
  SB_ASSIGN_OR_RETURN(Collective op, Begin(OpKind::kAgree, group, static_cast<int>(how)));
  std::ranges::fill(give_, static_cast<int64_t>(values.size_bytes()));
  std::ranges::fill(take_, static_cast<int64_t>(values.size_bytes()));
  std::vector<int64_t> all(values.size() * group.size());  // [members, values]
  op.send = std::as_bytes(values).data();
  op.recv = WritableBytesOf(all).data();
  SB_RETURN_IF_ERROR(Run(op));
  for (size_t i = 0; i < values.size(); ++i) {
    int64_t v = all[i];
    for (size_t m = 1; m < group.size(); ++m) {
      const int64_t other = all[m * values.size() + i];
      switch (how) {
        case Agreement::kMin:
          v = std::min(v, other);
          break;
        case Agreement::kMax:
          v = std::max(v, other);
          break;
        case Agreement::kSum:
          v = static_cast<int64_t>(static_cast<uint64_t>(v) + static_cast<uint64_t>(other));
          break;
      }
    }
    values[i] = v;
  }
  return OkStatus();
}

Status Communicator::Barrier(Group group) {
  SB_ASSIGN_OR_RETURN(Collective op, Begin(OpKind::kBarrier, group));
  return Run(op);
}

}  // namespace signalbox
