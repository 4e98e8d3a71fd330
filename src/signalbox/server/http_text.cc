// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/http_text.h"

#include <algorithm>
#include <charconv>

#include "signalbox/base/text_util.h"

namespace signalbox {
namespace {

char Lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

std::optional<int> HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = Lower(c);
  if (lower >= 'a' && lower <= 'f') return lower - 'a' + 10;
  return std::nullopt;
}

bool IsPort(std::string_view text) {
  int port = 0;
  const char* end = text.data() + text.size();
  const auto r = std::from_chars(text.data(), end, port);
  return r.ec == std::errc() && r.ptr == end && port >= 1 && port <= 65535;
}

// What may stand in a Host header: no space, no control character, nothing beyond ASCII.
bool IsVisible(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
}

}  // namespace

bool SameWord(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return Lower(x) == Lower(y); });
}

std::optional<std::string> PercentDecode(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    if (text.size() - i < 3) return std::nullopt;
    const auto high = HexDigit(text[i + 1]);
    const auto low = HexDigit(text[i + 2]);
    if (!high || !low) return std::nullopt;
    decoded += static_cast<char>(*high * 16 + *low);
    i += 2;
  }
  return decoded;
}

std::optional<HttpTarget> ParseTarget(std::string_view target) {
  if (target == "*") return HttpTarget{.path = "*"};
  // A proxy's form: the host is the Host header's business.
  if (const size_t scheme = target.find("://"); !target.starts_with('/')) {
    if (scheme == std::string_view::npos) return std::nullopt;
    const size_t path = target.find_first_of("/?", scheme + 3);
    if (path == std::string_view::npos) return HttpTarget{.path = "/"};
    target.remove_prefix(path);
  }
  const size_t question = target.find('?');
  auto path = PercentDecode(target.substr(0, question));
  if (!path) return std::nullopt;
  if (path->empty()) path = "/";
  const std::string_view query =
      question == std::string_view::npos ? std::string_view() : target.substr(question + 1);
  return HttpTarget{.path = std::move(*path), .query = std::string(query)};
}

std::string QueryValue(std::string_view query, std::string_view key) {
  const auto decoded = [](std::string_view text) {
    std::string spaced(text);
    std::replace(spaced.begin(), spaced.end(), '+', ' ');
    return PercentDecode(spaced).value_or(spaced);
  };
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    const size_t equals = std::min(pair.find('='), pair.size());
    if (decoded(pair.substr(0, equals)) != key) continue;
    return decoded(pair.substr(std::min(equals + 1, pair.size())));
  }
  return "";
}

std::string HttpUrl::Authority() const {
  if (!unix_socket.empty()) return "localhost";
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + port;
}

Result<HttpUrl> ParseUrl(std::string_view url) {
  const auto error = [&](std::string expected) {
    return InvalidArgument(
        {.what = "not the URL of a server", .found = Quoted(url), .expected = std::move(expected)});
  };
  constexpr std::string_view kForm = "http://HOST[:PORT][/PREFIX] or unix:PATH";
  constexpr std::string_view kUnix = "unix:";
  constexpr std::string_view kHttp = "http://";
  HttpUrl result{.port = "80"};
  if (url.starts_with(kUnix) && url.size() > kUnix.size()) {
    result.unix_socket = url.substr(kUnix.size());
    return result;
  }
  if (!url.starts_with(kHttp) || !IsVisible(url)) return error(std::string(kForm));
  std::string_view rest = url.substr(kHttp.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view prefix = rest.substr(slash);
  if (prefix.find_first_of("?#") != std::string_view::npos) return error("no query");
  while (prefix.ends_with('/')) prefix.remove_suffix(1);
  result.prefix = prefix;
  std::string_view authority = rest.substr(0, slash);
  if (authority.starts_with('[')) {
    const size_t end = authority.find(']');
    if (end == std::string_view::npos) return error("an IPv6 address in brackets");
    result.host = authority.substr(1, end - 1);
    authority.remove_prefix(end + 1);
  } else {
    result.host = authority.substr(0, authority.find(':'));
    authority.remove_prefix(result.host.size());
  }
  if (result.host.empty()) return error(std::string(kForm));
  if (!authority.empty()) {
    if (!authority.starts_with(':') || !IsPort(authority.substr(1)))
      return error("a port from 1 to 65535");
    result.port = authority.substr(1);
  }
  return result;
}

}  // namespace signalbox
