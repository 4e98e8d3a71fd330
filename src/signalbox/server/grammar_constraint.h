// SPDX-License-Identifier: Apache-2.0
//
// Grammars of a model's answers as constraints on what its engine samples.
//
//   AnswerGrammars grammars(tokenizer, chat->output_format(), config.stop_ids);
//   SB_ASSIGN_OR_RETURN(request.constraint, grammars.Constrain(spec, /*chat=*/true, in_reasoning));
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "signalbox/base/status.h"
#include "signalbox/engine/token_constraint.h"
#include "signalbox/text/answer_grammar.h"
#include "signalbox/text/chat_format.h"
#include "signalbox/text/grammar.h"
#include "signalbox/text/tokenizer.h"

namespace signalbox {

class AnswerGrammars {
 public:
  // `tokenizer` must outlive it; nothing is made before the first request that has a grammar.
  AnswerGrammars(const Tokenizer& tokenizer, OutputFormat format, std::vector<TokenId> stop_ids)
      : tokenizer_(&tokenizer), format_(format), stop_ids_(std::move(stop_ids)) {}

  // For one request; errors of MakeGrammarCompiler, AnswerFrame::Make and Compile. `chat`: the
  // answer is written in the model's format, else all of its text is under the grammar.
  // Thread-safe.
  Result<std::shared_ptr<TokenConstraint>> Constrain(const GrammarSpec& spec, bool chat,
                                                     bool in_reasoning);

 private:
  Status Prepare();

  const Tokenizer* tokenizer_;
  OutputFormat format_;
  std::vector<TokenId> stop_ids_;
  std::mutex mutex_;  // of what Prepare makes
  std::unique_ptr<GrammarCompiler> compiler_;
  std::shared_ptr<const AnswerFrame> plain_;
  std::optional<Result<std::shared_ptr<const AnswerFrame>>> chat_;
  std::shared_ptr<const AnswerFrame> calls_;  // a call ends its message itself
};

}  // namespace signalbox
