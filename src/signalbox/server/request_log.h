// SPDX-License-Identifier: Apache-2.0
//
// RequestLog: a line for each request that has ended. How much it says is a level, with the meaning
// that users of other engines know:
//   0  who, what became of it, tokens and times
//   1  and how it was sampled
//   2  and the beginning of prompt and answer
//   3  and all of them
// Below 2 nothing of what a user wrote or got is in it.
//
//   RequestLog log(events, /*level=*/0);
//   log.Write({.id = call.id, .route = "/generate", .asked = &request, .results = results});
#pragma once

#include <span>
#include <string>
#include <vector>

#include "signalbox/server/event_log.h"
#include "signalbox/server/text_model.h"

namespace signalbox {

struct RequestRecord {
  std::string id;
  std::string route;
  int status = 200;                          // of the HTTP answer
  std::string error = {};                    // its code; a message may repeat what a user wrote
  const TextRequest* asked = nullptr;        // null where it could not be understood
  std::span<const TextResult> results = {};  // by choice
  std::string prompt = {};                   // as text; asked for by wants_text()
};

class RequestLog {
 public:
  static constexpr int kMaxLevel = 3;

  RequestLog(EventLog& events, int level) : events_(events), level_(level) {}
  bool wants_text() const { return level_ >= 2; }
  void Write(const RequestRecord& record) const;

 private:
  EventLog& events_;
  const int level_;
};

}  // namespace signalbox
