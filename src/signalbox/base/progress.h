// SPDX-License-Identifier: Apache-2.0
//
// Progress: one line on stderr about a long piece of work. On a terminal the line is rewritten in
// place; elsewhere a line is printed at every tenth of the work, or every 10 s, whichever is rarer.
// Not thread-safe.
//
//   Progress progress({.label = "loading", .total = bytes, .unit = Progress::Unit::kBytes});
//   progress.Update(done);            // "loading  [#####-----]  52 %  7.4 / 14.9 MiB  3 s left"
//   progress.Finish();                // "loaded 14.9 MiB in 6.1 s": the caller's own words go
//   after
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>

namespace signalbox {

class Progress {
 public:
  enum class Unit { kCount, kBytes };
  using Clock = std::chrono::steady_clock;

  struct Options {
    std::string label;
    int64_t total = 0;
    Unit unit = Unit::kCount;
    bool quiet = false;  // print nothing at all
    std::FILE* stream = stderr;
    std::function<Clock::time_point()> now = Clock::now;
  };

  explicit Progress(Options options);
  ~Progress() { Finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `done` so far, out of total; `note` is shown behind ("accuracy 0.993"). Cheap: prints at most
  // ten times a second.
  void Update(int64_t done, std::string_view note = {});
  // Ends the line. Further updates print nothing.
  void Finish();

 private:
  std::string Line(int64_t done, std::string_view note, Clock::time_point now) const;

  Options options_;
  bool terminal_ = false;
  bool color_ = false;
  bool line_open_ = false;  // a rewritten line is on the terminal, without its newline
  int64_t last_tenth_ = -1;
  Clock::time_point start_;
  Clock::time_point last_print_;
};

}  // namespace signalbox
