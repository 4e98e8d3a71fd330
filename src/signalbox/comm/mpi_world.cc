// SPDX-License-Identifier: Apache-2.0
#include "signalbox/comm/mpi_world.h"

#include <algorithm>
#include <cstdlib>

namespace signalbox {

bool MpiLaunched() {
  for (const char* name :
       {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "MV2_COMM_WORLD_SIZE"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

int MpiProcessesHere() {
  for (const char* name :
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE"}) {
    const char* const value = std::getenv(name);
    if (value != nullptr) return std::max(std::atoi(value), 1);
  }
  return 1;
}

}  // namespace signalbox

#if !defined(SIGNALBOX_HAVE_MPI)

namespace signalbox {
namespace {

Status NoMpi() {
  return Refused({.what = "built without MPI",
                  .remedy = "install an MPI (Debian: libopenmpi-dev openmpi-bin) and build with "
                            "-DSIGNALBOX_MPI=ON, or use ranks that are threads"});
}

}  // namespace

Result<std::unique_ptr<Communicator>> CreateMpiCommunicator(const CommOptions&) {
  return NoMpi();
}

Status RunMpi(const CommOptions&, const std::function<Status(Communicator&)>&) {
  return NoMpi();
}

}  // namespace signalbox

#else

#define OMPI_SKIP_MPICXX 1   // the deprecated C++ bindings
#define MPICH_SKIP_MPICXX 1  // the same, other vendors

#include <fmt/core.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "signalbox/comm/blocks.h"
#include "signalbox/comm/thread_world.h"

namespace signalbox {
namespace {

using Clock = std::chrono::steady_clock;

// Message kinds. Messages of one kind between two ranks arrive in the order of their calls.
enum MessageTag { kHeader = 1, kPayload = 2, kEnd = 3 };

constexpr int64_t kHeaderVersion = 1;
constexpr int kFixedWords = 5;  // version, kind, arg, step, members

Status MpiError(int code, std::string_view where) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return Unavailable({.what = "MPI reports an error",
                      .where = std::string(where),
                      .found = std::string(text.data(), length)});
}

std::vector<int64_t> EncodeTag(const OpTag& tag) {
  std::vector<int64_t> words = {kHeaderVersion, static_cast<int64_t>(tag.kind), tag.arg, tag.step,
                                static_cast<int64_t>(tag.group.size())};
  for (RankId r : tag.group) words.push_back(r.value());
  words.insert(words.end(), tag.give.begin(), tag.give.end());
  words.insert(words.end(), tag.take.begin(), tag.take.end());
  return words;
}

// Compares `op` with the tag that member `m` sent.
Status CompareHeader(const Collective& op, int m, std::span<const int64_t> words) {
  const size_t n = words.size() < kFixedWords ? 0 : static_cast<size_t>(words[4]);
  if (n == 0 || words[0] != kHeaderVersion || words.size() != kFixedWords + 3 * n) {
    return Internal({.what = "a rank speaks another protocol",
                     .where = fmt::format("rank {}", op.tag.group[m].value()),
                     .remedy = "start the same build of signalbox on every host"});
  }
  std::vector<RankId> group;
  for (int64_t r : words.subspan(kFixedWords, n)) group.push_back(RankId(static_cast<int32_t>(r)));
  const OpTag theirs{.kind = static_cast<OpKind>(words[1]),
                     .arg = static_cast<int>(words[2]),
                     .step = words[3],
                     .group = group,
                     .give = words.subspan(kFixedWords + n, n),
                     .take = words.subspan(kFixedWords + 2 * n, n)};
  return CompareTags(op.tag, op.position, theirs, m);
}

// The notice that ends the world: the code, then the parts of the error, each closed by a zero.
constexpr size_t kNoticeBytes = 2048;  // small enough to be sent without the receiver's help

std::string EncodeNotice(const Status& status) {
  const ErrorDetail& d = status.detail();
  std::string text(1, static_cast<char>(status.code()));
  for (const std::string* part : {&d.what, &d.where, &d.found, &d.expected, &d.remedy}) {
    text += part->substr(0, (kNoticeBytes - 16) / 5);
    text += '\0';
  }
  return text;
}

Status DecodeNotice(std::string_view text) {
  ErrorDetail d;
  const auto code = static_cast<StatusCode>(text.empty() ? 0 : text.front());
  text.remove_prefix(std::min<size_t>(1, text.size()));
  for (std::string* part : {&d.what, &d.where, &d.found, &d.expected, &d.remedy}) {
    const size_t end = std::min(text.find('\0'), text.size());
    *part = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return code == StatusCode::kOk ? Unavailable(std::move(d)) : Status(code, std::move(d));
}

// Waits a little longer the longer the wait has been.
class Backoff {
 public:
  void Pause() {
    if (++polls_ > 1000) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

 private:
  int polls_ = 0;
};

class MpiCommunicator final : public Communicator {
 public:
  // Owns `comm`, which only this world uses.
  MpiCommunicator(MPI_Comm comm, int rank, int size, const CommOptions& options)
      : comm_(comm), rank_(rank), size_(size), limit_(options.deadline) {
    MPI_Irecv(notice_in_.data(), kNoticeBytes, MPI_CHAR, MPI_ANY_SOURCE, kEnd, comm_, &notice_);
  }
  // The MPI communicator itself lives until MPI ends: freeing it is collective, and the other ranks
  // may be gone.
  ~MpiCommunicator() override { Drop(notice_); }

  RankId rank() const override { return RankId(rank_); }
  int size() const override { return size_; }

  void Abort(const Status& status) override {
    End(Unavailable({.what = fmt::format("rank {} ended the run", rank_),
                     .found = status.ToString(),
                     .remedy = "see the error of that rank"}));
  }

  Status Run(const Collective& op) override {
    deadline_ = op.idle ? Clock::time_point::max() : Clock::now() + limit_;
    SB_RETURN_IF_ERROR(Meet(op));
    if (!IsSum(op.tag.kind)) return Move(op);
    return op.tag.kind == OpKind::kAllReduceSum ? AllReduce(op) : ReduceScatter(op);
  }

 private:
  // One block per member, for Exchange.
  using Sends = std::vector<std::span<const std::byte>>;
  using Recvs = std::vector<std::span<std::byte>>;

  // The first cause stays, and is told to the others.
  void End(Status why) {
    if (cause_) return;
    cause_ = std::move(why);
    notice_out_ = EncodeNotice(*cause_);
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      MPI_Request request;
      if (MPI_Isend(notice_out_.data(), static_cast<int>(notice_out_.size()), MPI_CHAR, r, kEnd,
                    comm_, &request) == MPI_SUCCESS) {
        MPI_Request_free(&request);
      }
    }
  }

  // OK while no rank has ended the world.
  Status CheckEnded() {
    if (cause_) return *cause_;
    int arrived = 0;
    MPI_Status info;
    MPI_Test(&notice_, &arrived, &info);
    if (!arrived) return OkStatus();
    int bytes = 0;
    MPI_Get_count(&info, MPI_CHAR, &bytes);
    cause_ = DecodeNotice(std::string_view(notice_in_.data(), bytes));
    return *cause_;
  }

  Status Late(const Collective& op, int m, std::string_view stage) {
    return DeadlineExceeded(
        {.what = fmt::format("rank {} waited {} ms for rank {}", rank_, limit_.count(),
                             op.tag.group[m].value()),
         .where = op.tag.ToString(),
         .found = fmt::format("no {} from it", stage),
         .remedy = "every member must make this call; if it is only slow, raise the deadline"});
  }

  // Withdraws a request so that its memory may be reused.
  void Drop(MPI_Request& request) {
    if (request == MPI_REQUEST_NULL) return;
    MPI_Cancel(&request);
    const auto until = Clock::now() + limit_;
    Backoff backoff;
    for (int done = 0; !done && Clock::now() < until; backoff.Pause()) {
      MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    }
  }

  void Receive(int m, int peer, void* to, size_t count, MPI_Datatype type, MessageTag tag) {
    member_of_.push_back(m);
    Note(MPI_Irecv(to, static_cast<int>(count), type, peer, tag, comm_,
                   &recvs_.emplace_back(MPI_REQUEST_NULL)));
  }
  void Send(int peer, const void* from, size_t count, MPI_Datatype type, MessageTag tag) {
    Note(MPI_Isend(from, static_cast<int>(count), type, peer, tag, comm_,
                   &sends_.emplace_back(MPI_REQUEST_NULL)));
  }
  // Keeps the first error for Poll.
  void Note(int code) {
    if (error_ == MPI_SUCCESS) error_ = code;
  }

  // Waits for `recvs_` and `sends_`. `arrived(i, status)` is called once per receive; `member_of_`
  // says from which member it comes.
  template <typename Arrived>
  Status Poll(const Collective& op, std::string_view stage, Arrived arrived) {
    Status status = error_ == MPI_SUCCESS ? OkStatus() : MpiError(error_, op.tag.ToString());
    Backoff backoff;
    size_t missing = recvs_.size();
    int sent = 0;
    while (status.ok() && (missing > 0 || !sent)) {
      for (size_t i = 0; i < recvs_.size() && status.ok(); ++i) {
        int done = 0;
        MPI_Status info;
        if (recvs_[i] == MPI_REQUEST_NULL) continue;
        const int code = MPI_Test(&recvs_[i], &done, &info);
        if (code != MPI_SUCCESS) status = MpiError(code, op.tag.ToString());
        if (!done || !status.ok()) continue;
        --missing;
        status = arrived(i, info);
      }
      if (!status.ok()) break;
      MPI_Testall(static_cast<int>(sends_.size()), sends_.data(), &sent, MPI_STATUSES_IGNORE);
      if (missing == 0 && sent) break;
      status = CheckEnded();
      if (status.ok() && Clock::now() > deadline_) {
        const auto late = std::ranges::find_if(
            recvs_, [](MPI_Request request) { return request != MPI_REQUEST_NULL; });
        const int other = op.position == 0 ? 1 : 0;  // a send that nobody receives
        status = Late(op, late == recvs_.end() ? other : member_of_[late - recvs_.begin()], stage);
      }
      backoff.Pause();
    }
    if (!status.ok()) {
      End(std::move(status));
      status = *cause_;
      for (MPI_Request& r : recvs_) Drop(r);
      for (MPI_Request& r : sends_) {
        if (r != MPI_REQUEST_NULL) MPI_Request_free(&r);
      }
    }
    recvs_.clear();
    sends_.clear();
    member_of_.clear();
    return status;
  }

  // Exchanges tags with every other member and compares them.
  Status Meet(const Collective& op) {
    SB_RETURN_IF_ERROR(CheckEnded());
    const size_t words = kFixedWords + 3 * static_cast<size_t>(size_);
    const int n = static_cast<int>(op.tag.group.size());
    header_out_ = EncodeTag(op.tag);
    headers_in_.resize(n * words);
    for (int m = 0; m < n; ++m) {
      if (m == op.position) continue;
      const int peer = op.tag.group[m].value();
      Receive(m, peer, headers_in_.data() + m * words, words, MPI_INT64_T, kHeader);
      Send(peer, header_out_.data(), header_out_.size(), MPI_INT64_T, kHeader);
    }
    return Poll(op, "call", [&](size_t i, const MPI_Status& info) {
      int count = 0;
      MPI_Get_count(&info, MPI_INT64_T, &count);
      const int m = member_of_[i];
      return CompareHeader(op, m, {headers_in_.data() + m * words, static_cast<size_t>(count)});
    });
  }

  // Sends sends[m] to member m and fills recvs[m] from it, for all members but this one.
  Status Exchange(const Collective& op, const Sends& sends, const Recvs& recvs) {
    constexpr size_t kPiece = size_t{1} << 30;  // MPI counts are int
    for (int m = 0; m < static_cast<int>(op.tag.group.size()); ++m) {
      if (m == op.position) continue;
      const int peer = op.tag.group[m].value();
      for (size_t at = 0; at < recvs[m].size(); at += kPiece) {
        const size_t bytes = std::min(kPiece, recvs[m].size() - at);
        Receive(m, peer, recvs[m].data() + at, bytes, MPI_BYTE, kPayload);
      }
      for (size_t at = 0; at < sends[m].size(); at += kPiece) {
        const size_t bytes = std::min(kPiece, sends[m].size() - at);
        Send(peer, sends[m].data() + at, bytes, MPI_BYTE, kPayload);
      }
    }
    return Poll(op, "data", [](size_t, const MPI_Status&) { return OkStatus(); });
  }

  Status Move(const Collective& op) {
    const int n = static_cast<int>(op.tag.group.size());
    Sends sends(n);
    Recvs recvs(n);
    std::byte* to = op.recv;
    for (int m = 0; m < n; ++m) {
      sends[m] = {BlockFor(op, m), static_cast<size_t>(op.tag.give[m])};
      recvs[m] = {to, static_cast<size_t>(op.tag.take[m])};
      to += op.tag.take[m];
    }
    const auto own = sends[op.position];
    const auto own_to = recvs[op.position];
    if (!own_to.empty() && own.data() != own_to.data()) {
      std::memcpy(own_to.data(), own.data(), own_to.size());
    }
    return Exchange(op, sends, recvs);
  }

  // out <- the sum of all members' blocks for this rank; `sends` has what this one gives.
  Status SumBlocks(const Collective& op, const Sends& sends, std::span<float> out) {
    const int n = static_cast<int>(op.tag.group.size());
    scratch_.resize(out.size() * n);  // [members, out]
    Recvs recvs(n);
    std::vector<const float*> terms(n);
    for (int m = 0; m < n; ++m) {
      const std::span<float> block = std::span(scratch_).subspan(m * out.size(), out.size());
      recvs[m] = std::as_writable_bytes(block);
      terms[m] = block.data();
    }
    terms[op.position] = reinterpret_cast<const float*>(sends[op.position].data());
    SB_RETURN_IF_ERROR(Exchange(op, sends, recvs));
    SumAscending(terms, static_cast<int64_t>(out.size()), out.data());
    return OkStatus();
  }

  Status ReduceScatter(const Collective& op) {
    Sends sends;
    for (int m = 0; m < static_cast<int>(op.tag.group.size()); ++m) {
      sends.emplace_back(BlockFor(op, m), op.tag.give[m]);
    }
    return SumBlocks(op, sends,
                     {reinterpret_cast<float*>(op.recv), op.tag.take[0] / sizeof(float)});
  }

  Status AllReduce(const Collective& op) {
    const int n = static_cast<int>(op.tag.group.size());
    const std::span<float> data(reinterpret_cast<float*>(op.recv), op.tag.give[0] / sizeof(float));
    if (op.tag.give[0] <= kDirectBytes) {
      return SumBlocks(op, Sends(n, std::as_bytes(data)), data);
    }
    Sends parts;
    Recvs into;
    for (int m = 0; m < n; ++m) {
      const auto count = static_cast<int64_t>(data.size());
      const int64_t begin = PartBegin(count, n, m);
      const std::span<float> part = data.subspan(begin, PartBegin(count, n, m + 1) - begin);
      parts.push_back(std::as_bytes(part));
      into.push_back(std::as_writable_bytes(part));
    }
    const std::span<std::byte> own = into[op.position];
    SB_RETURN_IF_ERROR(
        SumBlocks(op, parts, {reinterpret_cast<float*>(own.data()), own.size() / sizeof(float)}));
    return Exchange(op, Sends(n, own), into);
  }

  const MPI_Comm comm_;
  const int rank_;
  const int size_;
  const std::chrono::milliseconds limit_;
  std::optional<Status> cause_;  // why the world has ended
  MPI_Request notice_ = MPI_REQUEST_NULL;
  std::array<char, kNoticeBytes> notice_in_{};
  std::string notice_out_;
  // Of the call in progress.
  Clock::time_point deadline_;
  std::vector<int64_t> header_out_, headers_in_;
  std::vector<MPI_Request> recvs_, sends_;
  std::vector<int> member_of_;  // of each receive
  int error_ = MPI_SUCCESS;     // of starting a message
  std::vector<float> scratch_;
};

Status InitMpi() {
  int ready = 0;
  MPI_Initialized(&ready);
  if (ready) return OkStatus();
  int provided = 0;
  const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  if (code != MPI_SUCCESS) return MpiError(code, "MPI_Init_thread");
  if (provided >= MPI_THREAD_SERIALIZED) return OkStatus();
  return Refused({.what = "this MPI does not allow a process with threads",
                  .expected = "MPI_THREAD_SERIALIZED"});
}

}  // namespace

Result<std::unique_ptr<Communicator>> CreateMpiCommunicator(const CommOptions& options) {
  SB_RETURN_IF_ERROR(InitMpi());
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Request request;
  int code = MPI_Comm_idup(MPI_COMM_WORLD, &comm, &request);
  if (code != MPI_SUCCESS) return MpiError(code, "MPI_Comm_idup");
  const auto deadline = Clock::now() + options.deadline;
  Backoff backoff;
  for (int done = 0; !done; backoff.Pause()) {
    code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS) return MpiError(code, "MPI_Comm_idup");
    if (!done && Clock::now() > deadline) {
      return DeadlineExceeded(
          {.what = "not all ranks started", .remedy = "start the same command line on every rank"});
    }
  }
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  int rank = 0, size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  return std::unique_ptr<Communicator>(new MpiCommunicator(comm, rank, size, options));
}

Status RunMpi(const CommOptions& options, const std::function<Status(Communicator&)>& fn) {
  auto created = CreateMpiCommunicator(options);
  if (!created.ok()) return created.status();
  std::unique_ptr<Communicator> comm = std::move(created).value();
  Status status = CallCatching(fn, *comm);
  if (!status.ok()) {
    comm->Abort(status);
    fmt::print(stderr, "rank {}: {}\n", comm->rank().value(), status.ToString());
    std::fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, ExitCode(status.code()));
  }
  comm.reset();
  MPI_Finalize();
  return status;
}

}  // namespace signalbox

#endif  // SIGNALBOX_HAVE_MPI
