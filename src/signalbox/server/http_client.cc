// SPDX-License-Identifier: Apache-2.0
//
// A call is one coroutine with a connection of its own: connect, write, read until the answer is
// complete. Nothing is kept for the next call, so no call meets a connection that has just been
// closed.
#include "signalbox/server/http_client.h"

#include <fmt/format.h>
#include <sys/un.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "signalbox/base/check.h"
#include "signalbox/server/http_text.h"

namespace signalbox {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using StreamProtocol = asio::generic::stream_protocol;

constexpr asio::as_tuple_t<asio::use_awaitable_t<>> kAwaitReply;
constexpr size_t kReadReply = 16 << 10;
constexpr uint32_t kMaxReplyHeader = 64 << 10;

// Where calls go.
struct Peer {
  HttpUrl url;
  std::vector<StreamProtocol::endpoint> endpoints;  // tried in order
  std::string name;                                 // for messages
};

bool HasHeader(const std::vector<HttpHeader>& headers, std::string_view name) {
  for (const HttpHeader& header : headers) {
    if (SameWord(header.name, name)) return true;
  }
  return false;
}

std::string RequestText(const HttpCall& call, const HttpUrl& url) {
  std::string text = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n",
                                 call.method, url.prefix, call.path, url.Authority());
  for (const HttpHeader& header : call.headers) text += header.name + ": " + header.value + "\r\n";
  if (!call.body.empty() && !HasHeader(call.headers, "Content-Type"))
    text += "Content-Type: application/json\r\n";
  if (!call.body.empty() || call.method != "GET")
    text += fmt::format("Content-Length: {}\r\n", call.body.size());
  return text + "\r\n" + call.body;
}

class Call : public std::enable_shared_from_this<Call> {
 public:
  Call(asio::io_context& io, const Peer& peer, const HttpCall& call, HttpClient::OnPiece on_piece,
       HttpClient::OnDone on_done)
      : peer_(peer),
        request_(RequestText(call, peer.url)),
        timeout_(call.timeout),
        on_piece_(std::move(on_piece)),
        on_done_(std::move(on_done)),
        socket_(io),
        deadline_(io) {
    parser_.body_limit(boost::none);
    parser_.header_limit(kMaxReplyHeader);
    parser_.eager(true);
    if (call.method == "HEAD") parser_.skip(true);
  }

  // Everything below is of the client's thread. `ended` is called before on_done.
  void Start(std::function<void()> ended) {
    deadline_.expires_after(timeout_);
    deadline_.async_wait([self = shared_from_this()](error_code error) {
      if (error) return;
      self->Stop(DeadlineExceeded(
          {.what = "the answer takes too long",
           .where = self->peer_.name,
           .expected = fmt::format("all of it within {} s", self->timeout_.count())}));
    });
    asio::co_spawn(
        socket_.get_executor(), Run(shared_from_this()),
        [self = shared_from_this(), ended = std::move(ended)](const std::exception_ptr& thrown) {
          self->deadline_.cancel();
          ended();
          if (thrown) self->response_ = self->Broken("no memory for the answer");
          if (!self->stopped_.ok()) self->response_ = self->stopped_;
          self->on_done_(self->response_);
        });
  }

  // The call ends now, for this reason.
  void Stop(Status reason) {
    if (stopped_.ok()) stopped_ = std::move(reason);
    error_code ignored;
    socket_.close(ignored);
  }

 private:
  Status Broken(std::string found) const {
    return Unavailable(
        {.what = "no answer from the server", .where = peer_.name, .found = std::move(found)});
  }

  asio::awaitable<void> Run(std::shared_ptr<Call> self) { self->response_ = co_await Talk(); }

  asio::awaitable<Status> Connect() {
    error_code last = asio::error::host_not_found;
    for (const StreamProtocol::endpoint& endpoint : peer_.endpoints) {
      error_code ignored;
      socket_.close(ignored);
      if (!stopped_.ok()) break;
      const auto [error] = co_await socket_.async_connect(endpoint, kAwaitReply);
      if (!error) co_return OkStatus();
      last = error;
    }
    co_return Broken(last.message());
  }

  asio::awaitable<Result<HttpResponse>> Talk() {
    if (Status connected = co_await Connect(); !connected.ok()) co_return connected;
    // A server may answer, and close, before it has read everything; what it said is still there.
    co_await asio::async_write(socket_, asio::buffer(request_), kAwaitReply);
    while (!parser_.is_done()) {
      const auto [error, count] =
          co_await socket_.async_read_some(buffer_.prepare(kReadReply), kAwaitReply);
      error_code parsed;
      if (error == asio::error::eof) {
        if (!parser_.is_header_done()) co_return Broken("the answer breaks off");
        parser_.put_eof(parsed);
        if (parsed) co_return Broken("the answer breaks off");
      } else if (error) {
        co_return Broken(error.message());
      } else {
        buffer_.commit(count);
        buffer_.consume(parser_.put(buffer_.cdata(), parsed));
        if (parsed && parsed != http::error::need_more)
          co_return Broken("this is not HTTP/1.1: " + parsed.message());
      }
      if (!HandOut()) {
        co_return Cancelled({.what = "the caller has had enough", .where = peer_.name});
      }
    }
    co_return Answer();
  }

  // Gives on_piece what has come; false: it wants no more.
  bool HandOut() {
    if (!on_piece_ || !parser_.is_header_done()) return true;
    const std::string piece = std::exchange(parser_.get().body(), {});
    return piece.empty() || on_piece_(piece);
  }

  HttpResponse Answer() {
    auto& message = parser_.get();
    HttpResponse response{.status = static_cast<int>(message.result_int()), .content_type = ""};
    for (const auto& field : message) {
      std::string value(field.value().data(), field.value().size());
      if (field.name() == http::field::content_type) {
        response.content_type = std::move(value);
      } else {
        response.headers.push_back(
            {std::string(field.name_string().data(), field.name_string().size()),
             std::move(value)});
      }
    }
    response.body = std::move(message.body());
    return response;
  }

  const Peer& peer_;
  const std::string request_;
  const std::chrono::seconds timeout_;
  HttpClient::OnPiece on_piece_;
  HttpClient::OnDone on_done_;
  StreamProtocol::socket socket_;
  asio::steady_timer deadline_;
  boost::beast::flat_buffer buffer_;
  http::response_parser<http::string_body> parser_;
  Result<HttpResponse> response_ = HttpResponse{};
  Status stopped_;  // why, if not OK
};

class Client final : public HttpClient {
 public:
  explicit Client(HttpUrl url)
      : peer_{.url = std::move(url), .endpoints = {}, .name = ""},
        work_(asio::make_work_guard(io_)) {}

  // Without memory for the last task there is no end but this one.
  ~Client() override {  // NOLINT(bugprone-exception-escape)
    if (!thread_.joinable()) return;
    asio::post(io_, [this] {
      for (const std::shared_ptr<Call>& call : open_)
        call->Stop(Cancelled({.what = "the client is gone", .where = peer_.name}));
      work_.reset();
    });
    thread_.join();
  }

  Status Open() {
    const HttpUrl& url = peer_.url;
    if (!url.unix_socket.empty()) {
      peer_.name = "unix:" + url.unix_socket;
      if (url.unix_socket.size() >= sizeof(sockaddr_un::sun_path))
        return InvalidArgument({.what = "the path of a Unix socket is too long"}).At(peer_.name);
      peer_.endpoints.emplace_back(asio::local::stream_protocol::endpoint(url.unix_socket));
    } else {
      peer_.name = "http://" + url.Authority();
      error_code error;
      asio::ip::tcp::resolver resolver(io_);
      for (const auto& found : resolver.resolve(url.host, url.port, error))
        peer_.endpoints.emplace_back(found.endpoint());
      if (error) {
        return Unavailable({.what = "no such host", .where = peer_.name, .found = error.message()});
      }
    }
    thread_ = std::thread([this] { io_.run(); });
    return OkStatus();
  }

  Result<HttpResponse> Fetch(const HttpCall& call) override {
    std::mutex mutex;
    std::condition_variable done;
    std::optional<Result<HttpResponse>> response;
    Start(call, nullptr, [&](const Result<HttpResponse>& r) {
      std::lock_guard lock(mutex);
      response = r;
      done.notify_one();
    });
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return response.has_value(); });
    return *response;
  }

  void Start(const HttpCall& call, OnPiece on_piece, OnDone on_done) override {
    auto started =
        std::make_shared<Call>(io_, peer_, call, std::move(on_piece), std::move(on_done));
    asio::post(io_, [this, started] {
      open_.insert(started);
      started->Start([this, started] { open_.erase(started); });
    });
  }

 private:
  Peer peer_;
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::unordered_set<std::shared_ptr<Call>> open_;  // of the client's thread
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<HttpClient>> HttpClient::Create(const std::string& url) {
  SB_ASSIGN_OR_RETURN(HttpUrl parsed, ParseUrl(url));
  auto client = std::make_unique<Client>(std::move(parsed));
  SB_RETURN_IF_ERROR(client->Open());
  return std::unique_ptr<HttpClient>(std::move(client));
}

}  // namespace signalbox
