// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/chat_request.h"

#include <string>
#include <string_view>
#include <utility>

namespace signalbox {
namespace {

using jinja::Value;

// One field of a request; `kind` names what it has to be.
Result<Value> ParseField(const std::string& json, std::string_view field, std::string_view kind) {
  auto value = Value::FromJson(json);
  if (!value.ok()) return value.status().At(field);
  if (kind == "an array" ? !value->is_sequence() : !value->is_dict()) {
    return InvalidArgument({.what = "the field is of the wrong type",
                            .where = std::string(field),
                            .expected = std::string(kind)});
  }
  return value;
}

}  // namespace

Result<ChatFields> ParseChatRequest(const ChatRequest& request) {
  ChatFields fields{.messages = {}, .tools = Value::None(), .extra = {}};
  if (!request.extra.empty()) {
    SB_ASSIGN_OR_RETURN(const Value extra,
                        ParseField(request.extra, "chat_template_kwargs", "an object"));
    for (const auto& [name, value] : extra.dict().entries()) {
      if (name.str() == "messages" || name.str() == "tools") {
        return InvalidArgument({.what = "the field cannot set '" + std::string(name.str()) + "'",
                                .where = "chat_template_kwargs",
                                .remedy = "use the request's own field"});
      }
    }
    fields.extra = extra.dict();
  }
  SB_ASSIGN_OR_RETURN(fields.messages, ParseField(request.messages, "messages", "an array"));
  if (!request.tools.empty()) {
    SB_ASSIGN_OR_RETURN(fields.tools, ParseField(request.tools, "tools", "an array"));
  }
  return fields;
}

}  // namespace signalbox
