// SPDX-License-Identifier: Apache-2.0
//
// ChatFormat: how a model wants a conversation written. From the messages of a request to the
// prompt.
//
// The prompt comes as segments: what the model's author wrote and its control tokens are trusted,
// what the messages, tools and extra variables brought is not (text/segment.h), so a user who types
// `<|im_end|>` gets the characters, not the control token.
//
//   SB_ASSIGN_OR_RETURN(auto chat, LoadChatFormat("models/qwen", tokenizer));
//   SB_ASSIGN_OR_RETURN(Segments prompt,
//                       chat->Render({.messages = R"([{"role": "user", "content": "Hi"}])"}));
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "signalbox/base/status.h"
#include "signalbox/text/segment.h"
#include "signalbox/text/tokenizer.h"

namespace signalbox {

// Everything is JSON text. Contents may be strings or lists of parts. Templates that write calls
// argument by argument (Qwen3-Coder, Qwen3.5) need the `arguments` of a tool call to be an object,
// not the string that the OpenAI API carries; XTML takes both.
struct ChatRequest {
  std::string messages;  // an array of objects
  std::string tools;     // an array; empty text for none
  std::string extra;     // an object whose keys become variables, such as enable_thinking; or empty
  bool add_generation_prompt = true;  // unless `extra` says otherwise
};

// How a model writes its answers (output_parser.h).
enum class OutputFormat {
  kPlain,   // all is content
  kHermes,  // Qwen3: <think>, and <tool_call> around {"name": ..., "arguments": {...}}
  kXml,     // Qwen3.5, Qwen3-Coder: <think>, and <tool_call> around <function=><parameter=>
  kXtml,    // Kimi-K3 (xtml_format.h)
};

class ChatFormat {
 public:
  virtual ~ChatFormat() = default;

  // kInvalidArgument where the request is not of the shape above, or the format refuses it: of a
  // template, the message is the template's own. Thread-safe.
  virtual Result<Segments> Render(const ChatRequest& request) const = 0;

  virtual OutputFormat output_format() const = 0;

 protected:
  ChatFormat() = default;
  ChatFormat(const ChatFormat&) = default;
  ChatFormat& operator=(const ChatFormat&) = default;
};

// What the model directory has: a Jinja template (ChatTemplate); or else XTML (XtmlFormat), where
// the tokenizer has XTML's markers. kNotFound where it has neither, kBadCheckpoint where a file is
// damaged or a template is outside the supported subset.
Result<std::unique_ptr<const ChatFormat>> LoadChatFormat(const std::filesystem::path& model_dir,
                                                         const Tokenizer& tokenizer);

}  // namespace signalbox
