// SPDX-License-Identifier: Apache-2.0
//
// eval: asks every question of a file, takes the last number of the answer and compares.
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

Status RunEval(const Invocation& invocation) {
  const FlagValues& flags = invocation.flags;
  const std::string data =
      flags.Has("data") ? flags.Text("data") : invocation.positionals[0] + "/eval.jsonl";
  SB_ASSIGN_OR_RETURN(const std::vector<Problem> problems, ReadProblems(data, flags.Int("limit")));
  const int64_t parallel = std::max<int64_t>(flags.Int("parallel"), 1);
  SB_ASSIGN_OR_RETURN(auto service, LoadService(invocation, parallel));
  if (service == nullptr) return OkStatus();

  std::vector<TextRequest> requests;
  for (const Problem& p : problems) {
    SB_ASSIGN_OR_RETURN(ChatPrompt chat,
                        service->model().EncodeChat({{.role = "user", .content = p.question}},
                                                    !flags.Switch("no-thinking")));
    requests.push_back({.prompt = std::move(chat.ids),
                        .turn_ends = std::move(chat.turn_ends),
                        .max_new_tokens = flags.Int("max-new-tokens")});
  }
  std::vector<std::string> lines(flags.Has("output") ? problems.size() : 0);
  const auto start = std::chrono::steady_clock::now();
  Progress progress({.label = "eval",
                     .total = static_cast<int64_t>(problems.size()),
                     .quiet = flags.Switch("quiet")});
  int64_t done = 0;
  int64_t right = 0;
  int64_t tokens = 0;
  RequestStats total;
  SB_RETURN_IF_ERROR(service->GenerateAll(
      requests, [](size_t, std::string_view) {},
      [&](size_t i, const TextResult& result) {
        const std::optional<double> answer = LastNumber(result.text);
        right += answer && std::abs(*answer - problems[i].answer) < 1e-6;
        tokens += result.new_tokens;
        if (!lines.empty()) {
          lines[i] = Json{{"text", result.text},
                          {"finish", ToString(result.finish)},
                          {"tokens", result.new_tokens},
                          {"cached_tokens", result.stats.cached_tokens},
                          {"preemptions", result.stats.preemptions}}
                         .dump();
        }
        total.decode_steps += result.stats.decode_steps;
        total.decode_tokens += result.stats.decode_tokens;
        ++done;
        progress.Update(done, fmt::format("accuracy {:.3f}",
                                          static_cast<double>(right) / static_cast<double>(done)));
      }));
  progress.Finish();
  if (!lines.empty()) SB_RETURN_IF_ERROR(WriteLines(flags.Text("output"), lines));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  const double accuracy = static_cast<double>(right) / static_cast<double>(done);
  const double speed = static_cast<double>(tokens) / took.count();
  if (flags.Text("format") == "json") {
    fmt::print("{}\n", Json{{"accuracy", accuracy},
                            {"right", right},
                            {"problems", done},
                            {"tokens", tokens},
                            {"seconds", took.count()},
                            {"tokens_per_second", speed},
                            {"accept_length", total.accept_length()}}
                           .dump());
  } else {
    fmt::print("accuracy {:.3f} ({} of {}) | {:.0f} tok/s | accept {:.2f}\n", accuracy, right, done,
               speed, total.accept_length());
  }
  return OkStatus();
}

}  // namespace signalbox
