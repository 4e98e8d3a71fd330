// SPDX-License-Identifier: Apache-2.0
//
// /v1/chat/completions.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "signalbox/server/api_messages.h"
#include "signalbox/server/api_reply.h"
#include "signalbox/server/api_request.h"
#include "signalbox/text/call_grammar.h"

namespace signalbox {
namespace {

using Kind = OutputEvent::Kind;

// How a client wants to be told what the model thought.
enum class Reasoning { kApart, kInContent, kHidden };

struct ChatOptions {
  Reasoning reasoning = Reasoning::kApart;
  bool stream_reasoning = true;  // else it is told when it is complete
  bool parallel_calls = true;    // else the first call is the only one that is told
  bool logprobs = false;
  bool token_ids = false;
  std::vector<std::string> reasoning_names;
};

// The events of an answer as this client gets them. The sum does not depend on how they come.
class EventShaper {
 public:
  explicit EventShaper(const ChatOptions& options) : options_(&options) {}

  OutputEvents Shape(const OutputEvents& events, bool last) {
    OutputEvents shaped;
    for (const OutputEvent& event : events) {
      if (event.kind == Kind::kReasoning) {
        Reason(event.text, shaped);
        continue;
      }
      Release(shaped);
      const bool other = event.kind != Kind::kContent && event.call > 0;
      if (options_->parallel_calls || !other) Add(event.kind, event.text, event.call, shaped);
    }
    if (last) Release(shaped);
    return shaped;
  }

 private:
  void Reason(const std::string& text, OutputEvents& shaped) {
    if (options_->reasoning == Reasoning::kHidden) return;
    if (!options_->stream_reasoning) {
      held_ += text;
      return;
    }
    Tell(text, shaped);
  }

  void Tell(const std::string& text, OutputEvents& shaped) {
    if (options_->reasoning == Reasoning::kApart) return Add(Kind::kReasoning, text, 0, shaped);
    Add(Kind::kContent, std::exchange(open_, true) ? text : "<think>\n" + text, 0, shaped);
  }

  // What was thought is over, for now.
  void Release(OutputEvents& shaped) {
    if (!held_.empty()) Tell(std::exchange(held_, {}), shaped);
    if (std::exchange(open_, false)) Add(Kind::kContent, "\n</think>\n\n", 0, shaped);
  }

  static void Add(Kind kind, const std::string& text, size_t call, OutputEvents& shaped) {
    const bool joins = !shaped.empty() && shaped.back().kind == kind && kind != Kind::kCallName &&
                       shaped.back().call == call;
    if (joins) {
      shaped.back().text += text;
    } else {
      shaped.push_back({.kind = kind, .text = text, .call = call});
    }
  }

  const ChatOptions* options_;
  std::string held_;   // reasoning that waits for its end
  bool open_ = false;  // reasoning has begun in the content
};

class ChatReply final : public ChoicesReply {
 public:
  ChatReply(ReplyOptions reply, ChatOptions options)
      : ChoicesReply(std::move(reply)), options_(std::move(options)) {
    states_.assign(choices(), State{.shaper = EventShaper(options_)});
  }

  std::string Body() override {
    ApiJson list = ApiJson::array();
    for (size_t i = 0; i < states_.size(); ++i) {
      const State& state = states_[i];
      ApiJson choice = {{"index", i}, {"message", Message(i)}};
      AddExtras(choice, state.logprobs, state.ids);
      choice["finish_reason"] = state.finish;
      choice["matched_stop"] = state.matched;
      list.push_back(std::move(choice));
    }
    ApiJson body = Whole(std::move(list));
    if (options_.token_ids) body["prompt_token_ids"] = PromptOf(0);
    return ApiDump(body);
  }

 protected:
  std::string Take(size_t index, const TextUpdate& update) override {
    State& state = states_[index];
    const OutputEvents events = state.shaper.Shape(update.delta.events, update.result.has_value());
    state.parts.Add(events);
    ApiJson logprobs = ApiJson::array();
    ApiJson ids = ApiJson::array();
    for (const SampledToken& token : update.tokens) {
      if (options_.logprobs) logprobs.push_back(Logprob(token));
      if (options_.token_ids) ids.push_back(token.token);
    }
    if (update.result) {
      const bool calls = update.result->finish == FinishReason::kStop && !state.parts.calls.empty();
      state.finish = calls ? "tool_calls" : FinishText(update.result->finish);
      state.matched = MatchedStop(*update.result);
    }
    if (options().stream) return Chunks(index, update, events, logprobs, ids);
    state.logprobs.insert(state.logprobs.end(), logprobs.begin(), logprobs.end());
    state.ids.insert(state.ids.end(), ids.begin(), ids.end());
    return "";
  }

 private:
  struct State {
    EventShaper shaper;
    ParsedOutput parts = {};
    bool begun = false;  // its first chunk was told
    ApiJson logprobs = ApiJson::array();
    ApiJson ids = ApiJson::array();
    std::string finish = {};
    ApiJson matched = nullptr;
  };

  std::string Chunks(size_t index, const TextUpdate& update, const OutputEvents& events,
                     const ApiJson& logprobs, const ApiJson& ids) {
    State& state = states_[index];
    if (update.tokens.empty() && events.empty() && !update.result) return "";
    std::vector<ApiJson> deltas;
    for (const OutputEvent& event : events) AddDeltas(index, event, deltas);
    if (deltas.empty() && !(logprobs.empty() && ids.empty())) deltas.push_back({{"content", ""}});
    std::string chunks;
    if (!std::exchange(state.begun, true)) {
      chunks += ChoiceChunk(index, {{"role", "assistant"}, {"content", ""}}, {}, {});
    }
    for (size_t i = 0; i < deltas.size(); ++i) {
      const bool first = i == 0;  // what is said of tokens goes with the first piece of their text
      chunks += ChoiceChunk(index, std::move(deltas[i]), first ? logprobs : ApiJson::array(),
                            first ? ids : ApiJson::array());
    }
    if (!update.result) return chunks;
    return chunks + Chunk({{"index", index},
                           {"delta", ApiJson::object()},
                           {"finish_reason", state.finish},
                           {"matched_stop", state.matched}});
  }

  std::string ChoiceChunk(size_t index, ApiJson delta, const ApiJson& logprobs,
                          const ApiJson& ids) const {
    ApiJson choice = {{"index", index}, {"delta", std::move(delta)}};
    AddExtras(choice, logprobs, ids);
    choice["finish_reason"] = nullptr;
    return Chunk(std::move(choice));
  }

  void AddExtras(ApiJson& choice, const ApiJson& logprobs, const ApiJson& ids) const {
    if (options_.logprobs) choice["logprobs"] = {{"content", logprobs}};
    if (options_.token_ids) choice["token_ids"] = ids;
  }

  void AddDeltas(size_t index, const OutputEvent& event, std::vector<ApiJson>& deltas) const {
    if (event.kind == Kind::kCallName) {
      deltas.push_back({{"tool_calls", ApiJson::array({Call(index, event.call, event.text, "")})}});
      deltas.back()["tool_calls"][0]["index"] = event.call;
      return;
    }
    for (const std::string_view part : TextParts(event.text)) {
      ApiJson delta = ApiJson::object();
      if (event.kind == Kind::kContent) delta["content"] = part;
      if (event.kind == Kind::kReasoning) AddReasoning(delta, part);
      if (event.kind == Kind::kCallArguments) {
        const ApiJson call = {{"index", event.call}, {"function", {{"arguments", part}}}};
        delta["tool_calls"] = ApiJson::array({call});
      }
      deltas.push_back(std::move(delta));
    }
  }

  void AddReasoning(ApiJson& object, std::string_view text) const {
    for (const std::string& name : options_.reasoning_names) object[name] = text;
  }

  ApiJson Message(size_t index) const {
    const ParsedOutput& parts = states_[index].parts;
    ApiJson message = {{"role", "assistant"}, {"content", parts.content}};
    if (!parts.reasoning.empty()) AddReasoning(message, parts.reasoning);
    if (parts.calls.empty()) return message;
    if (parts.content.empty()) message["content"] = nullptr;
    for (size_t i = 0; i < parts.calls.size(); ++i)
      message["tool_calls"].push_back(
          Call(index, i, parts.calls[i].name, parts.calls[i].arguments));
    return message;
  }

  // The id is of this answer, choice and call, whenever it is told.
  ApiJson Call(size_t index, size_t call, const std::string& name,
               const std::string& arguments) const {
    uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
    for (const char c : options().head.id)
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    return {{"id", fmt::format("call_{:016x}{:04x}{:04x}", hash, index, call)},
            {"type", "function"},
            {"function", {{"name", name}, {"arguments", arguments}}}};
  }

  ApiJson Logprob(const SampledToken& token) const {
    ApiJson value = OneLogprob(token.token, token.logprob);
    value["top_logprobs"] = ApiJson::array();
    for (const TokenLogprob& t : token.top)
      value["top_logprobs"].push_back(OneLogprob(t.token, t.logprob));
    return value;
  }

  ApiJson OneLogprob(TokenId id, double logprob) const {
    const Tokenizer& tokenizer = *options().tokenizer;
    return {{"token", TokenText(tokenizer, id)},
            {"logprob", logprob},
            {"bytes", TokenBytesJson(tokenizer, id)}};
  }

  const ChatOptions options_;
  std::vector<State> states_;
};

// --- Reading ------------------------------------------------------------------------------------

ChatOptions ReadShape(ApiFields& fields, const ApiContext& context, TextRequest* request) {
  ChatOptions options;
  if (!fields.Bool("separate_reasoning").value_or(true)) options.reasoning = Reasoning::kInContent;
  options.stream_reasoning = fields.Bool("stream_reasoning").value_or(true);
  options.token_ids = fields.Bool("return_token_ids").value_or(false);
  if (context.reasoning_content) options.reasoning_names.emplace_back("reasoning_content");
  if (context.reasoning) options.reasoning_names.emplace_back("reasoning");
  options.logprobs = fields.Bool("logprobs").value_or(false);
  const auto top = fields.Integer("top_logprobs", 0, kMaxApiTop);
  if (top.value_or(0) > 0 && !options.logprobs) {
    fields.Refuse("top_logprobs", "only with logprobs: true");
  }
  if (options.logprobs) request->sampling.logprobs = top.value_or(0);
  return options;
}

// The text that the answer goes on with; empty: it begins anew.
std::string ReadOpenEnd(ApiFields& fields, const ApiJson& messages) {
  const bool continues = fields.Bool("continue_final_message").value_or(false);
  const bool prompts = fields.Bool("add_generation_prompt").value_or(!continues);
  if (continues == prompts) {
    fields.Refuse("add_generation_prompt",
                  "either the answer begins, or the last message is continued");
  }
  if (!continues || !fields.ok()) return "";
  auto content = messages.back()["content"].get<std::string>();
  if (messages.back()["role"] == "assistant" && !content.empty()) return content;
  fields.Refuse("continue_final_message", "the last message must be an assistant's, with content");
  return "";
}

void EncodePrompt(ApiFields& fields, const ApiContext& context, const ApiJson& messages,
                  const ChatTools& tools, const ApiJson& variables, const std::string& open,
                  TextRequest* request) {
  if (!fields.ok()) return;
  ChatRequest chat{.messages = ApiDump(messages),
                   .tools = tools.tools.empty() ? "" : ApiDump(tools.tools),
                   .extra = ApiDump(variables)};
  auto prompt = context.model->EncodeChat(chat, open);
  const auto reordered = WithSystemFirst(messages);
  if (!prompt.ok() && reordered) {
    chat.messages = ApiDump(*reordered);
    auto again = context.model->EncodeChat(chat, open);
    if (again.ok()) prompt = std::move(again);
  }
  if (!prompt.ok()) {
    ApiError fault = RequestFault(prompt.status());
    if (fault.param.empty() && fault.status == 400) fault.param = "messages";
    *fields.error() = std::move(fault);
    return;
  }
  request->prompt = std::move(prompt->ids);
  request->turn_ends = std::move(prompt->turn_ends);
  const auto types = ParameterTypesOf(chat.tools);
  if (types.ok()) request->types = *types;
}

// Nothing but what is chosen here may be called.
std::optional<AskedGrammar> ToolGrammar(ApiFields& fields, const ApiContext& context,
                                        const ChatTools& tools, std::optional<AskedGrammar> asked) {
  if (!fields.ok() || tools.tools.empty()) return asked;
  const ChatFormat* format = context.model->chat_format();
  if (tools.choice == ChatTools::Choice::kAuto) return asked;
  if (tools.choice == ChatTools::Choice::kNone) {
    if (asked) return asked;
    return AskedGrammar{"tool_choice", {GrammarSpec::Kind::kEbnf, "root ::= [^]*"}};
  }
  auto spec = CallGrammar(context.model->tokenizer(), format->output_format(), ApiDump(tools.tools),
                          {.name = tools.name, .parallel = tools.parallel});
  if (spec.ok()) return AskedGrammar{"tool_choice", *std::move(spec)};
  ApiError fault = RequestFault(spec.status());
  fault.param = "tools";
  *fields.error() = std::move(fault);
  return std::nullopt;
}

}  // namespace

std::optional<ApiError> ParseChat(std::string_view body, const ApiContext& context, ApiCall* call) {
  ApiJson object;
  if (auto error = ParseApiBody(body, &object)) return error;
  std::optional<ApiError> error;
  ApiFields fields(object, "", &error);
  const ChatFormat* chat_format = context.model->chat_format();
  const OutputFormat format =
      chat_format == nullptr ? OutputFormat::kPlain : chat_format->output_format();
  ReadCommon(fields, context);
  const ApiJson messages = ReadMessages(fields, format);
  const ChatTools tools = ReadTools(fields, format);
  TextRequest request{.chat = true};
  ReadSampling(fields, context, &request);
  ChatOptions shape = ReadShape(fields, context, &request);
  bool hide_reasoning = false;
  ApiJson variables = ReadVariables(fields, &hide_reasoning);
  if (hide_reasoning) shape.reasoning = Reasoning::kHidden;
  shape.parallel_calls = tools.parallel;
  ReplyOptions reply{.tokenizer = &context.model->tokenizer()};
  std::vector<std::string> unread;
  ReadStream(fields, &reply, &unread);
  request.choices = reply.choices = ReadChoices(fields, 1);
  std::optional<AskedGrammar> grammar = ReadGrammar(fields);
  const std::string open = ReadOpenEnd(fields, messages);
  // XTML has words for these.
  using Choice = ChatTools::Choice;
  if (!tools.tools.empty() && tools.choice != Choice::kAuto) {
    variables["tool_choice"] = tools.choice == Choice::kNone ? "none" : "required";
  }
  if (grammar && grammar->field == "response_format") {
    variables["response_format"] = object["response_format"];
  }
  ChatTools told = tools;
  if (tools.choice == Choice::kNone && format != OutputFormat::kXtml) told.tools.clear();
  EncodePrompt(fields, context, messages, told, variables, open, &request);

  const auto newer = fields.Integer("max_completion_tokens", 1, INT64_MAX);
  const auto older = fields.Integer("max_tokens", 1, INT64_MAX);
  if (error) return error;
  FitContext(
      fields, context,
      {.most = newer ? newer : older, .field = newer ? "max_completion_tokens" : "max_tokens"},
      "min_tokens", &request);
  grammar = ToolGrammar(fields, context, tools, std::move(grammar));
  if (grammar) request.grammar = grammar->spec;
  CheckRequest(fields, context, grammar, request);
  reply.head = {.id = ReadId(fields, context, "chatcmpl-"),
                .object = reply.stream ? "chat.completion.chunk" : "chat.completion",
                .model = ModelName(context)};
  const std::vector<std::string> more = fields.Unread();
  unread.insert(unread.end(), more.begin(), more.end());
  EndFields(context, std::move(unread), &error, call);
  if (error) return error;
  call->id = reply.head.id;
  call->stream = reply.stream;
  reply.prompts = {request.prompt};
  call->requests = {std::move(request)};
  call->reply = std::make_unique<ChatReply>(std::move(reply), std::move(shape));
  return std::nullopt;
}

}  // namespace signalbox
