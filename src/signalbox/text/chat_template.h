// SPDX-License-Identifier: Apache-2.0
//
// The chat template of a model: from the messages of a request to the prompt.
//
// The prompt comes as segments: what the template and its special tokens wrote is trusted, what the
// messages, tools and extra variables brought is not (text/segment.h), so a user who types
// `<|im_end|>` gets the characters, not the control token.
//
//   SB_ASSIGN_OR_RETURN(ChatTemplate chat, ChatTemplate::Load("models/qwen"));
//   SB_ASSIGN_OR_RETURN(Segments prompt,
//                       chat.Render({.messages = R"([{"role": "user", "content": "Hi"}])"}));
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "signalbox/base/status.h"
#include "signalbox/text/segment.h"

namespace signalbox {

namespace jinja {
class Template;
}

// Everything is JSON text, passed to the template as it is: contents may be strings or lists of
// parts. Templates that write calls argument by argument (Qwen3-Coder, Qwen3.5) need the
// `arguments` of a tool call to be an object, not the string that the OpenAI API carries.
struct ChatRequest {
  std::string messages;  // an array of objects
  std::string tools;     // an array; empty text for none
  std::string extra;     // an object whose keys become variables, such as enable_thinking; or empty
  bool add_generation_prompt = true;  // unless `extra` says otherwise
};

// Variables such as "bos_token", by name.
using TemplateTokens = std::map<std::string, std::string>;

class ChatTemplate {
 public:
  // Reads, from a model directory, chat_template.jinja, or else the chat_template of
  // tokenizer_config.json, or else that of chat_template.json; the special tokens come from
  // tokenizer_config.json. Of several named templates, "default" is used, and "tool_use" for
  // requests with tools. kNotFound where the model has none, kBadCheckpoint where a file is damaged
  // or the template is outside the supported subset.
  static Result<ChatTemplate> Load(const std::filesystem::path& model_dir);
  // kInvalidArgument with the line.
  static Result<ChatTemplate> Parse(std::string_view source, TemplateTokens tokens = {});

  // kInvalidArgument where the request is not of the shape above, or the template refuses it: then
  // the message is the template's own. Thread-safe.
  Result<Segments> Render(const ChatRequest& request) const;

 private:
  ChatTemplate() = default;

  std::string origin_ = "chat template";  // for messages
  std::shared_ptr<const jinja::Template> template_;
  std::shared_ptr<const jinja::Template> tool_template_;  // null: the same
  TemplateTokens tokens_;
};

}  // namespace signalbox
