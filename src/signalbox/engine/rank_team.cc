// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/rank_team.h"

#include <fmt/format.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "signalbox/base/check.h"
#include "signalbox/comm/thread_world.h"

namespace signalbox {
namespace {

// Of the wait for a sign of life, to the wait of one rank for another.
constexpr double kLongerThanAWait = 1.25;

// Counts the calls that a rank has finished: as long as it does, it is slow and not stuck.
class PulseCommunicator final : public Communicator {
 public:
  PulseCommunicator(Communicator& inner, std::atomic<int64_t>& pulse)
      : inner_(inner), pulse_(pulse) {}
  RankId rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  void Abort(const Status& status) override { inner_.Abort(status); }
  Status Run(const Collective& op) override {
    Status status = inner_.Run(op);
    ++pulse_;
    return status;
  }

 private:
  Communicator& inner_;
  std::atomic<int64_t>& pulse_;
};

class ThreadTeam final : public RankTeam {
 public:
  ThreadTeam(int ranks, const CommOptions& options, MakeRank make)
      : options_(options),
        make_(std::move(make)),
        answers_(static_cast<size_t>(ranks)),
        missing_(answers_.size()),
        pulses_(answers_.size()) {
    world_ = std::thread([this, ranks] {
      Status status = RunRanks(ranks, options_, [this](Communicator& comm) {
        PulseCommunicator alive(comm, pulses_[static_cast<size_t>(comm.rank().value())]);
        Status served = Serve(alive);
        std::lock_guard lock(mutex_);
        if (!served.ok()) End(served.At(fmt::format("rank {}", comm.rank().value())));
        return served;
      });
      std::lock_guard lock(mutex_);
      End(status.ok() ? Internal({.what = "the ranks have stopped"}) : std::move(status));
    });
  }

  ~ThreadTeam() override {
    {
      std::lock_guard lock(mutex_);
      Post({.kind = StepCommand::Kind::kStop});
    }
    world_.join();
  }

  bool leads() const override { return true; }
  Status Follow() override { return Internal({.what = "thread ranks have nobody to follow"}); }

  Result<StepOutput> Execute(const StepCommand& command) override {
    std::unique_lock lock(mutex_);
    if (end_) return *end_;
    Post(command);
    const auto limit = options_.deadline * kLongerThanAWait;
    std::vector<int64_t> before(pulses_.begin(), pulses_.end());
    while (!changed_.wait_for(lock, limit, [&] { return end_ || missing_ == 0; })) {
      if (const std::string stuck = Stuck(before); !stuck.empty()) End(Late(stuck));
      before.assign(pulses_.begin(), pulses_.end());
    }
    if (end_) return *end_;
    return std::move(*answers_[0]);
  }

  // Waits until all ranks have been made.
  Status AwaitReady() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return end_ || missing_ == 0; });
    return end_.value_or(OkStatus());
  }

 private:
  // REQUIRES, as the next two: mutex_ is held.
  void Post(const StepCommand& command) {
    command_ = command;
    answers_.assign(answers_.size(), std::nullopt);
    missing_ = answers_.size();
    ++generation_;
    changed_.notify_all();
  }

  // The first reason stays.
  void End(Status why) {
    if (!end_) end_ = std::move(why);
    changed_.notify_all();
  }

  // Those that have neither answered nor got any further.
  std::string Stuck(const std::vector<int64_t>& before) const {
    std::string names;
    for (size_t r = 0; r < answers_.size(); ++r) {
      if (!answers_[r] && pulses_[r] == before[r])
        names += fmt::format("{}rank {}", names.empty() ? "" : ", ", r);
    }
    return names;
  }

  Status Late(const std::string& stuck) const {
    return DeadlineExceeded(
        {.what = "a step was not done in time",
         .where = stuck,
         .found = fmt::format("no answer, with a deadline of {} ms", options_.deadline.count()),
         .remedy = "if it is only slow, raise --rank-timeout, or make steps smaller with "
                   "--chunked-prefill-size"});
  }

  void Answer(size_t rank, Result<StepOutput> answer) {
    std::lock_guard lock(mutex_);
    answers_[rank].emplace(std::move(answer));
    if (--missing_ == 0) changed_.notify_all();
  }

  Status Serve(Communicator& comm) {
    SB_ASSIGN_OR_RETURN(std::unique_ptr<Rank> rank, make_(comm));
    const auto number = static_cast<size_t>(comm.rank().value());
    Answer(number, StepOutput());
    for (uint64_t seen = 0;;) {
      StepCommand command;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return generation_ != seen || end_; });
        if (end_) return *end_;  // which also ends those that wait for this rank
        seen = generation_;
        command = command_;
      }
      if (command.kind == StepCommand::Kind::kStop) return OkStatus();
      Result<StepOutput> answer = rank->Execute(command);
      if (!answer.ok() && !IsRefusal(answer.status())) return answer.status();
      Answer(number, std::move(answer));
    }
  }

  const CommOptions options_;
  const MakeRank make_;
  std::mutex mutex_;
  std::condition_variable changed_;
  StepCommand command_;
  uint64_t generation_ = 0;                                 // of command_
  std::vector<std::optional<Result<StepOutput>>> answers_;  // [ranks]
  size_t missing_;                                          // answers
  std::vector<std::atomic<int64_t>> pulses_;                // [ranks]
  std::optional<Status> end_;                               // why the team has ended
  std::thread world_;
};

class ProcessTeam final : public RankTeam {
 public:
  ProcessTeam(Communicator& comm, std::unique_ptr<Rank> rank)
      : comm_(comm), rank_(std::move(rank)) {
    for (int r = 0; r < comm.size(); ++r) all_.emplace_back(r);
  }

  ~ProcessTeam() override {
    // After a failure nobody listens any more, and the error has been reported.
    if (leads() && !failed_) failed_ = !Send({.kind = StepCommand::Kind::kStop}).ok();
  }

  bool leads() const override { return comm_.rank() == RankId(0); }

  Result<StepOutput> Execute(const StepCommand& command) override {
    SB_RETURN_IF_ERROR(Send(command));
    Result<StepOutput> answer = rank_->Execute(command);
    failed_ = !answer.ok() && !IsRefusal(answer.status());
    return answer;
  }

  Status Follow() override {
    for (;;) {
      int64_t size = 0;
      SB_RETURN_IF_ERROR(comm_.Broadcast(all_, RankId(0),
                                         std::as_writable_bytes(std::span(&size, 1)),
                                         /*idle=*/true));
      std::vector<std::byte> bytes(static_cast<size_t>(size));
      SB_RETURN_IF_ERROR(comm_.Broadcast(all_, RankId(0), bytes));
      SB_ASSIGN_OR_RETURN(const StepCommand command, Decode(bytes));
      if (command.kind == StepCommand::Kind::kStop) return OkStatus();
      const Result<StepOutput> answer = rank_->Execute(command);
      if (!answer.ok() && !IsRefusal(answer.status())) return answer.status();
    }
  }

 private:
  Status Send(const StepCommand& command) {
    std::vector<std::byte> bytes = Encode(command);
    int64_t size = static_cast<int64_t>(bytes.size());
    SB_RETURN_IF_ERROR(
        comm_.Broadcast(all_, RankId(0), std::as_writable_bytes(std::span(&size, 1))));
    return comm_.Broadcast(all_, RankId(0), bytes);
  }

  Communicator& comm_;
  std::unique_ptr<Rank> rank_;
  std::vector<RankId> all_;
  bool failed_ = false;
};

}  // namespace

bool IsRefusal(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument ||
         status.code() == StatusCode::kResourceExhausted;
}

Result<std::unique_ptr<RankTeam>> RankTeam::StartThreads(int ranks, const CommOptions& options,
                                                         const MakeRank& make) {
  auto team = std::make_unique<ThreadTeam>(ranks, options, make);
  SB_RETURN_IF_ERROR(team->AwaitReady());
  return std::unique_ptr<RankTeam>(std::move(team));
}

Result<std::unique_ptr<RankTeam>> RankTeam::JoinProcesses(Communicator& comm,
                                                          const MakeRank& make) {
  SB_ASSIGN_OR_RETURN(std::unique_ptr<Rank> rank, make(comm));
  return std::unique_ptr<RankTeam>(std::make_unique<ProcessTeam>(comm, std::move(rank)));
}

}  // namespace signalbox
