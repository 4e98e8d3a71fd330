// SPDX-License-Identifier: Apache-2.0
//
// The fields of a ChatRequest as values: what every chat format begins with.
//
//   SB_ASSIGN_OR_RETURN(const ChatFields fields, ParseChatRequest(request));
//   for (const jinja::Value& message : fields.messages.items()) ...
#pragma once

#include "signalbox/base/status.h"
#include "signalbox/text/chat_format.h"
#include "signalbox/text/jinja_value.h"

namespace signalbox {

struct ChatFields {
  jinja::Value messages;  // a list
  jinja::Value tools;     // a list, or none
  jinja::Dict extra;
};

// kInvalidArgument, naming the field, where one is no JSON or of the wrong type, or `extra` sets
// messages or tools.
Result<ChatFields> ParseChatRequest(const ChatRequest& request);

}  // namespace signalbox
