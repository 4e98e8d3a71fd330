// SPDX-License-Identifier: Apache-2.0
//
// From the JSON of a request to what the service is asked, and from what it says to the JSON of the
// answer. Pure: no socket, no thread. One file per dialect (OpenAI chat, OpenAI completions, native
// /generate) makes an ApiCall of a body; what differs between dialects ends there.
//
//   ApiCall call;
//   if (auto error = ParseChat(body, context, &call)) return Send(*error);
//   service->Submit(call.requests[0], [&](const TextUpdate& u) {
//     stream->Write(call.reply->Events(0, u)); return true; });
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "signalbox/base/status.h"
#include "signalbox/server/service.h"
#include "signalbox/server/text_model.h"

namespace signalbox {

// What goes wrong with a request, as the client is told: {"error": {message, type, param, code}}.
struct ApiError {
  int status = 400;
  std::string type = "invalid_request_error";
  std::string code;   // "context_length_exceeded"; empty: null
  std::string param;  // the field; empty: null
  std::string message;
  int retry_after = 0;  // seconds; 0: no header

  std::string Body() const;  // JSON; bytes that are no UTF-8 are replaced
};
// kInvalidArgument is 400, kResourceExhausted 429, kNotFound 404, kUnavailable 503 and so on.
ApiError ApiErrorOf(const Status& status);

// What parsing needs to know.
struct ApiContext {
  const TextModel* model = nullptr;
  std::vector<std::string>
      served_names;               // the first is what answers say; "default" is always taken
  int64_t max_context = 0;        // tokens of prompt and answer together
  std::string request_id;         // x-request-id of the client; empty: one is made
  bool strict = false;            // unknown fields are refused
  bool reasoning_content = true;  // the names under which reasoning is told
  bool reasoning = true;
  // Defaults of requests that do not say: of generation_config.json, or 1, 1, off.
  SamplingParams sampling;
};

// Makes what a client gets of what the service tells. The service's thread calls it.
class ApiReply {
 public:
  virtual ~ApiReply() = default;
  // The update of request `prompt` of the call. Returns the server-sent events to write now (whole
  // "data: ...\n\n" events, perhaps several, perhaps none); the last one of the call ends with
  // "data: [DONE]\n\n". Empty where the call is not streamed.
  virtual std::string Events(size_t prompt, const TextUpdate& update) = 0;
  // Every choice of every request has ended.
  virtual bool complete() const = 0;
  // REQUIRES: complete, not streamed. Or the error that ended it.
  virtual std::string Body() = 0;
  virtual std::optional<ApiError> error() const = 0;
};

struct ApiCall {
  std::string id;                     // "chatcmpl-..."
  std::vector<TextRequest> requests;  // one, or a batch; each has choices of its own
  bool stream = false;
  std::unique_ptr<ApiReply> reply;
  std::vector<std::string> ignored;  // names of fields that nobody knows, for a metric and a log
};

// Nothing when `call` was made.
std::optional<ApiError> ParseChat(std::string_view body, const ApiContext& context, ApiCall* call);
std::optional<ApiError> ParseCompletion(std::string_view body, const ApiContext& context,
                                        ApiCall* call);
std::optional<ApiError> ParseGenerate(std::string_view body, const ApiContext& context,
                                      ApiCall* call);

// /tokenize, /detokenize, /tokenizer_info and the chat prompt without running it. Each returns the
// answer's JSON.
struct ApiAnswer {
  std::optional<ApiError> error;
  std::string body;
};
ApiAnswer Tokenize(std::string_view body, const ApiContext& context);
ApiAnswer Detokenize(std::string_view body, const ApiContext& context);
ApiAnswer TokenizerInfo(const ApiContext& context);

}  // namespace signalbox
