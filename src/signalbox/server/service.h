// SPDX-License-Identifier: Apache-2.0
//
// Service: a model that answers many callers at once. One thread of its own runs the engine's
// steps; requests are submitted and cancelled from any thread, and every request's sink is called
// from the service's thread as text comes. What one request began is there for the next: the prefix
// cache lives as long as the service.
//
// Errors: kInvalidArgument for a request that can never run, kResourceExhausted when too many wait.
// When the engine fails, every open request is told why, and so is whoever comes later.
//
//   SB_ASSIGN_OR_RETURN(auto service, Service::Start(std::move(model), {.parallel = 16}));
//   SB_ASSIGN_OR_RETURN(int64_t id, service->Submit(request, [](const TextUpdate& u) {
//     fmt::print("{}", u.delta.text); return true; }));
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "signalbox/base/status.h"
#include "signalbox/engine/expert_load.h"
#include "signalbox/engine/generator.h"
#include "signalbox/server/text_model.h"

namespace signalbox {

class ServiceObserver;

struct ServiceOptions {
  int64_t parallel = 16;    // sequences that run at a time
  int64_t max_waiting = 0;  // requests that wait for a place; 0: any number
  bool prefix_cache = true;
  ServiceObserver* observer = nullptr;  // outlives the service
};

// What a request got from a step.
struct TextUpdate {
  int64_t request = 0;
  int32_t choice = 0;                         // of TextRequest::choices
  AnswerDelta delta;                          // text, and parts of a chat's answer
  std::span<const SampledToken> tokens = {};  // that make it up, with their log-probabilities
  std::span<const SampledToken> prompt = {};  // log-probabilities of prompt tokens, when asked for
  RequestStats stats = {};                    // of the choice, so far
  // The choice has ended; nothing follows for it.
  std::optional<TextResult> result = std::nullopt;
};
// False: the caller had enough of this choice; it ends without another call.
using TextSink = std::function<bool(const TextUpdate& update)>;

struct ServiceStats {
  GeneratorStats generator;
  int64_t running = 0;
  int64_t waiting = 0;
  // By part.
  std::vector<int64_t> running_of;
  std::vector<CacheSize> total;
  std::vector<CacheSize> free;
  // What sequences hold; what the prefix cache alone keeps would give way to them. While the
  // service is busy this is counted four times a second, for it takes a walk over all pages.
  std::vector<CacheSize> used;
  std::vector<PrefixStats> prefixes;
  std::shared_ptr<const ExpertLoad> experts;  // counted once a second while busy; null: no experts
};

// Is told what happens, from the service's thread, before the caller concerned is told.
class ServiceObserver {
 public:
  virtual ~ServiceObserver() = default;
  virtual void OnStep(const ServiceStats& now) = 0;
  // A choice got tokens; `gap` seconds after those before, nothing where they are its first.
  virtual void OnTokens(int64_t tokens, std::optional<double> gap) = 0;
  virtual void OnEnd(int32_t choice, const TextResult& result) = 0;
};

class Service {
 public:
  // The model must lead (Engine::leads).
  static Result<std::unique_ptr<Service>> Start(std::unique_ptr<TextModel> model,
                                                const ServiceOptions& options);
  // Ends what is open: each sink is told once more, kCancelled.
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  Result<int64_t> Submit(const TextRequest& request, TextSink sink);
  // All choices of it end within a step; each is told kCancelled. Nothing happens if it has ended.
  void Cancel(int64_t request, CancelCause cause = CancelCause::kClient);
  // Submits and waits for all choices, in order.
  Result<std::vector<TextResult>> Generate(const TextRequest& request);

  // Submits all and waits for them. Text is readable (AnswerReader for chats) and comes in whole
  // characters, from one thread at a time. kInvalidArgument for a request that cannot run, before
  // any does; the status of one that failed.
  using OnText = std::function<void(size_t request, std::string_view text)>;
  using OnDone = std::function<void(size_t request, const TextResult& result)>;
  Status GenerateAll(const std::vector<TextRequest>& requests, const OnText& on_text,
                     const OnDone& on_done);

  // Forgets the prefixes of earlier prompts. kResourceExhausted while a request is open.
  Status FlushPrefixes();

  // After the last step, or when the last answer was told.
  ServiceStats stats() const;
  // OK, or why the engine has stopped for good.
  Status health() const;
  const ServiceOptions& options() const { return options_; }
  const TextModel& model() const { return *model_; }
  TextModel& model() { return *model_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Arrival {
    int64_t id;
    Clock::time_point at;
    std::shared_ptr<const TextRequest> asked;
    std::shared_ptr<TextSink> sink;
  };
  struct Choice {
    Arrival arrival;
    int32_t index = 0;
    AnswerStream answer;
    bool others_begun = false;                    // the request's other choices
    std::optional<CancelCause> cause = {};        // why it is being cancelled
    std::optional<Clock::time_point> first = {};  // when its first tokens came
    Clock::time_point last = {};                  // when its last tokens came
    RequestStats stats = {};                      // then
  };
  struct Cancellation {
    int64_t request;
    CancelCause cause;
  };

  Service(std::unique_ptr<TextModel> model, const ServiceOptions& options);
  Status Check(const TextRequest& request) const;
  void Run();
  bool TakeWork(std::vector<Arrival>* arrivals, std::vector<Cancellation>* cancelled);
  void Cancel(const std::vector<Cancellation>& cancelled);
  void FlushIfAsked();
  void Begin(const Arrival& arrival, int32_t index);
  bool Take(const Generated& got);
  void BeginOthers(Choice& choice);
  void CountTokens(Choice& choice, int64_t tokens);
  void CountEnd(int32_t choice, const TextResult& result);
  static TextResult ResultOf(const Choice& choice, const Generated& last);
  void EndUnbegun(const Choice& choice, const TextResult& result);
  Status CountExperts();
  void Fail(const Status& status);
  void EndAll(FinishReason reason, const Status& status);
  void Publish();
  // Requests that have not ended; for holders of the mutex.
  int64_t Open() const;

  std::unique_ptr<TextModel> model_;
  const ServiceOptions options_;
  Generator generator_;
  // Of the service's thread.
  std::map<int64_t, Choice> choices_;  // by the generator's id
  std::shared_ptr<const ExpertLoad> experts_;
  Clock::time_point experts_at_;
  std::vector<CacheSize> used_;
  Clock::time_point used_at_;

  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Arrival> arrivals_;
  int64_t taken_ = 0;  // of the arrivals, for the step at hand; stats_ does not know them yet
  std::vector<Cancellation> cancelled_;
  int64_t flushes_asked_ = 0;
  int64_t flushes_done_ = 0;
  std::condition_variable flushed_;
  int64_t next_id_ = 0;
  bool stopping_ = false;
  Status health_;
  ServiceStats stats_;
  std::thread thread_;  // last: it uses all above
};

}  // namespace signalbox
