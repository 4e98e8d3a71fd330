// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/http_exchange.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>

#include <boost/beast/http/status.hpp>

#include "signalbox/base/check.h"

namespace signalbox {
namespace {

namespace http = boost::beast::http;

// A line break in a header would begin another one.
void AppendHeader(std::string& text, std::string_view name, std::string_view value) {
  text.append(name).append(": ");
  for (const char c : value) text += static_cast<unsigned char>(c) < ' ' || c == 127 ? ' ' : c;
  text += "\r\n";
}

}  // namespace

std::string HeadText(const HttpResponse& response, const Framing& framing,
                     std::optional<size_t> length, bool last) {
  const auto reason = http::obsolete_reason(static_cast<http::status>(response.status));
  std::string text = fmt::format("HTTP/1.1 {} {}\r\n", response.status,
                                 std::string_view(reason.data(), reason.size()));
  AppendHeader(text, "Date",
               fmt::format("{:%a, %d %b %Y %T GMT}", fmt::gmtime(std::time(nullptr))));
  if (!response.content_type.empty()) AppendHeader(text, "Content-Type", response.content_type);
  for (const HttpHeader& header : response.headers) AppendHeader(text, header.name, header.value);
  const bool has_body = response.status != 204 && response.status != 304;
  if (has_body && length) AppendHeader(text, "Content-Length", std::to_string(*length));
  if (!length && !framing.http_1_0) AppendHeader(text, "Transfer-Encoding", "chunked");
  AppendHeader(text, "Connection", last ? "close" : "keep-alive");
  return text + "\r\n";
}

HttpResponse RefusalOf(int status, std::string_view message) {
  return {.status = status,
          .body = fmt::format(R"({{"error":{{"message":"{}","type":"invalid_request_error",)"
                              R"("param":null,"code":null}}}})",
                              message)};
}

void Outbox::TellGone() {
  std::function<void()> told;
  {
    std::lock_guard lock(mutex);
    gone = true;
    bytes.clear();
    told.swap(on_gone);
  }
  if (told) told();
}

OutboxExchange::~OutboxExchange() {
  std::lock_guard lock(outbox_->mutex);
  if (outbox_->ended) return;
  if (outbox_->begun) {
    Break();
  } else {
    const HttpResponse response = RefusalOf(500, "the request was dropped");
    Begin(response, response.body.size());
    End(response.body);
  }
}

void OutboxExchange::Send(HttpResponse response) {
  std::lock_guard lock(outbox_->mutex);
  Begin(response, response.body.size());
  End(response.body);
}

void OutboxExchange::BeginStream(HttpResponse head) {
  std::lock_guard lock(outbox_->mutex);
  if (framing_.http_1_0) outbox_->last = true;  // its end is the connection's
  Begin(head, std::nullopt);
  AppendPiece(head.body);
}

bool OutboxExchange::Write(std::string piece) {
  std::lock_guard lock(outbox_->mutex);
  SB_CHECK(outbox_->begun) << "Write before BeginStream";
  if (outbox_->ended || outbox_->gone || outbox_->broken) return false;
  const size_t unsent = outbox_->bytes.size() + outbox_->in_flight + piece.size();
  if (static_cast<int64_t>(unsent) > link_.max_unsent) {
    Break();
    return false;
  }
  AppendPiece(piece);
  return true;
}

void OutboxExchange::EndStream() {
  std::lock_guard lock(outbox_->mutex);
  SB_CHECK(outbox_->begun) << "EndStream before BeginStream";
  if (!outbox_->ended) End(framing_.http_1_0 ? "" : "0\r\n\r\n");
}

void OutboxExchange::OnGone(std::function<void()> gone) {
  {
    std::lock_guard lock(outbox_->mutex);
    if (outbox_->ended) return;
    if (!outbox_->gone) {
      outbox_->on_gone = std::move(gone);
      return;
    }
  }
  gone();
}

void OutboxExchange::Begin(const HttpResponse& response, std::optional<size_t> length) {
  SB_CHECK(!outbox_->begun) << "a request answered twice";
  outbox_->begun = true;
  outbox_->last = outbox_->last || link_.stopping();
  Append(HeadText(response, framing_, length, outbox_->last));
}

void OutboxExchange::End(std::string_view text) {
  outbox_->ended = true;
  outbox_->on_gone = nullptr;
  Append(framing_.head_only ? "" : text);
}

// An empty chunk would end the stream.
void OutboxExchange::AppendPiece(std::string_view piece) {
  if (piece.empty() || framing_.head_only) return;
  if (framing_.http_1_0) return Append(piece);
  Append(fmt::format("{:x}\r\n", piece.size()));
  Append(piece);
  Append("\r\n");
}

void OutboxExchange::Append(std::string_view text) {
  if (outbox_->gone) return;
  outbox_->bytes += text;
  if (!std::exchange(outbox_->scheduled, true)) link_.schedule();
}

void OutboxExchange::Break() {
  outbox_->broken = true;
  Append("");
}

}  // namespace signalbox
