// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/lifecycle.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

namespace signalbox {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDrainRetry = 5;
constexpr int kStoppedRetry = 30;

HttpResponse Unavailable503(const std::string& message, const std::string& code, int retry_after,
                            const Json& more = Json::object()) {
  Json error = {
      {"message", message}, {"type", "unavailable_error"}, {"param", nullptr}, {"code", code}};
  error.update(more);
  return {.status = 503,
          .headers = {{"Retry-After", std::to_string(retry_after)}},
          .body = Json{{"error", std::move(error)}}.dump()};
}

}  // namespace

Lifecycle::Lifecycle(std::function<Clock::time_point()> now)
    : now_(std::move(now)), step_began_(now_()) {}

void Lifecycle::SetLoading(std::string_view step, int64_t bytes_done, int64_t bytes_total) {
  std::lock_guard lock(mutex_);
  if (step_ != step) step_began_ = now_();
  step_ = step;
  bytes_done_ = bytes_done;
  bytes_total_ = bytes_total;
}

void Lifecycle::SetReady() {
  std::lock_guard lock(mutex_);
  if (phase_ == ServerPhase::kLoading) phase_ = ServerPhase::kReady;
}

void Lifecycle::SetDraining() {
  std::lock_guard lock(mutex_);
  phase_ = ServerPhase::kDraining;
}

ServerPhase Lifecycle::phase() const {
  std::lock_guard lock(mutex_);
  return phase_;
}

std::optional<HttpResponse> Lifecycle::Refusal() const {
  std::lock_guard lock(mutex_);
  if (phase_ == ServerPhase::kReady) return std::nullopt;
  if (phase_ == ServerPhase::kDraining)
    return Unavailable503("the server is shutting down", "draining", kDrainRetry);
  Json more = {{"phase", step_}, {"percent", nullptr}, {"eta_seconds", nullptr}};
  std::string message = "the model is loading: " + step_;
  int retry_after = 1;
  if (bytes_total_ > 0) {
    const double part =
        std::clamp(static_cast<double>(bytes_done_) / static_cast<double>(bytes_total_), 0., 1.);
    more["percent"] = std::floor(1000 * part) / 10;
    more["bytes_done"] = bytes_done_;
    more["bytes_total"] = bytes_total_;
    message += fmt::format(", {:.0f} %", std::floor(100 * part));
    if (bytes_done_ > 0) {
      const std::chrono::duration<double> spent = now_() - step_began_;
      const double left = spent.count() * (1 - part) / part;
      more["eta_seconds"] = std::round(10 * left) / 10;
      message += fmt::format(", about {:.0f} s left", std::ceil(left));
      retry_after = static_cast<int>(std::clamp(std::ceil(left), 1., 60.));
    }
  }
  return Unavailable503(message, "loading", retry_after, more);
}

ApiError EngineStopped() {
  return {.status = 503,
          .type = "unavailable_error",
          .code = "engine_stopped",
          .message = "the engine has stopped; the server must be started again",
          .retry_after = kStoppedRetry};
}

}  // namespace signalbox
