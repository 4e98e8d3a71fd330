// SPDX-License-Identifier: Apache-2.0
#include "signalbox/base/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "signalbox/base/text_util.h"

namespace signalbox {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kBarWidth = 24;

bool EnvIs(const char* name, std::string_view value) {
  const char* found = std::getenv(name);
  return found != nullptr && found == value;
}

int TerminalWidth(std::FILE* stream) {
  winsize size = {};
  if (::ioctl(::fileno(stream), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

std::string Remaining(double secs) {
  if (secs < 90) return fmt::format("{:.0f} s left", secs);
  if (secs < 5400) return fmt::format("{:.0f} min left", secs / 60);
  return fmt::format("{:.1f} h left", secs / 3600);
}

}  // namespace

Progress::Progress(Options options) : options_(std::move(options)) {
  terminal_ = options_.terminal.value_or(::isatty(::fileno(options_.stream)) == 1 &&
                                         !EnvIs("TERM", "dumb"));
  const char* no_color = std::getenv("NO_COLOR");
  color_ = terminal_ && (no_color == nullptr || *no_color == '\0');
  start_ = last_print_ = options_.now();
}

void Progress::Update(int64_t done, std::string_view note) {
  if (options_.quiet || finished_) return;
  done_ = done;
  note_ = note;
  const auto since = options_.now() - last_print_;
  if (terminal_) {
    if (!printed_ || since >= milliseconds(100)) Rewrite();
    return;
  }
  const int64_t tenth = options_.total > 0 ? done * 10 / options_.total : 0;
  if ((tenth > printed_tenth_ && since >= seconds(2)) || since >= seconds(60)) {
    printed_tenth_ = tenth;
    PrintLine();
  }
}

void Progress::Finish() {
  if (finished_) return;
  if (terminal_ && printed_) {
    Rewrite();
    std::fputc('\n', options_.stream);
    std::fflush(options_.stream);
  }
  finished_ = true;
}

// "  52 %  312 / 600  accuracy 0.993  14 s left", without what is not known.
std::string Progress::Amount() const {
  const auto show = [this](int64_t n) {
    return options_.unit == Unit::kBytes ? HumanBytes(n) : fmt::format("{}", n);
  };
  std::string out;
  if (options_.total > 0) {
    out = fmt::format("{:3} %  {} / {}", 100 * done_ / options_.total, show(done_),
                      show(options_.total));
  } else {
    out = show(done_);
  }
  if (!note_.empty()) out += "  " + note_;
  const double spent = duration<double>(options_.now() - start_).count();
  if (done_ > 0 && done_ < options_.total && spent >= 1) {
    out += "  " + Remaining(spent * static_cast<double>(options_.total - done_) /
                            static_cast<double>(done_));
  }
  return out;
}

void Progress::Rewrite() {
  printed_ = true;
  last_print_ = options_.now();
  const std::string amount = Amount();
  // A line that wraps could not be rewritten: first the bar gives way, then the text is cut.
  const int room = TerminalWidth(options_.stream) - 1;
  const int text = static_cast<int>(options_.label.size() + amount.size()) + 2;
  const int width = std::min(kBarWidth, room - text - 4);
  std::string line;
  if (options_.total > 0 && width >= 8) {
    const auto full = std::clamp<int64_t>(done_ * width / options_.total, 0, width);
    line = fmt::format("{}  [{}{:#<{}}{}{:-<{}}]  {}", options_.label, color_ ? "\x1b[32m" : "", "",
                       full, color_ ? "\x1b[0m" : "", "", width - full, amount);
  } else {
    line = fmt::format("{}  {}", options_.label, amount).substr(0, std::max(room, 0));
  }
  fmt::print(options_.stream, "\r{}\x1b[K", line);
  std::fflush(options_.stream);
}

void Progress::PrintLine() {
  printed_ = true;
  last_print_ = options_.now();
  fmt::print(options_.stream, "{}: {}\n", options_.label, Amount());
  std::fflush(options_.stream);
}

}  // namespace signalbox
