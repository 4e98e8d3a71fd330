// SPDX-License-Identifier: Apache-2.0
//
// A server as `eval --url` and `bench serve` see it: many calls at a time, and what it says of
// itself. Nothing is asked twice: whatever fails is the caller's to count.
//
//   SB_ASSIGN_OR_RETURN(Remote remote, Remote::Connect(flags));
//   remote.Run(calls, {.parallel = 8}, on_piece, on_done);   // one thread at a time
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "signalbox/base/status.h"
#include "signalbox/cli/flags.h"
#include "signalbox/server/http_client.h"

namespace signalbox {

struct LoadShape {
  int64_t parallel = 1;  // calls that are open at a time, at most
  double rate = 0;       // calls begun per second on average, at random times; 0: as soon as may be
  uint64_t seed = 0;
};

// What the draft head has done since the server began.
struct DraftCounts {
  double drafts = 0;    // steps with drafts
  double accepted = 0;  // tokens of them
};

class Remote {
 public:
  // The server of --url, with the first --api-key. Waits for none: kUnavailable where nobody
  // answers, or it has no model.
  static Result<Remote> Connect(const FlagValues& flags);

  // The first name that the server calls its model by.
  const std::string& model() const { return model_; }
  // A POST of JSON.
  HttpCall Post(const std::string& path, const nlohmann::json& body) const;
  // The JSON of an answer. kUnavailable with the server's own message where it is none, or an
  // error.
  Result<nlohmann::json> Ask(const HttpCall& call) const;

  // Makes all calls and waits for them. `begun` and `done` are called for each, `piece` as text
  // comes; the last two from the client's thread. Empty functions are not called.
  struct Listener {
    std::function<void(size_t call)> begun;
    std::function<void(size_t call, std::string_view piece)> piece;
    std::function<void(size_t call, const Result<HttpResponse>& response)> done;
  };
  void Run(const std::vector<HttpCall>& calls, const LoadShape& shape,
           const Listener& listener) const;

  // Of the server's metrics; zeros where it has none of drafts.
  DraftCounts drafts() const;

 private:
  explicit Remote(std::unique_ptr<HttpClient> client) : client_(std::move(client)) {}

  std::unique_ptr<HttpClient> client_;
  std::vector<HttpHeader> headers_;
  std::string model_;
};

// What a server says is wrong, of a body {"error": {"message": ...}}; else the body, Quoted.
std::string ServerMessage(std::string_view body);

// The JSON of an answer, or what the server said is wrong.
Result<nlohmann::json> JsonOf(const Result<HttpResponse>& response);

// Tokens that a step with drafts gave on average, between two counts; nothing where there was none.
std::optional<double> AcceptLength(const DraftCounts& before, const DraftCounts& after);

// The sum of all samples of a metric in the text that Prometheus scrapes.
double SumOfMetric(std::string_view text, std::string_view name);

}  // namespace signalbox
