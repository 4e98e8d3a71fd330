// SPDX-License-Identifier: Apache-2.0
//
// ChatTemplate: the chat format that a checkpoint brings along as a Jinja template.
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
#include "signalbox/text/chat_format.h"

namespace signalbox {

namespace jinja {
class Template;
}

// Variables such as "bos_token", by name.
using TemplateTokens = std::map<std::string, std::string>;

class ChatTemplate final : public ChatFormat {
 public:
  // Reads, from a model directory, chat_template.jinja, or else the chat_template of
  // tokenizer_config.json, or else that of chat_template.json; the special tokens come from
  // tokenizer_config.json. Of several named templates, "default" is used, and "tool_use" for
  // requests with tools. kNotFound where the model has none, kBadCheckpoint where a file is damaged
  // or the template is outside the supported subset.
  static Result<ChatTemplate> Load(const std::filesystem::path& model_dir);
  // kInvalidArgument with the line.
  static Result<ChatTemplate> Parse(std::string_view source, TemplateTokens tokens = {});

  // The fields of the request are passed to the template as they are.
  Result<Segments> Render(const ChatRequest& request) const override;
  // Told by the tags that the template itself writes.
  OutputFormat output_format() const override { return output_format_; }

 private:
  ChatTemplate() = default;

  std::string origin_ = "chat template";  // for messages
  std::shared_ptr<const jinja::Template> template_;
  std::shared_ptr<const jinja::Template> tool_template_;  // null: the same
  TemplateTokens tokens_;
  OutputFormat output_format_ = OutputFormat::kPlain;
};

}  // namespace signalbox
