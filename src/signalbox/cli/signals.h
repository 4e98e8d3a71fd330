// SPDX-License-Identifier: Apache-2.0
//
// Signals: SIGTERM and SIGINT as something to wait for. The first one is told, the second one ends
// the process where it stands. For the program alone; the library knows no signals.
//
//   SB_ASSIGN_OR_RETURN(auto signals, Signals::Catch());
//   while (!signals->Wait(std::chrono::seconds(1))) PrintProgress();
#pragma once

#include <chrono>
#include <memory>

#include "signalbox/base/status.h"

namespace signalbox {

class Signals {
 public:
  // One at a time. kResourceExhausted where no file is left for it.
  static Result<std::unique_ptr<Signals>> Catch();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  // Whether a signal has come; waits for one so long.
  bool Wait(std::chrono::milliseconds limit) const;

 private:
  explicit Signals(int fd) : fd_(fd) {}
  const int fd_;
};

// For processes that end when another one tells them.
void IgnoreSignals();

}  // namespace signalbox
