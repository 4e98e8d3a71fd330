// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/server_info.h"

#include <algorithm>
#include <ctime>

#include <nlohmann/json.hpp>

#include "signalbox/cache/cache_pool.h"
#include "signalbox/plan/print.h"
#include "signalbox/server/signalbox.h"

namespace signalbox {
namespace {

using Json = nlohmann::ordered_json;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json ModelEntry(const ServerIdentity& identity, const TextModel& model, const std::string& name) {
  static const std::time_t kCreated = std::time(nullptr);
  return {{"id", name},
          {"object", "model"},
          {"created", kCreated},
          {"owned_by", "signalbox"},
          {"root", identity.served_names.front()},
          {"parent", nullptr},
          {"max_model_len", model.max_context()}};
}

CacheSize Sum(const std::vector<CacheSize>& parts) {
  CacheSize sum;
  for (const CacheSize& part : parts) {
    sum.pages += part.pages;
    sum.slots += part.slots;
  }
  return sum;
}

// Of all steps so far; null without drafts.
Json AcceptLength(const GeneratorStats& stats) {
  if (stats.drafted_tokens == 0 || stats.decode_steps == 0) return nullptr;
  return static_cast<double>(stats.decode_tokens) / static_cast<double>(stats.decode_steps);
}

// Null where there is nothing of the kind.
Json NumberOrNull(double value) {
  return value > 0 ? Json(value) : Json(nullptr);
}

}  // namespace

std::string ModelsJson(const ServerIdentity& identity, const TextModel& model) {
  Json data = Json::array();
  for (const std::string& name : identity.served_names)
    data.push_back(ModelEntry(identity, model, name));
  return Dump({{"object", "list"}, {"data", std::move(data)}});
}

std::string ModelJson(const ServerIdentity& identity, const TextModel& model,
                      std::string_view name) {
  const auto& names = identity.served_names;
  const bool known =
      name == "default" || std::find(names.begin(), names.end(), name) != names.end();
  return known ? Dump(ModelEntry(identity, model, std::string(name))) : "";
}

std::string ModelInfoJson(const ServerIdentity& identity) {
  return Dump({{"model_path", identity.model_path},
               {"tokenizer_path", identity.model_path},
               {"served_model_name", identity.served_names.front()},
               {"is_generation", true},
               {"preferred_sampling_params", nullptr}});
}

std::string ServerInfoJson(const ServerIdentity& identity, Service& service,
                           const Metrics& metrics) {
  const Engine& engine = service.model().engine();
  const ParallelConfig& config = engine.planned().layout.config;
  const ServiceStats stats = service.stats();
  const MetricsRates rates = metrics.Rates(stats);
  const CacheSize total = Sum(stats.total);
  const CacheSize used = Sum(stats.used);
  Json info = {{"version", Version()},
               {"status", service.health().ok() ? "ready" : "stopped"},
               {"model_path", identity.model_path},
               {"tokenizer_path", identity.model_path},
               {"served_model_name", identity.served_names.front()},
               {"layout", identity.layout},
               {"tp_size", config.tp},
               {"dp_size", config.dp},
               {"ep_size", config.ep},
               {"max_model_len", service.model().max_context()},
               {"drafts", engine.drafts()}};
  Json flags = Json::object();
  for (const auto& [name, value] : identity.settings) flags[name] = value;
  info["flags"] = std::move(flags);
  Json parts = Json::array();
  parts.push_back(
      {{"effective_max_running_requests_per_dp", service.options().parallel / config.dp},
       {"memory_usage", {{"token_capacity", total.pages * kBlockTokens}}},
       {"last_gen_throughput", rates.tokens_per_second},
       {"avg_spec_accept_length", AcceptLength(stats.generator)}});
  info["internal_states"] = std::move(parts);
  info["live"] = {{"tokens_per_second", rates.tokens_per_second},
                  {"running", stats.running},
                  {"waiting", stats.waiting},
                  {"accept_length", NumberOrNull(rates.accept_length)},
                  {"prefix_hit_rate", rates.prefix_hit_rate},
                  {"kv_tokens_used", used.pages * kBlockTokens},
                  {"kv_tokens", total.pages * kBlockTokens},
                  {"state_slots_used", used.slots},
                  {"state_slots", total.slots}};
  return Dump(info);
}

std::string LoadJson(const ServiceStats& stats) {
  Json list = Json::array();
  for (size_t part = 0; part < stats.running_of.size(); ++part) {
    list.push_back({{"dp_rank", part},
                    {"num_reqs", stats.running_of[part] + (part == 0 ? stats.waiting : 0)},
                    {"num_waiting_reqs", part == 0 ? stats.waiting : 0},
                    {"num_tokens", stats.used[part].pages * kBlockTokens}});
  }
  return Dump(list);
}

std::string UsualLayerSvg(const LayoutPlan& plan) {
  const auto most =
      std::max_element(plan.kinds.begin(), plan.kinds.end(),
                       [](const KindPlan& a, const KindPlan& b) { return a.layers < b.layers; });
  return LayoutToSvg(
      plan, {.kind = static_cast<size_t>(most - plan.kinds.begin()), .phase = Phase::kDecode});
}

}  // namespace signalbox
