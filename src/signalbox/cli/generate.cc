// SPDX-License-Identifier: Apache-2.0
//
// generate and chat.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>

#include "signalbox/base/text_util.h"
#include "signalbox/cli/commands.h"
#include "signalbox/text/stop_strings.h"

namespace signalbox {
namespace {

using Clock = std::chrono::steady_clock;

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
Result<TextResult> Stream(TextModel& model, TextRequest request) {
  TextResult result;
  SB_RETURN_IF_ERROR(model.Generate(
      {std::move(request)}, 1,
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
  SB_ASSIGN_OR_RETURN(auto model, LoadTextModel(invocation, 1));
  if (model == nullptr) return OkStatus();
  request.chat = flags.Switch("chat");
  if (request.chat) {
    std::vector<ChatTurn> turns = Conversation(flags);
    turns.push_back({.role = "user", .content = flags.Text("prompt")});
    SB_ASSIGN_OR_RETURN(request.prompt, model->EncodeChat(turns, !flags.Switch("no-thinking")));
  } else {
    SB_ASSIGN_OR_RETURN(request.prompt, model->EncodePlain(flags.Text("prompt")));
  }
  const auto start = Clock::now();
  SB_ASSIGN_OR_RETURN(const TextResult result, Stream(*model, std::move(request)));
  fmt::print("\n");
  if (!flags.Switch("quiet")) PrintStatistics(result, start);
  return OkStatus();
}

Status RunChat(const Invocation& invocation) {
  const FlagValues& flags = invocation.flags;
  SB_ASSIGN_OR_RETURN(TextRequest request, RequestOf(flags));
  request.chat = true;
  SB_ASSIGN_OR_RETURN(auto model, LoadTextModel(invocation, 1));
  if (model == nullptr) return OkStatus();
  std::vector<ChatTurn> turns = Conversation(flags);
  fmt::print(stderr, "Type a message; an empty line or end of file leaves.\n");
  std::string line;
  while (fmt::print(stderr, "> "), std::getline(std::cin, line) && !line.empty()) {
    turns.push_back({.role = "user", .content = line});
    SB_ASSIGN_OR_RETURN(request.prompt, model->EncodeChat(turns, !flags.Switch("no-thinking")));
    SB_ASSIGN_OR_RETURN(const TextResult result, Stream(*model, request));
    fmt::print("\n");
    // The reasoning of earlier turns is left out.
    turns.push_back({.role = "assistant", .content = result.answer.content});
  }
  return OkStatus();
}

}  // namespace signalbox
