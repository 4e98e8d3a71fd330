// SPDX-License-Identifier: Apache-2.0
//
// A connection is three coroutines on the server's thread. One reads all the time, also while an
// answer is under way, so that a client that leaves is noticed at once. One writes what the
// answer's outbox holds. One looks at the single deadline that a connection has at a time.
#include "signalbox/server/http_server.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_set>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "signalbox/base/check.h"
#include "signalbox/base/text_util.h"
#include "signalbox/server/http_exchange.h"
#include "signalbox/server/http_text.h"

namespace signalbox {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using StreamProtocol = asio::generic::stream_protocol;  // TCP and Unix sockets as one type
using Socket = StreamProtocol::socket;
using Acceptor = asio::basic_socket_acceptor<StreamProtocol>;
using std::chrono::seconds;

constexpr asio::as_tuple_t<asio::use_awaitable_t<>> kAwait;

constexpr uint32_t kMaxHeader = 64 << 10;
constexpr size_t kRead = 8 << 10;
// So much of a request earns it another second to come.
constexpr size_t kBytesOfASecond = 64 << 10;
// Bytes of later requests that are read while an answer is under way.
constexpr size_t kMaxPipelined = 64 << 10;
// The socket takes none of an answer for so long: the client is as good as gone.
constexpr seconds kWriteTime{60};
// How long a client may take to read the last answer of a connection and close it.
constexpr seconds kLingerTime{5};
constexpr auto kAcceptPause = std::chrono::milliseconds(50);

class Connection;

// What all connections share. It lives as long as any exchange does.
struct Hub {
  Hub(const HttpServerOptions& o, HttpHandler h) : options(o), handler(std::move(h)) {}

  HttpServerOptions options;
  HttpHandler handler;
  std::atomic<bool> stopping = false;
  std::atomic<int64_t> count = 0;
  asio::io_context io{1};
  std::unordered_set<Connection*> open;  // of the server's thread
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Socket socket, std::shared_ptr<Hub> hub, bool loopback)
      : hub_(std::move(hub)),
        loopback_(loopback),
        socket_(std::move(socket)),
        timer_(hub_->io),
        room_(hub_->io, Clock::time_point::max()) {}

  // All of the server's thread but post().
  void Start();
  void Close();
  // The server takes no more requests.
  void CloseIfIdle();
  // The outbox has changed.
  void Flush();

  // Has Flush called soon. From any thread.
  void Schedule() {
    asio::post(hub_->io, [self = shared_from_this()] { self->Flush(); });
  }

 private:
  using Parser = http::request_parser<http::string_body>;

  asio::awaitable<void> Read(std::shared_ptr<Connection> self);
  asio::awaitable<void> Write(std::shared_ptr<Connection> self);
  asio::awaitable<void> Watch(std::shared_ptr<Connection> self);
  void Spawn(asio::awaitable<void> coroutine);
  void SetDeadline(Clock::time_point deadline);
  void Parse();
  void BeginRequest();
  void TakeParsed(const error_code& error);
  void Dispatch();
  void Refuse(int status, std::string_view message);
  void OnDeadline();
  void Send();
  bool TakeFromOutbox();
  void EndAnswer();
  void Linger();

  std::shared_ptr<Hub> hub_;
  const bool loopback_;
  Socket socket_;
  asio::steady_timer timer_;
  asio::steady_timer room_;  // never expires; cancelled when there is room to read again
  Clock::time_point deadline_ = Clock::time_point::max();
  std::string input_;             // read, but not parsed
  std::optional<Parser> parser_;  // of the request that is being read
  Clock::time_point request_began_;
  size_t request_bytes_ = 0;
  bool continue_sent_ = false;
  std::shared_ptr<Outbox> outbox_;  // of the answer that is under way
  std::string sending_;
  bool writing_ = false;
  bool lingering_ = false;  // what is read has no use any more
  bool closed_ = false;
};

// A connection that throws (no memory) ends; the others go on.
void Connection::Spawn(asio::awaitable<void> coroutine) {
  asio::co_spawn(hub_->io, std::move(coroutine),
                 [self = shared_from_this()](const std::exception_ptr& thrown) {
                   if (thrown) self->Close();
                 });
}

void Connection::Start() {
  hub_->open.insert(this);
  ++hub_->count;
  SetDeadline(Clock::now() + seconds(hub_->options.idle_seconds));
  Spawn(Read(shared_from_this()));
  Spawn(Watch(shared_from_this()));
}

void Connection::Close() {
  if (std::exchange(closed_, true)) return;
  error_code ignored;
  socket_.close(ignored);
  timer_.cancel();
  room_.cancel();
  hub_->open.erase(this);
  --hub_->count;
  if (const auto outbox = std::exchange(outbox_, nullptr)) outbox->TellGone();
}

void Connection::CloseIfIdle() {
  if (outbox_ == nullptr && !parser_ && !lingering_) Close();
}

asio::awaitable<void> Connection::Read(std::shared_ptr<Connection> self) {
  std::array<char, kRead> piece;
  while (!closed_) {
    if (outbox_ != nullptr && input_.size() >= kMaxPipelined) {
      co_await room_.async_wait(kAwait);
      continue;
    }
    const auto [error, count] = co_await socket_.async_read_some(asio::buffer(piece), kAwait);
    if (error) break;
    input_.append(piece.data(), count);
    Parse();
  }
  self->Close();
}

// Takes requests out of what was read, one at a time.
void Connection::Parse() {
  if (lingering_) input_.clear();
  while (outbox_ == nullptr && !lingering_ && !closed_ && !input_.empty()) {
    if (!parser_) {
      // Some clients end a body with a line break that its length does not count.
      if (input_.front() == '\r' || input_.front() == '\n') {
        input_.erase(0, 1);
        continue;
      }
      BeginRequest();
    }
    error_code error;
    const size_t used = parser_->put(asio::const_buffer(input_.data(), input_.size()), error);
    input_.erase(0, used);
    request_bytes_ += used;
    TakeParsed(error);
    if (error == http::error::need_more) return;
  }
}

void Connection::BeginRequest() {
  parser_.emplace();
  parser_->eager(true);
  parser_->header_limit(kMaxHeader);
  parser_->body_limit(static_cast<uint64_t>(hub_->options.max_body));
  request_began_ = Clock::now();
  request_bytes_ = 0;
  continue_sent_ = false;
}

// What the parser made of the last bytes.
void Connection::TakeParsed(const error_code& error) {
  if (error == http::error::body_limit) {
    return Refuse(413, fmt::format("the body is larger than {} bytes", hub_->options.max_body));
  }
  if (error == http::error::header_limit)
    return Refuse(431, fmt::format("the headers are larger than {} bytes", kMaxHeader));
  if (error && error != http::error::need_more)
    return Refuse(400, "this is not HTTP/1.1: " + error.message());
  if (parser_->is_done()) return Dispatch();
  SetDeadline(request_began_ + seconds(hub_->options.request_seconds) +
              seconds(request_bytes_ / kBytesOfASecond));
  if (!parser_->is_header_done() || continue_sent_) return;
  const auto expect = parser_->get()[http::field::expect];
  if (!SameWord({expect.data(), expect.size()}, "100-continue")) return;
  continue_sent_ = true;
  sending_ += "HTTP/1.1 100 Continue\r\n\r\n";
  Send();
}

void Connection::Dispatch() {
  auto& message = parser_->get();
  const auto text = [](boost::beast::string_view v) { return std::string(v.data(), v.size()); };
  auto target = ParseTarget(text(message.target()));
  if (!target) return Refuse(400, "the target of the request is no path");
  HttpRequest request{.method = text(message.method_string()),
                      .path = std::move(target->path),
                      .query = std::move(target->query),
                      .body = std::move(message.body()),
                      .loopback = loopback_};
  for (const auto& field : message)
    request.headers.push_back({text(field.name_string()), text(field.value())});
  const Framing framing{.head_only = request.method == "HEAD", .http_1_0 = message.version() < 11};
  outbox_ = std::make_shared<Outbox>();
  outbox_->last = !message.keep_alive();
  parser_.reset();
  SetDeadline(Clock::time_point::max());
  hub_->handler(std::make_shared<OutboxExchange>(
      outbox_, std::move(request), framing,
      OutboxExchange::Link{.schedule = [self = shared_from_this()] { self->Schedule(); },
                           .stopping = [hub = hub_] { return hub->stopping.load(); },
                           .max_unsent = hub_->options.max_unsent}));
}

void Connection::Refuse(int status, std::string_view message) {
  parser_.reset();
  const HttpResponse response = RefusalOf(status, message);
  sending_ += HeadText(response, {}, response.body.size(), /*last=*/true) + response.body;
  Linger();
  Send();
}

void Connection::SetDeadline(Clock::time_point deadline) {
  deadline_ = deadline;
  if (deadline < timer_.expiry()) timer_.cancel();
}

asio::awaitable<void> Connection::Watch(std::shared_ptr<Connection> self) {
  while (!closed_) {
    timer_.expires_at(deadline_);
    co_await timer_.async_wait(kAwait);
    if (!closed_ && Clock::now() >= deadline_) self->OnDeadline();
  }
}

void Connection::OnDeadline() {
  if (parser_ && !writing_) return Refuse(408, "the request took too long to come");
  Close();
}

void Connection::Flush() {
  if (closed_ || outbox_ == nullptr) return;
  bool broken = false;
  {
    std::lock_guard lock(outbox_->mutex);
    outbox_->scheduled = false;
    broken = outbox_->broken;
  }
  if (broken) return Close();
  Send();
}

// Writes what there is, unless that is being done.
void Connection::Send() {
  if (std::exchange(writing_, true)) return;
  Spawn(Write(shared_from_this()));
}

asio::awaitable<void> Connection::Write(std::shared_ptr<Connection> self) {
  std::string piece;
  while (!closed_ && TakeFromOutbox()) {
    piece.clear();
    piece.swap(sending_);
    for (size_t sent = 0; sent < piece.size();) {
      if (outbox_ != nullptr || lingering_) SetDeadline(Clock::now() + kWriteTime);
      const auto [error, count] =
          co_await socket_.async_write_some(asio::buffer(piece) + sent, kAwait);
      if (error) co_return self->Close();
      sent += count;
      if (outbox_ == nullptr) continue;
      std::lock_guard lock(outbox_->mutex);
      outbox_->in_flight = piece.size() - sent;
    }
  }
  writing_ = false;
  if (!closed_) EndAnswer();
}

// Whether there is something to send.
bool Connection::TakeFromOutbox() {
  if (outbox_ != nullptr) {
    std::lock_guard lock(outbox_->mutex);
    sending_ += outbox_->bytes;
    outbox_->bytes.clear();
    outbox_->in_flight = sending_.size();
  }
  return !sending_.empty();
}

// All that there was has been sent.
void Connection::EndAnswer() {
  if (lingering_) return Linger();
  if (outbox_ == nullptr) return;
  bool last = false;
  {
    std::lock_guard lock(outbox_->mutex);
    // What came meanwhile has been scheduled.
    if (!outbox_->ended || !outbox_->bytes.empty()) {
      SetDeadline(Clock::time_point::max());
      return;
    }
    last = outbox_->last;
  }
  outbox_.reset();
  if (last) return Linger();
  SetDeadline(Clock::now() + seconds(hub_->options.idle_seconds));
  room_.cancel();
  Parse();
}

// The client reads what was sent and closes. A socket that is closed while there is something to
// read in it would take back what was sent last.
void Connection::Linger() {
  lingering_ = true;
  input_.clear();
  room_.cancel();
  if (writing_ || !sending_.empty()) return;
  error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  SetDeadline(Clock::now() + kLingerTime);
}

bool IsLoopback(const StreamProtocol::endpoint& peer) {
  if (peer.protocol().family() == AF_UNIX) return true;
  asio::ip::tcp::endpoint endpoint;
  if (peer.size() > endpoint.capacity()) return false;
  std::memcpy(endpoint.data(), peer.data(), peer.size());
  const asio::ip::address address = endpoint.address();
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).is_loopback();
  }
  return address.is_loopback();
}

// Small pieces go out at once, and a peer that vanished is noticed within a minute.
void SetOptions(Socket& socket) {
  const int on = 1;
  const int idle = 30;
  const int interval = 10;
  const int probes = 3;
  const int fd = socket.native_handle();
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

asio::awaitable<void> Accept(Acceptor& acceptor, std::shared_ptr<Hub> hub) {
  asio::steady_timer pause(hub->io);
  while (acceptor.is_open()) {
    auto [error, socket] = co_await acceptor.async_accept(kAwait);
    if (!acceptor.is_open()) break;
    if (!error) {
      error_code unknown;
      const StreamProtocol::endpoint peer = socket.remote_endpoint(unknown);
      const bool local = acceptor.local_endpoint(unknown).protocol().family() == AF_UNIX;
      if (!local) SetOptions(socket);
      std::make_shared<Connection>(std::move(socket), hub, local || IsLoopback(peer))->Start();
    } else if (error != asio::error::connection_aborted) {
      // No file is left for it: those that close will give some back.
      pause.expires_after(kAcceptPause);
      co_await pause.async_wait(kAwait);
    }
  }
}

class Server final : public HttpServer {
 public:
  Server(const HttpServerOptions& options, HttpHandler handler)
      : hub_(std::make_shared<Hub>(options, std::move(handler))),
        acceptor_(hub_->io),
        work_(asio::make_work_guard(hub_->io)) {}

  // Without memory for the last task there is no end but this one.
  ~Server() override {  // NOLINT(bugprone-exception-escape)
    if (thread_.joinable()) {
      asio::post(hub_->io, [this] {
        CloseAcceptor();
        const auto open = hub_->open;
        for (Connection* connection : open) connection->Close();
        work_.reset();
      });
      thread_.join();
    }
    if (socket_file_) ::unlink(hub_->options.unix_socket.c_str());
  }

  Status Start() {
    const bool local = !hub_->options.unix_socket.empty();
    SB_RETURN_IF_ERROR(local ? OpenUnix() : OpenTcp());
    asio::co_spawn(hub_->io, Accept(acceptor_, hub_), asio::detached);
    thread_ = std::thread([hub = hub_] { hub->io.run(); });
    return OkStatus();
  }

  int port() const override { return port_; }
  std::string address() const override { return address_; }
  int64_t connections() const override { return hub_->count; }

  void StopAccepting() override {
    asio::post(hub_->io, [this] {
      hub_->stopping = true;
      CloseAcceptor();
      const auto open = hub_->open;
      for (Connection* connection : open) connection->CloseIfIdle();
    });
  }

 private:
  Status OpenTcp() {
    const HttpServerOptions& options = hub_->options;
    error_code error;
    asio::ip::tcp::resolver resolver(hub_->io);
    const auto found = resolver.resolve(options.host, std::to_string(options.port),
                                        asio::ip::resolver_base::passive, error);
    const std::string where = fmt::format("{} port {}", options.host, options.port);
    if (error || found.empty()) {
      return InvalidArgument(
          {.what = "not an address of this machine", .where = where, .found = error.message()});
    }
    const asio::ip::tcp::endpoint endpoint = found.begin()->endpoint();
    SB_RETURN_IF_ERROR(Bind(endpoint, where));
    asio::ip::tcp::endpoint bound;
    const auto local = acceptor_.local_endpoint(error);
    std::memcpy(bound.data(), local.data(), std::min(local.size(), bound.capacity()));
    port_ = bound.port();
    const std::string host = endpoint.address().to_string();
    address_ =
        fmt::format("http://{}:{}", endpoint.address().is_v6() ? "[" + host + "]" : host, port_);
    return OkStatus();
  }

  Status OpenUnix() {
    const std::string& path = hub_->options.unix_socket;
    constexpr size_t kLongest = sizeof(sockaddr_un::sun_path) - 1;
    if (path.size() > kLongest) {
      return InvalidArgument({.what = "the path of a Unix socket is too long",
                              .where = path,
                              .found = fmt::format("{} bytes", path.size()),
                              .expected = fmt::format("at most {}", kLongest)});
    }
    const asio::local::stream_protocol::endpoint endpoint(path);
    // What a server that did not end properly has left is in the way of the next.
    error_code error;
    asio::local::stream_protocol::socket probe(hub_->io);
    if (std::filesystem::is_socket(path, error) &&
        probe.connect(endpoint, error) == asio::error::connection_refused) {
      ::unlink(path.c_str());
    }
    SB_RETURN_IF_ERROR(Bind(endpoint, path));
    socket_file_ = true;
    address_ = "unix:" + path;
    return OkStatus();
  }

  Status Bind(const StreamProtocol::endpoint& endpoint, const std::string& where) {
    error_code error;
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(hub_->options.backlog, error);
    if (!error) return OkStatus();
    ErrorDetail detail{.what = "cannot listen", .where = where, .found = error.message()};
    if (error == asio::error::address_in_use)
      detail.remedy = "stop what listens there, or choose another port";
    const bool files = error == asio::error::no_descriptors;
    return files ? ResourceExhausted(std::move(detail)) : InvalidArgument(std::move(detail));
  }

  void CloseAcceptor() {
    error_code ignored;
    acceptor_.close(ignored);
  }

  std::shared_ptr<Hub> hub_;
  Acceptor acceptor_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  int port_ = 0;
  std::string address_;
  bool socket_file_ = false;
  std::thread thread_;
};

}  // namespace

std::string_view HttpRequest::Header(std::string_view name) const {
  for (const HttpHeader& header : headers) {
    if (SameWord(header.name, name)) return header.value;
  }
  return {};
}

std::string HttpRequest::Query(std::string_view key) const {
  return QueryValue(query, key);
}

Result<std::unique_ptr<HttpServer>> HttpServer::Listen(const HttpServerOptions& options,
                                                       HttpHandler handler) {
  auto server = std::make_unique<Server>(options, std::move(handler));
  SB_RETURN_IF_ERROR(server->Start());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace signalbox
