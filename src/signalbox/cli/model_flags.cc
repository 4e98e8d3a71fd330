// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cli/model_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <vector>

#include "signalbox/base/text_util.h"
#include "signalbox/cli/flag_sources.h"
#include "signalbox/text/chat_format.h"
#include "signalbox/text/tokenizer.h"

namespace signalbox {
namespace {

// A parser of other engines and the formats that it reads here; none: models that write it are not
// known.
struct ParserName {
  std::string_view name;
  std::vector<OutputFormat> formats;
};

using enum OutputFormat;

// <think> is written by both formats of Qwen, and by the models that the other names are of.
const std::vector<ParserName>& ReasoningParsers() {
  static const std::vector<ParserName> kParsers = {
      {"qwen3", {kHermes, kXml}},
      {"qwen3-thinking", {kHermes, kXml}},
      {"deepseek-r1", {kHermes, kXml}},
      {"kimi-k3", {kXtml}},
      {"deepseek-v3", {}},
      {"glm45", {}},
      {"gpt-oss", {}},
      {"kimi", {}},
      {"kimi-k2", {}},
      {"minimax", {}},
      {"step3", {}},
  };
  return kParsers;
}

const std::vector<ParserName>& ToolCallParsers() {
  static const std::vector<ParserName> kParsers = {
      {"hermes", {kHermes}},   {"qwen", {kHermes}},   {"qwen25", {kHermes}}, {"qwen3", {kHermes}},
      {"qwen3-coder", {kXml}}, {"qwen3-xml", {kXml}}, {"kimi-k3", {kXtml}},  {"deepseek-v3", {}},
      {"deepseekv3", {}},      {"deepseekv31", {}},   {"glm45", {}},         {"glm47", {}},
      {"gpt-oss", {}},         {"kimi-k2", {}},       {"llama3", {}},        {"mistral", {}},
      {"minimax-m2", {}},      {"pythonic", {}},      {"step3", {}},
  };
  return kParsers;
}

std::string_view FormatText(OutputFormat format) {
  switch (format) {
    case kPlain:
      return "plain text";
    case kHermes:
      return "Qwen3's format: <think>, and JSON in <tool_call>";
    case kXml:
      return "Qwen3.5's format: <think>, and <function=...> in <tool_call>";
    case kXtml:
      break;
  }
  return "Kimi-K3's format, XTML";
}

Result<OutputFormat> FormatOf(const std::string& model) {
  SB_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::LoadModel(model));
  const auto chat = LoadChatFormat(model, tokenizer);
  if (chat.ok()) return (*chat)->output_format();
  if (chat.status().code() == StatusCode::kNotFound) return kPlain;
  return chat.status();
}

Status CheckParser(const FlagValues& flags, const std::string& flag,
                   const std::vector<ParserName>& parsers, const std::string& model) {
  const std::string& given = flags.Text(flag);
  if (given == "auto") return OkStatus();
  const std::string where = "--" + flag + " " + given;
  const auto named = std::ranges::find(parsers, PlainName(given), &ParserName::name);
  if (named == parsers.end()) {
    std::vector<std::string_view> names = {"auto"};
    for (const ParserName& p : parsers) names.push_back(p.name);
    return InvalidArgument({.what = "unknown parser",
                            .where = where,
                            .expected = fmt::format("one of {}", fmt::join(names, ", "))});
  }
  SB_ASSIGN_OR_RETURN(const OutputFormat format, FormatOf(model));
  if (std::ranges::count(named->formats, format) > 0) return OkStatus();
  std::vector<std::string_view> fitting = {"auto"};
  for (const ParserName& p : parsers) {
    if (std::ranges::count(p.formats, format) > 0) fitting.push_back(p.name);
  }
  return Refused({.what = "the parser does not fit what the model writes",
                  .where = where,
                  .found = std::string(FormatText(format)),
                  .expected = fmt::format("one of {}", fmt::join(fitting, ", "))});
}

// `own`: the path that alone can be named.
Status CheckOwn(const FlagValues& flags, const std::string& flag, const std::string& what,
                const std::filesystem::path& own) {
  std::error_code error;
  if (!flags.Has(flag) || std::filesystem::equivalent(flags.Text(flag), own, error))
    return OkStatus();
  return Refused({.what = "only the model's own " + what + " is used",
                  .where = "--" + flag,
                  .found = Quoted(flags.Text(flag)),
                  .expected = Quoted(own.string()),
                  .remedy = "leave it out"});
}

}  // namespace

Status CheckModelFlags(const FlagValues& flags, const std::string& model) {
  SB_RETURN_IF_ERROR(CheckOwn(flags, "tokenizer-path", "tokenizer", model));
  SB_RETURN_IF_ERROR(CheckOwn(flags, "speculative-draft-model-path", "draft head", model));
  SB_RETURN_IF_ERROR(CheckOwn(flags, "chat-template", "chat template",
                              std::filesystem::path(model) / "chat_template.jinja"));
  SB_RETURN_IF_ERROR(CheckParser(flags, "reasoning-parser", ReasoningParsers(), model));
  return CheckParser(flags, "tool-call-parser", ToolCallParsers(), model);
}

}  // namespace signalbox
