// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/event_log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include <nlohmann/json.hpp>

namespace signalbox {
namespace {

using Json = nlohmann::ordered_json;

std::string Now() {
  const auto now = std::chrono::system_clock::now();
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  return fmt::format("{:%FT%T}.{:03}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(now)),
                     milliseconds);
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Quoted where it would not be read as one word.
std::string TextOf(const Json& value) {
  if (!value.is_string()) return Dump(value);
  const auto& text = value.get_ref<const std::string&>();
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return c > ' ' && c < '\x7f' && c != '"' && c != '=' && c != '\\';
  });
  return plain ? text : Dump(value);
}

}  // namespace

void EventLog::Write(std::string_view event, const std::vector<LogField>& fields) {
  Json object{{"time", Now()}, {"event", event}};
  for (const LogField& field : fields)
    std::visit([&](const auto& value) { object[field.name] = value; }, field.value);
  std::string line;
  if (format_ == LogFormat::kJson) {
    line = Dump(object);
  } else {
    for (const auto& [name, value] : object.items()) {
      const bool bare = name == "time" || name == "event";
      line += fmt::format("{}{}{}", line.empty() ? "" : " ", bare ? "" : name + "=", TextOf(value));
    }
  }
  line += '\n';
  std::lock_guard lock(mutex_);
  std::fwrite(line.data(), 1, line.size(), stream_);
  std::fflush(stream_);
}

}  // namespace signalbox
