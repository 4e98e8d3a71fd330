// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/signalbox.h"

#include <algorithm>
#include <thread>

#include "signalbox/a2a/contract.h"
#include "signalbox/server/service.h"

namespace signalbox {
namespace {

Result<EngineOptions> EngineOptionsOf(const ModelOptions& o) {
  EngineOptions options{
      .threads = o.threads > 0 ? o.threads
                               : std::max(1, static_cast<int>(std::thread::hardware_concurrency())),
      .budget = {.tokens = o.max_total_tokens, .sequences = o.max_running_requests},
      .deterministic = o.deterministic};
  options.layout.parallel = {.tp = o.tp, .dp = o.dp, .ep = o.ep};
  options.layout.limits = {.chunked_prefill_size = o.chunked_prefill_size,
                           .max_running_requests = o.max_running_requests,
                           .draft_tokens = o.draft_tokens};
  if (o.moe_a2a_backend.empty()) return options;
  for (CallPhase phase : {CallPhase::kPrefill, CallPhase::kDecode, CallPhase::kVerify}) {
    SB_ASSIGN_OR_RETURN(options.layout.contracts[static_cast<size_t>(phase)],
                        FindContract(o.moe_a2a_backend, o.moe_a2a_mode, phase));
  }
  return options;
}

Completion CompletionOf(const TextResult& result) {
  return {.text = result.text,
          .content = result.answer.content,
          .reasoning = result.answer.reasoning,
          .finish = std::string(ToString(result.finish)),
          .prompt_tokens = result.prompt_tokens,
          .cached_tokens = result.stats.cached_tokens,
          .new_tokens = result.new_tokens,
          .accept_length = result.stats.accept_length()};
}

class ServedModel final : public Model {
 public:
  explicit ServedModel(std::unique_ptr<Service> service) : service_(std::move(service)) {}

  Result<Completion> Generate(const CompletionRequest& request) override {
    SB_ASSIGN_OR_RETURN(const TextRequest asked, RequestOf(request));
    SB_ASSIGN_OR_RETURN(const std::vector<TextResult> results, service_->Generate(asked));
    return CompletionOf(results[0]);
  }

  Result<int64_t> Stream(const CompletionRequest& request, OnText on_text,
                         OnDone on_done) override {
    SB_ASSIGN_OR_RETURN(const TextRequest asked, RequestOf(request));
    return service_->Submit(asked, [on_text, on_done](const TextUpdate& update) {
      if (!update.delta.text.empty()) on_text(update.delta.text);
      if (!update.result) return true;
      const Status& status = update.result->status;
      on_done(status.ok() ? Result<Completion>(CompletionOf(*update.result))
                          : Result<Completion>(status));
      return true;
    });
  }

  void Cancel(int64_t request) override { service_->Cancel(request); }

  ModelStats stats() const override {
    const ServiceStats s = service_->stats();
    const SchedulerStats& scheduler = s.generator.scheduler;
    ModelStats stats{.running = s.running,
                     .waiting = s.waiting,
                     .finished = scheduler.finished,
                     .steps = scheduler.steps,
                     .prefill_tokens = scheduler.prefill_tokens,
                     .cached_tokens = scheduler.cached_tokens,
                     .new_tokens = s.generator.new_tokens,
                     .preemptions = scheduler.preemptions};
    for (const CacheSize& size : s.total) stats.total_pages += size.pages;
    for (const CacheSize& size : s.free) stats.free_pages += size.pages;
    if (s.generator.decode_steps > 0) {
      stats.accept_length = static_cast<double>(s.generator.decode_tokens) /
                            static_cast<double>(s.generator.decode_steps);
    }
    return stats;
  }

 private:
  Result<TextRequest> RequestOf(const CompletionRequest& r) const {
    TextRequest request;
    request.max_new_tokens = r.max_new_tokens;
    request.min_new_tokens = r.min_new_tokens;
    request.ignore_eos = r.ignore_eos;
    request.stop = r.stop;
    request.sampling = {.temperature = r.temperature,
                        .seed = r.seed,
                        .top_k = r.top_k,
                        .top_p = r.top_p,
                        .min_p = r.min_p,
                        .repetition_penalty = r.repetition_penalty,
                        .presence_penalty = r.presence_penalty,
                        .frequency_penalty = r.frequency_penalty};
    if (r.messages.empty()) {
      SB_ASSIGN_OR_RETURN(request.prompt, service_->model().EncodePlain(r.prompt));
      return request;
    }
    if (!r.prompt.empty()) {
      return InvalidArgument(
          {.what = "both a conversation and plain text", .expected = "either messages or prompt"});
    }
    std::vector<ChatTurn> turns;
    for (const Message& m : r.messages) turns.push_back({m.role, m.content});
    SB_ASSIGN_OR_RETURN(ChatPrompt chat, service_->model().EncodeChat(turns, r.thinking));
    request.prompt = std::move(chat.ids);
    request.turn_ends = std::move(chat.turn_ends);
    request.chat = true;
    return request;
  }

  std::unique_ptr<Service> service_;
};

}  // namespace

Result<std::unique_ptr<Model>> Model::Load(const std::string& directory,
                                           const ModelOptions& options) {
  SB_ASSIGN_OR_RETURN(const EngineOptions engine, EngineOptionsOf(options));
  SB_ASSIGN_OR_RETURN(auto text, TextModel::Load(directory, engine));
  SB_ASSIGN_OR_RETURN(auto service,
                      Service::Start(std::move(text), {.parallel = options.max_running_requests,
                                                       .prefix_cache = options.prefix_cache}));
  return std::unique_ptr<Model>(std::make_unique<ServedModel>(std::move(service)));
}

std::string_view Version() {
  return SIGNALBOX_VERSION;
}

}  // namespace signalbox
