// SPDX-License-Identifier: Apache-2.0
//
// Lifecycle: loading, ready, draining, in this order; and what requests are told meanwhile. Every
// function may be called from any thread.
//
//   lifecycle.SetLoading("reading weights", done, total);   // 503 with percent and time left
//   lifecycle.SetReady();
//   if (auto refusal = lifecycle.Refusal()) return Send(*refusal);
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "signalbox/server/api.h"
#include "signalbox/server/http_server.h"

namespace signalbox {

enum class ServerPhase : uint8_t { kLoading, kReady, kDraining };

class Lifecycle {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Lifecycle(std::function<Clock::time_point()> now = Clock::now);

  // What is being done now, and how far it is. `total` 0: not known.
  void SetLoading(std::string_view step, int64_t bytes_done = 0, int64_t bytes_total = 0);
  void SetReady();
  void SetDraining();

  ServerPhase phase() const;
  // 503 with the reason; nothing when ready.
  std::optional<HttpResponse> Refusal() const;

 private:
  const std::function<Clock::time_point()> now_;
  mutable std::mutex mutex_;
  ServerPhase phase_ = ServerPhase::kLoading;
  std::string step_ = "starting";
  Clock::time_point step_began_;
  int64_t bytes_done_ = 0;
  int64_t bytes_total_ = 0;
};

// 503 for as long as the server lives; the log says why.
ApiError EngineStopped();

}  // namespace signalbox
