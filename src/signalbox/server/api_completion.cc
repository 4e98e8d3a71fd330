// SPDX-License-Identifier: Apache-2.0
//
// /v1/completions.
#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "signalbox/server/api_reply.h"
#include "signalbox/server/api_request.h"
#include "signalbox/text/detokenizer.h"

namespace signalbox {
namespace {

struct CompletionOptions {
  bool echo = false;
  bool logprobs = false;
  bool token_ids = false;
  SpecialTokens special = SpecialTokens::kSkip;
  std::vector<std::string> texts;  // of the prompts
};

int64_t CharactersIn(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

// One list for each thing that is known of a token.
ApiJson NoLogprobs() {
  return {{"tokens", ApiJson::array()},
          {"token_logprobs", ApiJson::array()},
          {"top_logprobs", ApiJson::array()},
          {"text_offset", ApiJson::array()}};
}

void Append(ApiJson& logprobs, const ApiJson& more) {
  for (const auto& [name, list] : more.items())
    logprobs[name].insert(logprobs[name].end(), list.begin(), list.end());
}

class CompletionReply final : public ChoicesReply {
 public:
  CompletionReply(ReplyOptions reply, CompletionOptions options)
      : ChoicesReply(std::move(reply)), options_(std::move(options)) {
    const State fresh{.decoder = StreamDecoder(*this->options().tokenizer, options_.special)};
    states_.assign(choices(), fresh);
  }

  std::string Body() override {
    ApiJson list = ApiJson::array();
    for (size_t i = 0; i < states_.size(); ++i) {
      const State& state = states_[i];
      ApiJson choice = Choice(i, state.text, state.logprobs, state.ids);
      choice["finish_reason"] = state.finish;
      choice["matched_stop"] = state.matched;
      if (options_.token_ids) choice["prompt_token_ids"] = PromptOf(i);
      list.push_back(std::move(choice));
    }
    return ApiDump(Whole(std::move(list)));
  }

 protected:
  std::string Take(size_t index, const TextUpdate& update) override {
    State& state = states_[index];
    state.prompt.insert(state.prompt.end(), update.prompt.begin(), update.prompt.end());
    if (update.tokens.empty() && update.delta.text.empty() && !update.result) return "";
    std::string text;
    std::vector<ApiJson> logprobs;
    ApiJson ids = ApiJson::array();
    if (!std::exchange(state.begun, true) && options_.echo) {
      text = options_.texts[index / static_cast<size_t>(options().choices)];
      EchoLogprobs(index, logprobs);
    }
    if (!options().hide_answer) {
      text += update.delta.text;
      for (const SampledToken& token : update.tokens) {
        if (options_.logprobs) logprobs.push_back(Logprob(state, token, false));
        if (options_.token_ids) ids.push_back(token.token);
      }
    }
    if (update.result) {
      state.finish = options().hide_answer ? "length" : FinishText(update.result->finish);
      state.matched = options().hide_answer ? ApiJson() : MatchedStop(*update.result);
    }
    if (options().stream) return Chunks(index, text, logprobs, ids, update.result.has_value());
    state.text += text;
    state.ids.insert(state.ids.end(), ids.begin(), ids.end());
    for (const ApiJson& one : logprobs) Append(state.logprobs, one);
    return "";
  }

 private:
  struct State {
    StreamDecoder decoder;
    int64_t offset = 0;  // characters that the tokens so far have completed
    std::vector<SampledToken> prompt = {};
    bool begun = false;
    std::string text = {};
    ApiJson logprobs = NoLogprobs();
    ApiJson ids = ApiJson::array();
    std::string finish = {};
    ApiJson matched = nullptr;
  };

  ApiJson Choice(size_t index, std::string_view text, const ApiJson& logprobs,
                 const ApiJson& ids) const {
    ApiJson choice = {{"index", index}, {"text", text}};
    choice["logprobs"] = options_.logprobs ? logprobs : ApiJson();
    if (options_.token_ids) choice["token_ids"] = ids;
    return choice;
  }

  // Of a few tokens each, so that events stay small.
  std::string Chunks(size_t index, std::string_view text, const std::vector<ApiJson>& logprobs,
                     const ApiJson& ids, bool last) {
    constexpr size_t kTokens = 16;
    const std::vector<std::string_view> parts = TextParts(text);
    const size_t count = std::max(text.empty() ? 0 : parts.size(),
                                  std::max((logprobs.size() + kTokens - 1) / kTokens,
                                           static_cast<size_t>(ids.empty() ? 0 : 1)));
    std::string chunks;
    for (size_t i = 0; i < count; ++i) {
      ApiJson some = NoLogprobs();
      for (size_t t = i * kTokens; t < std::min(logprobs.size(), (i + 1) * kTokens); ++t)
        Append(some, logprobs[t]);
      ApiJson choice =
          Choice(index, i < parts.size() ? parts[i] : "", some, i == 0 ? ids : ApiJson::array());
      choice["finish_reason"] = nullptr;
      chunks += Chunk(std::move(choice));
    }
    if (!last) return chunks;
    ApiJson choice = {{"index", index}, {"text", ""}, {"logprobs", nullptr}};
    choice["finish_reason"] = states_[index].finish;
    choice["matched_stop"] = states_[index].matched;
    return chunks + Chunk(std::move(choice));
  }

  // The first token of a prompt has no log-probability.
  void EchoLogprobs(size_t index, std::vector<ApiJson>& logprobs) {
    if (!options_.logprobs) return;
    State& state = states_[index];
    logprobs.push_back(Logprob(state, {.token = PromptOf(index)[0]}, true));
    for (const SampledToken& token : state.prompt) logprobs.push_back(Logprob(state, token, false));
  }

  // The chosen token is among the alternatives; of tokens with one text, the likeliest is.
  ApiJson Logprob(State& state, const SampledToken& token, bool unknown) const {
    const Tokenizer& tokenizer = *options().tokenizer;
    ApiJson top = ApiJson::object();
    for (const TokenLogprob& t : token.top) top.emplace(TokenText(tokenizer, t.token), t.logprob);
    top.emplace(TokenText(tokenizer, token.token), token.logprob);
    ApiJson one = {
        {"tokens", ApiJson::array({TokenText(tokenizer, token.token)})},
        {"token_logprobs", ApiJson::array({unknown ? ApiJson() : ApiJson(token.logprob)})},
        {"top_logprobs", ApiJson::array({unknown ? ApiJson() : top})},
        {"text_offset", ApiJson::array({state.offset})}};
    state.offset += CharactersIn(state.decoder.Push(token.token));
    return one;
  }

  const CompletionOptions options_;
  std::vector<State> states_;
};

// true asks for one.
std::optional<int64_t> ReadLogprobs(ApiFields& fields) {
  const ApiJson* value = fields.Find("logprobs");
  if (value == nullptr || *value == false) return std::nullopt;
  if (*value == true) return 1;
  return fields.Integer("logprobs", 0, kMaxApiTop);
}

// What all prompts of the call are asked.
TextRequest ReadRequest(ApiFields& fields, const ApiContext& context, ReplyOptions* reply,
                        CompletionOptions* options) {
  TextRequest request;
  ReadSampling(fields, context, &request);
  options->echo = fields.Bool("echo").value_or(false);
  options->token_ids = fields.Bool("return_token_ids").value_or(false);
  options->special = request.skip_special ? SpecialTokens::kSkip : SpecialTokens::kKeep;
  const auto logprobs = ReadLogprobs(fields);
  options->logprobs = logprobs.has_value();
  request.sampling.logprobs = logprobs.value_or(-1);
  if (options->echo) request.prompt_logprobs = request.sampling.logprobs;
  request.choices = reply->choices;
  return request;
}

}  // namespace

std::optional<ApiError> ParseCompletion(std::string_view body, const ApiContext& context,
                                        ApiCall* call) {
  ApiJson object;
  if (auto error = ParseApiBody(body, &object)) return error;
  std::optional<ApiError> error;
  ApiFields fields(object, "", &error);
  ReadCommon(fields, context);
  AskedPrompts asked = ReadPrompts(fields, context, "prompt");
  if (asked.prompts.empty()) fields.Refuse("prompt", "expected a prompt");
  ReplyOptions reply{.tokenizer = &context.model->tokenizer()};
  reply.choices = ReadChoices(fields, asked.prompts.size());
  CompletionOptions options;
  TextRequest request = ReadRequest(fields, context, &reply, &options);
  std::vector<std::string> unread;
  ReadStream(fields, &reply, &unread);
  const std::optional<AskedGrammar> grammar = ReadGrammar(fields);
  if (grammar) request.grammar = grammar->spec;
  const auto newer = fields.Integer("max_completion_tokens", 0, INT64_MAX);
  const auto older = fields.Integer("max_tokens", 0, INT64_MAX);
  const AskedLength length{.most = newer ? newer : older,
                           .field = newer ? "max_completion_tokens" : "max_tokens",
                           .otherwise = 16};
  reply.head = {.id = ReadId(fields, context, "cmpl-"),
                .object = "text_completion",
                .model = ModelName(context)};
  if (error) return error;
  for (AskedPrompt& prompt : asked.prompts) {
    TextRequest one = request;
    one.prompt = std::move(prompt.ids);
    FitContext(fields, context, length, "min_tokens", &one);
    reply.hide_answer = one.max_new_tokens == 0;
    one.max_new_tokens = std::max<int64_t>(one.max_new_tokens, 1);
    // Whoever scores a prompt counts on one token behind it, whichever it is.
    if (options.echo && one.max_new_tokens == 1) one.ignore_eos = true;
    reply.prompts.push_back(one.prompt);
    options.texts.push_back(std::move(prompt.text));
    call->requests.push_back(std::move(one));
  }
  CheckRequest(fields, context, grammar, call->requests[0]);
  const std::vector<std::string> more = fields.Unread();
  unread.insert(unread.end(), more.begin(), more.end());
  EndFields(context, std::move(unread), &error, call);
  if (error) return error;
  call->id = reply.head.id;
  call->stream = reply.stream;
  call->reply = std::make_unique<CompletionReply>(std::move(reply), std::move(options));
  return std::nullopt;
}

}  // namespace signalbox
