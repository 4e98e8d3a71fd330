// SPDX-License-Identifier: Apache-2.0
#include "signalbox/comm/fakes.h"

#include <fmt/core.h>

#include <algorithm>
#include <thread>

#include "signalbox/comm/blocks.h"

namespace signalbox {
namespace {

constexpr int64_t kFloat = sizeof(float);

// Bytes in the part of an all-reduce that member `m` reduces.
int64_t PartBytes(const Collective& op, int m) {
  const auto members = static_cast<int64_t>(op.tag.group.size());
  const int64_t count = op.tag.give[0] / kFloat;
  return (PartBegin(count, members, m + 1) - PartBegin(count, members, m)) * kFloat;
}

// How many bytes `op` reads from its `send`.
int64_t SendBytes(const Collective& op) {
  if (!EachItsOwn(op.tag.kind)) return std::ranges::max(op.tag.give);
  return BlockBegin(op.tag.give, static_cast<int>(op.tag.give.size()));
}

}  // namespace

Status CountingCommunicator::Run(const Collective& op) {
  SB_RETURN_IF_ERROR(inner_.Run(op));
  Count& count = counts_[static_cast<size_t>(op.tag.kind)];
  ++count.calls;
  const int members = static_cast<int>(op.tag.group.size());
  for (int m = 0; m < members; ++m) {
    if (m == op.position) continue;
    if (op.tag.kind == OpKind::kAllReduceSum) {
      const int64_t both = PartBytes(op, m) + PartBytes(op, op.position);
      count.sent += both;
      count.received += both;
    } else {
      count.sent += op.tag.give[m];
      count.received += op.tag.take[m];
    }
  }
  return OkStatus();
}

Status FaultyCommunicator::Run(const Collective& op) {
  if (calls_++ != fault_.call) return inner_.Run(op);
  switch (fault_.kind) {
    case Fault::kNone:
      return inner_.Run(op);
    case Fault::kDie:
      return Unavailable({.what = fmt::format("rank {} died on purpose", rank().value()),
                          .where = op.tag.ToString()});
    case Fault::kSkip:
      return OkStatus();
    case Fault::kDelay:
      std::this_thread::sleep_for(fault_.delay);
      return inner_.Run(op);
    case Fault::kWrongSize:
      return RunWrongSize(op);
    case Fault::kFlip:
      return RunFlipped(op);
  }
  return OkStatus();
}

Status FaultyCommunicator::RunWrongSize(Collective op) {
  std::vector<int64_t> give(op.tag.give.begin(), op.tag.give.end());
  for (int64_t& bytes : give) bytes = std::max<int64_t>(bytes - kFloat, 0);
  op.tag.give = give;
  return inner_.Run(op);
}

Status FaultyCommunicator::RunFlipped(Collective op) {
  const int64_t bytes = SendBytes(op);
  if (bytes == 0) return inner_.Run(op);
  constexpr std::byte kBit{0x40};
  if (op.send == op.recv) {  // in place
    op.recv[bytes / 2] ^= kBit;
    return inner_.Run(op);
  }
  std::vector<std::byte> copy(op.send, op.send + bytes);
  copy[bytes / 2] ^= kBit;
  op.send = copy.data();
  return inner_.Run(op);
}

}  // namespace signalbox
