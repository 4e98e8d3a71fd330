// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/api_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <random>
#include <utility>

#include <nlohmann/json.hpp>

namespace signalbox {
namespace {

// Only null, false, 0, an empty value or `neutral` may be said: anything else asks for what is not
// done here.
struct Unsupported {
  std::string_view name;
  std::string_view reason;
  std::string_view neutral = "null";  // JSON
};
constexpr Unsupported kUnsupported[] = {
    {"suffix", "text cannot be inserted before a suffix"},
    {"use_beam_search", "there is no beam search"},
    {"length_penalty", "there is no beam search", "1"},
    {"stop_regex", "stops cannot be regular expressions; use stop"},
    {"structural_tag", "structural tags are not supported; use tools, json_schema or ebnf"},
    {"structural_tags", "structural tags are not supported; use tools, json_schema or ebnf"},
    {"bad_words", "words cannot be banned; use logit_bias"},
    {"allowed_token_ids", "tokens cannot be listed; use regex or ebnf"},
    {"prompt_logprobs",
     "use echo with logprobs of /v1/completions, or return_logprob of /generate"},
    {"token_ids_logprob", "log-probabilities of chosen tokens are not supported"},
    {"truncate_prompt_tokens", "prompts are not cut; send a shorter one"},
    {"lora_path", "there are no adapters here"},
    {"image_data", "the model reads text only"},
    {"audio_data", "the model reads text only"},
    {"video_data", "the model reads text only"},
    {"audio", "the model writes text only"},
    {"modalities", "the model writes text only", R"(["text"])"},
    {"input_embeds", "prompts are text or token ids"},
    {"prompt_embeds", "prompts are text or token ids"},
    {"mm_processor_kwargs", "the model reads text only"},
    {"custom_logit_processor", "clients cannot bring code along"},
    {"custom_params", "clients cannot bring code along"},
    {"logits_processors", "clients cannot bring code along"},
    {"return_hidden_states", "hidden states are not returned"},
    {"return_routed_experts", "routed experts are not returned by request; see /expert_load"},
    {"session_params", "there are no sessions; the prefix cache needs none"},
    {"cache_salt", "the prefix cache has no salts"},
    {"priority", "requests have no priorities"},
    {"chat_template", "the model's own chat format is used"},
    {"documents", "there are no documents apart from messages"},
    {"functions", "deprecated; use tools"},
    {"function_call", "deprecated; use tool_choice"},
    {"web_search_options", "there is no web search"},
    {"kv_transfer_params", "prompts are computed where they are answered"},
};

// Taken, and without effect on the answer.
struct Idle {
  std::string_view name;
  ApiJson::value_t type;
};
constexpr Idle kIdle[] = {
    {"user", ApiJson::value_t::string},
    {"metadata", ApiJson::value_t::object},
    {"store", ApiJson::value_t::boolean},
    {"service_tier", ApiJson::value_t::string},
    {"safety_identifier", ApiJson::value_t::string},
    {"prompt_cache_key", ApiJson::value_t::string},
    {"prediction", ApiJson::value_t::object},
    {"spaces_between_special_tokens", ApiJson::value_t::boolean},
    {"add_special_tokens", ApiJson::value_t::boolean},
    {"guided_decoding_backend", ApiJson::value_t::string},
    {"log_metrics", ApiJson::value_t::boolean},
};

// Empty, zero, false: what says that a thing is not wanted.
bool IsNothing(const ApiJson& value) {
  if (value.is_structured()) return value.empty();
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  if (value.is_boolean()) return !value.get<bool>();
  return value.is_number() && value.get<double>() == 0;
}

void CheckModel(ApiFields& fields, const ApiContext& context) {
  const auto name = fields.Text("model");
  if (!name || *name == "default") return;
  const auto& served = context.served_names;
  if (std::find(served.begin(), served.end(), *name) != served.end()) return;
  if (!fields.ok()) return;
  *fields.error() =
      ApiError{.status = 404,
               .code = "model_not_found",
               .param = fields.NameOf("model"),
               .message = fmt::format("the model {} is not served here; served: {}",
                                      Shown(ApiJson(*name)), fmt::join(served, ", "))};
}

void ReadLogitBias(ApiFields& fields, SamplingParams* sampling) {
  const ApiJson* map = fields.Object("logit_bias");
  if (map == nullptr) return;
  for (const auto& [key, bias] : map->items()) {
    TokenId id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size()) {
      fields.Refuse("logit_bias",
                    fmt::format("expected token ids as keys, found {}", Shown(ApiJson(key))));
      return;
    }
    if (!bias.is_number()) {
      fields.Refuse("logit_bias",
                    fmt::format("expected a number for token {}, found {}", id, Shown(bias)));
      return;
    }
    sampling->logit_bias.push_back({.token = id, .bias = static_cast<float>(bias.get<double>())});
  }
}

void ReadStops(ApiFields& fields, const ApiContext& context, TextRequest* request) {
  request->stop = fields.Texts("stop");
  std::erase(request->stop, std::string());
  const auto stops = StopStrings::Create(request->stop);
  if (!stops.ok()) fields.Refuse("stop", stops.status().message());
  request->stop_ids = fields.Ids("stop_token_ids", context.model->vocab());
  const bool keep = fields.Bool("no_stop_trim").value_or(false);
  request->include_stop = fields.Bool("include_stop_str_in_output").value_or(keep);
  request->ignore_eos = fields.Bool("ignore_eos").value_or(false);
  request->skip_special = fields.Bool("skip_special_tokens").value_or(true);
}

// --- Grammars -----------------------------------------------------------------------------------

std::string RegexOf(const std::string& literal) {
  std::string regex;
  for (const char c : literal) {
    if (std::string_view(R"(\^$.|?*+()[]{}/-)").find(c) != std::string_view::npos) regex += '\\';
    regex += c;
  }
  return regex;
}

GrammarSpec SchemaOf(const ApiJson& schema) {
  return {GrammarSpec::Kind::kJsonSchema, schema.dump()};
}

class GrammarReader {
 public:
  explicit GrammarReader(ApiFields& fields) : fields_(fields) {}

  std::optional<AskedGrammar> Read() {
    ResponseFormat();
    ReadText(fields_, "json_schema", GrammarSpec::Kind::kJsonSchema);
    ReadText(fields_, "regex", GrammarSpec::Kind::kRegex);
    ReadText(fields_, "ebnf", GrammarSpec::Kind::kEbnf);
    ReadSpellings(fields_, {"guided_json", "guided_regex", "guided_grammar", "guided_choice",
                            "guided_json_object"});
    if (const ApiJson* outputs = fields_.Object("structured_outputs")) {
      ApiFields inner(*outputs, fields_.NameOf("structured_outputs."), fields_.error());
      ReadSpellings(inner, {"json", "regex", "grammar", "choice", "json_object"});
      for (const std::string& name : inner.Unread())
        fields_.Refuse("structured_outputs", "what it says with " + name + " is not supported");
    }
    return std::move(asked_);
  }

 private:
  struct Spellings {
    const char* json;
    const char* regex;
    const char* grammar;
    const char* choice;
    const char* json_object;
  };

  void Take(ApiFields& fields, std::string_view name, GrammarSpec spec) {
    if (asked_) {
      fields.Refuse(name,
                    fmt::format("an answer has one grammar, and {} says another", asked_->field));
      return;
    }
    asked_ = AskedGrammar{fields.NameOf(name), std::move(spec)};
  }

  void ReadText(ApiFields& fields, const char* name, GrammarSpec::Kind kind) {
    if (auto source = fields.Text(name)) Take(fields, name, {kind, *std::move(source)});
  }

  void ReadSpellings(ApiFields& fields, const Spellings& names) {
    ReadText(fields, names.regex, GrammarSpec::Kind::kRegex);
    ReadText(fields, names.grammar, GrammarSpec::Kind::kEbnf);
    if (fields.Bool(names.json_object).value_or(false)) Take(fields, names.json_object, {});
    if (const ApiJson* schema = fields.Find(names.json)) {
      Take(fields, names.json,
           schema->is_string()
               ? GrammarSpec{GrammarSpec::Kind::kJsonSchema, schema->get<std::string>()}
               : SchemaOf(*schema));
    }
    const ApiJson* choices = fields.Array(names.choice);
    if (choices == nullptr) return;
    std::vector<std::string> literals = fields.Texts(names.choice);
    if (literals.empty()) fields.Refuse(names.choice, "expected at least one text");
    for (std::string& literal : literals) literal = RegexOf(literal);
    Take(fields, names.choice,
         {GrammarSpec::Kind::kRegex, fmt::format("{}", fmt::join(literals, "|"))});
  }

  void ResponseFormat() {
    const ApiJson* format = fields_.Object("response_format");
    if (format == nullptr) return;
    ApiFields inner(*format, fields_.NameOf("response_format."), fields_.error());
    const auto type = inner.Text("type");
    const ApiJson* schema = inner.Find("schema");
    if (const ApiJson* named = inner.Object("json_schema")) {
      ApiFields details(*named, inner.NameOf("json_schema."), fields_.error());
      if (const ApiJson* own = details.Find("schema")) schema = own;
    }
    if (!type) {
      inner.Refuse("type", "expected text, json_object or json_schema");
    } else if (*type == "json_object") {
      Take(fields_, "response_format", schema == nullptr ? GrammarSpec{} : SchemaOf(*schema));
    } else if (*type == "json_schema") {
      if (schema == nullptr) inner.Refuse("json_schema.schema", "expected a schema");
      if (schema != nullptr) Take(fields_, "response_format", SchemaOf(*schema));
    } else if (*type != "text") {
      inner.Refuse("type", fmt::format("expected text, json_object or json_schema, found {}",
                                       Shown(ApiJson(*type))));
    }
  }

  ApiFields& fields_;
  std::optional<AskedGrammar> asked_;
};

ApiError TooLong(int64_t most, int64_t prompt, int64_t answer, std::string param) {
  return {.code = "context_length_exceeded",
          .param = std::move(param),
          .message = fmt::format(
              "This model's maximum context length is {} tokens. However, you requested {} tokens "
              "({} in the prompt, {} for the answer). Please reduce the length of the prompt or of "
              "the answer.",
              most, prompt + answer, prompt, answer)};
}

}  // namespace

void ReadCommon(ApiFields& fields, const ApiContext& context) {
  CheckModel(fields, context);
  ReadUnsupported(fields);
}

void ReadUnsupported(ApiFields& fields) {
  for (const Unsupported& refused : kUnsupported) {
    const ApiJson* value = fields.Find(refused.name);
    if (value == nullptr || IsNothing(*value) || *value == ApiJson::parse(refused.neutral))
      continue;
    fields.Refuse(refused.name, std::string(refused.reason));
  }
  for (const Idle& idle : kIdle) {
    const ApiJson* value = fields.Find(idle.name);
    if (value == nullptr || value->type() == idle.type) continue;
    fields.Refuse(idle.name, fmt::format("expected a value of type {}, found {}",
                                         ApiJson(idle.type).type_name(), Shown(*value)));
  }
}

void ReadSampling(ApiFields& fields, const ApiContext& context, TextRequest* request) {
  SamplingParams& sampling = request->sampling;
  sampling = context.sampling;
  const std::pair<const char*, float*> numbers[] = {
      {"temperature", &sampling.temperature},
      {"top_p", &sampling.top_p},
      {"min_p", &sampling.min_p},
      {"repetition_penalty", &sampling.repetition_penalty},
      {"presence_penalty", &sampling.presence_penalty},
      {"frequency_penalty", &sampling.frequency_penalty},
  };
  for (const auto& [name, value] : numbers)
    *value = static_cast<float>(fields.Number(name).value_or(*value));
  sampling.top_k = fields.Integer("top_k", -1, INT64_MAX).value_or(sampling.top_k);
  const auto seed = fields.Integer("seed", INT64_MIN, INT64_MAX);
  sampling.seed = seed ? static_cast<uint64_t>(*seed) : RandomBits();
  ReadLogitBias(fields, &sampling);
  ReadStops(fields, context, request);
  const Status status = CheckSampling(sampling, context.model->vocab());
  if (!status.ok()) fields.Refuse(status.detail().where, status.message());
}

std::optional<AskedGrammar> ReadGrammar(ApiFields& fields) {
  return GrammarReader(fields).Read();
}

void FitContext(ApiFields& fields, const ApiContext& context, const AskedLength& length,
                std::string_view least_field, TextRequest* request) {
  const int64_t most = MaxContext(context);
  const int64_t prompt = std::ssize(request->prompt);
  request->min_new_tokens = fields.Integer(least_field, 0, INT64_MAX).value_or(0);
  const int64_t wanted = length.most.value_or(std::min(length.otherwise, most - prompt));
  // A prompt alone must leave room for one token.
  if (fields.ok() && (prompt >= most || wanted > most - prompt)) {
    *fields.error() = TooLong(most, prompt, std::max<int64_t>(wanted, 1),
                              prompt >= most ? std::string() : fields.NameOf(length.field));
  }
  request->max_new_tokens = wanted;
  if (request->min_new_tokens > wanted) {
    fields.Refuse(least_field, fmt::format("expected at most {}, the most new tokens, found {}",
                                           wanted, request->min_new_tokens));
  }
}

int32_t ReadChoices(ApiFields& fields, size_t prompts) {
  const int64_t n = fields.Integer("n", 1, 128).value_or(1);
  if (fields.Integer("best_of", 1, INT64_MAX).value_or(1) > n) {
    fields.Refuse("best_of", "answers are not ranked; ask for n of them");
  }
  if (n * static_cast<int64_t>(prompts) > kMaxApiChoices) {
    fields.Refuse("n", fmt::format("{} prompts with {} answers each, at most {} answers in a call",
                                   prompts, n, kMaxApiChoices));
  }
  return static_cast<int32_t>(n);
}

AskedPrompts ReadPrompts(ApiFields& fields, const ApiContext& context, std::string_view name) {
  AskedPrompts asked;
  const ApiJson* value = fields.Find(name);
  if (value == nullptr) return asked;
  const bool list = value->is_array() && !value->empty();
  asked.batch = list && !value->front().is_number();
  const ApiJson one = asked.batch ? ApiJson() : ApiJson::array({*value});
  for (const ApiJson& item : asked.batch ? *value : one) {
    AskedPrompt prompt;
    bool right = false;
    if (item.is_string()) {
      prompt.text = item.get<std::string>();
      auto ids = context.model->tokenizer().EncodeTrusted(prompt.text);
      if (!ids.ok()) fields.Refuse(name, ids.status().message());
      right = ids.ok();
      if (right) prompt.ids = *std::move(ids);
    } else if (item.is_array()) {
      auto ids = IdsOf(item, context.model->vocab());
      right = ids.has_value();
      if (right) {
        prompt.ids = *std::move(ids);
        prompt.text = context.model->tokenizer().Decode(prompt.ids, SpecialTokens::kKeep);
      }
    }
    if (!right || prompt.ids.empty()) {
      fields.Refuse(name, fmt::format("expected a text, token ids below {}, or a list of these, "
                                      "none of them empty; found {}",
                                      context.model->vocab(), Shown(item)));
      return asked;
    }
    asked.prompts.push_back(std::move(prompt));
  }
  return asked;
}

std::string ReadId(ApiFields& fields, const ApiContext& context, std::string_view prefix) {
  const ApiJson* rid = fields.Find("rid");
  // A batch may have an id for each item; the call goes by the first.
  if (rid != nullptr && rid->is_array() && !rid->empty()) rid = &rid->front();
  if (rid != nullptr && rid->is_string()) return rid->get<std::string>();
  if (rid != nullptr) fields.Refuse("rid", "expected a text, found " + Shown(*rid));
  if (!context.request_id.empty()) return std::string(prefix) + context.request_id;
  return fmt::format("{}{:016x}{:016x}", prefix, RandomBits(), RandomBits());
}

ApiError RequestFault(const Status& status) {
  const StatusCode code = status.code();
  const bool ours = code == StatusCode::kInternal || code == StatusCode::kUnavailable ||
                    code == StatusCode::kDeadlineExceeded || code == StatusCode::kRefused;
  return ApiErrorOf(ours ? status : InvalidArgument(status.detail()));
}

void CheckRequest(ApiFields& fields, const ApiContext& context,
                  const std::optional<AskedGrammar>& grammar, const TextRequest& request) {
  if (!fields.ok()) return;
  const auto generation = context.model->GenerationOf(request);
  if (generation.ok()) return;
  ApiError fault = RequestFault(generation.status());
  if (grammar) fault.param = grammar->field;
  *fields.error() = std::move(fault);
}

void EndFields(const ApiContext& context, std::vector<std::string> unread,
               std::optional<ApiError>* error, ApiCall* call) {
  if (context.strict && !unread.empty() && !*error) {
    *error = ApiError{.param = unread[0],
                      .message = "unknown field " + Shown(ApiJson(unread[0])) +
                                 "; without --strict-api it would be ignored"};
  }
  call->ignored = std::move(unread);
}

uint64_t RandomBits() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return random();
}

int64_t MaxContext(const ApiContext& context) {
  const int64_t model = context.model->max_context();
  return context.max_context > 0 ? std::min(context.max_context, model) : model;
}

std::string ModelName(const ApiContext& context) {
  return context.served_names.empty() ? "default" : context.served_names.front();
}

}  // namespace signalbox
