// SPDX-License-Identifier: Apache-2.0
//
// Input: messages, a zero byte, tools, a zero byte, variables. Whatever they are, rendering ends
// with a result in which nothing but the markers is trusted.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "signalbox/base/check.h"
#include "signalbox/text/xtml.h"
#include "signalbox/text/xtml_format.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace signalbox;
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const auto next = [&input] {
    const std::string field(input.substr(0, input.find('\0')));
    input.remove_prefix(std::min(field.size() + 1, input.size()));
    return field;
  };
  ChatRequest request;
  request.messages = next();
  request.tools = next();
  request.extra = next();
  const auto prompt = XtmlFormat().Render(request);
  if (!prompt.ok()) return 0;
  for (const Segment& segment : *prompt) {
    SB_CHECK(!segment.text.empty() && segment.apart) << segment.text;
    const bool marker = std::find(xtml::kMarkers.begin(), xtml::kMarkers.end(), segment.text) !=
                        xtml::kMarkers.end();
    SB_CHECK(marker || !segment.trusted) << segment.text;
  }
  return 0;
}
