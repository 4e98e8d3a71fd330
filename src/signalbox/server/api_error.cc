// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>

#include <nlohmann/json.hpp>

#include "signalbox/server/api.h"

namespace signalbox {
namespace {

using Json = nlohmann::ordered_json;

struct ErrorKind {
  StatusCode code;
  int status;
  const char* type;
  const char* name;
  int retry_after;
};

constexpr ErrorKind kKinds[] = {
    {StatusCode::kInvalidArgument, 400, "invalid_request_error", "", 0},
    {StatusCode::kNotFound, 404, "invalid_request_error", "not_found", 0},
    {StatusCode::kResourceExhausted, 429, "rate_limit_error", "rate_limit_exceeded", 1},
    {StatusCode::kCancelled, 503, "unavailable_error", "cancelled", 1},
    {StatusCode::kUnavailable, 503, "unavailable_error", "unavailable", 5},
    {StatusCode::kDeadlineExceeded, 503, "unavailable_error", "deadline_exceeded", 5},
    {StatusCode::kRefused, 501, "not_supported_error", "not_supported", 0},
};
constexpr ErrorKind kFault = {StatusCode::kInternal, 500, "server_error", "internal_error", 0};

// "top_p", "messages[2].content": what a status says of where may be a field, or a file.
bool IsField(const std::string& where) {
  return !where.empty() && std::all_of(where.begin(), where.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '[' || c == ']';
  });
}

Json TextOrNull(const std::string& text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

}  // namespace

std::string ApiError::Body() const {
  const Json body = {{"error",
                      {{"message", message},
                       {"type", type},
                       {"param", TextOrNull(param)},
                       {"code", TextOrNull(code)}}}};
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

ApiError ApiErrorOf(const Status& status) {
  const auto* found = std::find_if(std::begin(kKinds), std::end(kKinds),
                                   [&](const ErrorKind& k) { return k.code == status.code(); });
  const ErrorKind& kind = found == std::end(kKinds) ? kFault : *found;
  ApiError error{.status = kind.status,
                 .type = kind.type,
                 .code = kind.name,
                 .message = status.message(),
                 .retry_after = kind.retry_after};
  if (kind.status == 400 && IsField(status.detail().where)) error.param = status.detail().where;
  return error;
}

}  // namespace signalbox
