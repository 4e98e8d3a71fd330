// SPDX-License-Identifier: Apache-2.0
//
// Communicator: what one rank can do together with the others.
//
// Every operation names its group: the ranks that take part, ascending, this rank among them
// (Mesh::Group gives it). Ranks of different groups do not wait for each other. All members of the
// group make the same call; per-member arrays have one entry per member, in group order, and
// several blocks lie one after another in the buffer, in the same order.
//
// Sums are fp32, added in ascending group order, so that a result is the same on every member, in
// every run and on every transport.
//
// Errors: every call carries an OpTag that the members compare before a byte is moved. When ranks
// take different paths, when one leaves, aborts or misses the deadline, the whole world ends: this
// and every later call of every rank returns an error that says who did what. Nothing hangs, and a
// world that has ended stays so. Wrong arguments are InvalidArgument on this rank alone; the rank
// should then give up, which ends the others.
//
// A Communicator is used by one thread at a time.
//
//   std::vector<RankId> group = mesh.Group(comm.rank(), tp);
//   SB_RETURN_IF_ERROR(comm.AllReduceSum(group, hidden));          // [tokens * hidden]
//   SB_RETURN_IF_ERROR(comm.AllGather(group, mine, bytes, all));
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "signalbox/base/ids.h"
#include "signalbox/base/status.h"

namespace signalbox {

enum class OpKind : uint8_t {
  kAllReduceSum,
  kReduceScatterSum,
  kAllGather,
  kBroadcast,
  kAllToAll,
  kAgree,
  kBarrier,
};
inline constexpr int kOpKinds = 7;
std::string_view ToString(OpKind kind);

// How Agree combines the members' values.
enum class Agreement : uint8_t { kMin, kMax, kSum };

// What a rank believes it is doing. For members p and q of one call, kind, arg, step and group are
// the same and p's give[q] equals q's take[p].
struct OpTag {
  OpKind kind = OpKind::kBarrier;
  int arg = 0;                      // broadcast: position of the root; agree: the Agreement
  int64_t step = 0;                 // where the rank is in its program, see set_step
  std::span<const RankId> group;    // ascending
  std::span<const int64_t> give{};  // bytes for each member
  std::span<const int64_t> take{};  // bytes from each member

  // "all-gather over ranks {0, 2}, gives {8, 8} bytes, takes {8, 16} bytes, at step 3"
  std::string ToString() const;
};

// OK when the members at positions `mine_at` and `theirs_at` are in the same call, else Internal
// with both tags.
Status CompareTags(const OpTag& mine, int mine_at, const OpTag& theirs, int theirs_at);

// One call of one rank as a value: what transports execute and decorators count or break.
struct Collective {
  OpTag tag;
  int position = 0;  // of this rank in the group
  // all-reduce: send == recv == the data. reduce-scatter, all-to-all: blocks of give[] bytes.
  // Otherwise every member is given the same bytes.
  const std::byte* send = nullptr;
  std::byte* recv = nullptr;  // blocks of take[] bytes; reduce-scatter: the one own block
  bool idle = false;          // no deadline on this rank
};

struct CommOptions {
  // The longest that a rank waits for the others within one call, but for idle broadcasts.
  std::chrono::milliseconds deadline{60'000};
};

class Communicator {
 public:
  using Group = std::span<const RankId>;

  virtual ~Communicator() = default;

  // This rank, and how many there are in the world.
  virtual RankId rank() const = 0;
  virtual int size() const = 0;

  // data[i] <- sum of data[i] over the members.
  Status AllReduceSum(Group group, std::span<float> data);

  // output <- this rank's block of the sum of `input` over the members; counts[m] floats belong to
  // member m. `output` may be the own block of `input` and must not overlap it otherwise.
  Status ReduceScatterSum(Group group, std::span<const float> input,
                          std::span<const int64_t> counts, std::span<float> output);

  // recv <- the blocks of all members, bytes[m] from member m. `send` may be the own block of
  // `recv` and must not overlap it otherwise.
  Status AllGather(Group group, std::span<const std::byte> send, std::span<const int64_t> bytes,
                   std::span<std::byte> recv);

  // data <- data of `root`, a member. `idle`: this rank has nothing to do until then, and waits
  // without a deadline; it still ends with the world.
  Status Broadcast(Group group, RankId root, std::span<std::byte> data, bool idle = false);

  // Block m of `send` goes to member m; block m of `recv` comes from member m.
  Status AllToAll(Group group, std::span<const std::byte> send, std::span<const int64_t> send_bytes,
                  std::span<std::byte> recv, std::span<const int64_t> recv_bytes);

  // AllToAll for a receiver that does not know what it will get: `recv` and `recv_bytes` are
  // resized. Costs one more exchange, of the counts.
  Status AllToAllLearn(Group group, std::span<const std::byte> send,
                       std::span<const int64_t> send_bytes, std::vector<std::byte>& recv,
                       std::vector<int64_t>& recv_bytes);

  // values[i] <- min, max or sum (modulo 2^64) of values[i] over the members; for shapes.
  Status Agree(Group group, Agreement how, std::span<int64_t> values);

  // Returns when every member has called it.
  Status Barrier(Group group);

  // Names the place in the program that the next calls belong to (a layer and step, say), so that
  // ranks that drift apart between two calls of equal shape are caught as well.
  void set_step(int64_t step) { step_ = step; }

  // Ends the world because of `status`: every call of the other ranks returns Unavailable with this
  // rank and the reason.
  virtual void Abort(const Status& status) = 0;

  // Executes a call that one of the functions above has checked. For decorators.
  virtual Status Run(const Collective& op) = 0;

 private:
  // Checks the group; give and take are zeroes, one per member.
  Result<Collective> Begin(OpKind kind, Group group, int arg = 0);

  int64_t step_ = 0;
  std::vector<int64_t> give_, take_;  // storage of the tag of the call in progress
};

// Views of typed memory for the calls that move bytes.
template <typename T>
std::span<const std::byte> BytesOf(const std::vector<T>& v) {
  return std::as_bytes(std::span(v));
}
template <typename T>
std::span<std::byte> WritableBytesOf(std::vector<T>& v) {
  return std::as_writable_bytes(std::span(v));
}

}  // namespace signalbox
