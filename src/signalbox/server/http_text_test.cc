// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/http_text.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace signalbox::http_text_test {
namespace {

TEST(HttpText, TargetsOfAnyFormGiveAPathAndAQuery) {
  struct Case {
    std::string target, path, query;
  };
  for (const Case& c : std::vector<Case>{{"/", "/", ""},
                                         {"/v1/models", "/v1/models", ""},
                                         {"/load?window=60&x=", "/load", "window=60&x="},
                                         {"/a%2Fb%20c?q=%41", "/a/b c", "q=%41"},
                                         {"/a?b?c", "/a", "b?c"},
                                         {"http://host:1/x?y", "/x", "y"},
                                         {"http://host", "/", ""},
                                         {"http://host?y", "/", "y"},
                                         {"*", "*", ""}}) {
    const auto target = ParseTarget(c.target);
    ASSERT_TRUE(target) << c.target;
    EXPECT_EQ(target->path, c.path) << c.target;
    EXPECT_EQ(target->query, c.query) << c.target;
  }
  for (const char* bad : {"", "v1/models", "/%", "/%4", "/%zz", "/a%4g"})
    EXPECT_FALSE(ParseTarget(bad)) << bad;
}

TEST(HttpText, QueriesAreReadByKey) {
  const std::string query = "a=1&b=two+words&c=%26%3D&d&=e&a=2&f=100%";
  EXPECT_EQ(QueryValue(query, "a"), "1");
  EXPECT_EQ(QueryValue(query, "b"), "two words");
  EXPECT_EQ(QueryValue(query, "c"), "&=");
  EXPECT_EQ(QueryValue(query, "d"), "");
  EXPECT_EQ(QueryValue(query, "f"), "100%");
  EXPECT_EQ(QueryValue(query, "missing"), "");
}

TEST(HttpText, UrlsOfServers) {
  struct Case {
    std::string url, host, port, prefix, authority;
  };
  for (const Case& c :
       std::vector<Case>{{"http://127.0.0.1:30000", "127.0.0.1", "30000", "", "127.0.0.1:30000"},
                         {"http://host/", "host", "80", "", "host:80"},
                         {"http://[::1]:8080/api/v2//", "::1", "8080", "/api/v2", "[::1]:8080"},
                         {"http://[::1]", "::1", "80", "", "[::1]:80"}}) {
    const auto url = ParseUrl(c.url);
    ASSERT_TRUE(url.ok()) << url.status().ToString();
    EXPECT_EQ(url->host, c.host) << c.url;
    EXPECT_EQ(url->port, c.port) << c.url;
    EXPECT_EQ(url->prefix, c.prefix) << c.url;
    EXPECT_EQ(url->Authority(), c.authority) << c.url;
  }
  EXPECT_EQ(ParseUrl("unix:/run/x.sock")->unix_socket, "/run/x.sock");
  for (const char* bad :
       {"", "127.0.0.1:30000", "https://host", "http://", "http://:80", "http://host:0",
        "http://host:65536", "http://host:8x", "http://[::1", "http://[::1]x", "http://ho st",
        "http://h\r\nX: y", "http://h/?q", "unix:"}) {
    EXPECT_EQ(ParseUrl(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

RC_GTEST_PROP(HttpText, DecodingUndoesEncoding, (const std::string& text)) {
  std::string encoded;
  for (const char c : text) {
    constexpr std::string_view kHex = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    encoded += '%';
    encoded += kHex[byte / 16];
    encoded += kHex[byte % 16];
  }
  RC_ASSERT(PercentDecode(encoded) == text);
  RC_ASSERT(QueryValue("k=" + encoded, "k") == text);
}

}  // namespace
}  // namespace signalbox::http_text_test
