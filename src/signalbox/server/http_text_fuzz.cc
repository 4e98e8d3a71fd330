// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a target, a query and a URL: what is taken keeps its form.
#include <cstdint>
#include <string>
#include <string_view>

#include "signalbox/base/check.h"
#include "signalbox/server/http_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto decoded = signalbox::PercentDecode(text)) {
    SB_CHECK(decoded->size() <= text.size()) << "decoding made text longer";
  }
  if (const auto target = signalbox::ParseTarget(text)) {
    SB_CHECK(target->path == "*" || target->path.starts_with('/')) << target->path;
    SB_CHECK(target->query.size() <= size) << "a query longer than its target";
    SB_CHECK(signalbox::QueryValue(target->query, "key").size() <= size) << "a value too long";
  }
  const auto url = signalbox::ParseUrl(text);
  if (url.ok()) {
    SB_CHECK(url->host.empty() != url->unix_socket.empty()) << "not one place";
    SB_CHECK(url->prefix.empty() || url->prefix.starts_with('/')) << url->prefix;
    SB_CHECK(url->Authority().find_first_of("\r\n ") == std::string::npos) << url->Authority();
  } else {
    SB_CHECK(url.status().message().size() < 1024) << "a message as long as its input";
  }
  return 0;
}
