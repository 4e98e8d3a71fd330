// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <mutex>
#include <thread>

#include "signalbox/server/http_client.h"

namespace signalbox::http_server_test {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;
using Exchange = std::shared_ptr<HttpExchange>;

std::unique_ptr<HttpServer> Listen(HttpHandler handler, const HttpServerOptions& options = {}) {
  auto server = HttpServer::Listen(options, std::move(handler));
  EXPECT_TRUE(server.ok()) << server.status().ToString();
  return std::move(*server);
}

std::unique_ptr<HttpClient> ClientOf(const HttpServer& server) {
  auto client = HttpClient::Create(server.address());
  EXPECT_TRUE(client.ok()) << client.status().ToString();
  return std::move(*client);
}

// A socket without any manners.
class RawClient {
 public:
  explicit RawClient(const HttpServer& server) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(server.port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const timeval limit{.tv_sec = 10, .tv_usec = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  ~RawClient() { Close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void Send(const std::string& text) const {
    EXPECT_EQ(::send(fd_, text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  // Until `end` has come, or the server closes.
  std::string Read(const std::string& end = "") const {
    std::string text;
    char piece[4096];
    while (end.empty() || text.find(end) == std::string::npos) {
      const ssize_t n = ::recv(fd_, piece, sizeof piece, 0);
      if (n <= 0) break;
      text.append(piece, static_cast<size_t>(n));
    }
    return text;
  }
  void Close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_;
};

HttpHandler Echo() {
  return [](const Exchange& exchange) {
    const HttpRequest& request = exchange->request();
    exchange->Send({.content_type = "text/plain",
                    .headers = {{"X-Name", std::string(request.Header("x-NAME"))}},
                    .body = request.method + " " + request.path + " " + request.Query("q") + " " +
                            request.body});
  };
}

// Within what a machine under a sanitizer and with much to do may take.
bool Soon(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + seconds(60);
  while (std::chrono::steady_clock::now() < end) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

TEST(HttpServer, HandsOutRequestsAndSendsAnswers) {
  const auto server = Listen(Echo());
  const auto client = ClientOf(*server);
  const auto response = client->Fetch(
      {.method = "POST", .path = "/a%20b?q=c+d", .headers = {{"X-Name", "n"}}, .body = "text"});
  ASSERT_TRUE(response.ok()) << response.status().ToString();
  EXPECT_EQ(response->status, 200);
  EXPECT_EQ(response->body, "POST /a b c d text");
  EXPECT_EQ(response->content_type, "text/plain");
  EXPECT_EQ(server->address(), "http://127.0.0.1:" + std::to_string(server->port()));
}

TEST(HttpServer, KeepsConnectionsAndAnswersPipelinedRequestsInOrder) {
  // The first is answered late, from another thread.
  std::vector<std::thread> threads;
  const auto server = Listen([&](const Exchange& exchange) {
    threads.emplace_back([exchange] {
      if (exchange->request().path == "/1")
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      exchange->Send({.body = "body of " + exchange->request().path});
    });
  });
  const RawClient client(*server);
  client.Send(
      "GET /1 HTTP/1.1\r\n\r\nPOST /2 HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc\r\nGET /3 HTTP");
  const std::string two = client.Read("/2");
  EXPECT_LT(two.find("/1"), two.find("/2"));
  EXPECT_THAT(two, HasSubstr("Connection: keep-alive"));
  client.Send("/1.1\r\nConnection: close\r\n\r\n");
  const std::string three = client.Read();
  EXPECT_THAT(three, HasSubstr("body of /3"));
  EXPECT_THAT(three, HasSubstr("Connection: close"));
  for (std::thread& t : threads) t.join();
}

TEST(HttpServer, WhatIsNoRequestIsRefused) {
  const auto server = Listen(Echo(), {.max_body = 100});
  struct Case {
    std::string text, status;
  };
  const std::string long_header = "X: " + std::string(70 << 10, 'x');
  for (const Case& c : std::vector<Case>{
           {"hello\r\n\r\n", "400"},
           {"GET / HTTP/3.0\r\n\r\n", "400"},
           {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400"},
           {"GET /%zz HTTP/1.1\r\n\r\n", "400"},
           {"GET / HTTP/1.1\r\nno colon\r\n\r\n", "400"},
           {std::string("GET / HTTP/1.1\r\nX: a\0b\r\n\r\n", 26), "400"},
           {"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "400"},
           {"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "400"},
           {"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "400"},
           {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "400"},
           {"POST / HTTP/1.1\r\nContent-Length: 101\r\n\r\n", "413"},
           {"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", "400"},
           {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n80\r\n" + std::string(128, 'x') +
                "\r\n0\r\n\r\n",
            "413"},
           {"GET / HTTP/1.1\r\n" + long_header, "431"}}) {
    const RawClient client(*server);
    client.Send(c.text);
    const std::string answer = client.Read();
    EXPECT_THAT(answer, testing::StartsWith("HTTP/1.1 " + c.status + " ")) << c.text.substr(0, 80);
    EXPECT_THAT(answer, HasSubstr("{\"error\":{\"message\":\"")) << answer;
  }
  EXPECT_TRUE(Soon([&] { return server->connections() == 0; }));
  EXPECT_EQ(ClientOf(*server)->Fetch({.path = "/next"})->body, "GET /next  ");
}

TEST(HttpServer, ASlowRequestIsGivenUp) {
  const auto server = Listen(Echo(), {.idle_seconds = 1, .request_seconds = 1});
  const RawClient idle(*server);
  const RawClient slow(*server);
  slow.Send("POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_THAT(slow.Read(), testing::StartsWith("HTTP/1.1 408 "));
  EXPECT_EQ(idle.Read(), "");
}

TEST(HttpServer, ExpectedBodiesAreAskedFor) {
  const auto server = Listen(Echo());
  const RawClient client(*server);
  client.Send("POST /x HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
  EXPECT_EQ(client.Read("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("body");
  EXPECT_THAT(client.Read("body"), HasSubstr("POST /x  body"));
}

TEST(HttpServer, HeadHasNoBodyAndOldClientsNoChunks) {
  const auto server = Listen([](const Exchange& exchange) {
    if (exchange->request().path == "/whole") return exchange->Send({.body = "12345"});
    exchange->BeginStream({.body = "12"});
    EXPECT_TRUE(exchange->Write("345"));
    exchange->EndStream();
  });
  for (const char* path : {"/whole", "/stream"}) {
    const auto head = ClientOf(*server)->Fetch({.method = "HEAD", .path = path});
    ASSERT_TRUE(head.ok()) << head.status().ToString();
    EXPECT_EQ(head->body, "");
    const RawClient old(*server);
    old.Send(std::string("GET ") + path + " HTTP/1.0\r\n\r\n");
    const std::string answer = old.Read();
    EXPECT_THAT(answer, testing::EndsWith("\r\n\r\n12345"));
    EXPECT_THAT(answer, Not(HasSubstr("chunked")));
  }
}

TEST(HttpServer, StreamsGoOutPieceByPiece) {
  std::promise<void> first_came;
  std::vector<std::thread> threads;
  const auto server = Listen([&](const Exchange& exchange) {
    threads.emplace_back([&, exchange] {
      exchange->BeginStream({.content_type = "text/event-stream", .body = "one"});
      first_came.get_future().get();
      EXPECT_TRUE(exchange->Write("two"));
      EXPECT_TRUE(exchange->Write(""));  // must not end the stream
      EXPECT_TRUE(exchange->Write("three"));
      exchange->EndStream();
    });
  });
  const auto client = ClientOf(*server);
  std::string body;
  std::promise<HttpResponse> done;
  client->Start(
      {.path = "/"},
      [&](std::string_view piece) {
        if (body.empty()) first_came.set_value();
        body += piece;
        return true;
      },
      [&](const Result<HttpResponse>& response) { done.set_value(*response); });
  const HttpResponse response = done.get_future().get();
  EXPECT_EQ(body, "onetwothree");
  EXPECT_EQ(response.content_type, "text/event-stream");
  for (std::thread& t : threads) t.join();
}

TEST(HttpServer, Rob07AClientThatLeavesIsNoticedAtOnce) {
  for (const bool streamed : {false, true}) {
    std::promise<Exchange> taken;
    std::promise<void> gone;
    const auto server = Listen([&](const Exchange& exchange) {
      if (streamed) exchange->BeginStream({.body = "piece"});
      exchange->OnGone([&] { gone.set_value(); });
      taken.set_value(exchange);
    });
    RawClient client(*server);
    client.Send("POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n");
    const Exchange exchange = taken.get_future().get();
    client.Close();
    EXPECT_EQ(gone.get_future().wait_for(seconds(5)), std::future_status::ready);
    bool told = false;
    exchange->OnGone([&] { told = true; });
    EXPECT_TRUE(told);
    if (streamed) {
      EXPECT_FALSE(exchange->Write("more"));
    } else {
      exchange->Send({.body = "nobody reads this"});
    }
    EXPECT_EQ(server->connections(), 0);
  }
}

TEST(HttpServer, ACompleteAnswerIsNotToldThatItsClientLeft) {
  std::atomic<int> gone = 0;
  const auto server = Listen([&](const Exchange& exchange) {
    exchange->OnGone([&] { ++gone; });
    exchange->Send({.body = "all"});
    exchange->OnGone([&] { ++gone; });
  });
  EXPECT_EQ(ClientOf(*server)->Fetch({.path = "/"})->body, "all");
  EXPECT_TRUE(Soon([&] { return server->connections() == 0; }));
  EXPECT_EQ(gone, 0);
}

TEST(HttpServer, AClientThatDoesNotReadIsCutOff) {
  std::promise<Exchange> taken;
  std::promise<void> gone;
  const auto server = Listen(
      [&](const Exchange& exchange) {
        exchange->BeginStream({});
        exchange->OnGone([&] { gone.set_value(); });
        taken.set_value(exchange);
      },
      {.max_unsent = 1 << 20});
  const RawClient client(*server);
  client.Send("GET / HTTP/1.1\r\n\r\n");
  const Exchange exchange = taken.get_future().get();
  int64_t written = 0;
  while (written < (64 << 20) && exchange->Write(std::string(64 << 10, 'x'))) written += 64 << 10;
  EXPECT_LT(written, 32 << 20);
  EXPECT_EQ(gone.get_future().wait_for(seconds(5)), std::future_status::ready);
}

TEST(HttpServer, ADroppedExchangeIsAnswered) {
  const auto server = Listen([](const Exchange& exchange) {
    if (exchange->request().path == "/stream") exchange->BeginStream({.body = "begun"});
  });
  const auto client = ClientOf(*server);
  EXPECT_EQ(client->Fetch({.path = "/"})->status, 500);
  EXPECT_EQ(client->Fetch({.path = "/stream"}).status().code(), StatusCode::kUnavailable);
}

TEST(HttpServer, HeadersOfAnAnswerStayOnTheirLine) {
  const auto server = Listen([](const Exchange& exchange) {
    exchange->Send({.headers = {{"X-Echo", "a\r\nX-Injected: b"}}, .body = ""});
  });
  const RawClient client(*server);
  client.Send("GET / HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(client.Read(), HasSubstr("X-Echo: a  X-Injected: b\r\n"));
}

TEST(HttpServer, EndsAtAnyMomentWithExchangesOpen) {
  std::mutex mutex;
  std::vector<Exchange> exchanges;
  std::atomic<int> gone = 0;
  auto server = Listen([&](const Exchange& exchange) {
    exchange->BeginStream({});
    exchange->OnGone([&] { ++gone; });
    std::lock_guard lock(mutex);
    exchanges.push_back(exchange);
  });
  const auto client = ClientOf(*server);
  std::atomic<int> broken = 0;
  for (int i = 0; i < 20; ++i) {
    client->Start({.path = "/"}, nullptr, [&](const Result<HttpResponse>& response) {
      if (response.status().code() == StatusCode::kUnavailable) ++broken;
    });
  }
  EXPECT_TRUE(Soon([&] {
    std::lock_guard lock(mutex);
    return exchanges.size() == 20;
  }));
  std::atomic<bool> stop = false;
  std::thread writer([&] {  // a service that knows nothing of the end
    while (!stop) {
      std::lock_guard lock(mutex);
      for (const Exchange& exchange : exchanges) (void)exchange->Write("data");
    }
  });
  server.reset();
  EXPECT_EQ(gone, 20);
  EXPECT_TRUE(Soon([&] { return broken == 20; }));
  stop = true;
  writer.join();
  for (const Exchange& exchange : exchanges) EXPECT_FALSE(exchange->Write("late"));
}

TEST(HttpServer, StopsAcceptingAndEndsWithItsLastAnswer) {
  std::promise<Exchange> taken;
  auto server = Listen([&](const Exchange& exchange) { taken.set_value(exchange); });
  const RawClient idle(*server);
  const RawClient busy(*server);
  busy.Send("GET / HTTP/1.1\r\n\r\n");
  const Exchange exchange = taken.get_future().get();
  server->StopAccepting();
  EXPECT_EQ(idle.Read(), "");
  EXPECT_EQ(ClientOf(*server)->Fetch({.path = "/"}).status().code(), StatusCode::kUnavailable);
  exchange->Send({.body = "last"});
  const std::string answer = busy.Read();
  EXPECT_THAT(answer, HasSubstr("Connection: close"));
  EXPECT_THAT(answer, testing::EndsWith("last"));
}

TEST(HttpServer, ListensOnAUnixSocket) {
  const std::string path = testing::TempDir() + "/signalbox_http_test.sock";
  std::filesystem::remove(path);
  auto server = Listen(
      [](const Exchange& exchange) {
        exchange->Send({.body = exchange->request().loopback ? "local" : "remote"});
      },
      {.unix_socket = path});
  EXPECT_EQ(ClientOf(*server)->Fetch({.path = "/"})->body, "local");
  EXPECT_EQ(HttpServer::Listen({.unix_socket = path}, Echo()).status().code(),
            StatusCode::kInvalidArgument);
  server.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
  // What a killed server leaves behind.
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ::close(fd);
  server = Listen(Echo(), {.unix_socket = path});
  EXPECT_EQ(ClientOf(*server)->Fetch({.path = "/x"})->body, "GET /x  ");
}

TEST(HttpServer, AddressesThatCannotBeHadAreRefused) {
  const auto server = Listen(Echo());
  for (const HttpServerOptions& options :
       std::vector<HttpServerOptions>{{.port = server->port()},
                                      {.host = "192.0.2.1"},
                                      {.host = "no such host"},
                                      {.unix_socket = std::string(200, 'x')},
                                      {.unix_socket = "/no/such/folder/x.sock"}}) {
    const auto refused = HttpServer::Listen(options, Echo());
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  }
}

// Both ends in this process: twice as many files.
TEST(HttpServer, TwoThousandStreamsOnOneThread) {
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = files.rlim_max;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
  constexpr int kStreams = 2000;
  ASSERT_GT(files.rlim_cur, 2 * kStreams + 100u);
  std::mutex mutex;
  std::vector<Exchange> exchanges;
  const auto server = Listen([&](const Exchange& exchange) {
    exchange->BeginStream({.body = "0"});
    std::lock_guard lock(mutex);
    exchanges.push_back(exchange);
  });
  const auto client = ClientOf(*server);
  std::atomic<int> whole = 0;
  std::atomic<int> done = 0;
  for (int i = 0; i < kStreams; ++i) {
    client->Start({.path = "/"}, nullptr, [&](const Result<HttpResponse>& response) {
      if (response.ok() && response->body == "0123456789") ++whole;
      ++done;
    });
  }
  ASSERT_TRUE(Soon([&] {
    std::lock_guard lock(mutex);
    return exchanges.size() == kStreams;
  }));
  EXPECT_EQ(server->connections(), kStreams);
  for (int i = 1; i < 10; ++i) {
    for (const Exchange& exchange : exchanges) EXPECT_TRUE(exchange->Write(std::to_string(i)));
  }
  for (const Exchange& exchange : exchanges) exchange->EndStream();
  EXPECT_TRUE(Soon([&] { return done == kStreams; }));
  EXPECT_EQ(whole, kStreams);
}

TEST(HttpClient, SaysWhyThereIsNoAnswer) {
  EXPECT_EQ(HttpClient::Create("ftp://host").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(HttpClient::Create("http://no.such.host.invalid").status().code(),
            StatusCode::kUnavailable);
  auto server = Listen([](const Exchange& exchange) {
    exchange->BeginStream({.body = "piece"});
    exchange->OnGone([exchange] {});  // keeps it open
  });
  const std::string url = server->address();
  auto client = ClientOf(*server);
  EXPECT_EQ(client->Fetch({.path = "/", .timeout = seconds(1)}).status().code(),
            StatusCode::kDeadlineExceeded);
  std::promise<StatusCode> enough;
  client->Start(
      {.path = "/"}, [](std::string_view) { return false; },
      [&](const Result<HttpResponse>& r) { enough.set_value(r.status().code()); });
  EXPECT_EQ(enough.get_future().get(), StatusCode::kCancelled);
  std::promise<StatusCode> cut;
  client->Start({.path = "/"}, nullptr,
                [&](const Result<HttpResponse>& r) { cut.set_value(r.status().code()); });
  client.reset();
  EXPECT_EQ(cut.get_future().get(), StatusCode::kCancelled);
  server.reset();
  EXPECT_EQ((*HttpClient::Create(url))->Fetch({.path = "/"}).status().code(),
            StatusCode::kUnavailable);
}

}  // namespace
}  // namespace signalbox::http_server_test
