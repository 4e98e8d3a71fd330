// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/pretokenizer.h"

#include <fmt/core.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "signalbox/base/check.h"
#include "signalbox/base/text_util.h"

namespace signalbox {
namespace {

constexpr size_t kMaxPatternBytes = 4096;

// A pattern is compiled twice. The plain code runs first, on a window of the text and with few
// backtracks: a constant amount of work. An attempt that needs more text or more backtracks is made
// anew with the metered code, which calls us before each item of the pattern; the way the position
// has gone since the last call is the work done. Of that there is kWorkPerByte for a whole text.
// Released patterns use about 5 a byte and need the metered code for few pieces.
constexpr size_t kWindow = 128;
constexpr uint32_t kWindowBacktracks = 64;
constexpr size_t kWorkPerByte = 64;
constexpr uint32_t kInterpreterHeapKib = 64 * 1024;

// PCRE2's \s has U+180E, which is no White_Space since Unicode 6.3 and none for Oniguruma.
constexpr std::string_view kWhiteSpace =
    R"(\t-\r\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

constexpr const char* kRemedy = "use the tokenizer.json the model was released with";

Status BadPattern(std::string_view what, size_t offset, std::string_view pattern) {
  return BadCheckpoint({.what = fmt::format("the pre-tokenizer's pattern {}", what),
                        .where = fmt::format("pattern offset {}", offset),
                        .found = Quoted(pattern),
                        .remedy = kRemedy});
}

// The pattern in PCRE2's dialect.
Result<std::string> Translate(std::string_view pattern) {
  std::string out;
  size_t class_begin = std::string_view::npos;  // offset of the first member of an open class
  for (size_t i = 0; i < pattern.size(); ++i) {
    const bool in_class = class_begin != std::string_view::npos;
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      if (escaped == 'h' || escaped == 'H' || escaped == 'K') {
        return BadPattern("has \\h or \\K, which are not supported", i, pattern);
      }
      if (escaped == 's' && in_class) {
        out += kWhiteSpace;
      } else if (escaped == 's') {
        (out += '[').append(kWhiteSpace) += ']';
      } else if (escaped == 'S' && !in_class) {
        (out += "[^").append(kWhiteSpace) += ']';
      } else {
        (out += c) += escaped;
      }
      continue;
    }
    if (!in_class && c == '[') {
      class_begin = i + (pattern.substr(i, 2) == "[^" ? 2 : 1);
      out.append(pattern.substr(i, class_begin - i));
      i = class_begin - 1;
      continue;
    }
    if (in_class && ((c == '[' && pattern.substr(i, 2) != "[:") || pattern.substr(i, 2) == "&&")) {
      return BadPattern("has a nested character class or an intersection, which is not supported",
                        i, pattern);
    }
    if (in_class && c == '[') {  // a POSIX class such as [:alpha:]
      const size_t close = pattern.find(":]", i + 2);
      if (close == std::string_view::npos) return BadPattern("does not compile", i, pattern);
      out.append(pattern.substr(i, close + 2 - i));
      i = close + 1;
      continue;
    }
    if (in_class && c == ']' && i != class_begin) class_begin = std::string_view::npos;
    out += c;
  }
  return out;
}

struct CompileContextDeleter {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};
struct MatchContextDeleter {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

bool IsCharacterStart(char byte) {
  return (static_cast<uint8_t>(byte) & 0xC0) != 0x80;
}

size_t NextCharacter(std::string_view text, size_t offset) {
  do {
    ++offset;
  } while (offset < text.size() && !IsCharacterStart(text[offset]));
  return offset;
}

// Work done by the metered code on one text.
struct Meter {
  size_t budget;
  size_t position = 0;

  static int OnCallout(pcre2_callout_block* block, void* data) {
    Meter& meter = *static_cast<Meter*>(data);
    const size_t now = block->current_position;
    const size_t work = 1 + (now > meter.position ? now - meter.position : meter.position - now);
    meter.position = now;
    if (work > meter.budget) return PCRE2_ERROR_MATCHLIMIT;
    meter.budget -= work;
    return 0;
  }
};

// Matches a pattern at successive places of one text.
class Matcher {
 public:
  Matcher(const pcre2_code* plain, const pcre2_code* metered, std::string_view text)
      : plain_(plain),
        metered_(metered),
        text_(text),
        meter_{.budget = kWorkPerByte * (text.size() + kWindow)},
        context_(pcre2_match_context_create(nullptr)),
        data_(pcre2_match_data_create(1, nullptr)) {
    SB_CHECK(context_ != nullptr && data_ != nullptr) << "out of memory";
    pcre2_set_heap_limit(context_.get(), kInterpreterHeapKib);
    pcre2_set_callout(context_.get(), &Meter::OnCallout, &meter_);
  }

  // The end of the match that begins at `begin` (which is the end of an empty match), or PCRE2's
  // error as a negative code.
  struct Outcome {
    int code;
    size_t end = 0;
  };
  Outcome MatchAt(size_t begin) {
    int rc = RunPlain(begin);
    if (rc == PCRE2_ERROR_PARTIAL || rc == PCRE2_ERROR_MATCHLIMIT ||
        rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc = RunMetered(begin);
    }
    if (rc < 0) return {rc};
    const size_t* offsets = pcre2_get_ovector_pointer(data_.get());
    if (offsets[0] != begin || offsets[1] < begin) return {PCRE2_ERROR_BADOFFSET};
    return {rc, offsets[1]};
  }

 private:
  int RunPlain(size_t begin) {
    size_t end = std::min(text_.size(), begin + kWindow);
    while (end < text_.size() && !IsCharacterStart(text_[end])) ++end;
    pcre2_set_match_limit(context_.get(), kWindowBacktracks);
    return Run(plain_, begin, end, end < text_.size() ? PCRE2_PARTIAL_HARD : 0);
  }

  int RunMetered(size_t begin) {
    meter_.position = begin;
    pcre2_set_match_limit(context_.get(), UINT32_MAX);
    const int rc = Run(metered_, begin, text_.size(), 0);
    // Machine code has a small stack; the interpreter takes its own from the heap.
    return rc == PCRE2_ERROR_JIT_STACKLIMIT ? Run(metered_, begin, text_.size(), PCRE2_NO_JIT) : rc;
  }

  int Run(const pcre2_code* code, size_t begin, size_t end, uint32_t options) {
    return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text_.data()), end, begin,
                       PCRE2_NO_UTF_CHECK | options, data_.get(), context_.get());
  }

  const pcre2_code* plain_;
  const pcre2_code* metered_;
  std::string_view text_;
  Meter meter_;
  std::unique_ptr<pcre2_match_context, MatchContextDeleter> context_;
  std::unique_ptr<pcre2_match_data, MatchDataDeleter> data_;
};

std::string ErrorMessage(int code) {
  PCRE2_UCHAR message[256];
  pcre2_get_error_message(code, message, sizeof(message));
  return reinterpret_cast<const char*>(message);
}

}  // namespace

void Pretokenizer::CodeDeleter::operator()(pcre2_real_code_8* code) const {
  pcre2_code_free(code);
}

Result<Pretokenizer> Pretokenizer::Compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return BadPattern(fmt::format("is longer than {} bytes", kMaxPatternBytes), 0, pattern);
  }
  SB_ASSIGN_OR_RETURN(const std::string translated, Translate(pattern));
  const std::unique_ptr<pcre2_compile_context, CompileContextDeleter> context(
      pcre2_compile_context_create(nullptr));
  SB_CHECK(context != nullptr) << "out of memory";
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);

  Pretokenizer result;
  result.pattern_ = pattern;
  const struct {
    Code* code;
    uint32_t options;
  } ways[] = {{&result.plain_, 0},
              {&result.metered_, PCRE2_AUTO_CALLOUT | PCRE2_NO_START_OPTIMIZE}};
  for (const auto& [code, options] : ways) {
    int error = 0;
    size_t offset = 0;
    code->reset(
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                      PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C | options,
                      &error, &offset, context.get()));
    if (*code == nullptr) {
      return BadPattern("does not compile: " + ErrorMessage(error), offset, pattern);
    }
    uint32_t back_references = 0;
    pcre2_pattern_info(code->get(), PCRE2_INFO_BACKREFMAX, &back_references);
    if (back_references > 0) {
      return BadPattern("has a back reference, which is not supported", 0, pattern);
    }
    // Where compilation to machine code is not possible, PCRE2 interprets, to the same result.
    (void)pcre2_jit_compile(code->get(), PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
  }
  return result;
}

Status Pretokenizer::Split(std::string_view text, std::vector<std::string_view>& pieces) const {
  Matcher matcher(plain_.get(), metered_.get(), text);
  size_t piece_begin = 0;
  const auto cut = [&](size_t at) {
    if (at > piece_begin) pieces.push_back(text.substr(piece_begin, at - piece_begin));
    piece_begin = at;
  };
  for (size_t at = 0; at < text.size();) {
    const auto [code, end] = matcher.MatchAt(at);
    if (code == PCRE2_ERROR_NOMATCH) {
      at = NextCharacter(text, at);
      continue;
    }
    if (code < 0) {
      return ResourceExhausted({.what = "the pre-tokenizer's pattern takes too long for this text",
                                .where = fmt::format("byte {}", at),
                                .found = Quoted(pattern_) + ": " + ErrorMessage(code),
                                .expected = "a pattern whose time grows with the text alone",
                                .remedy = kRemedy});
    }
    cut(at);
    if (end == at) {  // an empty match parts the text here
      at = NextCharacter(text, at);
      continue;
    }
    cut(end);
    at = end;
  }
  cut(text.size());
  return OkStatus();
}

}  // namespace signalbox
