// SPDX-License-Identifier: Apache-2.0
//
// EventLog: one line for each thing that happens while serving, to be read by people (name=value)
// or by programs (JSON). From any thread; lines are never mixed.
//
//   EventLog log(LogFormat::kJson);
//   log.Write("ready", {{"model", "tiny"}, {"seconds", 1.5}});
//   // {"time":"2026-11-30T12:00:00.000Z","event":"ready","model":"tiny","seconds":1.5}
//   // as text: 2026-11-30T12:00:00.000Z ready model=tiny seconds=1.5
#pragma once

#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace signalbox {

enum class LogFormat : uint8_t { kText, kJson };

struct LogField {
  std::string name;  // a word
  std::variant<std::string, int64_t, double> value;
};

class EventLog {
 public:
  explicit EventLog(LogFormat format, std::FILE* stream = stderr)
      : format_(format), stream_(stream) {}

  // `event` is a word. Values may be any bytes: what is no UTF-8 is replaced, and no value can end
  // the line.
  void Write(std::string_view event, const std::vector<LogField>& fields);

 private:
  const LogFormat format_;
  std::FILE* const stream_;
  std::mutex mutex_;
};

}  // namespace signalbox
