// SPDX-License-Identifier: Apache-2.0
//
// SB_CHECK(condition) << "context": stops the process on a bug of ours. Never reachable from input;
// whatever a file, flag, request or peer can cause returns a Status (base/status.h) instead.
#pragma once

#include <sstream>

namespace signalbox::internal {

class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

// Turns the streamed expression into void, so that both arms of ?: have one type.
struct Voidify {
  void operator&(std::ostream&) const {}
};

}  // namespace signalbox::internal

#define SB_CHECK(condition)                        \
  (condition) ? (void)0                            \
              : ::signalbox::internal::Voidify() & \
                    ::signalbox::internal::CheckFailure(__FILE__, __LINE__, #condition).stream()
