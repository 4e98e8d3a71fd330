// SPDX-License-Identifier: Apache-2.0
//
// The parts of HTTP that are text: targets of requests, their queries, URLs of servers.
//
// Errors: nothing, or kInvalidArgument, for text of another form. Any bytes may be given.
//
//   HttpTarget target = *ParseTarget("/v1/models/a%20b?full=1");   // path "/v1/models/a b"
//   QueryValue(target.query, "full");                              // "1"
//   SB_ASSIGN_OR_RETURN(HttpUrl url, ParseUrl("http://127.0.0.1:30000/prefix"));
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "signalbox/base/status.h"

namespace signalbox {

// Whether two ASCII words differ in letter case alone.
bool SameWord(std::string_view a, std::string_view b);

// "%41" as "A"; nothing when a '%' is not followed by two hexadecimal digits.
std::optional<std::string> PercentDecode(std::string_view text);

struct HttpTarget {
  std::string path;   // decoded; begins with '/', or is "*"
  std::string query;  // as it came, without '?'
};
// Of a request line: "/path?query", "http://host/path?query" or "*".
std::optional<HttpTarget> ParseTarget(std::string_view target);

// The value of the first such key, '+' as a space; empty: none. An escape that is none stays text.
std::string QueryValue(std::string_view query, std::string_view key);

struct HttpUrl {
  std::string host;         // without the brackets of an IPv6 address
  std::string port;         // "80" where none is given
  std::string prefix;       // of every path: "/api", or empty; never ends with '/'
  std::string unix_socket;  // instead of host and port

  // As a Host header says it.
  std::string Authority() const;
};
// "http://HOST[:PORT][/PREFIX]" or "unix:PATH".
Result<HttpUrl> ParseUrl(std::string_view url);

}  // namespace signalbox
