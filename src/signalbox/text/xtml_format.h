// SPDX-License-Identifier: Apache-2.0
//
// XTML, the chat format of Kimi-K3: a tree of tags in which the brackets are control tokens.
//
//   <|open|>message role="user"<|sep|>Hi<|close|>message<|sep|><|end_of_msg|>
//   <|open|>message role="assistant"<|sep|><|open|>think<|sep|>
//
// An assistant message holds `think` (left out where thinking is off), `response` and, with calls,
// `tools`: `call`s with tool and index (from 1), each with an `argument` (key, type) for every
// argument, or a `json` with arguments that are no JSON. Messages of the system itself carry a
// type: tool-declare and thinking-effort come first, tool-choice and response-format last.
//
// Every segment is `apart`, as the model was trained, and only the four markers are trusted. Text
// is written as it is; in attributes `&` and `"` become `&amp;` and `&quot;`.
//
// Of `extra` it reads: enable_thinking (or thinking), thinking_effort (low, medium, high, max or
// null; max where it is missing; without effect when thinking is off), tool_choice and
// response_format as the OpenAI API has them, add_generation_prompt. Other variables have no
// effect. Results of tools are put in the order of the calls they answer.
//
//   SB_ASSIGN_OR_RETURN(Segments prompt, XtmlFormat().Render({.messages = messages}));
#pragma once

#include "signalbox/base/status.h"
#include "signalbox/text/chat_format.h"

namespace signalbox {

class XtmlFormat final : public ChatFormat {
 public:
  // kInvalidArgument, naming the message, for an unknown role, content that is neither text nor
  // parts of text, arguments that are neither an object nor text, or a result of no known tool.
  Result<Segments> Render(const ChatRequest& request) const override;
  OutputFormat output_format() const override { return OutputFormat::kXtml; }
};

}  // namespace signalbox
