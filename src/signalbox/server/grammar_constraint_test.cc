// SPDX-License-Identifier: Apache-2.0
//
// Structured output end to end, on the bundled models.
#include "signalbox/server/grammar_constraint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "signalbox/server/service.h"

namespace signalbox::grammar_constraint_test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
using Kind = GrammarSpec::Kind;

constexpr const char* kSchema = R"({
  "type": "object",
  "properties": {
    "answer": {"type": "integer", "minimum": 0, "maximum": 999},
    "unit": {"type": "string", "maxLength": 8},
    "steps": {"type": "array", "items": {"enum": ["add", "take", "times"]}, "maxItems": 3}
  },
  "required": ["answer", "unit", "steps"]
})";
constexpr const char* kQuestion =
    "Tom has 12 apples. Then Tom buys 7 more. How many apples does Tom have now?";

class StructuredOutput : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    service_ = Started(0);
    TextModel& model = service_->model();
    const auto compiler = MakeGrammarCompiler(model.tokenizer(), model.engine().config().stop_ids);
    if (!compiler.ok()) GTEST_SKIP() << compiler.status().message();
  }

  std::unique_ptr<Service> Started(int drafts) {
    EngineOptions options{.budget = {.sequences = 4}};
    options.layout.limits = {.max_running_requests = 4, .draft_tokens = drafts};
    auto model =
        TextModel::Load(std::string(SIGNALBOX_SOURCE_DIR "/models/") + GetParam(), options);
    EXPECT_TRUE(model.ok()) << model.status().ToString();
    return *Service::Start(*std::move(model), {.parallel = 4});
  }

  TextRequest Request(GrammarSpec grammar, bool chat, bool thinking, uint64_t seed) {
    TextRequest request{.max_new_tokens = 300,
                        .sampling = {.temperature = 1.f, .seed = seed},
                        .chat = chat,
                        .grammar = std::move(grammar)};
    const TextModel& model = service_->model();
    if (chat) {
      request.prompt = model.EncodeChat({{"user", kQuestion}}, thinking)->ids;
    } else {
      request.prompt = *model.EncodePlain("The answer is ");
    }
    return request;
  }

  Result<std::vector<TextResult>> Results(const std::vector<TextRequest>& requests) {
    std::vector<TextResult> results(requests.size());
    SB_RETURN_IF_ERROR(service_->GenerateAll(
        requests, [](size_t, std::string_view) {},
        [&](size_t i, const TextResult& result) { results[i] = result; }));
    return results;
  }

  std::unique_ptr<Service> service_;
};

TEST_P(StructuredOutput, AChatAnswerFitsItsSchemaWhateverIsDrawn) {
  std::vector<TextRequest> requests;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    for (const bool thinking : {true, false})
      requests.push_back(Request({Kind::kJsonSchema, kSchema}, true, thinking, seed));
  }
  const auto results = Results(requests);
  ASSERT_TRUE(results.ok()) << results.status().ToString();
  for (size_t i = 0; i < results->size(); ++i) {
    const TextResult& result = (*results)[i];
    SCOPED_TRACE(result.text);
    ASSERT_EQ(result.finish, FinishReason::kStop);
    EXPECT_TRUE(i % 2 == 0 || result.answer.reasoning.empty());
    EXPECT_TRUE(result.answer.calls.empty());
    const Json answer = Json::parse(result.answer.content, nullptr, false);
    ASSERT_TRUE(answer.is_object()) << result.answer.content;
    EXPECT_EQ(answer.size(), 3u);
    EXPECT_LE(answer.at("answer").get<int>(), 999);
    EXPECT_TRUE(answer.at("unit").is_string());
    EXPECT_LE(answer.at("steps").size(), 3u);
  }
}

TEST_P(StructuredOutput, EachRequestOfABatchHasItsOwnGrammar) {
  std::vector<TextRequest> requests = {
      Request({Kind::kRegex, "[0-9]{3} apples"}, true, true, 1),
      Request({Kind::kJsonObject, ""}, true, false, 2),
      Request({Kind::kEbnf, "root ::= (\"yes\" | \"no\") \".\""}, false, false, 3),
      Request({Kind::kRegex, "[0-9]{3} apples"}, false, false, 4)};
  requests[1].sampling.temperature = 0;
  const auto results = Results(requests);
  ASSERT_TRUE(results.ok()) << results.status().ToString();
  EXPECT_THAT((*results)[0].answer.content, testing::MatchesRegex("[0-9][0-9][0-9] apples"));
  EXPECT_EQ((*results)[1].answer.content[0], '{');
  EXPECT_THAT((*results)[2].text, testing::MatchesRegex("(yes|no)\\."));
  EXPECT_THAT((*results)[3].text, testing::MatchesRegex("[0-9][0-9][0-9] apples"));
  // As if it had been alone.
  const auto alone = Results({requests[0]});
  EXPECT_EQ(alone->at(0).text, (*results)[0].text);
}

TEST_P(StructuredOutput, AGrammarThatIsWrongIsTheRequestsFault) {
  for (const GrammarSpec& spec :
       {GrammarSpec{Kind::kJsonSchema, "{"}, GrammarSpec{Kind::kRegex, "(?=a)"},
        GrammarSpec{Kind::kEbnf, "root ::= x"}}) {
    const auto results = Results({Request(spec, true, true, 0)});
    EXPECT_EQ(results.status().code(), StatusCode::kInvalidArgument);
  }
}

// The least number of tokens bans what the grammar demands: an error, no wrong text.
TEST_P(StructuredOutput, AnEndThatIsBothDemandedAndBannedIsRefused) {
  TextRequest request = Request({Kind::kRegex, "a"}, false, false, 0);
  request.min_new_tokens = 5;
  const auto results = Results({request});
  EXPECT_EQ(results.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(results.status().message(), HasSubstr("outside the grammar"));
}

// Accepted drafts cross the end of the reasoning and the beginning of the answer (SPC-11), and are
// judged by the grammar like any token.
TEST_P(StructuredOutput, Spc12DraftsChangeNothing) {
  if (!service_->model().engine().has_draft()) GTEST_SKIP() << "no draft layer";
  std::vector<TextRequest> requests;
  for (uint64_t seed = 0; seed < 8; ++seed)
    requests.push_back(Request({Kind::kJsonSchema, kSchema}, true, seed % 2 == 0, seed));
  const auto want = Results(requests);
  ASSERT_TRUE(want.ok()) << want.status().ToString();
  service_ = Started(3);
  const auto got = Results(requests);
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  int64_t accepted = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ((*got)[i].text, (*want)[i].text);
    accepted += (*got)[i].stats.accepted_tokens;
  }
  EXPECT_GT(accepted, 0);
}

INSTANTIATE_TEST_SUITE_P(Bundled, StructuredOutput,
                         testing::Values("tiny-qwen3.5-moe-mxfp4", "tiny-kimi-k3-mxfp4"),
                         [](const auto& info) {
                           std::string name;
                           for (const char c : std::string(info.param))
                             if (std::isalnum(static_cast<unsigned char>(c)) != 0) name += c;
                           return name;
                         });

}  // namespace
}  // namespace signalbox::grammar_constraint_test
