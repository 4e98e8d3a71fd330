// SPDX-License-Identifier: Apache-2.0
//
// AnswerStream: all that lies between the token ids sampled for a request and what its client sees:
// characters, stop strings, the parts of an answer (output_parser.h), counters.
//
//   SB_ASSIGN_OR_RETURN(auto stream, AnswerStream::Create(tokenizer, {.stops = {"\n\n"}}));
//   for (std::span<const TokenId> block : steps) {
//     const AnswerDelta delta = stream.Push(block);   // keep block.first(delta.tokens)
//     if (delta.stopped) return stream.answer();      // else, once the model ends: Finish(true)
//   }
//
// Law: the deltas, added up, and answer() do not depend on how the ids were cut into blocks.
//
// Stop strings are looked for in the text as the client gets it: in reasoning and in the markup of
// reasoning and calls as well, but not in special tokens that are skipped. The answer ends where
// the first of them is complete (stop_strings.h). Tokens are kept up to the one that completes it,
// though the text ends before the stop: whoever has something for each token, log-probabilities,
// cuts it by the same count. Text that may be the beginning of a stop waits, and the parser waits
// for it as well: text and events never run ahead of each other. To the parser a stop string is a
// cut, not the model's end; a marker (<tool_call>) of which only a part lies before it is text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "signalbox/base/ids.h"
#include "signalbox/base/status.h"
#include "signalbox/text/detokenizer.h"
#include "signalbox/text/output_parser.h"
#include "signalbox/text/stop_strings.h"
#include "signalbox/text/tokenizer.h"

namespace signalbox {

struct AnswerOptions {
  std::vector<std::string> stops;  // Create checks them: StopStrings
  bool include_stop = false;       // the stop string is part of the answer
  // The text of so many tokens is not searched for stops.
  int64_t min_tokens = 0;
  SpecialTokens special = SpecialTokens::kSkip;  // in the text; parsers never get them
  OutputFormat format = OutputFormat::kPlain;    // plain: all text is content
  OutputOptions output;
};

struct AnswerToken {
  TokenId id;
  // Bytes of the answer's text that were whole before this token. Tokens that end inside a
  // character, or in the stop string that was cut off, share it with the next one.
  size_t text_offset;
  friend bool operator==(const AnswerToken&, const AnswerToken&) = default;
};

struct Answer {
  std::string text;
  ParsedOutput parts;
  std::vector<AnswerToken> tokens;  // kept: what a client is told of, and pays for
  // Of these, those that came while the reasoning was open; its closing tag counts as well.
  int64_t reasoning_tokens = 0;
  std::string stop;  // the stop string that ended it; empty: none
  friend bool operator==(const Answer&, const Answer&) = default;
};

// What a step adds to an answer.
struct AnswerDelta {
  std::string text;      // whole characters
  OutputEvents events;   // of the same text
  int64_t tokens = 0;    // how many tokens of the block are kept, from its front
  bool stopped = false;  // by a stop string, which answer().stop names: the answer is finished
};

class AnswerStream {
 public:
  // `tokenizer` must outlive the stream. kInvalidArgument for stop strings out of their limits.
  static Result<AnswerStream> Create(const Tokenizer& tokenizer, AnswerOptions options);

  // The tokens of a step, of any number. A stop id (end of text) may be among them; it is a token
  // like others here. REQUIRES: !finished(), of both.
  AnswerDelta Push(std::span<const TokenId> block);
  // The end: the model `stopped`, or was cut off by a limit or by the client. What was held back is
  // released. A character that was cut off becomes U+FFFD, and may complete a stop string yet.
  AnswerDelta Finish(bool stopped);

  bool finished() const { return finished_; }
  const Answer& answer() const { return answer_; }

 private:
  // Text of one token, or of those before it whose character it breaks off.
  struct Piece {
    enum class Kind { kText, kMarker, kSpecial };
    std::string text;
    Kind kind = Kind::kText;
    bool begins_token = true;
  };

  AnswerStream(const Tokenizer& tokenizer, StopStrings stops, AnswerOptions options);

  // Each returns once the answer is finished.
  void PushToken(TokenId id, AnswerDelta& delta);
  void Feed(Piece piece, AnswerDelta& delta);
  // Hands out the text before `end`, an offset in all text read. A marker goes whole.
  void Release(size_t end, AnswerDelta& delta);
  void HandOut(std::string_view text, Piece::Kind kind, AnswerDelta& delta);
  void CountReasoning(Piece& piece);
  void End(size_t end, bool stopped, AnswerDelta& delta);

  const Tokenizer* tokenizer_;
  AnswerOptions options_;
  StopStrings stops_;
  StreamDecoder decoder_;
  std::unique_ptr<OutputParser> parser_;
  std::deque<Piece> held_;  // text of tokens that is yet to be released
  size_t read_ = 0;         // bytes of text so far, held back or not
  bool finished_ = false;
  Answer answer_;
};

}  // namespace signalbox
