// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/answer_grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "signalbox/text/answer_stream.h"
#include "signalbox/text/output_parser.h"

namespace signalbox::answer_grammar_test {
namespace {

using ::testing::HasSubstr;
using Kind = GrammarSpec::Kind;

struct Model {
  explicit Model(const std::string& name, OutputFormat output, std::vector<std::string> stops)
      : tokenizer(*Tokenizer::LoadModel(SIGNALBOX_SOURCE_DIR "/models/" + name)), format(output) {
    for (const std::string& stop : stops) stop_ids.push_back(*tokenizer.TokenToId(stop));
  }
  Tokenizer tokenizer;
  OutputFormat format;
  std::vector<TokenId> stop_ids;
};

const Model& Qwen() {
  static const Model kModel("tiny-qwen3.5-moe-mxfp4", OutputFormat::kXml,
                            {"<|im_end|>", "<|endoftext|>"});
  return kModel;
}
const Model& Kimi() {
  static const Model kModel("tiny-kimi-k3-mxfp4", OutputFormat::kXtml, {"<|end_of_msg|>"});
  return kModel;
}

class AnswerGrammarTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto compiler = MakeGrammarCompiler(Qwen().tokenizer, Qwen().stop_ids);
    if (!compiler.ok()) GTEST_SKIP() << compiler.status().message();
  }

  static AnswerGrammar Answer(const Model& model, const std::string& regex, bool in_reasoning,
                              std::optional<OutputFormat> format = std::nullopt) {
    const auto compiler = *MakeGrammarCompiler(model.tokenizer, model.stop_ids);
    const auto frame =
        AnswerFrame::Make(model.tokenizer, format.value_or(model.format), model.stop_ids);
    EXPECT_TRUE(frame.ok()) << frame.status().ToString();
    return {*frame, *compiler->Compile({Kind::kRegex, regex}), in_reasoning};
  }
};

std::vector<TokenId> Allowed(AnswerGrammar& answer, const Model& model) {
  std::vector<uint32_t> mask((model.tokenizer.vocab_size() + 31) / 32);
  EXPECT_TRUE(answer.FillMask(mask).ok());
  std::vector<TokenId> ids;
  for (size_t i = 0; i < mask.size() * 32; ++i)
    if ((mask[i / 32] >> (i % 32) & 1) != 0) ids.push_back(static_cast<TokenId>(i));
  return ids;
}

// Tokens of text in which added tokens are meant.
std::vector<TokenId> Ids(const Model& model, const std::string& text) {
  return *model.tokenizer.EncodeTrusted(text);
}

// Each is allowed and accepted.
void Follow(AnswerGrammar& answer, const Model& model, const std::string& text) {
  const std::vector<TokenId> ids = Ids(model, text);
  for (const TokenId id : ids) {
    const std::vector<TokenId> allowed = Allowed(answer, model);
    EXPECT_TRUE(std::binary_search(allowed.begin(), allowed.end(), id))
        << model.tokenizer.TokenBytes(id);
    EXPECT_TRUE(answer.Accept(id).ok()) << model.tokenizer.TokenBytes(id);
  }
}

std::string Spelled(const Model& model, const std::vector<TokenId>& ids) {
  std::string all;
  for (const TokenId id : ids) all += std::string(model.tokenizer.TokenBytes(id)) + " ";
  return all;
}

// SPC-11: the grammar holds from the token after the end of the reasoning, and not before: no first
// character of the answer is lost to it, none comes twice, and what was thought does not count.
TEST_F(AnswerGrammarTest, Spc11TheGrammarHoldsFromTheTokenAfterTheReasoning) {
  const Model& model = Qwen();
  AnswerGrammar answer = Answer(model, "7[0-9]", true);
  Follow(answer, model, "{7 apples");
  // All of the vocabulary but what ends the text or begins a call.
  EXPECT_EQ(Allowed(answer, model).size(),
            model.tokenizer.vocab_size() - model.stop_ids.size() - 1);
  Follow(answer, model, "</think>");
  for (const TokenId id : Allowed(answer, model)) {
    const std::string_view bytes = model.tokenizer.TokenBytes(id);
    EXPECT_TRUE(bytes[0] == '7' || bytes == "\n" || bytes == "\n\n") << bytes;
  }
  Follow(answer, model, "7");
  for (const TokenId id : Allowed(answer, model))
    EXPECT_THAT(model.tokenizer.TokenBytes(id), testing::MatchesRegex("[0-9]"));
  Follow(answer, model, "5");
  EXPECT_EQ(Allowed(answer, model).size(), model.stop_ids.size());
  Follow(answer, model, "<|im_end|>");
}

TEST_F(AnswerGrammarTest, WithoutReasoningTheGrammarHoldsAtOnce) {
  for (const Model* model : {&Qwen(), &Kimi()}) {
    AnswerGrammar answer = Answer(*model, "75", false);
    for (const TokenId id : Allowed(answer, *model))
      EXPECT_EQ(model->tokenizer.TokenBytes(id)[0], '7');
  }
}

TEST_F(AnswerGrammarTest, TwoNewlinesAtMostLieBetweenReasoningAndAnswer) {
  const Model& model = Qwen();
  const TokenId newline = *model.tokenizer.TokenToId("\n");
  AnswerGrammar answer = Answer(model, "x", true);
  Follow(answer, model, "</think>");
  EXPECT_TRUE(answer.Accept(newline).ok());
  EXPECT_TRUE(answer.Accept(newline).ok());
  EXPECT_FALSE(answer.Accept(newline).ok());
  Follow(answer, model, "x<|im_end|>");
  // Where the grammar itself begins with them, they are its own.
  AnswerGrammar own = Answer(model, "\\n\\n\\nx", true);
  Follow(own, model, "</think>");
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(own.Accept(newline).ok());
  Follow(own, model, "x<|im_end|>");
}

// The parser of answers knows </think> by its spelling; text must not come to spell it.
TEST_F(AnswerGrammarTest, TextCannotEndTheReasoning) {
  const Model& model = Qwen();
  AnswerGrammar answer = Answer(model, "x", true);
  const std::vector<TokenId> spelled = *model.tokenizer.EncodeUntrusted("</think>");
  ASSERT_GT(spelled.size(), 1u);
  for (const TokenId id : spelled) {
    const std::vector<TokenId> allowed = Allowed(answer, model);
    const bool last = id == spelled.back();
    EXPECT_EQ(std::binary_search(allowed.begin(), allowed.end(), id), !last);
    EXPECT_EQ(answer.Accept(id).ok(), !last);
  }
  Follow(answer, model, " no, </think>x<|im_end|>");
}

TEST_F(AnswerGrammarTest, XtmlIsDictatedAroundTheAnswer) {
  const Model& model = Kimi();
  AnswerGrammar answer = Answer(model, "[0-9]+", true);
  Follow(answer, model, "2+2=4");
  EXPECT_THAT(Spelled(model, Allowed(answer, model)), Not(HasSubstr("<|open|>")));
  Follow(answer, model, "<|close|>think<|sep|><|open|>response<|sep|>");
  const std::vector<TokenId> first = Allowed(answer, model);
  EXPECT_EQ(std::count(first.begin(), first.end(), *model.tokenizer.TokenToId("<|close|>")), 0);
  Follow(answer, model, "4");
  // It can end, in the way of the format alone.
  const std::vector<TokenId> then = Allowed(answer, model);
  EXPECT_EQ(std::count(then.begin(), then.end(), *model.tokenizer.TokenToId("<|close|>")), 1);
  EXPECT_EQ(std::count(then.begin(), then.end(), model.stop_ids[0]), 0);
  EXPECT_FALSE(answer.Accept(model.stop_ids[0]).ok());
  Follow(answer, model, "<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>");
  EXPECT_EQ(Allowed(answer, model), model.stop_ids);
}

// Whatever is sampled under the mask, in whatever format: what a parser then takes for the content
// is in the grammar, once the model has stopped.
TEST_F(AnswerGrammarTest, WhatIsParsedOfARandomWalkFits) {
  EXPECT_TRUE(rc::check("walks", [] {
    const auto& [model, format] = *rc::gen::element(
        std::pair{&Qwen(), OutputFormat::kXml}, std::pair{&Qwen(), OutputFormat::kHermes},
        std::pair{&Kimi(), OutputFormat::kXtml}, std::pair{&Qwen(), OutputFormat::kPlain});
    const bool thinks = *rc::gen::arbitrary<bool>() && format != OutputFormat::kPlain;
    AnswerGrammar answer = Answer(*model, "[0-9]{2,4}(ab)?", thinks, format);
    auto stream = *AnswerStream::Create(model->tokenizer,
                                        {.format = format, .output = {.in_reasoning = thinks}});
    bool stopped = false;
    for (int step = 0; step < 80 && !stopped; ++step) {
      const std::vector<TokenId> allowed = Allowed(answer, *model);
      RC_ASSERT(!allowed.empty());
      TokenId id = allowed[*rc::gen::inRange<size_t>(0, allowed.size())];
      // Sooner or later the reasoning ends; and pieces of its end are tried out of turn.
      const std::string_view likely[] = {"</think>", "<|close|>", "</", "think", ">", "<"};
      if (step % 3 == 1) {
        const auto token = model->tokenizer.TokenToId(
            likely[*rc::gen::inRange<size_t>(step > 20 ? 0 : 2, step > 20 ? 2 : 6)]);
        if (token && std::binary_search(allowed.begin(), allowed.end(), *token)) id = *token;
      }
      RC_ASSERT(answer.Accept(id).ok());
      stopped = std::count(model->stop_ids.begin(), model->stop_ids.end(), id) != 0;
      if (!stopped) stream.Push({&id, 1});
    }
    stream.Finish(stopped);
    const ParsedOutput& output = stream.answer().parts;
    RC_CLASSIFY(stopped);
    RC_LOG() << output.reasoning << " | " << output.content;
    if (stopped) {
      RC_ASSERT(testing::internal::RE::FullMatch(output.content, "[0-9][0-9][0-9]?[0-9]?(ab)?"));
    }
  }));
}

TEST_F(AnswerGrammarTest, AFormatWithoutItsTokensIsRefused) {
  for (const auto& [model, format] :
       {std::pair{&Kimi(), OutputFormat::kXml}, std::pair{&Qwen(), OutputFormat::kXtml}}) {
    const auto frame = AnswerFrame::Make(model->tokenizer, format, model->stop_ids);
    EXPECT_EQ(frame.status().code(), StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace signalbox::answer_grammar_test
