// SPDX-License-Identifier: Apache-2.0
//
// Progress: one line on stderr about a long piece of work. On a terminal the line is rewritten in
// place; elsewhere a line is printed at each tenth of the work, but not more often than every 2 s
// (short work prints nothing) and not less often than every minute. Colour follows NO_COLOR
// (https://no-color.org). Not thread-safe.
//
//   Progress progress({.label = "eval", .total = 600});
//   progress.Update(done, "accuracy 0.993");
//   // eval  [############------------]  52 %  312 / 600  accuracy 0.993  14 s left
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
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
    std::optional<bool> terminal = {};  // whether stream is one; the system is asked by default
    std::function<Clock::time_point()> now = Clock::now;
  };

  explicit Progress(Options options);
  ~Progress() { Finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `done` out of total so far; `note` is shown behind it. Cheap: prints at most ten times a
  // second.
  void Update(int64_t done, std::string_view note = {});
  // Shows the last state and ends the line. Later updates print nothing.
  void Finish();

 private:
  std::string Amount() const;
  void Rewrite();
  void PrintLine();

  Options options_;
  bool terminal_ = false;
  bool color_ = false;
  bool finished_ = false;
  bool printed_ = false;
  int64_t done_ = 0;
  std::string note_;
  int64_t printed_tenth_ = 0;
  Clock::time_point start_;
  Clock::time_point last_print_;
};

}  // namespace signalbox
