// SPDX-License-Identifier: Apache-2.0
//
// HttpServer: HTTP/1.1 on a TCP port or a Unix socket, thousands of open streams on one thread.
// Knows nothing of what it serves: every request, whole, goes to one handler, which answers now or
// later, from any thread.
//
// Errors: kInvalidArgument or kResourceExhausted from Listen (an address in use, too few files).
// What a client does wrong is answered here: 400, 408, 413, 431; what it does to a connection is
// told to whoever is still writing (HttpExchange::OnGone, Write). A client that closes its sending
// side has left.
//
//   SB_ASSIGN_OR_RETURN(auto server, HttpServer::Listen({.port = 30000}, [](auto exchange) {
//     exchange->Send({.body = R"({"status": "ok"})"}); }));
//   fmt::print("listening on {}\n", server->address());
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "signalbox/base/status.h"

namespace signalbox {

struct HttpHeader {
  std::string name;
  std::string value;
};

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // "/v1/models", percent-decoded; without the query
  std::string query;   // "window=60", as it came
  std::vector<HttpHeader> headers;
  std::string body;
  bool loopback = false;  // from this machine: a loopback address, or a Unix socket

  // The first header of that name, in any letter case; empty: none.
  std::string_view Header(std::string_view name) const;
  // The value of a key of the query, decoded; empty: none.
  std::string Query(std::string_view key) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<HttpHeader> headers;  // beyond type, length, date and connection
  std::string body;
};

// One request and its answer. Every function may be called from any thread; none blocks.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual const HttpRequest& request() const = 0;
  // The whole answer. REQUIRES: nothing was sent.
  virtual void Send(HttpResponse response) = 0;
  // An answer in pieces: head first (its body is the first piece), then Write, then EndStream. Each
  // Write goes out at once. False: the client is gone, or reads so slowly that more than the
  // server's limit of bytes waits for it; the stream has ended then. An exchange that is dropped
  // before its answer is complete is answered with 500, a stream broken off.
  virtual void BeginStream(HttpResponse head) = 0;
  virtual bool Write(std::string piece) = 0;
  virtual void EndStream() = 0;
  // `gone` is called once, from the server's thread, if the client leaves before its answer is
  // complete; at once, from this call, when it has left already.
  virtual void OnGone(std::function<void()> gone) = 0;
};

using HttpHandler = std::function<void(std::shared_ptr<HttpExchange> exchange)>;

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  int port = 0;             // 0: any that is free
  std::string unix_socket;  // a path; instead of host and port
  int64_t max_body = 32 << 20;
  int64_t max_unsent = 4 << 20;  // bytes that wait for a client that does not read
  int idle_seconds = 75;         // of a connection between requests
  // In which a request must come, from its first byte on; a large body earns more as it comes.
  int request_seconds = 30;
  int backlog = 4096;
};

class HttpServer {
 public:
  // Listens when it returns; the handler is called from the server's thread.
  static Result<std::unique_ptr<HttpServer>> Listen(const HttpServerOptions& options,
                                                    HttpHandler handler);
  // Closes every connection; open exchanges are told.
  virtual ~HttpServer() = default;

  virtual int port() const = 0;
  virtual std::string address() const = 0;  // "http://127.0.0.1:30000", "unix:/run/signalbox.sock"
  virtual int64_t connections() const = 0;
  // No new connection is accepted; open ones end after their answer.
  virtual void StopAccepting() = 0;
};

}  // namespace signalbox
