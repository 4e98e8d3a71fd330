// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/service.h"

#include <fmt/format.h>

#include <algorithm>

#include "signalbox/base/check.h"

namespace signalbox {
namespace {

constexpr std::chrono::milliseconds kUsedEvery{250};
constexpr std::chrono::seconds kExpertsEvery{1};

}  // namespace

Result<std::unique_ptr<Service>> Service::Start(std::unique_ptr<TextModel> model,
                                                const ServiceOptions& options) {
  SB_CHECK(model->engine().leads());
  std::unique_ptr<Service> service(new Service(std::move(model), options));
  SB_RETURN_IF_ERROR(service->CountExperts());
  service->Publish();
  service->thread_ = std::thread([s = service.get()] { s->Run(); });
  return service;
}

Service::Service(std::unique_ptr<TextModel> model, const ServiceOptions& options)
    : model_(std::move(model)),
      options_(options),
      generator_(model_->engine(),
                 {.parallel = options.parallel,
                  .usable_vocab = static_cast<int64_t>(model_->tokenizer().vocab_size()),
                  .prefix_cache = options.prefix_cache}) {}

Service::~Service() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    arrived_.notify_all();
  }
  if (thread_.joinable()) thread_.join();  // it is not where Start failed
}

// Whatever can be wrong with a request is said to the caller, before it waits.
Status Service::Check(const TextRequest& request) const {
  SB_ASSIGN_OR_RETURN(const GenerationRequest generation, model_->GenerationOf(request));
  SB_RETURN_IF_ERROR(generator_.Check(generation));
  SB_RETURN_IF_ERROR(model_->StreamOf(request).status());
  if (request.choices >= 1) return OkStatus();
  return InvalidArgument({.what = "no answer is asked for",
                          .where = "n",
                          .found = fmt::format("{}", request.choices),
                          .expected = "at least 1"});
}

Result<int64_t> Service::Submit(const TextRequest& request, TextSink sink) {
  SB_RETURN_IF_ERROR(Check(request));
  std::lock_guard lock(mutex_);
  if (!health_.ok()) return health_;
  // Those that arrived since the last step take what places are free.
  const int64_t waiting = std::max(stats_.waiting, Open() - options_.parallel);
  if (options_.max_waiting > 0 && waiting >= options_.max_waiting) {
    return ResourceExhausted({.what = "too many requests wait",
                              .found = fmt::format("{} waiting", waiting),
                              .expected = fmt::format("fewer than {}", options_.max_waiting),
                              .remedy = "try again later"});
  }
  arrivals_.push_back({.id = next_id_,
                       .at = Clock::now(),
                       .asked = std::make_shared<const TextRequest>(request),
                       .sink = std::make_shared<TextSink>(std::move(sink))});
  arrived_.notify_all();
  return next_id_++;
}

void Service::Cancel(int64_t request, CancelCause cause) {
  std::lock_guard lock(mutex_);
  cancelled_.push_back({request, cause});
  arrived_.notify_all();
}

Result<std::vector<TextResult>> Service::Generate(const TextRequest& request) {
  struct Waiting {
    std::mutex mutex;
    std::condition_variable done;
    std::vector<TextResult> results;
    int64_t open;
  };
  // The sink may outlive this call's stack by the moment that it takes to return.
  auto waiting = std::make_shared<Waiting>();
  waiting->results.resize(static_cast<size_t>(std::max(request.choices, 1)));
  waiting->open = request.choices;
  SB_RETURN_IF_ERROR(Submit(request, [waiting](const TextUpdate& update) {
                       if (!update.result) return true;
                       std::lock_guard lock(waiting->mutex);
                       waiting->results[static_cast<size_t>(update.choice)] = *update.result;
                       if (--waiting->open == 0) waiting->done.notify_all();
                       return true;
                     }).status());
  std::unique_lock lock(waiting->mutex);
  waiting->done.wait(lock, [&] { return waiting->open == 0; });
  for (const TextResult& r : waiting->results) SB_RETURN_IF_ERROR(r.status);
  return waiting->results;
}

Status Service::GenerateAll(const std::vector<TextRequest>& requests, const OnText& on_text,
                            const OnDone& on_done) {
  struct Waiting {
    std::mutex mutex;
    std::condition_variable done;
    size_t open;
    Status status;
  };
  for (const TextRequest& r : requests) SB_RETURN_IF_ERROR(Check(r));
  auto waiting = std::make_shared<Waiting>();
  waiting->open = requests.size();
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto sink = [&, waiting, i, reader = AnswerReader(),
                       chat = requests[i].chat](const TextUpdate& update) mutable {
      const std::string shown = chat ? reader.Readable(update.delta.events) : update.delta.text;
      if (!shown.empty()) on_text(i, shown);
      if (!update.result) return true;
      if (update.result->status.ok()) on_done(i, *update.result);
      std::lock_guard lock(waiting->mutex);
      if (waiting->status.ok()) waiting->status = update.result->status;
      if (--waiting->open == 0) waiting->done.notify_all();
      return true;
    };
    const auto id = Submit(requests[i], sink);
    if (id.ok()) continue;
    // The engine has failed meanwhile: those before this one are told as well.
    std::lock_guard lock(waiting->mutex);
    waiting->open -= requests.size() - i;
    if (waiting->status.ok()) waiting->status = id.status();
    break;
  }
  std::unique_lock lock(waiting->mutex);
  waiting->done.wait(lock, [&] { return waiting->open == 0; });
  return waiting->status;
}

Status Service::FlushPrefixes() {
  std::unique_lock lock(mutex_);
  if (const int64_t open = Open(); open > 0) {
    return ResourceExhausted({.what = "the cache cannot be flushed while requests are open",
                              .found = fmt::format("{} open", open)});
  }
  const int64_t asked = ++flushes_asked_;
  arrived_.notify_all();
  flushed_.wait(lock, [&] { return flushes_done_ >= asked || !health_.ok(); });
  return health_;
}

int64_t Service::Open() const {
  return stats_.running + stats_.waiting + taken_ + std::ssize(arrivals_);
}

ServiceStats Service::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

Status Service::health() const {
  std::lock_guard lock(mutex_);
  return health_;
}

// Waits for something to do; false when there will be no more.
bool Service::TakeWork(std::vector<Arrival>* arrivals, std::vector<Cancellation>* cancelled) {
  std::unique_lock lock(mutex_);
  arrived_.wait(lock, [&] {
    return stopping_ || !arrivals_.empty() || !cancelled_.empty() ||
           flushes_asked_ > flushes_done_ || !generator_.idle();
  });
  arrivals->assign(std::make_move_iterator(arrivals_.begin()),
                   std::make_move_iterator(arrivals_.end()));
  arrivals_.clear();
  taken_ = std::ssize(*arrivals);
  *cancelled = std::exchange(cancelled_, {});
  return !stopping_;
}

void Service::Run() {
  std::vector<Arrival> arrivals;
  std::vector<Cancellation> cancelled;
  for (bool more = true; more;) {
    more = TakeWork(&arrivals, &cancelled);
    for (const Arrival& a : arrivals) Begin(a, 0);
    if (!more) break;
    FlushIfAsked();
    Cancel(cancelled);
    Status status = generator_.Step([this](const Generated& got) { return Take(got); });
    if (status.ok()) status = CountExperts();
    if (!status.ok()) {
      Fail(status);
      return;
    }
    Publish();
  }
  EndAll(FinishReason::kCancelled, OkStatus());
}

void Service::FlushIfAsked() {
  int64_t asked = 0;
  {
    std::lock_guard lock(mutex_);
    asked = flushes_asked_;
    if (asked == flushes_done_) return;
  }
  generator_.scheduler().ClearPrefixes();
  Publish();
  std::lock_guard lock(mutex_);
  flushes_done_ = asked;
  flushed_.notify_all();
}

void Service::Cancel(const std::vector<Cancellation>& cancelled) {
  for (auto& [id, choice] : choices_) {
    const auto is = [request = choice.arrival.id](const Cancellation& c) {
      return c.request == request;
    };
    const auto it = std::find_if(cancelled.begin(), cancelled.end(), is);
    if (it == cancelled.end()) continue;
    choice.cause = it->cause;
    generator_.Cancel(id);
  }
}

Status Service::CountExperts() {
  if (!generator_.idle() && Clock::now() - experts_at_ < kExpertsEvery) return OkStatus();
  SB_ASSIGN_OR_RETURN(ExpertLoad load, model_->engine().ExpertLoadSoFar());
  if (!load.layers.empty()) experts_ = std::make_shared<const ExpertLoad>(std::move(load));
  experts_at_ = Clock::now();
  return OkStatus();
}

// Those that came during the last step are told as well; Submit lets no more in.
void Service::Fail(const Status& status) {
  std::deque<Arrival> arrivals;
  {
    std::lock_guard lock(mutex_);
    health_ = status;
    arrivals.swap(arrivals_);
    flushed_.notify_all();
  }
  for (const Arrival& a : arrivals) Begin(a, 0);
  EndAll(FinishReason::kFailed, status);
}

void Service::Begin(const Arrival& arrival, int32_t index) {
  // Submit has checked all of this.
  GenerationRequest request = *model_->GenerationOf(*arrival.asked);
  request.sampling.seed += static_cast<uint64_t>(index);
  const int64_t id = *generator_.Submit(std::move(request));
  choices_.emplace(id, Choice{.arrival = arrival,
                              .index = index,
                              .answer = *model_->StreamOf(*arrival.asked),
                              .others_begun = index > 0});
}

bool Service::Take(const Generated& got) {
  const auto it = choices_.find(got.request);
  Choice& choice = it->second;
  AnswerStream& answer = choice.answer;
  std::vector<TokenId> ids;
  for (const SampledToken& token : got.tokens) ids.push_back(token.token);
  TextUpdate update{.request = choice.arrival.id,
                    .choice = choice.index,
                    .prompt = got.prompt,
                    .stats = got.stats};
  update.delta = answer.Push(ids);
  if (!answer.finished() && got.finish) {
    AnswerDelta last = answer.Finish(/*stopped=*/*got.finish == FinishReason::kStop);
    update.delta.text += last.text;
    update.delta.events.insert(update.delta.events.end(), last.events.begin(), last.events.end());
    update.delta.stopped = last.stopped;
  }
  update.tokens = got.tokens.first(static_cast<size_t>(update.delta.tokens));
  choice.stats = got.stats;
  CountTokens(choice, update.delta.tokens);
  // The prompt is in the prefix cache now, so the other choices start behind it.
  const bool begins = !choice.others_begun && (!got.tokens.empty() || got.finish);
  if (begins && got.finish != FinishReason::kCancelled) BeginOthers(choice);
  const bool finished = answer.finished();
  if (finished) {
    update.result = ResultOf(choice, got);
    CountEnd(choice.index, *update.result);
    Publish();
  }
  const bool enough = !(*choice.arrival.sink)(update);
  if (finished) {
    EndUnbegun(choice, *update.result);
  } else if (enough) {
    Generated cancelled = got;
    cancelled.finish = FinishReason::kCancelled;
    CountEnd(choice.index, ResultOf(choice, cancelled));
  }
  if (finished || enough) choices_.erase(it);
  return !finished && !enough;
}

void Service::BeginOthers(Choice& choice) {
  choice.others_begun = true;
  for (int32_t i = 1; i < choice.arrival.asked->choices; ++i) Begin(choice.arrival, i);
}

void Service::CountTokens(Choice& choice, int64_t tokens) {
  if (tokens == 0) return;
  const Clock::time_point now = Clock::now();
  std::optional<double> gap;
  if (choice.first) gap = std::chrono::duration<double>(now - choice.last).count();
  choice.first = choice.first.value_or(now);
  choice.last = now;
  if (options_.observer != nullptr) options_.observer->OnTokens(tokens, gap);
}

void Service::CountEnd(int32_t choice, const TextResult& result) {
  if (options_.observer != nullptr) options_.observer->OnEnd(choice, result);
}

TextResult Service::ResultOf(const Choice& choice, const Generated& last) {
  TextResult result = TextModel::ResultOf(*choice.arrival.asked, choice.answer.answer(), last);
  result.cause = choice.cause.value_or(CancelCause::kClient);
  const auto now = Clock::now();
  const auto started = last.stats.started.value_or(now);
  const auto first = choice.first.value_or(now);
  const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  result.times = {.queue = seconds(started - choice.arrival.at),
                  .prefill = seconds(first - started),
                  .decode = seconds(now - first)};
  return result;
}

// The other choices of one that ended before it said a word end like it.
void Service::EndUnbegun(const Choice& choice, const TextResult& result) {
  for (int32_t i = 1; i < choice.arrival.asked->choices && !choice.others_begun; ++i) {
    CountEnd(i, result);
    (*choice.arrival.sink)({.request = choice.arrival.id, .choice = i, .result = result});
  }
}

void Service::EndAll(FinishReason reason, const Status& status) {
  for (auto& [id, choice] : choices_) {
    choice.cause = CancelCause::kDrain;
    TextUpdate update{.request = choice.arrival.id, .choice = choice.index};
    update.delta = choice.answer.Finish(/*stopped=*/false);
    update.result = ResultOf(choice, {.finish = reason, .status = status, .stats = choice.stats});
    CountEnd(choice.index, *update.result);
    (*choice.arrival.sink)(update);
    EndUnbegun(choice, *update.result);
  }
  choices_.clear();
}

void Service::Publish() {
  const Scheduler& scheduler = generator_.scheduler();
  ServiceStats now{.generator = generator_.stats(),
                   .running = scheduler.running(),
                   .waiting = scheduler.waiting()};
  for (size_t p = 0; p < model_->engine().accounts().size(); ++p) {
    const CacheAccount& account = model_->engine().accounts()[p];
    now.running_of.push_back(scheduler.running_of(static_cast<int>(p)));
    now.total.push_back(account.size());
    now.free.push_back({.pages = account.free_pages(), .slots = account.free_slots()});
    now.prefixes.push_back(scheduler.prefix(static_cast<int>(p)).stats());
  }
  if (generator_.idle() || Clock::now() - used_at_ >= kUsedEvery) {
    used_at_ = Clock::now();
    used_.clear();
    for (size_t p = 0; p < now.total.size(); ++p) {
      const PrefixCache& prefix = scheduler.prefix(static_cast<int>(p));
      used_.push_back(
          {.pages = now.total[p].pages - now.free[p].pages - prefix.evictable_pages(),
           .slots = now.total[p].slots - now.free[p].slots - now.prefixes[p].snapshots});
    }
  }
  now.used = used_;
  now.experts = experts_;
  if (options_.observer != nullptr) options_.observer->OnStep(now);
  std::lock_guard lock(mutex_);
  stats_ = std::move(now);
  taken_ = 0;
}

}  // namespace signalbox
