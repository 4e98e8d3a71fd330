// SPDX-License-Identifier: Apache-2.0
#include "signalbox/server/auth.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace signalbox::auth_test {
namespace {

int StatusOf(const AuthOptions& options, Access access, const HttpRequest& request) {
  const auto error = Authorize(options, access, request);
  return error ? error->status : 200;
}

HttpRequest With(const std::string& name, const std::string& value, bool loopback = false) {
  return {.headers = {{name, value}}, .loopback = loopback};
}

TEST(Auth, WithoutKeysAUserNeedsNoneAndAnAdminIsLocal) {
  const AuthOptions open;
  // Whatever key a client sends by default does no harm.
  for (const char* key : {"Bearer ", "Bearer x", "x", ""})
    EXPECT_EQ(StatusOf(open, Access::kUser, With("Authorization", key)), 200);
  EXPECT_EQ(StatusOf(open, Access::kAdmin, {.loopback = true}), 200);
  EXPECT_EQ(StatusOf(open, Access::kAdmin, {.loopback = false}), 403);
  EXPECT_EQ(StatusOf(open, Access::kAdmin, With("X-Forwarded-For", "192.0.2.1", true)), 403);
  EXPECT_EQ(StatusOf(open, Access::kAdmin, With("Origin", "http://elsewhere", true)), 403);
}

TEST(Auth, KeysAreTakenBareOrAsBearerAndEveryOneOfThemFits) {
  const AuthOptions options{.api_keys = {"one", "two"}};
  for (const auto& [name, value] :
       std::vector<std::pair<std::string, std::string>>{{"Authorization", "Bearer one"},
                                                        {"authorization", "bearer  two "},
                                                        {"Authorization", "two"},
                                                        {"x-api-key", "one"}}) {
    EXPECT_EQ(StatusOf(options, Access::kUser, With(name, value)), 200) << value;
  }
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer on", "Bearer onee", "Bearer ONE"})
    EXPECT_EQ(StatusOf(options, Access::kUser, With("Authorization", wrong)), 401) << wrong;
  EXPECT_EQ(StatusOf(options, Access::kOpen, {}), 200);
  EXPECT_EQ(StatusOf(options, Access::kScrape, {}), 401);
  EXPECT_EQ(StatusOf({.api_keys = {"one"}, .open_metrics = true}, Access::kScrape, {}), 200);
  // Local programs need the key as well.
  EXPECT_EQ(StatusOf(options, Access::kAdmin, {.loopback = true}), 401);
  EXPECT_EQ(StatusOf(options, Access::kAdmin, With("Authorization", "one", true)), 200);
  EXPECT_EQ(StatusOf(options, Access::kAdmin, With("Authorization", "one", false)), 403);
}

TEST(Auth, TheAdminsKeyOpensEverythingAndAUsersDoesNot) {
  const AuthOptions options{.api_keys = {"user"}, .admin_key = "admin"};
  EXPECT_EQ(StatusOf(options, Access::kUser, With("Authorization", "Bearer admin")), 200);
  EXPECT_EQ(StatusOf(options, Access::kAdmin, With("Authorization", "Bearer admin")), 200);
  EXPECT_EQ(StatusOf(options, Access::kAdmin, With("Authorization", "Bearer user", true)), 403);
  EXPECT_EQ(StatusOf(options, Access::kAdmin, {.loopback = true}), 401);
  // With the admin's key alone, users need none.
  EXPECT_EQ(StatusOf({.admin_key = "admin"}, Access::kUser, {}), 200);
  EXPECT_EQ(StatusOf({.admin_key = "admin"}, Access::kAdmin, {.loopback = true}), 401);
}

RC_GTEST_PROP(Auth, SecretsAreComparedWhole, (const std::string& a, const std::string& b)) {
  RC_ASSERT(SameSecret(a, b) == (a == b));
  RC_ASSERT(SameSecret(a, a));
  RC_ASSERT(!SameSecret(a + a, a) || a.empty());
}

}  // namespace
}  // namespace signalbox::auth_test
