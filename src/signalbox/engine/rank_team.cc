// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/rank_team.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "signalbox/base/check.h"
#include "signalbox/comm/thread_world.h"

namespace signalbox {
namespace {

class ThreadTeam final : public RankTeam {
 public:
  ThreadTeam(int ranks, MakeRank make)
      : ranks_(ranks), make_(std::move(make)), answers_(static_cast<size_t>(ranks)) {
    world_ = std::thread([this] {
      Status status = RunRanks(ranks_, {}, [this](Communicator& comm) { return Serve(comm); });
      std::lock_guard lock(mutex_);
      ended_ = true;
      end_status_ = std::move(status);
      changed_.notify_all();
    });
  }

  ~ThreadTeam() override {
    Post({.kind = StepCommand::Kind::kStop});
    world_.join();
  }

  bool leads() const override { return true; }
  Status Follow() override { return Internal({.what = "thread ranks have nobody to follow"}); }

  Result<StepOutput> Execute(const StepCommand& command) override {
    Post(command);
    return Await();
  }

  // Waits for the command at hand, or for the making of the ranks.
  Result<StepOutput> Await() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ || done_ == ranks_; });
    if (done_ == ranks_) return std::move(*answers_[0]);
    if (!end_status_.ok()) return end_status_;
    return Internal({.what = "the ranks have stopped"});
  }

 private:
  void Post(const StepCommand& command) {
    std::lock_guard lock(mutex_);
    command_ = command;
    done_ = 0;
    ++generation_;
    changed_.notify_all();
  }

  void Answer(int rank, Result<StepOutput> answer) {
    std::lock_guard lock(mutex_);
    answers_[static_cast<size_t>(rank)].emplace(std::move(answer));
    if (++done_ == ranks_) changed_.notify_all();
  }

  Status Serve(Communicator& comm) {
    SB_ASSIGN_OR_RETURN(std::unique_ptr<Rank> rank, make_(comm));
    Answer(comm.rank().value(), StepOutput());
    for (uint64_t seen = 0;;) {
      StepCommand command;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return generation_ != seen || ended_; });
        seen = generation_;
        command = command_;
      }
      if (command.kind == StepCommand::Kind::kStop) return OkStatus();
      Result<StepOutput> answer = rank->Execute(command);
      if (!answer.ok() && !IsRefusal(answer.status())) return answer.status();
      Answer(comm.rank().value(), std::move(answer));
    }
  }

  const int ranks_;
  const MakeRank make_;
  std::mutex mutex_;
  std::condition_variable changed_;
  StepCommand command_;
  uint64_t generation_ = 0;  // of command_
  int done_ = 0;             // ranks that have answered it
  std::vector<std::optional<Result<StepOutput>>> answers_;
  bool ended_ = false;
  Status end_status_;
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
      SB_RETURN_IF_ERROR(
          comm_.Broadcast(all_, RankId(0), std::as_writable_bytes(std::span(&size, 1))));
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

Result<std::unique_ptr<RankTeam>> RankTeam::StartThreads(int ranks, const MakeRank& make) {
  auto team = std::make_unique<ThreadTeam>(ranks, make);
  SB_ASSIGN_OR_RETURN(const StepOutput ready, team->Await());
  return std::unique_ptr<RankTeam>(std::move(team));
}

Result<std::unique_ptr<RankTeam>> RankTeam::JoinProcesses(Communicator& comm,
                                                          const MakeRank& make) {
  SB_ASSIGN_OR_RETURN(std::unique_ptr<Rank> rank, make(comm));
  return std::unique_ptr<RankTeam>(std::make_unique<ProcessTeam>(comm, std::move(rank)));
}

}  // namespace signalbox
