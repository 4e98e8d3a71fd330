// SPDX-License-Identifier: Apache-2.0
//
// Grammars: which tokens may come next, so that a text is JSON, fits a schema, matches a regular
// expression or derives from a grammar. What has no part in the text (added tokens such as
// <tool_call>) never may; a stop token may where the text can end, and nothing else may once it
// cannot go on.
//
//   SB_ASSIGN_OR_RETURN(auto compiler, MakeGrammarCompiler(tokenizer, {end_of_turn}));
//   SB_ASSIGN_OR_RETURN(auto matcher,
//                       compiler->Compile({GrammarSpec::Kind::kJsonSchema, R"({"type":
//                       "array"})"}));
//   SB_RETURN_IF_ERROR(matcher->FillMask(mask));  // [(vocab_size + 31) / 32] words
//   SB_RETURN_IF_ERROR(matcher->Accept(chosen));
//
// The work is XGrammar's. A build without it (SIGNALBOX_GRAMMAR in CMake) has the same interface,
// and MakeGrammarCompiler answers kRefused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "signalbox/base/ids.h"
#include "signalbox/base/status.h"
#include "signalbox/text/tokenizer.h"

namespace signalbox {

struct GrammarSpec {
  // JSON is written on one line, with a space behind `,` and `:` (none within a const or an enum):
  // where white space is free, some
  // models write nothing else.
  enum class Kind : uint8_t {
    kJsonObject,  // any JSON object; no source
    // JSON Schema. An object has the properties that the schema names and no others, unless it has
    // none or says additionalProperties. Keywords that cannot be honoured are refused, not ignored;
    // unknown ones and `format` are annotations.
    kJsonSchema,
    kRegex,  // as in ECMAScript, over the whole text; no look-around, back references or \b
    kEbnf,   // rules `name ::= ...` in XGrammar's notation, from the rule `root` on
    kCalls,  // calls of tools and nothing else: of CallGrammar (call_grammar.h), never of a client
  };
  Kind kind = Kind::kJsonObject;
  std::string source;

  friend bool operator==(const GrammarSpec&, const GrammarSpec&) = default;
};

// What a source may be at most, so that no request holds up a server: compiling takes time and
// memory that grow with all of these.
struct GrammarLimits {
  static constexpr size_t kSourceBytes = size_t{64} << 10;
  static constexpr size_t kCallsBytes = size_t{512} << 10;  // made of schemas
  static constexpr size_t kRegexBytes = size_t{4} << 10;    // patterns of a schema together, too
  static constexpr size_t kEbnfBytes = size_t{16} << 10;
  static constexpr size_t kProperties = 1024;  // of a schema's objects together; also, for one
                                               // object, times minProperties or maxProperties
  static constexpr size_t kDepth = 64;         // brackets or JSON containers within each other
  static constexpr size_t kRepeat = 1024;      // n in {n}, minLength, maxItems and their like ...
  static constexpr size_t kRepeated = 16384;   // ... and their product where they are nested
};
// kInvalidArgument where `spec` is past a limit or uses what would be misread. Compile checks it.
Status CheckGrammar(const GrammarSpec& spec);

// The state of one text. Not thread-safe; matchers of one grammar may be used side by side.
//
// A text may take kSeconds of processor time, and kSecondsPerToken more with every token: what a
// grammar costs depends on the text as well, and one that is ambiguous enough would take any time.
// Past that, FillMask and Accept answer kResourceExhausted.
class GrammarMatcher {
 public:
  static constexpr double kSeconds = 2;
  static constexpr double kSecondsPerToken = 0.02;

  virtual ~GrammarMatcher() = default;

  // Writes all of `mask`: id i is bit i % 32 of word i / 32, and set where the token may come.
  virtual Status FillMask(std::span<uint32_t> mask) = 0;
  // kInvalidArgument where the token may not come; nothing has changed then.
  virtual Status Accept(TokenId id) = 0;
  // Whether the text so far is complete, so that a stop token may come.
  virtual bool CanEnd() const = 0;
  // Whether a stop token has come. Stop tokens may follow it, and nothing else.
  virtual bool Ended() const = 0;
  // Back to the empty text.
  virtual void Reset() = 0;
  // Another one in the same state.
  virtual std::unique_ptr<GrammarMatcher> Fork() const = 0;

 protected:
  GrammarMatcher() = default;
  GrammarMatcher(const GrammarMatcher&) = default;
  GrammarMatcher& operator=(const GrammarMatcher&) = default;
};

// Compiles grammars for one vocabulary, and keeps the last kCached. Thread-safe; one compiles at a
// time.
class GrammarCompiler {
 public:
  static constexpr size_t kCached = 64;

  virtual ~GrammarCompiler() = default;

  // A matcher at the empty text. kInvalidArgument, with the reason, for a source that is wrong,
  // unsupported or past a limit. The compiler may go before its matchers.
  virtual Result<std::unique_ptr<GrammarMatcher>> Compile(const GrammarSpec& spec) = 0;

 protected:
  GrammarCompiler() = default;
  GrammarCompiler(const GrammarCompiler&) = default;
  GrammarCompiler& operator=(const GrammarCompiler&) = default;
};

// `stop_ids` end a text; those that are no tokens are of no effect. kInvalidArgument where none is
// left, kRefused in a build without grammars.
Result<std::unique_ptr<GrammarCompiler>> MakeGrammarCompiler(const Tokenizer& tokenizer,
                                                             std::vector<TokenId> stop_ids);

}  // namespace signalbox
