// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cli/signals.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>

namespace signalbox {
namespace {

constexpr int kCaught[] = {SIGTERM, SIGINT};

// What a handler may use.
std::atomic<int> seen = 0;
std::atomic<int> told = -1;

void OnSignal(int signal) {
  if (seen.fetch_add(1) > 0) ::_exit(128 + signal);
  const int saved = errno;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(told, &one, sizeof one);
  errno = saved;
}

void Install(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  for (const int signal : kCaught) ::sigaction(signal, &action, nullptr);
}

}  // namespace

Result<std::unique_ptr<Signals>> Signals::Catch() {
  const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) {
    return ResourceExhausted(
        {.what = "signals cannot be waited for", .found = std::strerror(errno)});
  }
  seen = 0;
  told = fd;
  Install(OnSignal);
  return std::unique_ptr<Signals>(new Signals(fd));
}

Signals::~Signals() {
  Install(SIG_DFL);
  ::close(fd_);
}

bool Signals::Wait(std::chrono::milliseconds limit) const {
  pollfd events{.fd = fd_, .events = POLLIN, .revents = 0};
  return ::poll(&events, 1, static_cast<int>(limit.count())) > 0;
}

void IgnoreSignals() {
  Install(SIG_IGN);
}

}  // namespace signalbox
