// SPDX-License-Identifier: Apache-2.0
//
// Status and Result<T>: how every function reports what a file, a flag, a request or a peer can
// cause.
//
// A message says what went wrong, where, what was found, what was expected and what to do about it.
// Nothing here throws; SB_CHECK (base/check.h) is for our own bugs only.
//
//   Result<int> Parse(std::string_view s) {
//     if (s.empty()) return InvalidArgument({.what = "empty number", .remedy = "give a decimal
//     number"});
//     ...
//   }
//   SB_ASSIGN_OR_RETURN(int n, Parse(text));
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "signalbox/base/check.h"

namespace signalbox {

// Codes name the reader's situation, not our module; ExitCode() gives the process exit code of
// each.
enum class StatusCode {
  kOk,
  kInternal,           // a fault of ours                                    exit 1
  kInvalidArgument,    // a flag, key or request field is wrong              exit 2
  kRefused,            // no layout or device can do what was asked          exit 3
  kOutOfTolerance,     // a measurement disagrees with its reference         exit 4
  kBadCheckpoint,      // a model file is missing, damaged or of a kind we do not read   exit 5
  kNotFound,           // a thing named by the caller does not exist         exit 2
  kResourceExhausted,  // a budget (blocks, slots, memory, time) is used up  exit 1
  kUnavailable,        // a peer rank or device is gone                      exit 1
  kDeadlineExceeded,   // a peer did not answer in time                      exit 1
  kCancelled,          // the caller withdrew                                exit 1
};

int ExitCode(StatusCode code);
std::string_view ToString(StatusCode code);

// The parts of an error message. Only `what` is required; empty parts are left out.
struct ErrorDetail {
  std::string what;
  std::string where;     // file, tensor, flag, layer, rank
  std::string found;     // the observed value
  std::string expected;  // what would have been right
  std::string remedy;    // what the reader can do
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, ErrorDetail detail);

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const ErrorDetail& detail() const { return detail_; }
  // One line: "what (where): found ..., expected ...; remedy".
  std::string message() const;
  // "OK" or "CODE: message".
  std::string ToString() const;
  // The same error with `where` put in front of the location it already has.
  Status At(std::string_view where) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  ErrorDetail detail_;
};

inline Status OkStatus() {
  return Status();
}
Status Internal(ErrorDetail detail);
Status InvalidArgument(ErrorDetail detail);
Status Refused(ErrorDetail detail);
Status OutOfTolerance(ErrorDetail detail);
Status BadCheckpoint(ErrorDetail detail);
Status NotFound(ErrorDetail detail);
Status ResourceExhausted(ErrorDetail detail);
Status Unavailable(ErrorDetail detail);
Status DeadlineExceeded(ErrorDetail detail);
Status Cancelled(ErrorDetail detail);

// Either a value or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}        // NOLINT(google-explicit-constructor)
  Result(Status status) : state_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    SB_CHECK(!std::get<Status>(state_).ok()) << "Result built from an OK status";
  }

  bool ok() const { return std::holds_alternative<T>(state_); }
  Status status() const { return ok() ? OkStatus() : std::get<Status>(state_); }

  // REQUIRES: ok().
  T& value() & { return Get(); }
  const T& value() const& { return const_cast<Result*>(this)->Get(); }
  T&& value() && { return std::move(Get()); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  T& Get() {
    SB_CHECK(ok()) << "value() of an error: " << std::get<Status>(state_).ToString();
    return std::get<T>(state_);
  }
  std::variant<T, Status> state_;
};

}  // namespace signalbox

#define SB_CONCAT_INNER_(a, b) a##b
#define SB_CONCAT_(a, b) SB_CONCAT_INNER_(a, b)

// Returns from the enclosing function when `expr` (a Status) is an error.
#define SB_RETURN_IF_ERROR(expr)                                                      \
  do {                                                                                \
    if (::signalbox::Status sb_status_ = (expr); !sb_status_.ok()) return sb_status_; \
  } while (false)

// `lhs` takes the value of `expr` (a Result), or the enclosing function returns its Status.
#define SB_ASSIGN_OR_RETURN(lhs, expr) \
  SB_ASSIGN_OR_RETURN_IMPL_(SB_CONCAT_(sb_result_, __LINE__), lhs, expr)
#define SB_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                              \
  if (!tmp.ok()) return tmp.status();             \
  lhs = std::move(tmp).value()
