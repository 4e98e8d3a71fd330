// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/grammar.h"

#include <fmt/format.h>
#include <time.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <exception>
#include <list>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>

namespace signalbox {
namespace {

// What the library says while a thread compiles: the first of its warnings. Each is about something
// that it leaves out, and a text could then be outside the grammar.
thread_local std::optional<std::string> heard;

// How long a thread may go on in the library.
struct Work {
  double until = 0;  // of the thread's processor time, in seconds
  uint64_t steps = 0;
};
thread_local Work* work = nullptr;

struct OutOfTime : std::exception {};

double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

Status TookTooLong() {
  return ResourceExhausted(
      {.what = "the grammar takes too long to follow",
       .expected = fmt::format("{} s, and {} s more for each token", GrammarMatcher::kSeconds,
                               GrammarMatcher::kSecondsPerToken),
       .remedy = "make it less ambiguous: fewer repetitions of what may be "
                 "empty or repeats itself"});
}

// Of the vocabulary, what the library does not see to: it lets the bytes of a surrogate pass
// (U+D800 to U+DFFF, ED A0 80 to ED BF BF), which are no UTF-8. A reader would see three characters
// for the one that was counted, or refuse the text.
struct Tokens {
  explicit Tokens(const Tokenizer& tokenizer, std::vector<TokenId> stops)
      : stop_ids(std::move(stops)), ends_high(tokenizer.vocab_size()) {
    for (size_t i = 0; i < ends_high.size(); ++i) {
      const std::string_view bytes = tokenizer.TokenBytes(static_cast<TokenId>(i));
      if (bytes.empty() || tokenizer.IsAdded(static_cast<TokenId>(i))) continue;
      ends_high[i] = bytes.back() == '\xed';
      if (IsLow(bytes[0])) low.push_back(static_cast<TokenId>(i));
    }
  }

  static bool IsLow(char c) { return c >= '\xa0' && c <= '\xbf'; }
  static bool HasSurrogate(std::string_view bytes) {
    const auto at = std::adjacent_find(bytes.begin(), bytes.end(),
                                       [](char a, char b) { return a == '\xed' && IsLow(b); });
    return at != bytes.end();
  }

  std::vector<TokenId> stop_ids;
  std::vector<bool> ends_high;  // by id: the last byte is ED
  std::vector<TokenId> low;     // the first byte would make a surrogate of it; by id
};

class XGrammarMatcher final : public GrammarMatcher {
 public:
  XGrammarMatcher(const xgrammar::CompiledGrammar& grammar, std::shared_ptr<const Tokens> tokens)
      : matcher_(grammar),
        tokens_(std::move(tokens)),
        words_(static_cast<size_t>(
            xgrammar::GetBitmaskSize(grammar.GetTokenizerInfo().GetVocabSize()))) {}
  XGrammarMatcher(const XGrammarMatcher& other)
      : GrammarMatcher(other),
        matcher_(other.matcher_.Fork()),
        tokens_(other.tokens_),
        after_high_(other.after_high_),
        words_(other.words_),
        seconds_left_(other.seconds_left_),
        spent_(other.spent_) {}

  Status FillMask(std::span<uint32_t> mask) override {
    if (Ended()) {
      std::fill(mask.begin(), mask.end(), 0);
      for (const TokenId id : tokens_->stop_ids) {
        const auto i = static_cast<size_t>(id);
        if (i / 32 < mask.size()) mask[i / 32] |= uint32_t{1} << (i % 32);
      }
      return OkStatus();
    }
    int64_t shape = static_cast<int64_t>(words_.size());
    DLTensor tensor{words_.data(), {kDLCPU, 0}, 1, xgrammar::GetBitmaskDLType(),
                    &shape,        nullptr,     0};
    SB_RETURN_IF_ERROR(Within([&] { matcher_.FillNextTokenBitmask(&tensor); }));
    // Bits past the last token may be set.
    const size_t tail = tokens_->ends_high.size() % 32;
    if (tail != 0) words_.back() &= static_cast<int32_t>((uint32_t{1} << tail) - 1);
    const size_t count = std::min(mask.size(), words_.size());
    std::copy_n(words_.begin(), count, mask.begin());
    std::fill(mask.begin() + static_cast<int64_t>(count), mask.end(), 0);
    if (!after_high_) return OkStatus();
    for (const TokenId id : tokens_->low) {
      const auto i = static_cast<size_t>(id);
      if (i / 32 < mask.size()) mask[i / 32] &= ~(uint32_t{1} << (i % 32));
    }
    return OkStatus();
  }

  Status Accept(TokenId id) override {
    bool accepted = false;
    if (Ended()) {
      const std::vector<TokenId>& stops = tokens_->stop_ids;
      accepted = std::find(stops.begin(), stops.end(), id) != stops.end();
    } else if (!after_high_ || !std::binary_search(tokens_->low.begin(), tokens_->low.end(), id)) {
      SB_RETURN_IF_ERROR(Within([&] { accepted = matcher_.AcceptToken(id); }));
    }
    if (!accepted) {
      return InvalidArgument(
          {.what = "token outside the grammar", .found = fmt::format("token {}", id)});
    }
    after_high_ = tokens_->ends_high[static_cast<size_t>(id)];
    seconds_left_ = std::min(kSeconds, seconds_left_ + kSecondsPerToken);
    return OkStatus();
  }

  bool CanEnd() const override { return !spent_ && (Ended() || matcher_.IsCompleted()); }
  bool Ended() const override { return matcher_.IsTerminated(); }
  void Reset() override {
    matcher_.Reset();
    after_high_ = false;
    seconds_left_ = kSeconds;
    spent_ = false;
  }
  std::unique_ptr<GrammarMatcher> Fork() const override {
    return std::make_unique<XGrammarMatcher>(*this);
  }

 private:
  // Once out of time, the library's state is not to be relied on.
  template <typename Call>
  Status Within(Call call) {
    if (spent_) return TookTooLong();
    const double start = ThreadSeconds();
    Work budget{.until = start + seconds_left_};
    work = &budget;
    Status status;
    try {
      call();
    } catch (const OutOfTime&) {
      status = TookTooLong();
    } catch (const std::bad_alloc&) {
      status = ResourceExhausted({.what = "no memory to follow the grammar"});
    } catch (const std::exception& e) {
      status = Internal({.what = "the grammar cannot be followed", .found = e.what()});
    }
    work = nullptr;
    seconds_left_ -= ThreadSeconds() - start;
    spent_ = !status.ok();
    return status;
  }

  xgrammar::GrammarMatcher matcher_;
  std::shared_ptr<const Tokens> tokens_;
  bool after_high_ = false;  // the text ends in ED
  std::vector<int32_t> words_;
  double seconds_left_ = kSeconds;
  bool spent_ = false;
};

// An added token has a first byte here that no text has: only a grammar that names it by its id
// (kCalls) lets it come. A token with a surrogate has no bytes: the library takes it for special
// and never lets it come.
xgrammar::TokenizerInfo VocabularyOf(const Tokenizer& tokenizer,
                                     const std::vector<TokenId>& stop_ids) {
  std::vector<std::string> bytes(tokenizer.vocab_size());
  for (size_t i = 0; i < bytes.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    const std::string_view text = tokenizer.TokenBytes(id);
    if (tokenizer.IsAdded(id)) {
      bytes[i] = "\xff" + std::string(text);
    } else if (!Tokens::HasSurrogate(text)) {
      bytes[i] = text;
    }
  }
  const int size = static_cast<int>(bytes.size());
  return {bytes, xgrammar::VocabType::RAW, size, stop_ids};
}

class XGrammarCompiler final : public GrammarCompiler {
 public:
  XGrammarCompiler(const Tokenizer& tokenizer, std::vector<TokenId> stop_ids)
      : tokens_(std::make_shared<Tokens>(tokenizer, std::move(stop_ids))),
        // Masks are made when they are needed: making all of a large grammar's takes seconds.
        compiler_(VocabularyOf(tokenizer, tokens_->stop_ids), /*max_threads=*/1,
                  /*cache_enabled=*/false,
                  /*max_memory_bytes=*/-1, /*enable_dynamic_compilation=*/true) {}

  Result<std::unique_ptr<GrammarMatcher>> Compile(const GrammarSpec& spec) override {
    const std::scoped_lock lock(mutex_);
    const auto found =
        std::find_if(cache_.begin(), cache_.end(), [&](const auto& e) { return e.first == spec; });
    if (found != cache_.end()) {
      cache_.splice(cache_.begin(), cache_, found);
    } else {
      SB_RETURN_IF_ERROR(CheckGrammar(spec));
      SB_ASSIGN_OR_RETURN(auto grammar, CompileNew(spec));
      cache_.emplace_front(spec, std::move(grammar));
      if (cache_.size() > kCached) cache_.pop_back();
    }
    return std::unique_ptr<GrammarMatcher>(
        std::make_unique<XGrammarMatcher>(cache_.front().second, tokens_));
  }

 private:
  Result<xgrammar::CompiledGrammar> CompileNew(const GrammarSpec& spec) {
    heard.reset();
    std::string reason;
    try {
      xgrammar::CompiledGrammar grammar = Compiled(spec);
      if (!heard) return grammar;
      reason = *heard;
    } catch (const std::bad_alloc&) {
      return ResourceExhausted({.what = "no memory to compile the grammar"});
    } catch (const std::exception& e) {
      reason = e.what();
    }
    static constexpr const char* kWhere[] = {"JSON object", "JSON schema", "regular expression",
                                             "EBNF", "tools"};
    reason.erase(reason.find_last_not_of("\n. ") + 1);
    return InvalidArgument({.what = "grammar refused",
                            .where = kWhere[static_cast<size_t>(spec.kind)],
                            .found = std::move(reason)});
  }

  xgrammar::CompiledGrammar Compiled(const GrammarSpec& spec) {
    const auto schema = [this](const std::string& source) {
      return compiler_.CompileJSONSchema(source, /*any_whitespace=*/false);
    };
    switch (spec.kind) {
      case GrammarSpec::Kind::kJsonObject:
        break;
      case GrammarSpec::Kind::kJsonSchema:
        return schema(spec.source);
      case GrammarSpec::Kind::kRegex:
        return compiler_.CompileRegex(spec.source);
      case GrammarSpec::Kind::kEbnf:
        return compiler_.CompileGrammar(spec.source);
      case GrammarSpec::Kind::kCalls:
        return compiler_.CompileStructuralTag(spec.source);
    }
    return schema(R"({"type": "object"})");
  }

  std::mutex mutex_;
  const std::shared_ptr<const Tokens> tokens_;
  xgrammar::GrammarCompiler compiler_;
  // The last used first.
  std::list<std::pair<GrammarSpec, xgrammar::CompiledGrammar>> cache_;
};

}  // namespace

Result<std::unique_ptr<GrammarCompiler>> MakeGrammarCompiler(const Tokenizer& tokenizer,
                                                             std::vector<TokenId> stop_ids) {
  std::erase_if(stop_ids, [&](TokenId id) {
    return id < 0 || static_cast<size_t>(id) >= tokenizer.vocab_size();
  });
  if (stop_ids.empty()) {
    return InvalidArgument({.what = "no token ends a text", .remedy = "name a stop id"});
  }
  return std::unique_ptr<GrammarCompiler>(
      std::make_unique<XGrammarCompiler>(tokenizer, std::move(stop_ids)));
}

}  // namespace signalbox

// What the library was built to call (cmake/deps.cmake).
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message);
void LogMessageImpl(const std::string& file, int line, int level, const std::string& message);

void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string&, int, int, const std::string& message) {
  if (!signalbox::heard) signalbox::heard = message;
}

}  // namespace xgrammar

// EarleyParser::Advance, in which the library spends its time, by way of the linker's --wrap: the
// library has no limit of its own, and an exception leaves it.
extern "C" {

bool __real__ZN8xgrammar12EarleyParser7AdvanceEhb(void* parser, uint8_t byte, bool debug);
bool __wrap__ZN8xgrammar12EarleyParser7AdvanceEhb(void* parser, uint8_t byte, bool debug);

bool __wrap__ZN8xgrammar12EarleyParser7AdvanceEhb(void* parser, uint8_t byte, bool debug) {
  signalbox::Work* work = signalbox::work;
  const bool look = work != nullptr && ++work->steps % 16 == 0;
  if (look && signalbox::ThreadSeconds() > work->until) throw signalbox::OutOfTime();
  return __real__ZN8xgrammar12EarleyParser7AdvanceEhb(parser, byte, debug);
}
}
