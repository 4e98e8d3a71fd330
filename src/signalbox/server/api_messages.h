// SPDX-License-Identifier: Apache-2.0
//
// The messages and tools of a chat as a model's format takes them, from what clients send.
//
//   ApiJson messages = ReadMessages(fields, format);    // roles, parts, arguments: in one spelling
//   const ChatTools tools = ReadTools(fields, format);
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "signalbox/server/api_fields.h"
#include "signalbox/text/chat_format.h"

namespace signalbox {

// Roles in lower case, developer as system and function as tool; content a text, whatever parts it
// had; arguments of calls objects where they are JSON of one. Fields that no format knows go.
ApiJson ReadMessages(ApiFields& fields, OutputFormat format);

// With all system messages in one at the front; nothing where they are there already. Templates may
// demand it.
std::optional<ApiJson> WithSystemFirst(const ApiJson& messages);

struct ChatTools {
  enum class Choice { kAuto, kNone, kRequired };
  ApiJson tools = ApiJson::array();
  Choice choice = Choice::kAuto;
  std::string name;  // the one that must be called; empty: any
  bool parallel = true;
};
// tools, tool_choice, parallel_tool_calls.
ChatTools ReadTools(ApiFields& fields, OutputFormat format);

// What chat_template_kwargs, reasoning_effort, reasoning and enable_thinking make of a format's
// variables.
ApiJson ReadVariables(ApiFields& fields, bool* hide_reasoning);

}  // namespace signalbox
