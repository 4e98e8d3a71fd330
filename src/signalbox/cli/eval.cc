// SPDX-License-Identifier: Apache-2.0
//
// eval: asks every question of a file, here or at a server, takes the last number of the answer and
// compares.
#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <cmath>
#include <fstream>
#include <optional>

#include <nlohmann/json.hpp>

#include "signalbox/base/json_util.h"
#include "signalbox/base/progress.h"
#include "signalbox/base/text_util.h"
#include "signalbox/cli/answer.h"
#include "signalbox/cli/commands.h"
#include "signalbox/cli/remote.h"

namespace signalbox {
namespace {

using Json = nlohmann::json;

std::optional<double> AnswerOf(const Json& line) {
  if (!line.contains("answer")) return std::nullopt;
  const Json& answer = line.at("answer");
  if (answer.is_number()) return answer.get<double>();
  // gsm8k writes the reasoning and the number behind "####".
  if (answer.is_string()) return LastNumber(answer.get<std::string>());
  return std::nullopt;
}

Status WriteLines(const std::string& path, const std::vector<std::string>& lines) {
  std::ofstream file(path);
  for (const std::string& line : lines) file << line << "\n";
  if (file.flush()) return OkStatus();
  return InvalidArgument({.what = "cannot write the answers",
                          .where = "--output " + path,
                          .remedy = "name a file in a directory that can be written"});
}

}  // namespace

Result<std::vector<Problem>> ReadProblems(const std::string& path, int64_t limit) {
  std::ifstream file(path);
  if (!file) {
    return InvalidArgument(
        {.what = "cannot read the problems",
         .where = "--data " + path,
         .remedy = "give a file of JSON lines with \"question\" and \"answer\""});
  }
  std::vector<Problem> problems;
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = fmt::format("--data {}, line {}", path, number);
    auto json = ParseJson(line);
    if (!json.ok()) return json.status().At(where);
    const std::optional<double> answer = json->is_object() ? AnswerOf(*json) : std::nullopt;
    if (!answer || !json->contains("question") || !json->at("question").is_string()) {
      return InvalidArgument(
          {.what = "unusable problem",
           .where = where,
           .found = Quoted(line),
           .expected = "an object with a text \"question\" and a number in \"answer\""});
    }
    problems.push_back({json->at("question").get<std::string>(), *answer});
    if (limit > 0 && static_cast<int64_t>(problems.size()) == limit) break;
  }
  if (problems.empty()) return InvalidArgument({.what = "no problems", .where = "--data " + path});
  return problems;
}

std::optional<double> LastNumber(std::string_view text) {
  const auto digit = [&](size_t i) { return i < text.size() && text[i] >= '0' && text[i] <= '9'; };
  size_t end = text.size();
  while (end > 0 && !digit(end - 1)) --end;
  if (end == 0) return std::nullopt;
  size_t begin = end;
  // Digits with thousands separators and one decimal point, then a minus sign that is no dash in a
  // range.
  while (begin > 0 && (digit(begin - 1) || ((text[begin - 1] == ',' || text[begin - 1] == '.') &&
                                            begin > 1 && digit(begin - 2) && digit(begin)))) {
    --begin;
  }
  std::string number;
  for (char c : text.substr(begin, end - begin)) {
    if (c != ',') number += c;
  }
  double value = 0;
  if (std::from_chars(number.data(), number.data() + number.size(), value).ec != std::errc())
    return std::nullopt;
  const bool minus = begin > 0 && text[begin - 1] == '-' && !(begin > 1 && digit(begin - 2));
  return minus ? -value : value;
}

namespace {

// Answers as they come, from a model here or from a server.
class Tally {
 public:
  Tally(const FlagValues& flags, const std::vector<Problem>& problems)
      : flags_(flags),
        problems_(problems),
        lines_(flags.Has("output") ? problems.size() : 0),
        progress_(
            {.label = "eval", .total = std::ssize(problems), .quiet = flags.Switch("quiet")}) {}

  void Take(size_t i, const std::string& text, int64_t new_tokens, Json line) {
    const std::optional<double> answer = LastNumber(text);
    right_ += answer && std::abs(*answer - problems_[i].answer) < 1e-6;
    tokens_ += new_tokens;
    line["text"] = text;
    line["tokens"] = new_tokens;
    Done(i, line);
  }
  void TakeError(size_t i, const Status& status) {
    if (errors_++ == 0) first_error_ = status;
    Done(i, {{"error", status.message()}});
  }

  // The final line and the file. kUnavailable when there were errors.
  Status Finish(std::optional<double> accept_length) {
    progress_.Finish();
    if (!lines_.empty()) SB_RETURN_IF_ERROR(WriteLines(flags_.Text("output"), lines_));
    const std::chrono::duration<double> took = Clock::now() - start_;
    const double accuracy = static_cast<double>(right_) / static_cast<double>(done_);
    const double speed = static_cast<double>(tokens_) / took.count();
    if (flags_.Text("format") == "json") {
      Json json{{"accuracy", accuracy},      {"right", right_},   {"problems", done_},
                {"errors", errors_},         {"tokens", tokens_}, {"seconds", took.count()},
                {"tokens_per_second", speed}};
      if (accept_length) json["accept_length"] = *accept_length;
      fmt::print("{}\n", json.dump());
    } else {
      fmt::print("accuracy {:.3f} ({} of {}) | {:.0f} tok/s | accept {}{}\n", accuracy, right_,
                 done_, speed, accept_length ? fmt::format("{:.2f}", *accept_length) : "unknown",
                 errors_ > 0 ? fmt::format(" | {} errors", errors_) : "");
    }
    if (errors_ == 0) return OkStatus();
    return Unavailable({.what = fmt::format("{} of {} requests failed", errors_, done_),
                        .found = first_error_.message()});
  }

 private:
  using Clock = std::chrono::steady_clock;

  void Done(size_t i, const Json& line) {
    if (!lines_.empty()) lines_[i] = line.dump(-1, ' ', false, Json::error_handler_t::replace);
    ++done_;
    progress_.Update(done_, fmt::format("accuracy {:.3f}",
                                        static_cast<double>(right_) / static_cast<double>(done_)));
  }

  const FlagValues& flags_;
  const std::vector<Problem>& problems_;
  std::vector<std::string> lines_;
  const Clock::time_point start_ = Clock::now();
  Progress progress_;
  int64_t done_ = 0;
  int64_t right_ = 0;
  int64_t tokens_ = 0;
  int64_t errors_ = 0;
  Status first_error_;
};

Status AskHere(Service& service, const FlagValues& flags, const std::vector<Problem>& problems) {
  std::vector<TextRequest> requests;
  for (const Problem& p : problems) {
    SB_ASSIGN_OR_RETURN(ChatPrompt chat,
                        service.model().EncodeChat({{.role = "user", .content = p.question}},
                                                   !flags.Switch("no-thinking")));
    requests.push_back({.prompt = std::move(chat.ids),
                        .turn_ends = std::move(chat.turn_ends),
                        .max_new_tokens = flags.Int("max-new-tokens")});
  }
  Tally tally(flags, problems);
  RequestStats total;
  SB_RETURN_IF_ERROR(service.GenerateAll(
      requests, [](size_t, std::string_view) {},
      [&](size_t i, const TextResult& result) {
        tally.Take(i, result.text, result.new_tokens,
                   {{"finish", ToString(result.finish)},
                    {"cached_tokens", result.stats.cached_tokens},
                    {"preemptions", result.stats.preemptions}});
        total.decode_steps += result.stats.decode_steps;
        total.decode_tokens += result.stats.decode_tokens;
      }));
  return tally.Finish(total.accept_length());
}

// What a person reads of a chat completion, and how many tokens it is.
struct RemoteAnswer {
  std::string text;
  std::string finish;
  int64_t tokens = 0;
};

Result<RemoteAnswer> AnswerIn(const Result<HttpResponse>& response) {
  SB_ASSIGN_OR_RETURN(const Json json, JsonOf(response));
  const auto text_of = [](const Json& object, const char* key) {
    const Json value = object.is_object() ? object.value(key, Json()) : Json();
    return value.is_string() ? value.get<std::string>() : "";
  };
  const Json choices = json.is_object() ? json.value("choices", Json()) : Json();
  const Json usage = json.is_object() ? json.value("usage", Json()) : Json();
  const Json tokens = usage.is_object() ? usage.value("completion_tokens", Json()) : Json();
  if (!choices.is_array() || choices.empty() || !choices[0].is_object() ||
      !choices[0].value("message", Json()).is_object() || !tokens.is_number_integer()) {
    return Unavailable({.what = "no chat completion", .found = Quoted(json.dump())});
  }
  const Json message = choices[0].at("message");
  const std::string reasoning = text_of(message, "reasoning_content");
  return RemoteAnswer{
      .text = reasoning + (reasoning.empty() ? "" : "\n\n") + text_of(message, "content"),
      .finish = text_of(choices[0], "finish_reason"),
      .tokens = tokens.get<int64_t>()};
}

Status AskServer(const Remote& remote, const FlagValues& flags,
                 const std::vector<Problem>& problems, int64_t parallel) {
  std::vector<HttpCall> calls;
  for (const Problem& p : problems) {
    Json body{{"model", remote.model()},
              {"messages", {{{"role", "user"}, {"content", p.question}}}},
              {"max_tokens", flags.Int("max-new-tokens")},
              {"temperature", 0}};
    if (flags.Switch("no-thinking")) body["chat_template_kwargs"] = {{"enable_thinking", false}};
    calls.push_back(remote.Post("/v1/chat/completions", body));
  }
  Tally tally(flags, problems);
  const DraftCounts before = remote.drafts();
  remote.Run(calls, {.parallel = parallel},
             {.done = [&](size_t i, const Result<HttpResponse>& response) {
               const auto answer = AnswerIn(response);
               if (answer.ok()) {
                 tally.Take(i, answer->text, answer->tokens, {{"finish", answer->finish}});
               } else {
                 tally.TakeError(i, answer.status());
               }
             }});
  return tally.Finish(AcceptLength(before, remote.drafts()));
}

// kInvalidArgument where it is not clear who is asked, or what.
Status CheckWhoIsAsked(const FlagValues& flags, const std::string& model) {
  if (!flags.Has("url") && model.empty()) {
    return InvalidArgument({.what = "nobody to ask",
                            .where = "eval",
                            .remedy = "name a MODEL, or a server with --url URL"});
  }
  if (flags.Has("url") && !model.empty()) {
    return InvalidArgument({.what = "a model here and a server to ask",
                            .where = "--url " + flags.Text("url"),
                            .found = Quoted(model),
                            .remedy = "leave one of them out"});
  }
  if (flags.Has("url") && !flags.Has("data")) {
    return InvalidArgument({.what = "nothing to ask",
                            .where = "--url " + flags.Text("url"),
                            .remedy = "give the problems as --data FILE.jsonl"});
  }
  return OkStatus();
}

}  // namespace

Status RunEval(const Invocation& invocation) {
  const FlagValues& flags = invocation.flags;
  const std::string& model = invocation.positionals[0];
  SB_RETURN_IF_ERROR(CheckWhoIsAsked(flags, model));
  const std::string data = flags.Has("data") ? flags.Text("data") : model + "/eval.jsonl";
  SB_ASSIGN_OR_RETURN(const std::vector<Problem> problems, ReadProblems(data, flags.Int("limit")));
  const int64_t parallel = std::max<int64_t>(flags.Int("parallel"), 1);
  if (flags.Has("url")) {
    SB_ASSIGN_OR_RETURN(const Remote remote, Remote::Connect(flags));
    return AskServer(remote, flags, problems, parallel);
  }
  SB_ASSIGN_OR_RETURN(auto service, LoadService(invocation, {.parallel = parallel}));
  return service == nullptr ? OkStatus() : AskHere(*service, flags, problems);
}

}  // namespace signalbox
