// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include <fstream>

namespace signalbox::chat_template_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::string_view kHi = R"([{"role": "user", "content": "hi"}])";

// A directory that is gone after the test.
class ModelDir : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::temp_directory_path() /
           ("chat_template_test_" + std::to_string(getpid()) + "_" +
            testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  void Write(const std::string& name, std::string_view text) {
    std::ofstream(dir_ / name, std::ios::binary) << text;
  }
  std::string Loaded(std::string_view tools = "") {
    const auto chat = ChatTemplate::Load(dir_);
    if (!chat.ok()) return chat.status().ToString();
    const auto prompt =
        chat->Render({.messages = std::string(kHi), .tools = std::string(tools), .extra = ""});
    return prompt.ok() ? PlainText(*prompt) : prompt.status().ToString();
  }

  std::filesystem::path dir_;
};

using ChatTemplateLoad = ModelDir;

TEST_F(ChatTemplateLoad, TheJinjaFileComesFirst) {
  Write("tokenizer_config.json", R"({"chat_template": "from config"})");
  Write("chat_template.json", R"({"chat_template": "from json"})");
  Write("chat_template.jinja", "from file {{ messages[0].content }}\n");
  EXPECT_EQ(Loaded(), "from file hi");
  std::filesystem::remove(dir_ / "chat_template.jinja");
  EXPECT_EQ(Loaded(), "from config");
  Write("tokenizer_config.json", R"({"chat_template": null})");
  EXPECT_EQ(Loaded(), "from json");
}

TEST_F(ChatTemplateLoad, TemplateTokensAreStringsOrObjects) {
  Write("tokenizer_config.json",
        R"({"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>",
            "pad_token": null, "unk_token": 5, "secret": "x"})");
  Write("chat_template.jinja",
        "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}{{ unk_token is defined }}"
        "{{ secret is defined }}");
  const auto chat = ChatTemplate::Load(dir_);
  ASSERT_TRUE(chat.ok()) << chat.status().ToString();
  const auto prompt = chat->Render({.messages = "[]"});
  ASSERT_TRUE(prompt.ok());
  EXPECT_THAT(*prompt, ElementsAre(Segment{"<s></s>", true}, Segment{"FalseFalseFalse", false}));
}

TEST_F(ChatTemplateLoad, NamedTemplatesAreChosenByTheRequest) {
  Write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "plain"},
                              {"name": "tool_use", "template": "tools {{ tools | length }}"},
                              {"name": "rag", "template": "{% nonsense %}"}]})");
  EXPECT_EQ(Loaded(), "plain");
  EXPECT_EQ(Loaded("[]"), "plain");
  EXPECT_EQ(Loaded(R"([{"name": "f"}])"), "tools 1");
}

TEST_F(ChatTemplateLoad, SaysWhatIsWrong) {
  EXPECT_THAT(Loaded(), HasSubstr("NOT_FOUND: the model has no chat template"));
  Write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "x"}]})");
  EXPECT_THAT(Loaded(), HasSubstr("BAD_CHECKPOINT: no usable chat template"));
  Write("tokenizer_config.json", R"({"chat_template": )");
  EXPECT_THAT(Loaded(), HasSubstr("BAD_CHECKPOINT: the file is not a JSON object"));
  Write("tokenizer_config.json", "[]");
  EXPECT_THAT(Loaded(), HasSubstr("BAD_CHECKPOINT: the file is not a JSON object"));
  Write("tokenizer_config.json", "{}");
  Write("chat_template.jinja", "a\n{% if %}");
  EXPECT_THAT(Loaded(), HasSubstr("BAD_CHECKPOINT: syntax error (" + dir_.string() +
                                  ", chat_template.jinja, template line 2)"));
}

TEST(ChatTemplate, VariablesOfARequest) {
  const auto chat = ChatTemplate::Parse(
      "{{ add_generation_prompt }},{{ tools is none }},{{ documents is none }},"
      "{{ enable_thinking is defined }},{{ enable_thinking }},{{ bos_token }}",
      {{"bos_token", "<s>"}});
  ASSERT_TRUE(chat.ok());
  const auto render = [&chat](const ChatRequest& request) {
    const auto prompt = chat->Render(request);
    return prompt.ok() ? PlainText(*prompt) : prompt.status().message();
  };
  EXPECT_EQ(render({.messages = "[]"}), "True,True,True,False,,<s>");
  EXPECT_EQ(render({.messages = "[]", .tools = "[1]", .add_generation_prompt = false}),
            "False,False,True,False,,<s>");
  EXPECT_EQ(render({.messages = "[]", .extra = R"({"enable_thinking": false})"}),
            "True,True,True,True,False,<s>");
  EXPECT_EQ(render({.messages = "[]", .extra = R"({"add_generation_prompt": false})"}),
            "False,True,True,False,,<s>");
}

TEST(ChatTemplate, AVariableOfTheRequestIsNeverTrusted) {
  const auto chat = ChatTemplate::Parse("{{ bos_token }}", {{"bos_token", "<s>"}});
  ASSERT_TRUE(chat.ok());
  EXPECT_THAT(*chat->Render({.messages = "[]"}), ElementsAre(Segment{"<s>", true}));
  EXPECT_THAT(*chat->Render({.messages = "[]", .extra = R"({"bos_token": "<s>"})"}),
              ElementsAre(Segment{"<s>", false}));
}

TEST(ChatTemplate, RefusesRequestsOfAnotherShape) {
  const auto chat = ChatTemplate::Parse("{{ messages | length }}");
  ASSERT_TRUE(chat.ok());
  const auto error = [&chat](const ChatRequest& request) {
    const auto prompt = chat->Render(request);
    EXPECT_EQ(prompt.status().code(), StatusCode::kInvalidArgument);
    return prompt.status().message();
  };
  EXPECT_THAT(error({.messages = ""}), HasSubstr("not valid JSON (messages)"));
  EXPECT_THAT(error({.messages = "{}"}), HasSubstr("wrong type (messages): expected an array"));
  EXPECT_THAT(error({.messages = "[]", .tools = "{}"}), HasSubstr("(tools): expected an array"));
  EXPECT_THAT(error({.messages = "[]", .extra = "[]"}),
              HasSubstr("(chat_template_kwargs): expected an object"));
  EXPECT_THAT(error({.messages = "[]", .extra = R"({"messages": []})"}),
              HasSubstr("cannot set 'messages'"));
}

TEST(ChatTemplate, TheTemplatesOwnRefusalIsTheMessage) {
  const auto chat = ChatTemplate::Parse("\n{{ raise_exception('system goes first') }}");
  ASSERT_TRUE(chat.ok());
  EXPECT_EQ(chat->Render({.messages = "[]"}).status().message(),
            "system goes first (chat template, template line 2)");
}

Result<ChatTemplate> LoadTinyModel() {
  return ChatTemplate::Load(std::filesystem::path(SIGNALBOX_SOURCE_DIR) /
                            "models/tiny-qwen3.5-moe-mxfp4");
}

TEST(ChatTemplate, TheBundledModel) {
  const auto chat = LoadTinyModel();
  ASSERT_TRUE(chat.ok()) << chat.status().ToString();
  const auto prompt = chat->Render({.messages = std::string(kHi)});
  ASSERT_TRUE(prompt.ok()) << prompt.status().ToString();
  EXPECT_THAT(*prompt, ElementsAre(Segment{"<|im_start|>user\n", true}, Segment{"hi", false},
                                   Segment{"<|im_end|>\n<|im_start|>assistant\n<think>\n", true}));
}

// A user who types turn markers gets characters: the trusted part is that of any other text.
RC_GTEST_PROP(ChatTemplate, ForgedTurnsChangeNothingTrusted, ()) {
  const auto chat = LoadTinyModel();
  RC_ASSERT(chat.ok());
  const auto trusted_part = [&chat](const std::vector<std::string>& texts) {
    std::string messages = "[";
    for (size_t i = 0; i < texts.size(); ++i) {
      messages += std::string(i > 0 ? "," : "") + R"({"role":")" +
                  (i % 2 == 0 ? "user" : "assistant") + R"(","content":")" + texts[i] + "\"}";
    }
    const auto prompt = chat->Render({.messages = messages + "]"});
    RC_ASSERT(prompt.ok());
    std::string trusted;
    for (const Segment& segment : *prompt) trusted += segment.trusted ? segment.text : "";
    return trusted;
  };
  const auto marker = rc::gen::element<std::string>("<|im_end|>", "<|im_start|>", "system\\n", "x",
                                                    "</think>", "<tool_call>", " ");
  const auto forged = *rc::gen::container<std::vector<std::string>>(
      rc::gen::map(rc::gen::container<std::vector<std::string>>(marker),
                   [](const std::vector<std::string>& parts) {
                     std::string text;
                     for (const std::string& part : parts) text += part;
                     return text;
                   }));
  RC_ASSERT(trusted_part(forged) == trusted_part(std::vector<std::string>(forged.size(), "x")));
}

}  // namespace
}  // namespace signalbox::chat_template_test
