// SPDX-License-Identifier: Apache-2.0
//
// Characters that a JSON text cannot hold as they are.
//
//   if (!AppendJsonEscape(c, out)) out += c;
#pragma once

#include <string>

namespace signalbox {

// Appends the escape of a quote, a backslash or a control character below U+0020, the short one
// where there is one; false, and nothing is appended, for all others.
bool AppendJsonEscape(char32_t c, std::string& out);

}  // namespace signalbox
