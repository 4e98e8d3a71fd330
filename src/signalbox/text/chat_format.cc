// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/chat_format.h"

#include <utility>

#include "signalbox/text/chat_template.h"
#include "signalbox/text/xtml.h"
#include "signalbox/text/xtml_format.h"

namespace signalbox {

Result<std::unique_ptr<const ChatFormat>> LoadChatFormat(const std::filesystem::path& model_dir,
                                                         const Tokenizer& tokenizer) {
  auto chat = ChatTemplate::Load(model_dir);
  if (chat.ok()) {
    return std::unique_ptr<const ChatFormat>(new ChatTemplate(std::move(chat).value()));
  }
  if (chat.status().code() != StatusCode::kNotFound) return chat.status();
  for (const std::string_view marker : xtml::kMarkers) {
    if (!tokenizer.IsAdded(tokenizer.TokenToId(marker).value_or(-1))) return chat.status();
  }
  return std::unique_ptr<const ChatFormat>(new XtmlFormat());
}

}  // namespace signalbox
