// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/grammar_constraint.h"

namespace signalbox {
namespace {

class AnswerConstraint final : public TokenConstraint {
 public:
  explicit AnswerConstraint(AnswerGrammar grammar) : grammar_(std::move(grammar)) {}

  Status Allowed(std::span<uint32_t> mask) override { return grammar_.FillMask(mask); }
  Status Accept(TokenId token) override { return grammar_.Accept(token); }

 private:
  AnswerGrammar grammar_;
};

}  // namespace

Status AnswerGrammars::Prepare() {
  const std::scoped_lock lock(mutex_);
  if (compiler_ != nullptr) return OkStatus();
  SB_ASSIGN_OR_RETURN(plain_, AnswerFrame::Make(*tokenizer_, OutputFormat::kPlain, stop_ids_));
  chat_ = AnswerFrame::Make(*tokenizer_, format_, stop_ids_);
  if (chat_->ok()) {
    auto calls = std::make_shared<AnswerFrame>(*chat_->value());
    calls->closing.clear();
    calls_ = std::move(calls);
  }
  SB_ASSIGN_OR_RETURN(compiler_, MakeGrammarCompiler(*tokenizer_, stop_ids_));
  return OkStatus();
}

Result<std::shared_ptr<TokenConstraint>> AnswerGrammars::Constrain(const GrammarSpec& spec,
                                                                   bool chat, bool in_reasoning) {
  SB_RETURN_IF_ERROR(Prepare());
  if (chat) SB_RETURN_IF_ERROR(chat_->status());
  SB_ASSIGN_OR_RETURN(auto matcher, compiler_->Compile(spec));
  const bool calls = spec.kind == GrammarSpec::Kind::kCalls;
  const auto& frame = !chat ? plain_ : calls ? calls_ : chat_->value();
  return std::shared_ptr<TokenConstraint>(
      std::make_shared<AnswerConstraint>(AnswerGrammar(frame, std::move(matcher), in_reasoning)));
}

}  // namespace signalbox
