// SPDX-License-Identifier: Apache-2.0
//
// Calls: the requests that have the model write something, from their body to the last byte of
// their answer. A call whose client leaves is cancelled at once, streamed or not, wherever it is.
//
//   calls.Start({.parse = ParseChat, .context = context}, responder);
//   calls.Abort("chatcmpl-1", CancelCause::kAdmin);
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "signalbox/server/api.h"
#include "signalbox/server/event_log.h"
#include "signalbox/server/request_log.h"
#include "signalbox/server/responder.h"
#include "signalbox/server/service.h"
#include "signalbox/server/task_queue.h"

namespace signalbox {

using ParseCall = std::optional<ApiError> (*)(std::string_view body, const ApiContext& context,
                                              ApiCall* call);

struct CallOrder {
  std::string_view route;  // of the log; as in the table of routes
  std::string id;          // of the request
  ParseCall parse = nullptr;
  ApiContext context;
  std::chrono::milliseconds limit{0};  // the call is given up after it; 0: none
};

class Calls {
 public:
  using OnIgnored = std::function<void(const std::string& field)>;

  // It outlives the service's thread, the queue's, and every exchange that may still be told that
  // its client has left. `on_ignored` is told of fields that nobody reads, from any thread.
  // `log` may be null.
  Calls(Service& service, TaskQueue& queue, EventLog& events, const RequestLog* log,
        OnIgnored on_ignored);
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  // Returns at once; the answer comes from other threads.
  void Start(CallOrder order, Responder responder);
  // Ends the calls of that id, or all of them; returns how many. Each is answered with what there
  // is of it.
  int64_t Abort(std::string_view id, CancelCause cause);
  int64_t AbortAll(CancelCause cause);
  int64_t open() const;
  // Waits until no call is open; false: it took too long.
  bool WaitUntilDone(std::chrono::milliseconds limit) const;

 private:
  struct Call;

  void Submit(const std::shared_ptr<Call>& call);
  bool Take(const std::shared_ptr<Call>& call, size_t prompt, const TextUpdate& update);
  void Cancel(Call& call, CancelCause cause) const;
  void Fail(const std::shared_ptr<Call>& call, const ApiError& error);
  void End(const std::shared_ptr<Call>& call, int status, const std::string& error = {});
  void Log(const Call& call, int status, const std::string& error) const;
  int64_t AbortIf(const std::function<bool(const Call&)>& wanted, CancelCause cause);

  Service& service_;
  TaskQueue& queue_;
  EventLog& events_;
  const RequestLog* const log_;
  const OnIgnored on_ignored_;
  mutable std::mutex mutex_;
  mutable std::condition_variable ended_;
  std::set<std::shared_ptr<Call>> open_;
};

}  // namespace signalbox
