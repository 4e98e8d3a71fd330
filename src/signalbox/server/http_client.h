// SPDX-License-Identifier: Apache-2.0
//
// HttpClient: asks an HTTP server many things at once, on one thread of its own. For `eval --url`,
// `bench serve` and tests.
//
// Errors: kInvalidArgument for a URL that is none, kUnavailable when nobody answers or the answer
// breaks off, kDeadlineExceeded (as the project's StatusCode spells it) when it takes too long.
//
//   SB_ASSIGN_OR_RETURN(auto client, HttpClient::Create("http://127.0.0.1:30000"));
//   SB_ASSIGN_OR_RETURN(HttpResponse models, client->Fetch({.path = "/v1/models"}));
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "signalbox/base/status.h"
#include "signalbox/server/http_server.h"

namespace signalbox {

struct HttpCall {
  std::string method = "GET";
  std::string path;
  std::vector<HttpHeader> headers = {};
  std::string body = {};
  std::chrono::seconds timeout{600};
};

class HttpClient {
 public:
  // "http://HOST[:PORT][/PREFIX]"; the prefix goes before every path.
  static Result<std::unique_ptr<HttpClient>> Create(const std::string& url);
  virtual ~HttpClient() = default;  // cuts off what is open

  // Waits for the whole answer, whatever its status is.
  virtual Result<HttpResponse> Fetch(const HttpCall& call) = 0;
  // Returns at once. `on_piece` gets the body as it comes, then `on_done` once: the answer (its
  // body is empty where on_piece is given). Both are called from the client's thread. An on_piece
  // that returns false closes the connection, and on_done is told kCancelled.
  using OnPiece = std::function<bool(std::string_view piece)>;
  using OnDone = std::function<void(const Result<HttpResponse>& response)>;
  virtual void Start(const HttpCall& call, OnPiece on_piece, OnDone on_done) = 0;
};

}  // namespace signalbox
