// SPDX-License-Identifier: Apache-2.0
//
// What the server says of itself, as JSON: the models it serves, how it was started, and what it
// does now.
//
//   exchange->Send({.body = ServerInfoJson(identity, *service, metrics)});
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "signalbox/plan/planner.h"
#include "signalbox/server/metrics.h"
#include "signalbox/server/service.h"

namespace signalbox {

// What is known before the model is loaded.
struct ServerIdentity {
  std::vector<std::string> served_names;  // the first is what answers say
  std::string model_path;
  std::string layout;  // "tp 2, ep 2"
  // Flags in effect by name, without secrets.
  std::vector<std::pair<std::string, std::string>> settings;
};

// /v1/models: every served name is one.
std::string ModelsJson(const ServerIdentity& identity, const TextModel& model);
// /v1/models/NAME; empty when it is not served. "default" is the first.
std::string ModelJson(const ServerIdentity& identity, const TextModel& model,
                      std::string_view name);
// /model_info.
std::string ModelInfoJson(const ServerIdentity& identity);
// /server_info, with the names that benchmarks of other engines read.
std::string ServerInfoJson(const ServerIdentity& identity, Service& service,
                           const Metrics& metrics);
// /get_load: one entry for each group of ranks with sequences of its own.
std::string LoadJson(const ServiceStats& stats);

// The picture of the layer kind that most layers are of, in the phase that runs most.
std::string UsualLayerSvg(const LayoutPlan& plan);

}  // namespace signalbox
