// SPDX-License-Identifier: Apache-2.0
//
// Responder: an exchange with what every answer to it has in common: the headers, and being
// counted once.
//
//   responder.Send(ApiError{.status = 404, .message = "no such route"});
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "signalbox/server/api.h"
#include "signalbox/server/http_server.h"

namespace signalbox {

// With Retry-After where the error has it.
HttpResponse ResponseOf(const ApiError& error);

class Responder {
 public:
  using OnAnswer = std::function<void(int status)>;

  Responder(std::shared_ptr<HttpExchange> exchange, std::vector<HttpHeader> headers,
            OnAnswer on_answer)
      : exchange_(std::move(exchange)),
        headers_(std::move(headers)),
        on_answer_(std::move(on_answer)) {}

  const HttpRequest& request() const { return exchange_->request(); }
  HttpExchange& exchange() const { return *exchange_; }

  void Send(HttpResponse response) const { exchange_->Send(Completed(std::move(response))); }
  void Send(const ApiError& error) const { Send(ResponseOf(error)); }
  void BeginStream(HttpResponse head) const { exchange_->BeginStream(Completed(std::move(head))); }

 private:
  HttpResponse Completed(HttpResponse response) const {
    response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
    on_answer_(response.status);
    return response;
  }

  std::shared_ptr<HttpExchange> exchange_;
  std::vector<HttpHeader> headers_;
  OnAnswer on_answer_;
};

}  // namespace signalbox
