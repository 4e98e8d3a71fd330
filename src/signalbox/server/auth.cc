// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/auth.h"

#include <algorithm>

#include "signalbox/server/http_text.h"

namespace signalbox {
namespace {

std::string_view KeyOf(const HttpRequest& request) {
  std::string_view key = request.Header("Authorization");
  constexpr std::string_view kScheme = "Bearer";
  if (SameWord(key.substr(0, kScheme.size()), kScheme)) key.remove_prefix(kScheme.size());
  while (key.starts_with(' ')) key.remove_prefix(1);
  while (key.ends_with(' ')) key.remove_suffix(1);
  return key.empty() ? request.Header("X-Api-Key") : key;
}

// A program on this machine: neither somebody behind a proxy, nor a page in a browser.
bool IsLocalProgram(const HttpRequest& request) {
  return request.loopback && request.Header("X-Forwarded-For").empty() &&
         request.Header("Forwarded").empty() && request.Header("Origin").empty();
}

ApiError Unauthorized(std::string message) {
  return {.status = 401,
          .type = "authentication_error",
          .code = "invalid_api_key",
          .message = std::move(message)};
}

ApiError Forbidden(std::string message) {
  return {.status = 403,
          .type = "permission_error",
          .code = "admin_required",
          .message = std::move(message)};
}

}  // namespace

bool SameSecret(std::string_view a, std::string_view b) {
  if (a.empty() || b.empty()) return a.empty() && b.empty();
  size_t difference = a.size() ^ b.size();
  for (size_t i = 0; i < b.size(); ++i)
    difference |= static_cast<unsigned char>(a[i % a.size()] ^ b[i]);
  return difference == 0;
}

std::optional<ApiError> Authorize(const AuthOptions& options, Access access,
                                  const HttpRequest& request) {
  if (access == Access::kOpen) return std::nullopt;
  if (access == Access::kScrape && options.open_metrics) return std::nullopt;
  const std::string_view key = KeyOf(request);
  const bool is_admin = !options.admin_key.empty() && SameSecret(options.admin_key, key);
  bool is_user = is_admin;
  for (const std::string& api_key : options.api_keys) is_user |= SameSecret(api_key, key);
  if (access == Access::kAdmin && !options.admin_key.empty()) {
    if (is_admin) return std::nullopt;
    return is_user ? Forbidden("this needs the admin's API key")
                   : Unauthorized("this needs the admin's API key");
  }
  if (!is_user && !options.api_keys.empty()) {
    return Unauthorized(key.empty() ? "an API key is needed: Authorization: Bearer KEY"
                                    : "the API key is not known here");
  }
  if (access == Access::kAdmin && !IsLocalProgram(request)) {
    return Forbidden(
        "without an admin's API key only a program on the server's own machine may do this");
  }
  return std::nullopt;
}

}  // namespace signalbox
