// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cli/serve_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string_view>
#include <utility>

#include "signalbox/cli/flag_rows.h"
#include "signalbox/server/request_log.h"
#include "signalbox/server/sampling_defaults.h"

namespace signalbox {
namespace {

constexpr int64_t kDefaultParallel = 64;

std::vector<FlagSpec> AddressRows() {
  using K = FlagKind;
  return {
      {"host", K::kText, "127.0.0.1", "address to listen on; 0.0.0.0 or :: is every one"},
      {"port", K::kInt, "30000", "port to listen on; 0 is any that is free"},
      {"uds", K::kText, "", "path of a Unix socket to listen on, instead of host and port"},
      {"max-body-size", K::kInt, "33554432", "bytes of a request's body at most"},
      {"served-model-name", K::kTexts, "",
       "name under which the model is served; the first is what answers say, and without any it is "
       "MODEL as given"},
      {"max-queued-requests", K::kInt, "0",
       "requests that may wait for a place, others get 429; 0 is any number"},
      {"shutdown-timeout", K::kInt, "60",
       "seconds that open requests may take after SIGTERM or SIGINT before they are ended"},
  };
}

std::vector<FlagSpec> AccessRows() {
  using K = FlagKind;
  return {
      {"api-key", K::kTexts, "",
       "key that requests must bring, and that eval and bench serve bring; without any, none is "
       "needed"},
      {"api-key-file", K::kText, "", "file with such keys, one a line"},
      {"admin-api-key", K::kText, "",
       "key that may flush the cache and end requests of others; without one, programs of this "
       "machine may"},
      {"metrics-without-key", K::kSwitch, "", "/metrics needs no key"},
      Also({"cors-origin", K::kTexts, "",
            "origin whose pages may ask this server; * is any, and without one none may"},
           {"allowed-origins"}),
  };
}

std::vector<FlagSpec> RequestRows() {
  using K = FlagKind;
  return {
      {"sampling-defaults",
       K::kText,
       "model",
       "how requests are sampled that do not say: as generation_config.json has it, or at "
       "temperature 1",
       {"model", "openai"}},
      {"strict-api", K::kSwitch, "", "refuse requests with fields that nobody reads"},
      {"reasoning-field",
       K::kText,
       "both",
       "what answers call reasoning",
       {"both", "reasoning_content", "reasoning"}},
  };
}

std::vector<FlagSpec> LogRows() {
  using K = FlagKind;
  return {
      {"decode-log-interval", K::kInt, "10",
       "seconds between lines about running work; 0 writes none"},
      {"log-requests", K::kSwitch, "", "a line for each request that has ended"},
      {"log-requests-level", K::kInt, "0",
       "0: tokens and times; 1: and how it was sampled; 2: and the beginning of the texts; 3: and "
       "all of them"},
      Also({"log-format", K::kText, "text", "of lines about what happens", {"text", "json"}},
           {"log-requests-format"}),
      Ruled({"enable-metrics", K::kSwitch, "", "metrics"},
            {{FlagRule::Verdict::kTaken, "metrics are always on"}}),
      {"metrics-alias", K::kText, "sglang,vllm",
       "engines whose names metrics have as well, a list; none is none"},
      Also({"bucket-first-token", K::kText, "",
            "bounds of the histogram of times to the first token, seconds, a list"},
           {"bucket-time-to-first-token"}),
      Also({"bucket-inter-token", K::kText, "", "bounds of that of times between tokens"},
           {"bucket-inter-token-latency"}),
      Also({"bucket-request", K::kText, "", "bounds of those of requests and their parts"},
           {"bucket-e2e-request-latency"}),
  };
}

Result<std::vector<std::string>> KeysOf(const FlagValues& flags) {
  std::vector<std::string> keys = flags.Texts("api-key");
  const std::string& path = flags.Text("api-key-file");
  if (!path.empty()) {
    std::ifstream file(path);
    if (!file) return NotFound({.what = "the file of API keys cannot be read", .where = path});
    for (std::string line; std::getline(file, line);) {
      const size_t begin = line.find_first_not_of(" \t\r");
      if (begin == std::string::npos) continue;
      keys.push_back(line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1));
    }
    if (keys.empty()) {
      return InvalidArgument(
          {.what = "a file of API keys without any", .where = path, .expected = "a key a line"});
    }
  }
  if (std::find(keys.begin(), keys.end(), "") != keys.end())
    return InvalidArgument({.what = "an empty API key", .where = "--api-key"});
  return keys;
}

std::vector<std::string> WordsOf(std::string_view list) {
  std::vector<std::string> words;
  while (!list.empty()) {
    const std::string_view word = list.substr(0, list.find(','));
    if (!word.empty() && word != "none") words.emplace_back(word);
    list.remove_prefix(std::min(list.size(), word.size() + 1));
  }
  return words;
}

Result<MetricsOptions> MetricsOptionsOf(const FlagValues& flags) {
  MetricsOptions metrics;
  metrics.aliases = WordsOf(flags.Text("metrics-alias"));
  for (const auto& [name, buckets] : {std::pair("bucket-first-token", &metrics.first_token_buckets),
                                      std::pair("bucket-inter-token", &metrics.inter_token_buckets),
                                      std::pair("bucket-request", &metrics.request_buckets)}) {
    if (!flags.Has(name)) continue;
    auto parsed = ParseBuckets(flags.Text(name));
    if (!parsed.ok()) return parsed.status().At(std::string("--") + name);
    *buckets = std::move(*parsed);
  }
  SB_RETURN_IF_ERROR(CheckMetricsOptions(metrics));
  return metrics;
}

// What the server tells of how it was started: never a key, and not what no code reads.
std::vector<std::pair<std::string, std::string>> SettingsOf(const FlagValues& flags) {
  std::set<std::string> unread;
  for (const auto& rows : {CarriedFlags(), CarriedServeFlags()}) {
    for (const FlagSpec& row : rows) unread.insert(row.name);
  }
  std::vector<std::pair<std::string, std::string>> settings;
  for (const std::string& name : flags.Names()) {
    if (name.find("key") != std::string::npos || unread.contains(name)) continue;
    std::string value;
    for (const std::string& text : flags.Texts(name)) value += (value.empty() ? "" : ",") + text;
    if (!value.empty()) settings.emplace_back(name, value);
  }
  return settings;
}

std::string LayoutOf(const FlagValues& flags) {
  std::string layout = fmt::format("tp {}", flags.Int("tp"));
  if (flags.Int("dp") > 1) layout += fmt::format(", dp {}", flags.Int("dp"));
  const int64_t ep = flags.Switch("enable-expert-parallel") ? flags.Int("tp") : flags.Int("ep");
  if (ep > 1) layout += fmt::format(", ep {}", ep);
  if (flags.Has("moe-a2a-backend")) layout += ", " + flags.Text("moe-a2a-backend");
  if (flags.Text("speculative-algorithm") != "none") layout += ", drafts";
  return layout;
}

}  // namespace

std::vector<FlagSpec> ServeRows() {
  std::vector<FlagSpec> rows;
  for (const auto& part : {AddressRows(), AccessRows(), RequestRows(), LogRows()})
    rows.insert(rows.end(), part.begin(), part.end());
  return rows;
}

Result<ServeOptions> ServeOptionsOf(const FlagValues& flags, const std::string& model) {
  if (flags.Int("port") > 65535) {
    return InvalidArgument({.what = "no such port",
                            .where = "--port",
                            .found = flags.Text("port"),
                            .expected = "0 to 65535"});
  }
  if (flags.Int("log-requests-level") > RequestLog::kMaxLevel) {
    return InvalidArgument({.what = "unusable value",
                            .where = "--log-requests-level",
                            .found = flags.Text("log-requests-level"),
                            .expected = "0 to 3"});
  }
  ServeOptions options;
  options.http = {.host = flags.Text("host"),
                  .port = static_cast<int>(flags.Int("port")),
                  .unix_socket = flags.Text("uds"),
                  .max_body = flags.Int("max-body-size")};
  ServerIdentity& identity = options.app.identity;
  identity.model_path = model;
  while (identity.model_path.size() > 1 && identity.model_path.ends_with('/'))
    identity.model_path.pop_back();
  identity.served_names = flags.Texts("served-model-name");
  if (identity.served_names.empty()) identity.served_names = {identity.model_path};
  identity.layout = LayoutOf(flags);
  identity.settings = SettingsOf(flags);
  SB_ASSIGN_OR_RETURN(options.app.auth.api_keys, KeysOf(flags));
  options.app.auth.admin_key = flags.Text("admin-api-key");
  options.app.auth.open_metrics = flags.Switch("metrics-without-key");
  options.app.cors_origins = flags.Texts("cors-origin");
  options.app.sampling = OpenAiSamplingDefaults();
  if (flags.Text("sampling-defaults") == "model") {
    SB_ASSIGN_OR_RETURN(options.app.sampling, ModelSamplingDefaults(model));
  }
  options.app.strict = flags.Switch("strict-api");
  options.app.reasoning_content = flags.Text("reasoning-field") != "reasoning";
  options.app.reasoning = flags.Text("reasoning-field") != "reasoning_content";
  SB_ASSIGN_OR_RETURN(options.metrics, MetricsOptionsOf(flags));
  options.metrics.model_name = identity.served_names.front();
  options.metrics.layout = identity.layout;
  options.parallel = flags.Int("max-running-requests");
  if (options.parallel == 0) options.parallel = kDefaultParallel;
  options.max_queued = flags.Int("max-queued-requests");
  options.shutdown_timeout = std::chrono::seconds(flags.Int("shutdown-timeout"));
  options.log_interval = std::chrono::seconds(flags.Int("decode-log-interval"));
  if (flags.Text("log-format") == "json") options.log_format = LogFormat::kJson;
  if (flags.Switch("log-requests"))
    options.app.log_requests = static_cast<int>(flags.Int("log-requests-level"));
  return options;
}

}  // namespace signalbox
