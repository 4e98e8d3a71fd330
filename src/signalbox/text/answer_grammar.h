// SPDX-License-Identifier: Apache-2.0
//
// AnswerGrammar: a grammar on what a model answers, whatever else its format makes it write.
//
//   1. While it thinks, any token may come but those that would end the text or begin something
//      else: an answer must follow. Only the format's own token ends the reasoning (text that
//      spells it is kept from coming about), and XTML's tags up to the answer are then dictated.
//   2. The grammar holds from the very next token on, or from the first where the prompt has not
//      opened the reasoning. Up to two newlines may come first where reasoning was ended by
//      </think>: such models write them, and they are no part of the answer (output_parser.h).
//   3. Where the grammar can end, so can the answer: by a stop token, in XTML behind the tags that
//      close the response and the message. No call of a tool begins but those that the grammar
//      itself is made of (call_grammar.h).
//
//   SB_ASSIGN_OR_RETURN(auto frame, AnswerFrame::Make(tokenizer, chat->output_format(), stop_ids));
//   AnswerGrammar answer(frame, std::move(matcher), OpensReasoning(format, prompt));
//   SB_RETURN_IF_ERROR(answer.FillMask(mask));
//   SB_RETURN_IF_ERROR(answer.Accept(chosen));
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "signalbox/base/ids.h"
#include "signalbox/base/status.h"
#include "signalbox/text/chat_format.h"
#include "signalbox/text/grammar.h"
#include "signalbox/text/tokenizer.h"

namespace signalbox {

// What stands around the answers of a model, in its tokens. Immutable.
struct AnswerFrame {
  // kInvalidArgument where the tokenizer lacks a token of the format: its reasoning has no end that
  // is certain. `tokenizer` is looked at only here.
  static Result<std::shared_ptr<const AnswerFrame>> Make(const Tokenizer& tokenizer,
                                                         OutputFormat format,
                                                         std::vector<TokenId> stop_ids);

  size_t vocab = 0;
  // From reasoning to answer: the first may come while the model thinks, the others must follow.
  std::vector<TokenId> opening;
  std::vector<TokenId> closing;  // from answer to stop token
  std::vector<TokenId> stop_ids;
  std::vector<TokenId> not_thought;                  // never while it thinks, stop ids among them
  std::vector<std::pair<TokenId, size_t>> newlines;  // before an answer, with their lengths
  // [n]: the tokens that end the spelling of opening[0] where n bytes of it are written.
  std::vector<std::vector<TokenId>> spelled;
  std::string marker;              // that spelling; empty where text cannot spell it
  std::vector<std::string> bytes;  // of the tokens, where there is a marker
};

// The state of one answer. Not thread-safe.
class AnswerGrammar {
 public:
  AnswerGrammar(std::shared_ptr<const AnswerFrame> frame, std::unique_ptr<GrammarMatcher> matcher,
                bool in_reasoning);

  // As of GrammarMatcher.
  Status FillMask(std::span<uint32_t> mask);
  Status Accept(TokenId id);

 private:
  enum class Place : uint8_t { kReasoning, kOpening, kAnswer, kClosing };

  Status AcceptInReasoning(TokenId id);
  Status AcceptInAnswer(TokenId id);

  std::shared_ptr<const AnswerFrame> frame_;
  std::unique_ptr<GrammarMatcher> matcher_;
  Place place_;
  size_t dictated_ = 0;  // tokens of opening or closing that have come
  size_t newlines_ = 0;  // bytes of newlines that may still come before the answer
  size_t written_ = 0;   // bytes of the marker that the reasoning ends with
};

}  // namespace signalbox
