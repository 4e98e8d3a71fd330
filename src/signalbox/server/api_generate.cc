// SPDX-License-Identifier: Apache-2.0
//
// /generate: SGLang's own dialect.
#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "signalbox/server/api_reply.h"
#include "signalbox/server/api_request.h"
#include "signalbox/text/detokenizer.h"

namespace signalbox {
namespace {

// Of one prompt of the call.
struct GenerateOptions {
  std::string id;
  bool logprobs = false;
  int64_t logprob_start = -1;  // of the prompt; -1: none of it
  int64_t top = 0;
  bool hide_answer = false;  // no token was asked for: the one that had to be made is not told
  int64_t interval = 1;      // tokens between two events
  SpecialTokens special = SpecialTokens::kSkip;
};

class GenerateReply final : public ChoicesReply {
 public:
  GenerateReply(ReplyOptions reply, std::vector<GenerateOptions> options, bool batch,
                bool token_text)
      : ChoicesReply(std::move(reply)),
        options_(std::move(options)),
        batch_(batch || choices() > 1),
        token_text_(token_text) {
    states_.resize(choices());
  }

  std::string Body() override {
    ApiJson items = ApiJson::array();
    for (size_t i = 0; i < states_.size(); ++i) items.push_back(Item(i));
    return ApiDump(batch_ ? items : items[0]);
  }

 protected:
  std::string Take(size_t index, const TextUpdate& update) override {
    State& state = states_[index];
    const GenerateOptions& asked = OptionsOf(index);
    state.prompt.insert(state.prompt.end(), update.prompt.begin(), update.prompt.end());
    state.stats = update.stats;
    if (update.tokens.empty() && update.delta.text.empty() && !update.result) return "";
    std::string events;
    if (!asked.hide_answer) {
      // Clients take the time of the first token from the event that has one token, so the first
      // shows one, however many came at a time.
      size_t told = 0;
      if (state.tokens.empty() && update.tokens.size() > 1 && options().stream) {
        state.tokens.push_back(update.tokens[told++]);
        StreamDecoder decoder(*options().tokenizer, asked.special);
        const std::string first = decoder.Push(update.tokens[0].token);
        if (update.delta.text.starts_with(first)) state.text = first;
        events += Event(index);
      }
      state.tokens.insert(state.tokens.end(), update.tokens.begin() + static_cast<int64_t>(told),
                          update.tokens.end());
      state.text.resize(state.before);
      state.text += update.delta.text;
      state.before = state.text.size();
    }
    if (update.result) {
      state.seconds = std::chrono::duration<double>(Clock::now() - begun_).count();
      state.result = *update.result;
    }
    if (!options().stream) return "";
    const int64_t count = std::ssize(state.tokens);
    const bool due = count == 1 || count - state.told >= asked.interval;
    if (due || update.result) events += Event(index);
    return events;
  }

 private:
  using Clock = std::chrono::steady_clock;

  struct State {
    std::vector<SampledToken> prompt = {};  // the first token has none
    std::vector<SampledToken> tokens = {};
    std::string text = {};
    size_t before = 0;  // bytes of it that updates have brought
    int64_t told = 0;   // tokens that the last event had
    double seconds = 0;
    RequestStats stats = {};
    std::optional<TextResult> result = {};
  };

  const GenerateOptions& OptionsOf(size_t index) const {
    return options_[index / static_cast<size_t>(options().choices)];
  }

  std::string Event(size_t index) {
    states_[index].told = std::ssize(states_[index].tokens);
    return StreamEvent(Item(index));
  }

  // All there is so far.
  ApiJson Item(size_t index) const {
    const State& state = states_[index];
    ApiJson item = {{"text", state.text}};
    if (state.result) {
      item["output_ids"] = ApiJson::array();
      for (const SampledToken& token : state.tokens) item["output_ids"].push_back(token.token);
    }
    item["meta_info"] = Meta(index);
    if (batch_) item["index"] = index;
    return item;
  }

  ApiJson Meta(size_t index) const {
    const State& state = states_[index];
    const GenerateOptions& asked = OptionsOf(index);
    const bool ended = state.result.has_value();
    ApiJson meta = {
        {"id", asked.id},
        {"finish_reason", ended ? Finish(index) : ApiJson()},
        {"prompt_tokens", PromptOf(index).size()},
        {"completion_tokens", state.tokens.size()},
        {"cached_tokens", state.stats.cached_tokens},
    };
    if (ended) {
      meta["e2e_latency"] = state.seconds;
    }
    if (state.stats.drafted_tokens > 0) {
      meta["spec_accept_length"] = state.stats.accept_length();
    }
    if (asked.logprobs) AddLogprobs(index, meta);
    return meta;
  }

  ApiJson Finish(size_t index) const {
    const TextResult& result = *states_[index].result;
    if (OptionsOf(index).hide_answer) return {{"type", "length"}, {"length", 0}};
    const std::string type = FinishText(result.finish);
    if (type == "length") return {{"type", type}, {"length", states_[index].tokens.size()}};
    if (type == "stop") return {{"type", type}, {"matched", MatchedStop(result)}};
    return {{"type", type}, {"message", "the request was cancelled"}};
  }

  void AddLogprobs(size_t index, ApiJson& meta) const {
    const State& state = states_[index];
    const GenerateOptions& asked = OptionsOf(index);
    const std::vector<TokenId>& prompt = PromptOf(index);
    const auto length = std::ssize(prompt);
    const int64_t start = asked.logprob_start < 0 ? length : asked.logprob_start;
    ApiJson input = ApiJson::array();
    ApiJson input_top = ApiJson::array();
    for (int64_t i = start; i < length; ++i) {
      if (i == 0 || i > std::ssize(state.prompt)) {
        input.push_back(Triple(nullptr, prompt[static_cast<size_t>(i)]));
        input_top.push_back(nullptr);
        continue;
      }
      const SampledToken& token = state.prompt[static_cast<size_t>(i - 1)];
      input.push_back(Triple(token.logprob, token.token));
      input_top.push_back(Triples(token.top));
    }
    ApiJson output = ApiJson::array();
    ApiJson output_top = ApiJson::array();
    for (const SampledToken& token : state.tokens) {
      output.push_back(Triple(token.logprob, token.token));
      output_top.push_back(Triples(token.top));
    }
    meta["input_token_logprobs"] = std::move(input);
    meta["output_token_logprobs"] = std::move(output);
    if (asked.top == 0) return;
    meta["input_top_logprobs"] = std::move(input_top);
    meta["output_top_logprobs"] = std::move(output_top);
  }

  ApiJson Triple(ApiJson logprob, TokenId id) const {
    ApiJson text = nullptr;
    if (token_text_) text = TokenText(*options().tokenizer, id);
    return ApiJson::array({std::move(logprob), id, std::move(text)});
  }

  ApiJson Triples(const std::vector<TokenLogprob>& top) const {
    ApiJson list = ApiJson::array();
    for (const TokenLogprob& t : top) list.push_back(Triple(t.logprob, t.token));
    return list;
  }

  const std::vector<GenerateOptions> options_;  // by prompt
  const bool batch_;
  const bool token_text_;
  const Clock::time_point begun_ = Clock::now();
  std::vector<State> states_;
};

// --- Reading ------------------------------------------------------------------------------------

// A field that is one value for all items, or a list of one for each.
class PerItem {
 public:
  PerItem(ApiFields& fields, const char* name, size_t items) : name_(name) {
    const ApiJson* value = fields.Find(name);
    if (value == nullptr) return;
    each_ = value->is_array();
    if (each_ && value->size() != items) {
      fields.Refuse(name, "expected a value for each of the prompts");
      return;
    }
    value_ = value;
  }
  // The field of item i, as an object of that one field.
  ApiJson Of(size_t i) const {
    ApiJson object = ApiJson::object();
    if (value_ != nullptr) object[name_] = each_ ? (*value_)[i] : *value_;
    return object;
  }

 private:
  const char* name_;
  const ApiJson* value_ = nullptr;
  bool each_ = false;
};

// The sampling_params of one item.
std::optional<AskedGrammar> ReadItem(ApiFields& params, const ApiContext& context,
                                     TextRequest* request, GenerateOptions* options) {
  ReadUnsupported(params);
  ReadSampling(params, context, request);
  if (const auto seed = params.Integer("sampling_seed", INT64_MIN, INT64_MAX)) {
    request->sampling.seed = static_cast<uint64_t>(*seed);
  }
  options->special = request->skip_special ? SpecialTokens::kSkip : SpecialTokens::kKeep;
  options->interval = params.Integer("stream_interval", 1, INT64_MAX).value_or(1);
  FitContext(params, context,
             {.most = params.Integer("max_new_tokens", 0, INT64_MAX),
              .field = "max_new_tokens",
              .otherwise = 128},
             "min_new_tokens", request);
  options->hide_answer = request->max_new_tokens == 0;
  request->max_new_tokens = std::max<int64_t>(request->max_new_tokens, 1);
  auto grammar = ReadGrammar(params);
  if (grammar) request->grammar = grammar->spec;
  return grammar;
}

struct Items {
  PerItem params;
  PerItem logprobs;
  PerItem start;
  PerItem top;
  PerItem rid;
};

// Request i of the call; `unread` gets the names of its fields that nobody knows.
TextRequest ReadRequest(ApiFields& fields, const ApiContext& context, const Items& items, size_t i,
                        const AskedPrompts& asked, GenerateOptions* options, int32_t* choices,
                        std::vector<std::string>* unread) {
  TextRequest request;
  request.prompt = asked.prompts[i].ids;
  const ApiJson none = ApiJson::object();
  const ApiJson holder = items.params.Of(i);
  ApiFields held(holder, "", fields.error());
  const ApiJson* given = held.Object("sampling_params");
  ApiFields params(given == nullptr ? none : *given, "sampling_params.", fields.error());
  *choices = ReadChoices(params, asked.prompts.size());
  request.choices = *choices;
  const auto grammar = ReadItem(params, context, &request, options);
  const auto read_number = [&](const PerItem& item, const char* name, int64_t least, int64_t most) {
    const ApiJson object = item.Of(i);
    return ApiFields(object, "", fields.error()).Integer(name, least, most);
  };
  const ApiJson logprobs = items.logprobs.Of(i);
  options->logprobs =
      ApiFields(logprobs, "", fields.error()).Bool("return_logprob").value_or(false);
  options->logprob_start =
      read_number(items.start, "logprob_start_len", -1, std::ssize(request.prompt)).value_or(-1);
  options->top = read_number(items.top, "top_logprobs_num", 0, kMaxApiTop).value_or(0);
  if (options->logprobs) {
    request.sampling.logprobs = options->top;
    if (options->logprob_start >= 0) request.prompt_logprobs = options->top;
  }
  CheckRequest(params, context, grammar, request);
  *unread = params.Unread();
  return request;
}

}  // namespace

std::optional<ApiError> ParseGenerate(std::string_view body, const ApiContext& context,
                                      ApiCall* call) {
  ApiJson object;
  if (auto error = ParseApiBody(body, &object)) return error;
  std::optional<ApiError> error;
  ApiFields fields(object, "", &error);
  ReadCommon(fields, context);
  AskedPrompts asked = ReadPrompts(fields, context, "text");
  AskedPrompts by_ids = ReadPrompts(fields, context, "input_ids");
  if (asked.prompts.empty() == by_ids.prompts.empty()) {
    fields.Refuse("text", "expected either text or input_ids");
  }
  if (asked.prompts.empty()) asked = std::move(by_ids);
  const size_t count = asked.prompts.size();
  const Items items{.params = {fields, "sampling_params", count},
                    .logprobs = {fields, "return_logprob", count},
                    .start = {fields, "logprob_start_len", count},
                    .top = {fields, "top_logprobs_num", count},
                    .rid = {fields, "rid", count}};
  const bool token_text = fields.Bool("return_text_in_logprobs").value_or(false);
  ReplyOptions reply{.tokenizer = &context.model->tokenizer(),
                     .stream = fields.Bool("stream").value_or(false)};
  reply.head = {.id = ReadId(fields, context, ""), .object = "", .model = ModelName(context)};
  std::vector<GenerateOptions> options(count);
  std::vector<std::string> unread;
  for (size_t i = 0; i < count && !error; ++i) {
    int32_t choices = 1;
    call->requests.push_back(
        ReadRequest(fields, context, items, i, asked, &options[i], &choices, &unread));
    if (i > 0 && choices != reply.choices) fields.Refuse("sampling_params", "n differs");
    reply.choices = choices;
    const ApiJson rid = items.rid.Of(i);
    options[i].id = ApiFields(rid, "", &error).Text("rid").value_or(reply.head.id);
    reply.prompts.push_back(call->requests[i].prompt);
  }
  const std::vector<std::string> more = fields.Unread();
  unread.insert(unread.end(), more.begin(), more.end());
  EndFields(context, std::move(unread), &error, call);
  if (error) return error;
  call->id = reply.head.id;
  call->stream = reply.stream;
  call->reply = std::make_unique<GenerateReply>(std::move(reply), std::move(options), asked.batch,
                                                token_text);
  return std::nullopt;
}

}  // namespace signalbox
