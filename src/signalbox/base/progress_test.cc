// SPDX-License-Identifier: Apache-2.0
#include "signalbox/base/progress.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>

namespace signalbox {
namespace {

// Runs a Progress of `total` on a clock that the test moves; gives back what it printed.
class ProgressTest : public testing::Test {
 protected:
  Progress::Options Options(int64_t total, bool terminal) {
    return {.label = "eval",
            .total = total,
            .stream = file_.get(),
            .terminal = terminal,
            .now = [this] { return now_; }};
  }

  std::string Printed() {
    std::fflush(file_.get());
    std::rewind(file_.get());
    std::string text;
    for (int c = std::fgetc(file_.get()); c != EOF; c = std::fgetc(file_.get())) {
      text += static_cast<char>(c);
    }
    return text;
  }

  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{std::tmpfile(), &std::fclose};
  Progress::Clock::time_point now_{std::chrono::hours(1)};
};

TEST_F(ProgressTest, PlainStreamGetsALinePerTenth) {
  Progress progress(Options(100, false));
  for (int i = 1; i <= 20; ++i) {
    now_ += std::chrono::seconds(3);
    progress.Update(i, "accuracy 1.000");
  }
  progress.Finish();
  EXPECT_EQ(Printed(),
            "eval:  10 %  10 / 100  accuracy 1.000  4 min left\n"
            "eval:  20 %  20 / 100  accuracy 1.000  4 min left\n");
}

TEST_F(ProgressTest, PlainStreamIsSilentAboutShortWork) {
  Progress progress(Options(100, false));
  for (int i = 1; i <= 100; ++i) progress.Update(i);
  progress.Finish();
  EXPECT_EQ(Printed(), "");
}

TEST_F(ProgressTest, PlainStreamShowsLifeEveryMinute) {
  Progress progress(Options(1'000'000, false));
  for (int i = 1; i <= 13; ++i) {
    now_ += std::chrono::seconds(10);
    progress.Update(i);
  }
  EXPECT_EQ(Printed(),
            "eval:   0 %  6 / 1000000  2777.8 h left\n"
            "eval:   0 %  12 / 1000000  2777.7 h left\n");
}

TEST_F(ProgressTest, TerminalLineIsRewrittenAndEndedOnce) {
  ::setenv("NO_COLOR", "1", 1);
  {
    Progress progress(Options(4, true));
    progress.Update(1);
    progress.Update(2);  // too soon to be shown
    now_ += std::chrono::milliseconds(500);
    progress.Update(3, "ok");
    progress.Update(4, "ok");
    progress.Finish();
    progress.Update(4);
  }
  ::unsetenv("NO_COLOR");
  EXPECT_EQ(Printed(),
            "\reval  [######------------------]   25 %  1 / 4\x1b[K"
            "\reval  [##################------]   75 %  3 / 4  ok\x1b[K"
            "\reval  [########################]  100 %  4 / 4  ok\x1b[K\n");
}

TEST_F(ProgressTest, ColourIsTheBarOnly) {
  ::unsetenv("NO_COLOR");
  Progress progress(Options(2, true));
  progress.Update(1);
  EXPECT_EQ(Printed(), "\reval  [\x1b[32m############\x1b[0m------------]   50 %  1 / 2\x1b[K");
}

TEST_F(ProgressTest, QuietAndUnknownTotals) {
  Progress::Options options = Options(10, true);
  options.quiet = true;
  Progress quiet(options);
  quiet.Update(5);
  quiet.Finish();
  EXPECT_EQ(Printed(), "");
  options = Options(0, true);
  options.unit = Progress::Unit::kBytes;
  Progress unknown(options);
  unknown.Update(2048);
  EXPECT_EQ(Printed(), "\reval  2.0 KiB\x1b[K");
}

}  // namespace
}  // namespace signalbox
