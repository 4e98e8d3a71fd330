// SPDX-License-Identifier: Apache-2.0
#include "signalbox/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace signalbox::internal {

CheckFailure::CheckFailure(const char* file, int line, const char* condition) {
  stream_ << file << ':' << line << ": check failed: " << condition << ' ';
}

CheckFailure::~CheckFailure() {
  std::fprintf(stderr, "%s\n", stream_.str().c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace signalbox::internal
