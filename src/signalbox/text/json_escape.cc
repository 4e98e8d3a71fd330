// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/json_escape.h"

#include <fmt/format.h>

#include <cstdint>
#include <iterator>

namespace signalbox {

bool AppendJsonEscape(char32_t c, std::string& out) {
  switch (c) {
    case '"':
      out += "\\\"";
      return true;
    case '\\':
      out += "\\\\";
      return true;
    case '\n':
      out += "\\n";
      return true;
    case '\r':
      out += "\\r";
      return true;
    case '\t':
      out += "\\t";
      return true;
    case '\f':
      out += "\\f";
      return true;
    case '\b':
      out += "\\b";
      return true;
    default:
      if (c >= 0x20) return false;
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<uint32_t>(c));
      return true;
  }
}

}  // namespace signalbox
