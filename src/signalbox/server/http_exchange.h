// SPDX-License-Identifier: Apache-2.0
//
// The sending half of HttpServer that knows no socket: how an answer is put
// into bytes, by any thread, and where they wait for the server's thread.
//
//   auto exchange = std::make_shared<OutboxExchange>(outbox, request, framing,
//   schedule, limits); exchange->Send({.body = "{}"});            // fills
//   outbox->bytes, and calls schedule()
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "signalbox/server/http_server.h"

namespace signalbox {

// The part of an answer that any thread may touch, under its mutex. The
// server's thread takes bytes out; once `gone` is set it never looks again.
struct Outbox {
  std::mutex mutex;
  std::string bytes;       // framed, to be sent
  size_t in_flight = 0;    // taken, but not by the socket so far
  bool begun = false;      // the head is written
  bool ended = false;      // nothing follows
  bool broken = false;     // the connection must close without a proper end
  bool gone = false;       // nobody will read it
  bool last = false;       // the connection closes after it
  bool scheduled = false;  // the server's thread has been asked to look
  std::function<void()> on_gone;

  // The client has left: whoever is writing is told.
  void TellGone();
};

// How an answer is written, given its request.
struct Framing {
  bool head_only = false;  // of HEAD
  bool http_1_0 = false;   // knows no chunks
};

// The head of an answer. `length`: nothing when it is not known.
std::string HeadText(const HttpResponse& response, const Framing& framing,
                     std::optional<size_t> length, bool last);
// What the server itself refuses; `message` needs no escapes in JSON.
HttpResponse RefusalOf(int status, std::string_view message);

class OutboxExchange final : public HttpExchange {
 public:
  struct Link {
    std::function<void()> schedule;  // has the server's thread look into the outbox soon
    std::function<bool()> stopping;  // connections close after their answer
    int64_t max_unsent = 0;
  };

  OutboxExchange(std::shared_ptr<Outbox> outbox, HttpRequest request, const Framing& framing,
                 Link link)
      : outbox_(std::move(outbox)),
        request_(std::move(request)),
        framing_(framing),
        link_(std::move(link)) {}
  // Nobody can answer any more.
  ~OutboxExchange() override;

  const HttpRequest& request() const override { return request_; }
  void Send(HttpResponse response) override;
  void BeginStream(HttpResponse head) override;
  bool Write(std::string piece) override;
  void EndStream() override;
  void OnGone(std::function<void()> gone) override;

 private:
  // For holders of the outbox's mutex.
  void Begin(const HttpResponse& response, std::optional<size_t> length);
  void End(std::string_view text);
  void AppendPiece(std::string_view piece);
  void Append(std::string_view text);
  void Break();

  const std::shared_ptr<Outbox> outbox_;
  const HttpRequest request_;
  const Framing framing_;
  const Link link_;
};

}  // namespace signalbox
