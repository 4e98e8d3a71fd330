// SPDX-License-Identifier: Apache-2.0
#include "signalbox/comm/thread_world.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "signalbox/comm/blocks.h"

namespace signalbox {
namespace {

using Clock = std::chrono::steady_clock;

inline void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr int kOutside = -1;  // value of Slot::doing between calls

// What the other ranks see of one rank.
struct alignas(64) Slot {
  // Stages that this rank has finished over all its calls; the others wait for it to grow.
  std::atomic<uint64_t> stages{0};
  // The rank is reading the buffers of other ranks, which must therefore stay alive.
  std::atomic<bool> reading{false};
  std::atomic<bool> left{false};
  std::atomic<int> doing{kOutside};  // an OpKind, for messages
  // invited[p]: rank p has posted a call that includes this rank, which has not taken it yet.
  std::vector<std::atomic<bool>> invited;

  // The call in progress. Another rank reads it only while `reading`, after it was invited and
  // before it finishes its last stage; that is when it cannot change.
  Collective call;
  uint64_t call_stages = 0;  // value of `stages` when the call began

  alignas(64) std::atomic<bool> parked{false};
  std::mutex mutex;
  std::condition_variable wake;
};

struct World {
  World(int n, const CommOptions& options) : slots(n), deadline(options.deadline) {
    for (Slot& s : slots) s.invited = std::vector<std::atomic<bool>>(n);
    // Spinning only helps while every rank has a core of its own.
    spins = n <= static_cast<int>(std::thread::hardware_concurrency()) ? 2000 : 50;
  }

  // After a change that the rank may be waiting for. Sequentially consistent on both sides: either
  // the rank sees the change before it sleeps, or this sees that it is parked.
  static void Wake(Slot& slot) {
    if (!slot.parked.load()) return;
    { std::lock_guard lock(slot.mutex); }
    slot.wake.notify_one();
  }

  // The first cause stays.
  void End(Status why) {
    {
      std::lock_guard lock(mutex);
      if (!cause) cause = std::move(why);
      ended.store(true);
    }
    for (Slot& s : slots) Wake(s);
  }
  Status Cause() {
    std::lock_guard lock(mutex);
    return *cause;
  }

  std::vector<Slot> slots;
  const std::chrono::milliseconds deadline;
  int spins;
  std::atomic<bool> ended{false};
  std::mutex mutex;
  std::optional<Status> cause;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<World> world, int rank)
      : world_(std::move(world)), rank_(rank), me_(world_->slots[rank]) {}
  ~ThreadCommunicator() override {
    me_.left.store(true);
    for (Slot& s : world_->slots) World::Wake(s);
  }

  RankId rank() const override { return RankId(rank_); }
  int size() const override { return static_cast<int>(world_->slots.size()); }

  void Abort(const Status& status) override {
    world_->End(Unavailable({.what = fmt::format("rank {} ended the run", rank_),
                             .found = status.ToString(),
                             .remedy = "see the error of that rank"}));
  }

  Status Run(const Collective& op) override {
    me_.doing.store(static_cast<int>(op.tag.kind), std::memory_order_relaxed);
    Status status = Meet(op);
    if (status.ok()) status = IsSum(op.tag.kind) ? Sum(op) : Move(op);
    me_.doing.store(kOutside, std::memory_order_relaxed);
    return status;
  }

 private:
  Slot& Member(const Collective& op, int m) { return world_->slots[op.tag.group[m].value()]; }

  // Runs `body`, which reads the members' calls and buffers, unless the world has ended. Together
  // with Fail this keeps those buffers alive: `reading` is set before `ended` is read here, and
  // `ended` is set before `reading` is read there.
  template <typename Body>
  Status Reading(const Collective& op, Body body) {
    me_.reading.store(true);
    Status status = OkStatus();
    const bool ended = world_->ended.load();
    if (!ended) status = body();
    me_.reading.store(false);
    if (ended) return Fail(op, OkStatus());
    return status.ok() ? status : Fail(op, std::move(status));
  }

  // Ends the world (an OK `why`: it has ended already) and returns once no member reads this rank's
  // buffers any more.
  Status Fail(const Collective& op, Status why) {
    if (!why.ok()) world_->End(std::move(why));
    for (int m = 0; m < static_cast<int>(op.tag.group.size()); ++m) {
      while (Member(op, m).reading.load()) std::this_thread::yield();
    }
    return world_->Cause();
  }

  // Waits until ready() is true; `missing()` is the position of the member that is waited for.
  template <typename Ready, typename Missing>
  Status Await(const Collective& op, Clock::time_point deadline, Ready ready, Missing missing) {
    for (int i = 0; i < world_->spins; ++i) {
      if (ready()) return OkStatus();
      CpuRelax();
    }
    bool is_ready = false;
    {
      std::unique_lock lock(me_.mutex);
      me_.parked.store(true);
      me_.wake.wait_until(lock, deadline,
                          [&] { return (is_ready = ready()) || world_->ended.load(); });
      me_.parked.store(false);
    }
    if (is_ready) return OkStatus();
    if (world_->ended.load()) return Fail(op, OkStatus());
    return Fail(op, Late(op, missing()));
  }

  Status Late(const Collective& op, int m) {
    const int peer = op.tag.group[m].value();
    const int doing = Member(op, m).doing.load(std::memory_order_relaxed);
    return DeadlineExceeded(
        {.what =
             fmt::format("rank {} waited {} ms for rank {}", rank_, world_->deadline.count(), peer),
         .where = op.tag.ToString(),
         .found = doing == kOutside
                      ? fmt::format("rank {} outside any collective", peer)
                      : fmt::format("rank {} in: {}", peer, ToString(static_cast<OpKind>(doing))),
         .remedy = "every member must make this call; if it is only slow, raise the deadline"});
  }

  Status Left(const Collective& op, int m) {
    return Unavailable({.what = fmt::format("rank {} has left", op.tag.group[m].value()),
                        .where = fmt::format("rank {}: {}", rank_, op.tag.ToString()),
                        .remedy = "every member must make this call"});
  }

  // Posts the call and compares it with that of every other member as it arrives.
  Status Meet(const Collective& op) {
    const auto& group = op.tag.group;
    const int n = static_cast<int>(group.size());
    deadline_ = op.idle ? Clock::time_point::max() : Clock::now() + world_->deadline;
    me_.call = op;
    me_.call_stages = me_.stages.load(std::memory_order_relaxed);
    base_.assign(n, 0);
    missing_.clear();
    for (int m = 0; m < n; ++m) {
      if (m == op.position) continue;
      missing_.push_back(m);
      Member(op, m).invited[rank_].store(true);
      World::Wake(Member(op, m));
    }
    const auto arrived = [&](int m) {
      return me_.invited[group[m].value()].load() || Member(op, m).left.load();
    };
    while (!missing_.empty()) {
      SB_RETURN_IF_ERROR(Await(
          op, deadline_, [&] { return std::ranges::any_of(missing_, arrived); },
          [&] { return missing_.front(); }));
      SB_RETURN_IF_ERROR(Reading(op, [&] { return TakeArrived(op); }));
    }
    return OkStatus();
  }

  Status TakeArrived(const Collective& op) {
    Status status = OkStatus();
    std::erase_if(missing_, [&](int m) {
      const bool left = Member(op, m).left.load();  // read first: a rank posts before it leaves
      auto& invited = me_.invited[op.tag.group[m].value()];
      if (!status.ok()) return false;
      if (!invited.load()) {
        if (left) status = Left(op, m);
        return false;
      }
      invited.store(false);
      const Slot& peer = Member(op, m);
      base_[m] = peer.call_stages;
      status = CompareTags(op.tag, op.position, peer.call.tag, m);
      return true;
    });
    return status;
  }

  // Runs one stage of the call, then waits until every member has finished it.
  template <typename Body>
  Status Stage(const Collective& op, int stage, Body body) {
    SB_RETURN_IF_ERROR(Reading(op, [&] {
      body();
      return OkStatus();
    }));
    me_.stages.fetch_add(1);
    const int n = static_cast<int>(op.tag.group.size());
    for (int m = 0; m < n; ++m) World::Wake(Member(op, m));
    for (int m = 0; m < n; ++m) {
      if (m == op.position) continue;
      const Slot& peer = Member(op, m);
      SB_RETURN_IF_ERROR(Await(
          op, deadline_, [&] { return peer.stages.load() >= base_[m] + stage; },
          [&] { return m; }));
    }
    return OkStatus();
  }

  Status Move(const Collective& op) {
    return Stage(op, 1, [&] {
      std::byte* to = op.recv;
      for (int m = 0; m < static_cast<int>(op.tag.group.size()); ++m) {
        const Collective& from = m == op.position ? op : Member(op, m).call;
        const int64_t bytes = op.tag.take[m];
        const std::byte* block = BlockFor(from, op.position);
        if (bytes != 0 && block != to) std::memcpy(to, block, bytes);
        to += bytes;
      }
    });
  }

  // terms_[m] <- member m's floats from byte `offset` on.
  void CollectTerms(const Collective& op, int64_t offset) {
    terms_.clear();
    for (int m = 0; m < static_cast<int>(op.tag.group.size()); ++m) {
      const Collective& from = m == op.position ? op : Member(op, m).call;
      terms_.push_back(reinterpret_cast<const float*>(from.send + offset));
    }
  }

  Status Sum(const Collective& op) {
    const int n = static_cast<int>(op.tag.group.size());
    float* const out = reinterpret_cast<float*>(op.recv);
    if (op.tag.kind == OpKind::kReduceScatterSum) {
      return Stage(op, 1, [&] {
        CollectTerms(op, BlockBegin(op.tag.give, op.position));
        SumAscending(terms_, op.tag.take[0] / int64_t{sizeof(float)}, out);
      });
    }
    const int64_t count = op.tag.give[0] / int64_t{sizeof(float)};
    if (op.tag.give[0] <= kDirectBytes) {
      small_.resize(count);
      SB_RETURN_IF_ERROR(Stage(op, 1, [&] {
        CollectTerms(op, 0);
        SumAscending(terms_, count, small_.data());
      }));
      std::ranges::copy(small_, out);
      return OkStatus();
    }
    // In place: in the first stage part m of any buffer is read by member m alone, in the second
    // only the owner's part is read.
    SB_RETURN_IF_ERROR(Stage(op, 1, [&] {
      const int64_t begin = PartBegin(count, n, op.position);
      CollectTerms(op, begin * int64_t{sizeof(float)});
      SumAscending(terms_, PartBegin(count, n, op.position + 1) - begin, out + begin);
    }));
    return Stage(op, 2, [&] {
      CollectTerms(op, 0);
      for (int m = 0; m < n; ++m) {
        const int64_t begin = PartBegin(count, n, m), end = PartBegin(count, n, m + 1);
        if (m != op.position) std::copy(terms_[m] + begin, terms_[m] + end, out + begin);
      }
    });
  }

  std::shared_ptr<World> world_;
  const int rank_;
  Slot& me_;
  // Of the call in progress.
  Clock::time_point deadline_;
  std::vector<uint64_t> base_;  // Slot::call_stages of each member
  std::vector<int> missing_;    // positions of members that have not arrived
  std::vector<const float*> terms_;
  std::vector<float> small_;
};

}  // namespace

Result<std::vector<std::unique_ptr<Communicator>>> ThreadWorld::Create(int n,
                                                                       const CommOptions& options) {
  if (n < 1 || n > kMaxThreadRanks) {
    return InvalidArgument({.what = "a world of threads cannot have this many ranks",
                            .found = fmt::format("{}", n),
                            .expected = fmt::format("1 to {}", kMaxThreadRanks)});
  }
  auto world = std::make_shared<World>(n, options);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int r = 0; r < n; ++r) ranks.push_back(std::make_unique<ThreadCommunicator>(world, r));
  return ranks;
}

}  // namespace signalbox
