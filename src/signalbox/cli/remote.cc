// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cli/remote.h"

#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>

#include <nlohmann/json.hpp>

#include "signalbox/base/json_util.h"
#include "signalbox/base/text_util.h"

namespace signalbox {
namespace {

using Json = nlohmann::json;

}  // namespace

std::string ServerMessage(std::string_view body) {
  const auto json = ParseJson(body);
  if (json.ok() && json->is_object() && json->contains("error")) {
    const Json& error = json->at("error");
    if (error.is_object() && error.contains("message") && error.at("message").is_string())
      return error.at("message").get<std::string>();
  }
  return Quoted(body);
}

Result<Json> JsonOf(const Result<HttpResponse>& response) {
  if (!response.ok()) return response.status();
  if (response->status != 200) {
    return Unavailable({.what = fmt::format("the server answers {}", response->status),
                        .found = ServerMessage(response->body)});
  }
  auto json = ParseJson(response->body);
  if (!json.ok()) return json.status().At("the server's answer");
  return json;
}

Result<Remote> Remote::Connect(const FlagValues& flags) {
  const std::string& url = flags.Text("url");
  SB_ASSIGN_OR_RETURN(auto client, HttpClient::Create(url));
  Remote remote(std::move(client));
  if (const auto& keys = flags.Texts("api-key"); !keys.empty())
    remote.headers_.push_back({"Authorization", "Bearer " + keys[0]});
  const auto models = remote.Ask({.path = "/v1/models", .headers = remote.headers_});
  if (!models.ok()) return models.status().At("--url " + url);
  const Json& list = *models;
  if (!list.is_object() || !list.contains("data") || !list.at("data").is_array() ||
      list.at("data").empty() || !list.at("data")[0].is_object() ||
      !list.at("data")[0].contains("id") || !list.at("data")[0].at("id").is_string()) {
    return Unavailable({.what = "the server names no model",
                        .where = "--url " + url,
                        .found = Quoted(list.dump()),
                        .expected = "a list of models at /v1/models"});
  }
  remote.model_ = list.at("data")[0].at("id").get<std::string>();
  return remote;
}

HttpCall Remote::Post(const std::string& path, const Json& body) const {
  return {.method = "POST",
          .path = path,
          .headers = headers_,
          .body = body.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

Result<Json> Remote::Ask(const HttpCall& call) const {
  return JsonOf(client_->Fetch(call));
}

void Remote::Run(const std::vector<HttpCall>& calls, const LoadShape& shape,
                 const Listener& listener) const {
  using Clock = std::chrono::steady_clock;
  std::mutex mutex;
  std::condition_variable ended;
  int64_t open = 0;
  std::mt19937_64 random(shape.seed);
  std::exponential_distribution<double> pause(shape.rate > 0 ? shape.rate : 1);
  Clock::time_point due = Clock::now();
  for (size_t i = 0; i < calls.size(); ++i) {
    if (shape.rate > 0) {
      std::this_thread::sleep_until(due);
      due +=
          std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(pause(random)));
    }
    {
      std::unique_lock lock(mutex);
      ended.wait(lock, [&] { return open < shape.parallel; });
      ++open;
    }
    if (listener.begun) listener.begun(i);
    HttpClient::OnPiece on_piece;
    if (listener.piece) {
      on_piece = [&listener, i](std::string_view piece) {
        listener.piece(i, piece);
        return true;
      };
    }
    client_->Start(calls[i], std::move(on_piece), [&, i](const Result<HttpResponse>& response) {
      listener.done(i, response);
      const std::lock_guard lock(mutex);
      --open;
      ended.notify_one();
    });
  }
  std::unique_lock lock(mutex);
  ended.wait(lock, [&] { return open == 0; });
}

DraftCounts Remote::drafts() const {
  const auto metrics = client_->Fetch({.path = "/metrics", .headers = headers_});
  if (!metrics.ok() || metrics->status != 200) return {};
  return {.drafts = SumOfMetric(metrics->body, "vllm:spec_decode_num_drafts_total"),
          .accepted = SumOfMetric(metrics->body, "vllm:spec_decode_num_accepted_tokens_total")};
}

std::optional<double> AcceptLength(const DraftCounts& before, const DraftCounts& after) {
  const double drafts = after.drafts - before.drafts;
  if (drafts <= 0) return std::nullopt;
  return 1 + (after.accepted - before.accepted) / drafts;
}

double SumOfMetric(std::string_view text, std::string_view name) {
  double sum = 0;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (!line.starts_with(name)) continue;
    // "name 3" or "name{label="value"} 3"; a label's value may hold spaces.
    std::string_view rest = line.substr(name.size());
    if (rest.starts_with("{")) rest.remove_prefix(std::min(rest.rfind('}') + 1, rest.size()));
    if (!rest.starts_with(" ")) continue;
    rest.remove_prefix(1);
    double value = 0;
    if (std::from_chars(rest.data(), rest.data() + rest.size(), value).ec == std::errc())
      sum += value;
  }
  return sum;
}

}  // namespace signalbox
