// SPDX-License-Identifier: Apache-2.0
//
// Locks: a call's mutex may be held while Calls' own, the service's or an outbox's is taken, never
// the other way round. The service's thread has none of its locks when it calls a sink.
#include "signalbox/server/calls.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <utility>

#include "signalbox/server/lifecycle.h"

namespace signalbox {
namespace {

// What the log calls the status of an answer that nobody was there for.
constexpr int kClientLeft = 499;

}  // namespace

HttpResponse ResponseOf(const ApiError& error) {
  HttpResponse response{.status = error.status, .body = error.Body()};
  if (error.retry_after > 0)
    response.headers.push_back({"Retry-After", std::to_string(error.retry_after)});
  if (error.status == 401) response.headers.push_back({"WWW-Authenticate", "Bearer"});
  return response;
}

struct Calls::Call {
  Call(CallOrder o, Responder r) : order(std::move(o)), responder(std::move(r)) {}

  const CallOrder order;
  const Responder responder;
  std::mutex mutex;
  ApiCall api;
  std::vector<int64_t> requests;    // of the service
  std::vector<TextResult> results;  // for the log
  bool streaming = false;           // something has been sent
  bool over = false;                // answered, or nobody waits
  std::optional<CancelCause> cancelled = {};
};

Calls::Calls(Service& service, TaskQueue& queue, EventLog& events, const RequestLog* log,
             OnIgnored on_ignored)
    : service_(service),
      queue_(queue),
      events_(events),
      log_(log),
      on_ignored_(std::move(on_ignored)) {}

void Calls::Start(CallOrder order, Responder responder) {
  const auto limit = order.limit;
  const auto call = std::make_shared<Call>(std::move(order), std::move(responder));
  {
    std::lock_guard lock(mutex_);
    open_.insert(call);
  }
  call->responder.exchange().OnGone([this, call] {
    std::lock_guard lock(call->mutex);
    if (call->over) return;
    Cancel(*call, CancelCause::kClient);
    End(call, kClientLeft);
  });
  if (limit.count() > 0) {
    queue_.PostAfter(limit, [this, weak = std::weak_ptr(call), limit] {
      const auto late = weak.lock();
      if (late == nullptr) return;
      std::lock_guard lock(late->mutex);
      if (late->over) return;
      Cancel(*late, CancelCause::kTimeout);
      Fail(late, ApiErrorOf(DeadlineExceeded({.what = "there was no answer in time",
                                              .expected = fmt::format("within {}", limit)})));
    });
  }
  queue_.Post([this, call] { Submit(call); });
}

// Parsing takes as long as the body is, and the check of a grammar as long as it may.
void Calls::Submit(const std::shared_ptr<Call>& call) {
  ApiCall api;
  auto error = call->order.parse(call->responder.request().body, call->order.context, &api);
  std::unique_lock lock(call->mutex);
  if (call->over) return;
  call->api = std::move(api);
  if (error) return Fail(call, *error);
  for (const std::string& field : call->api.ignored) on_ignored_(field);
  for (size_t i = 0; !call->over && i < call->api.requests.size(); ++i) {
    lock.unlock();
    const auto id = service_.Submit(
        call->api.requests[i],
        [this, call, i](const TextUpdate& update) { return Take(call, i, update); });
    lock.lock();
    if (id.ok()) {
      call->requests.push_back(*id);
      if (call->cancelled) service_.Cancel(*id, *call->cancelled);
    } else if (!call->over) {
      Cancel(*call, CancelCause::kClient);
      Fail(call, service_.health().ok() ? ApiErrorOf(id.status()) : EngineStopped());
    }
  }
}

// From the service's thread; false: nobody wants the rest.
bool Calls::Take(const std::shared_ptr<Call>& call, size_t prompt, const TextUpdate& update) {
  std::lock_guard lock(call->mutex);
  if (call->over) return false;
  if (log_ != nullptr && update.result) call->results.push_back(*update.result);
  if (update.result && !update.result->status.ok()) {
    events_.Write("request_failed", {{"id", call->order.id},
                                     {"answer", call->api.id},
                                     {"reason", update.result->status.message()}});
  }
  ApiReply& reply = *call->api.reply;
  const Responder& responder = call->responder;
  std::string events = reply.Events(prompt, update);
  const bool complete = reply.complete();
  const auto error = complete ? reply.error() : std::nullopt;
  if (error && !call->streaming) {
    Cancel(*call, CancelCause::kClient);
    Fail(call, *error);
    return true;
  }
  if (!call->api.stream) {
    if (complete) responder.Send({.body = reply.Body()});
  } else if (!call->streaming && (complete || !events.empty())) {
    call->streaming = true;
    responder.BeginStream({.content_type = "text/event-stream",
                           .headers = {{"Cache-Control", "no-cache"}},
                           .body = std::move(events)});
  } else if (!events.empty() && !responder.exchange().Write(std::move(events))) {
    Cancel(*call, CancelCause::kClient);
    End(call, kClientLeft);
    return false;
  }
  if (!complete) return true;
  if (call->api.stream) responder.exchange().EndStream();
  // An error may have left other requests of the call running.
  if (error) Cancel(*call, CancelCause::kClient);
  End(call, 200, error ? error->code : "");
  return true;
}

// For holders of the call's mutex.
void Calls::Fail(const std::shared_ptr<Call>& call, const ApiError& error) {
  if (call->streaming) {
    (void)call->responder.exchange().Write("data: " + error.Body() + "\n\ndata: [DONE]\n\n");
    call->responder.exchange().EndStream();
  } else {
    call->responder.Send(error);
  }
  End(call, error.status, error.code);
}

// For holders of the call's mutex. What is being submitted is cancelled when it has a number.
void Calls::Cancel(Call& call, CancelCause cause) const {
  call.cancelled = cause;
  for (const int64_t request : call.requests) service_.Cancel(request, cause);
}

// For holders of the call's mutex.
void Calls::End(const std::shared_ptr<Call>& call, int status, const std::string& error) {
  call->over = true;
  if (log_ != nullptr) Log(*call, status, error);
  std::lock_guard lock(mutex_);
  open_.erase(call);
  ended_.notify_all();
}

void Calls::Log(const Call& call, int status, const std::string& error) const {
  RequestRecord record{.id = call.order.id,
                       .route = std::string(call.order.route),
                       .status = status,
                       .error = error,
                       .results = call.results};
  if (!call.api.requests.empty()) {
    record.asked = &call.api.requests.front();
    if (log_->wants_text()) {
      record.prompt = std::as_const(service_).model().tokenizer().Decode(record.asked->prompt,
                                                                         SpecialTokens::kKeep);
    }
  }
  log_->Write(record);
}

int64_t Calls::AbortIf(const std::function<bool(const Call&)>& wanted, CancelCause cause) {
  std::set<std::shared_ptr<Call>> open;
  {
    std::lock_guard lock(mutex_);
    open = open_;
  }
  int64_t aborted = 0;
  for (const std::shared_ptr<Call>& call : open) {
    std::lock_guard lock(call->mutex);
    if (call->over || !wanted(*call)) continue;
    Cancel(*call, cause);
    ++aborted;
  }
  return aborted;
}

int64_t Calls::Abort(std::string_view id, CancelCause cause) {
  return AbortIf([&](const Call& call) { return call.api.id == id; }, cause);
}

int64_t Calls::AbortAll(CancelCause cause) {
  return AbortIf([](const Call&) { return true; }, cause);
}

int64_t Calls::open() const {
  std::lock_guard lock(mutex_);
  return std::ssize(open_);
}

bool Calls::WaitUntilDone(std::chrono::milliseconds limit) const {
  std::unique_lock lock(mutex_);
  return ended_.wait_for(lock, limit, [&] { return open_.empty(); });
}

}  // namespace signalbox
