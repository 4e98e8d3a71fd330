// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace signalbox::page_test {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

TEST(Page, IsOneSmallDocument) {
  const std::string& html = PageHtml();
  EXPECT_THAT(html, StartsWith("<!doctype html>"));
  EXPECT_THAT(html, EndsWith("</html>\n"));
  EXPECT_THAT(html, Not(HasSubstr("@STYLE@")));
  EXPECT_THAT(html, Not(HasSubstr("@SCRIPT@")));
  EXPECT_LT(html.size(), 60'000u);
}

// Without a network there is nobody else to ask.
TEST(Page, NamesNoOtherServer) {
  std::string html = PageHtml();
  const std::string names[] = {"'http://www.w3.org/2000/svg'", "\"http://www.w3.org/2000/svg\""};
  for (const std::string& name : names) {
    for (size_t at; (at = html.find(name)) != std::string::npos;) html.erase(at, name.size());
  }
  EXPECT_THAT(html, Not(HasSubstr("://")));
}

// 32 bytes are 43 digits of base64 and one sign of padding. That they fit is for a browser to say:
// scripts/e2e/page.sh.
TEST(Page, PolicyAllowsItsOwnPartsByHash) {
  EXPECT_THAT(PagePolicy(),
              MatchesRegex("default-src 'none'; script-src 'sha256-[A-Za-z0-9+/]{43}='; "
                           "style-src 'sha256-[A-Za-z0-9+/]{43}='; .*"));
  EXPECT_THAT(PagePolicy(), Not(HasSubstr("unsafe")));
}

}  // namespace
}  // namespace signalbox::page_test
