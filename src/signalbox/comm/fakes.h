// SPDX-License-Identifier: Apache-2.0
//
// Communicators that wrap another one: to count what a program moves, and to break it on purpose.
// The wrapped communicator must outlive them.
//
//   CountingCommunicator counting(comm);
//   FaultyCommunicator faulty(counting, {.kind = Fault::kSkip, .call = 3});
//   RunLayer(faulty);   counting.count(OpKind::kAllReduceSum).calls;
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

#include "signalbox/comm/communicator.h"

namespace signalbox {

class CountingCommunicator final : public Communicator {
 public:
  struct Count {
    int64_t calls = 0;
    // Bytes that this rank sends to, and gets from, other members. An all-reduce counts as a
    // reduce-scatter followed by an all-gather of equal parts.
    int64_t sent = 0;
    int64_t received = 0;
    friend bool operator==(const Count&, const Count&) = default;
  };

  explicit CountingCommunicator(Communicator& inner) : inner_(inner) {}

  RankId rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  void Abort(const Status& status) override { inner_.Abort(status); }
  Status Run(const Collective& op) override;

  // Calls that succeeded.
  const Count& count(OpKind kind) const { return counts_[static_cast<size_t>(kind)]; }

 private:
  Communicator& inner_;
  std::array<Count, kOpKinds> counts_{};
};

struct Fault {
  enum Kind {
    kNone,
    kDie,        // the call returns Unavailable and the others are not told
    kSkip,       // the call returns OK without taking part
    kDelay,      // the call starts `delay` late
    kWrongSize,  // the rank gives four bytes less to everyone; no effect on a barrier
    kFlip,       // one bit of what the rank sends is inverted, which no transport can notice
  };
  Kind kind = kNone;
  int64_t call = 0;  // which call of this rank, from 0
  std::chrono::milliseconds delay{0};
};

class FaultyCommunicator final : public Communicator {
 public:
  FaultyCommunicator(Communicator& inner, Fault fault) : inner_(inner), fault_(fault) {}

  RankId rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  void Abort(const Status& status) override { inner_.Abort(status); }
  Status Run(const Collective& op) override;

 private:
  Status RunWrongSize(Collective op);
  Status RunFlipped(Collective op);

  Communicator& inner_;
  const Fault fault_;
  int64_t calls_ = 0;
};

}  // namespace signalbox
