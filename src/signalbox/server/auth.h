// SPDX-License-Identifier: Apache-2.0
//
// Who may ask for what. Everything needs a key where there are keys, but for routes that say
// otherwise; what changes the server for others needs the admin's key, or, where there is none, a
// program on this machine.
//
//   if (auto error = Authorize(options, Access::kUser, request)) return Send(*error);
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "signalbox/server/api.h"
#include "signalbox/server/http_server.h"

namespace signalbox {

enum class Access : uint8_t {
  kOpen,    // anybody: probes
  kScrape,  // like kUser, or like kOpen where the options say so
  kUser,    // an API key
  kAdmin,   // the admin's key
};

struct AuthOptions {
  std::vector<std::string> api_keys;  // none: no key is needed
  std::string admin_key;              // opens everything; empty: there is none
  bool open_metrics = false;
};

// Whether two texts are equal, in a time that does not tell where they differ.
bool SameSecret(std::string_view a, std::string_view b);

// Why the request is not allowed: 401 without the right key, 403 where no user's key is enough. The
// key stands in Authorization, with or without "Bearer", or in X-Api-Key.
std::optional<ApiError> Authorize(const AuthOptions& options, Access access,
                                  const HttpRequest& request);

}  // namespace signalbox
