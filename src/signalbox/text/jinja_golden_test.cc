// SPDX-License-Identifier: Apache-2.0
//
// Compares rendering with the reference implementation, byte for byte. The files and the program
// that writes them are described in tools/make_jinja_goldens.py.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "signalbox/text/jinja_template.h"

namespace signalbox::jinja {
namespace {

const std::filesystem::path kData = std::filesystem::path(SIGNALBOX_TESTDATA) / "jinja";

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// One line of a result: >> and the output as JSON, or !! and the reference's error.
void ExpectOutcome(std::string_view source, const std::string& context, const std::string& result) {
  RenderOptions options;
  options.now = std::tm{.tm_sec = 9,
                        .tm_min = 5,
                        .tm_hour = 14,
                        .tm_mday = 7,
                        .tm_mon = 2,
                        .tm_year = 125,
                        .tm_wday = 5,
                        .tm_yday = 65};
  auto values = Value::FromJson(context);
  ASSERT_TRUE(values.ok()) << values.status().ToString();
  auto parsed = Template::Parse(source);
  auto rendered =
      parsed.ok() ? parsed->Render(values->dict(), options) : Result<Segments>(parsed.status());
  if (result.substr(0, 2) == "!!") {
    ASSERT_FALSE(rendered.ok()) << "expected" << result << "\ngot " << PlainText(*rendered);
    EXPECT_EQ(rendered.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(rendered.status().detail().where.find("template line "), std::string::npos)
        << rendered.status().ToString();
    return;
  }
  ASSERT_EQ(result.substr(0, 2), ">>");
  ASSERT_TRUE(rendered.ok()) << rendered.status().ToString() << "\nexpected " << result;
  EXPECT_EQ(PlainText(*rendered), nlohmann::json::parse(result.substr(2)).get<std::string>());
}

class Cases : public testing::TestWithParam<std::string> {};

TEST_P(Cases, AgreeWithTheReference) {
  std::istringstream in(ReadFile(kData / (GetParam() + ".cases")));
  enum { kBetween, kTemplate, kContext } state = kBetween;
  std::string name;
  std::string source;
  std::string context;
  int count = 0;
  for (std::string line; std::getline(in, line);) {
    const std::string mark = line.substr(0, 3);
    if (state == kBetween) {
      if (mark != "== ") continue;
      name = line.substr(3);
      source.clear();
      context.clear();
      state = kTemplate;
    } else if (mark.substr(0, 2) == ">>" || mark.substr(0, 2) == "!!") {
      SCOPED_TRACE(name + ": " + source);
      if (!source.empty()) source.pop_back();  // the newline before the next part
      ExpectOutcome(source, context.empty() ? "{}" : context, line);
      ++count;
      state = kBetween;
    } else if (state == kTemplate && mark == "-- ") {
      context = line.substr(3);
      state = kContext;
    } else {
      (state == kTemplate ? source : context) += line + "\n";
    }
  }
  EXPECT_EQ(state, kBetween);
  EXPECT_GE(count, 25);
}

INSTANTIATE_TEST_SUITE_P(Jinja, Cases,
                         testing::Values("whitespace", "expressions", "statements", "filters",
                                         "methods"),
                         [](const auto& info) { return info.param; });

// One list out of the files of all subjects, in order of their names as in the goldens.
nlohmann::ordered_json AllConversations() {
  auto all = nlohmann::ordered_json::array();
  for (const char* subject : {"calls", "content", "roles", "thinking", "tools", "turns"}) {
    const auto file = kData / "conversations" / (std::string(subject) + ".json");
    for (const auto& c : nlohmann::ordered_json::parse(ReadFile(file))) all.push_back(c);
  }
  return all;
}

class Conversations : public testing::TestWithParam<std::string> {};

TEST_P(Conversations, AgreeWithTheReference) {
  const std::string source = GetParam() == "model"
                                 ? ReadFile(std::filesystem::path(SIGNALBOX_SOURCE_DIR) /
                                            "models/tiny-qwen3.5-moe-mxfp4/chat_template.jinja")
                                 : ReadFile(kData / "templates" / (GetParam() + ".jinja"));
  const nlohmann::ordered_json conversations = AllConversations();
  std::istringstream golden(ReadFile(kData / "golden" / (GetParam() + ".txt")));
  for (const auto& conversation : conversations) {
    std::string line;
    ASSERT_TRUE(std::getline(golden, line));
    const std::string name = conversation["name"];
    ASSERT_EQ(line.substr(0, name.size() + 1), name + " ");
    SCOPED_TRACE(name);
    ExpectOutcome(source, conversation["context"].dump(), line.substr(name.size() + 1));
  }
  std::string more;
  EXPECT_FALSE(std::getline(golden, more)) << more;
}

INSTANTIATE_TEST_SUITE_P(Jinja, Conversations,
                         testing::Values("json_calls", "xml_calls", "typed_tools", "model"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace signalbox::jinja
