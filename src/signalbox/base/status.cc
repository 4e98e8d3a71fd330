// SPDX-License-Identifier: Apache-2.0
#include "signalbox/base/status.h"

namespace signalbox {

int ExitCode(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return 0;
    case StatusCode::kInvalidArgument:
    case StatusCode::kNotFound:
      return 2;
    case StatusCode::kRefused:
      return 3;
    case StatusCode::kOutOfTolerance:
      return 4;
    case StatusCode::kBadCheckpoint:
      return 5;
    case StatusCode::kInternal:
    case StatusCode::kResourceExhausted:
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kCancelled:
      return 1;
  }
  return 1;
}

std::string_view ToString(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "OK";
    case StatusCode::kInternal:
      return "INTERNAL";
    case StatusCode::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case StatusCode::kRefused:
      return "REFUSED";
    case StatusCode::kOutOfTolerance:
      return "OUT_OF_TOLERANCE";
    case StatusCode::kBadCheckpoint:
      return "BAD_CHECKPOINT";
    case StatusCode::kNotFound:
      return "NOT_FOUND";
    case StatusCode::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case StatusCode::kUnavailable:
      return "UNAVAILABLE";
    case StatusCode::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case StatusCode::kCancelled:
      return "CANCELLED";
  }
  return "UNKNOWN";
}

Status::Status(StatusCode code, ErrorDetail detail) : code_(code), detail_(std::move(detail)) {}

std::string Status::message() const {
  std::string s = detail_.what;
  if (!detail_.where.empty()) s += " (" + detail_.where + ")";
  if (!detail_.found.empty()) s += ": found " + detail_.found;
  if (!detail_.expected.empty()) {
    s += (detail_.found.empty() ? ": expected " : ", expected ") + detail_.expected;
  }
  if (!detail_.remedy.empty()) s += "; " + detail_.remedy;
  return s;
}

std::string Status::ToString() const {
  return ok() ? "OK" : std::string(signalbox::ToString(code_)) + ": " + message();
}

Status Status::At(std::string_view where) const {
  if (ok()) return *this;
  ErrorDetail d = detail_;
  d.where = d.where.empty() ? std::string(where) : std::string(where) + ", " + d.where;
  return Status(code_, std::move(d));
}

Status Internal(ErrorDetail d) {
  return Status(StatusCode::kInternal, std::move(d));
}
Status InvalidArgument(ErrorDetail d) {
  return Status(StatusCode::kInvalidArgument, std::move(d));
}
Status Refused(ErrorDetail d) {
  return Status(StatusCode::kRefused, std::move(d));
}
Status OutOfTolerance(ErrorDetail d) {
  return Status(StatusCode::kOutOfTolerance, std::move(d));
}
Status BadCheckpoint(ErrorDetail d) {
  return Status(StatusCode::kBadCheckpoint, std::move(d));
}
Status NotFound(ErrorDetail d) {
  return Status(StatusCode::kNotFound, std::move(d));
}
Status ResourceExhausted(ErrorDetail d) {
  return Status(StatusCode::kResourceExhausted, std::move(d));
}
Status Unavailable(ErrorDetail d) {
  return Status(StatusCode::kUnavailable, std::move(d));
}
Status DeadlineExceeded(ErrorDetail d) {
  return Status(StatusCode::kDeadlineExceeded, std::move(d));
}
Status Cancelled(ErrorDetail d) {
  return Status(StatusCode::kCancelled, std::move(d));
}

}  // namespace signalbox
