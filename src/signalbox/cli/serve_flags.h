// SPDX-License-Identifier: Apache-2.0
//
// The flags that `serve` alone has, and what they come to.
//
//   SB_ASSIGN_OR_RETURN(ServeOptions options, ServeOptionsOf(invocation.flags, directory));
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "signalbox/base/status.h"
#include "signalbox/cli/flags.h"
#include "signalbox/server/app.h"
#include "signalbox/server/event_log.h"
#include "signalbox/server/http_server.h"
#include "signalbox/server/metrics.h"

namespace signalbox {

// Rows of the flag table.
std::vector<FlagSpec> ServeRows();

struct ServeOptions {
  HttpServerOptions http;
  AppOptions app;
  MetricsOptions metrics;
  int64_t parallel = 0;
  int64_t max_queued = 0;
  std::chrono::seconds shutdown_timeout{0};
  std::chrono::seconds log_interval{0};  // 0: no lines about running work
  LogFormat log_format = LogFormat::kText;
};

// kInvalidArgument for values that contradict each other, kNotFound for a key file that is not
// there.
Result<ServeOptions> ServeOptionsOf(const FlagValues& flags, const std::string& model);

}  // namespace signalbox
