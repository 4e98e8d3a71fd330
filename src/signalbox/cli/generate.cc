// SPDX-License-Identifier: Apache-2.0
//
// generate and chat.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <utility>

#include "signalbox/base/text_util.h"
#include "signalbox/cli/commands.h"
#include "signalbox/text/stop_strings.h"

namespace signalbox {
namespace {

using Clock = std::chrono::steady_clock;

// The text of a flag, or of the file that it names after an @.
Result<std::string> TextOrFile(const std::string& value) {
  if (!value.starts_with('@')) return value;
  std::ifstream file(value.substr(1), std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file) return NotFound({.what = "file cannot be read", .found = value.substr(1)});
  return text;
}

// The grammar that flags ask for, checked as far as it can be without a model.
Result<std::optional<GrammarSpec>> GrammarOf(const FlagValues& flags) {
  using Kind = GrammarSpec::Kind;
  static constexpr std::pair<const char*, Kind> kTexts[] = {
      {"json-schema", Kind::kJsonSchema}, {"regex", Kind::kRegex}, {"ebnf", Kind::kEbnf}};
  std::optional<GrammarSpec> grammar;
  std::string where;
  if (flags.Switch("json-object")) {
    grammar = GrammarSpec{.kind = Kind::kJsonObject};
    where = "--json-object";
  }
  for (const auto& [name, kind] : kTexts) {
    if (!flags.Has(name)) continue;
    const std::string flag = std::string("--") + name;
    if (grammar) {
      return InvalidArgument(
          {.what = "two grammars for one answer", .found = where + " and " + flag});
    }
    where = flag;
    Result<std::string> source = TextOrFile(flags.Text(name));
    if (!source.ok()) return source.status().At(flag);
    grammar = GrammarSpec{.kind = kind, .source = *std::move(source)};
    if (const Status checked = CheckGrammar(*grammar); !checked.ok()) return checked.At(flag);
  }
  return grammar;
}

// What the flags say of a request, all but its prompt; checked before a model is loaded.
Result<TextRequest> RequestOf(const FlagValues& flags) {
  const auto number = [&](std::string_view name) { return static_cast<float>(flags.Number(name)); };
  const SamplingParams sampling{.temperature = number("temperature"),
                                .seed = static_cast<uint64_t>(flags.Int("seed")),
                                .top_k = flags.Int("top-k"),
                                .top_p = number("top-p"),
                                .min_p = number("min-p"),
                                .repetition_penalty = number("repetition-penalty"),
                                .presence_penalty = number("presence-penalty"),
                                .frequency_penalty = number("frequency-penalty")};
  if (const Status checked = CheckSampling(sampling, 0); !checked.ok()) {
    ErrorDetail detail = checked.detail();  // which names the field: top_p
    std::replace(detail.where.begin(), detail.where.end(), '_', '-');
    detail.where = "--" + detail.where;
    return InvalidArgument(std::move(detail));
  }
  if (const auto stops = StopStrings::Create(flags.Texts("stop")); !stops.ok()) {
    ErrorDetail detail = stops.status().detail();
    detail.where = "--stop";
    return InvalidArgument(std::move(detail));
  }
  TextRequest request;
  request.stop = flags.Texts("stop");
  request.include_stop = flags.Switch("include-stop");
  request.max_new_tokens = flags.Int("max-new-tokens");
  request.min_new_tokens = flags.Int("min-new-tokens");
  request.ignore_eos = flags.Switch("ignore-eos");
  request.sampling = sampling;
  SB_ASSIGN_OR_RETURN(request.grammar, GrammarOf(flags));
  if (request.min_new_tokens > request.max_new_tokens) {
    return InvalidArgument(
        {.what = "fewest tokens above the most",
         .where = "--min-new-tokens",
         .found = fmt::format("{}", request.min_new_tokens),
         .expected = fmt::format("at most --max-new-tokens, which is {}", request.max_new_tokens)});
  }
  return request;
}

// Streams one answer to stdout.
Result<TextResult> Stream(Service& service, TextRequest request) {
  TextResult result;
  SB_RETURN_IF_ERROR(service.GenerateAll(
      {std::move(request)},
      [](size_t, std::string_view text) {
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fflush(stdout);
      },
      [&](size_t, const TextResult& done) { result = done; }));
  return result;
}

std::string EndOf(const TextResult& result) {
  if (!result.stop.empty()) return "the stop text " + Quoted(result.stop);
  return result.finish == FinishReason::kStop ? "the model" : "--max-new-tokens";
}

void PrintStatistics(const TextResult& result, Clock::time_point start) {
  const std::chrono::duration<double> took = Clock::now() - start;
  fmt::print(stderr, "{} prompt + {} new tokens in {:.2f} s, {:.1f} tok/s, ended by {}\n",
             result.prompt_tokens, result.new_tokens, took.count(),
             static_cast<double>(result.new_tokens) / took.count(), EndOf(result));
}

std::vector<ChatTurn> Conversation(const FlagValues& flags) {
  if (!flags.Has("system")) return {};
  return {{.role = "system", .content = flags.Text("system")}};
}

}  // namespace

Status RunGenerate(const Invocation& invocation) {
  const FlagValues& flags = invocation.flags;
  if (!flags.Has("prompt")) {
    return InvalidArgument(
        {.what = "nothing to generate from", .where = "generate", .remedy = "give --prompt TEXT"});
  }
  SB_ASSIGN_OR_RETURN(TextRequest request, RequestOf(flags));
  SB_ASSIGN_OR_RETURN(auto service, LoadService(invocation, {.parallel = 1}));
  if (service == nullptr) return OkStatus();
  request.chat = flags.Switch("chat");
  if (request.chat) {
    std::vector<ChatTurn> turns = Conversation(flags);
    turns.push_back({.role = "user", .content = flags.Text("prompt")});
    SB_ASSIGN_OR_RETURN(ChatPrompt chat,
                        service->model().EncodeChat(turns, !flags.Switch("no-thinking")));
    request.prompt = std::move(chat.ids);
    request.turn_ends = std::move(chat.turn_ends);
  } else {
    SB_ASSIGN_OR_RETURN(request.prompt, service->model().EncodePlain(flags.Text("prompt")));
  }
  const auto start = Clock::now();
  SB_ASSIGN_OR_RETURN(const TextResult result, Stream(*service, std::move(request)));
  fmt::print("\n");
  if (!flags.Switch("quiet")) PrintStatistics(result, start);
  return OkStatus();
}

Status RunChat(const Invocation& invocation) {
  const FlagValues& flags = invocation.flags;
  SB_ASSIGN_OR_RETURN(TextRequest request, RequestOf(flags));
  request.chat = true;
  SB_ASSIGN_OR_RETURN(auto service, LoadService(invocation, {.parallel = 1}));
  if (service == nullptr) return OkStatus();
  std::vector<ChatTurn> turns = Conversation(flags);
  fmt::print(stderr, "Type a message; an empty line or end of file leaves.\n");
  std::string line;
  while (fmt::print(stderr, "> "), std::getline(std::cin, line) && !line.empty()) {
    turns.push_back({.role = "user", .content = line});
    SB_ASSIGN_OR_RETURN(ChatPrompt chat,
                        service->model().EncodeChat(turns, !flags.Switch("no-thinking")));
    request.prompt = std::move(chat.ids);
    request.turn_ends = std::move(chat.turn_ends);
    SB_ASSIGN_OR_RETURN(const TextResult result, Stream(*service, request));
    fmt::print("\n");
    // The reasoning of earlier turns is left out.
    turns.push_back({.role = "assistant", .content = result.answer.content});
  }
  return OkStatus();
}

}  // namespace signalbox
