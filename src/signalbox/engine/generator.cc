// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/generator.h"

#include <fmt/format.h>

#include <algorithm>

namespace signalbox {
namespace {

bool Contains(const std::vector<TokenId>& ids, TokenId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

int64_t Generator::usable_vocab() const {
  const int64_t vocab = engine_.config().facts.vocab;
  return options_.usable_vocab > 0 ? std::min(options_.usable_vocab, vocab) : vocab;
}

Result<int64_t> Generator::Submit(GenerationRequest request) {
  if (request.prompt.empty()) {
    return InvalidArgument({.what = "empty prompt", .expected = "at least one token"});
  }
  const int64_t context = engine_.config().facts.max_position;
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt >= context) {
    return InvalidArgument({.what = "prompt does not fit the model's context",
                            .found = fmt::format("{} tokens", prompt),
                            .expected = fmt::format("fewer than {}", context)});
  }
  request.max_new_tokens = std::min(request.max_new_tokens, context - prompt);
  if (request.min_new_tokens > request.max_new_tokens) {
    return InvalidArgument({.what = "more new tokens asked for than there can be",
                            .where = "min_new_tokens",
                            .found = fmt::format("{}", request.min_new_tokens),
                            .expected = fmt::format("at most {}", request.max_new_tokens)});
  }
  SB_RETURN_IF_ERROR(CheckSampling(request.sampling, usable_vocab()));
  if (request.ignore_eos) {
    std::erase_if(request.stop_ids,
                  [&](TokenId id) { return Contains(engine_.config().stop_ids, id); });
  }
  waiting_.push_back({.id = next_id_, .request = std::move(request)});
  return next_id_++;
}

// Names count from zero in every generator: nothing may be left under them.
Generator::~Generator() {
  StepBatch batch{.release = finished_};
  for (const Running& r : running_) batch.release.push_back(r.id);
  if (!batch.release.empty()) (void)engine_.Run(batch);
}

StepBatch Generator::NextBatch() {
  StepBatch batch;
  batch.release = std::exchange(finished_, {});
  while (!waiting_.empty() && static_cast<int64_t>(running_.size()) < options_.parallel) {
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  const auto left_of = [](const Running& r) {
    return static_cast<int64_t>(r.request.prompt.size()) - r.fed;
  };
  // Tokens of running requests count as well: the layout was planned for so many rows in a step.
  int64_t room = options_.prefill_chunk > 0 ? options_.prefill_chunk : engine_.prefill_chunk();
  for (const Running& r : running_) room -= left_of(r) == 0 ? 1 : 0;
  for (Running& r : running_) {
    const int64_t left = left_of(r);
    SequenceStep step{.sequence = r.id};
    if (left == 0) {
      step.tokens = {r.generated.back()};
    } else if (room > 0) {
      const int64_t take = std::min(left, room);
      const auto begin = r.request.prompt.begin() + r.fed;
      step.tokens.assign(begin, begin + take);
      step.logits = take == left ? LogitRows::kLast : LogitRows::kNone;
      r.fed += take;
      room -= take;
    } else {
      continue;
    }
    batch.sequences.push_back(std::move(step));
  }
  return batch;
}

Status Generator::Step(const OnToken& on_token, const OnSample& on_sample) {
  const StepBatch batch = NextBatch();
  SB_ASSIGN_OR_RETURN(const StepOutput output, engine_.Run(batch));
  const int64_t vocab = engine_.config().facts.vocab;
  int64_t row = 0;
  for (const SequenceStep& step : batch.sequences) {
    if (step.logits == LogitRows::kNone) continue;
    const auto r = std::find_if(running_.begin(), running_.end(),
                                [&](const Running& x) { return x.id == step.sequence; });
    const GenerationRequest& request = r->request;
    SampleInput input{
        .logits = {output.logits.data() + row++ * vocab, static_cast<size_t>(usable_vocab())},
        .prompt = request.prompt,
        .generated = r->generated};
    if (std::ssize(r->generated) < request.min_new_tokens) input.banned = request.stop_ids;
    const Result<SampledToken> sampled = Sample(request.sampling, input);
    if (!sampled.ok()) return sampled.status().At(fmt::format("request {}", r->id));
    if (on_sample) on_sample(r->id, *sampled);
    const TokenId token = sampled->token;
    r->generated.push_back(token);
    std::optional<FinishReason> finish;
    if (Contains(request.stop_ids, token)) {
      finish = FinishReason::kStop;
    } else {
      if (std::ssize(r->generated) >= request.max_new_tokens) finish = FinishReason::kLength;
      on_token(r->id, token, std::nullopt);
    }
    if (!finish) continue;
    on_token(r->id, std::nullopt, finish);
    finished_.push_back(r->id);
    running_.erase(r);
  }
  return OkStatus();
}

}  // namespace signalbox
