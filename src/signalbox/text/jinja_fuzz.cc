// SPDX-License-Identifier: Apache-2.0
//
// Input: a template, a zero byte, a JSON object as context. Whatever they are, parsing and
// rendering end with a result, and the segments of a result are in normal form.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "signalbox/base/check.h"
#include "signalbox/text/jinja_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using signalbox::jinja::Dict;
  using signalbox::jinja::Template;
  using signalbox::jinja::Value;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t cut = std::min(input.find('\0'), input.size());
  const auto parsed = Template::Parse(input.substr(0, cut));
  if (!parsed.ok()) return 0;
  const auto value = Value::FromJson(input.substr(std::min(cut + 1, input.size())));
  const Dict context = value.ok() && value->is_dict() ? value->dict() : Dict();
  const auto rendered =
      parsed->Render(context, {.limits = {.output_bytes = 1 << 16, .steps = 50'000}});
  if (!rendered.ok()) return 0;
  for (size_t i = 0; i < rendered->size(); ++i) {
    SB_CHECK(!(*rendered)[i].text.empty()) << "empty segment";
    SB_CHECK(i == 0 || (*rendered)[i].trusted != (*rendered)[i - 1].trusted) << "unmerged segments";
  }
  return 0;
}
