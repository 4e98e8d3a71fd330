// SPDX-License-Identifier: Apache-2.0
//
// The first byte chooses the format, whether the prompt opened the reasoning and how the answer
// ended; the rest is what the model writes, where "\x01" stands for the next of XTML's markers. Cut
// byte by byte or not at all, it is the same answer, and the arguments of its calls are JSON.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "signalbox/base/check.h"
#include "signalbox/base/json_util.h"
#include "signalbox/text/output_parser.h"
#include "signalbox/text/unicode.h"
#include "signalbox/text/xtml.h"

namespace signalbox {
namespace {

ParsedOutput Parsed(OutputFormat format, bool in_reasoning, bool stopped, std::string_view text,
                    size_t piece) {
  const auto parser = MakeOutputParser(
      format, {.in_reasoning = in_reasoning, .types = {{"f", {{"n", "integer"}}}}});
  OutputEvents events;
  size_t markers = 0;
  while (!text.empty()) {
    if (text[0] == '\x01') {
      parser->Marker(xtml::kMarkers[markers++ % 3], events);
      text.remove_prefix(1);
      continue;
    }
    const std::string_view run = text.substr(0, std::min(text.find('\x01'), piece));
    parser->Text(run, events);
    text.remove_prefix(run.size());
  }
  parser->Finish(stopped, events);
  ParsedOutput output;
  output.Add(events);
  return output;
}

}  // namespace
}  // namespace signalbox

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace signalbox;
  if (size == 0) return 0;
  constexpr OutputFormat kFormats[] = {OutputFormat::kHermes, OutputFormat::kXml,
                                       OutputFormat::kXtml, OutputFormat::kPlain};
  const OutputFormat format = kFormats[data[0] & 3];
  const bool in_reasoning = (data[0] & 4) != 0;
  const bool stopped = (data[0] & 8) != 0;
  std::string text;
  AppendUtf8({reinterpret_cast<const char*>(data + 1), size - 1}, Utf8End::kFinal, text);
  const ParsedOutput whole = Parsed(format, in_reasoning, stopped, text, text.size() + 1);
  SB_CHECK(Parsed(format, in_reasoning, stopped, text, 1) == whole) << text;
  SB_CHECK(Parsed(format, in_reasoning, stopped, text, 7) == whole) << text;
  for (const ToolCall& call : whole.calls) {
    SB_CHECK(!call.name.empty()) << text;
    SB_CHECK(ParseJson(call.arguments).ok()) << call.arguments;
  }
  return 0;
}
