// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/answer_stream.h"

#include <algorithm>
#include <utility>

#include "signalbox/base/check.h"

namespace signalbox {

Result<AnswerStream> AnswerStream::Create(const Tokenizer& tokenizer, AnswerOptions options) {
  SB_ASSIGN_OR_RETURN(StopStrings stops, StopStrings::Create(options.stops));
  return AnswerStream(tokenizer, std::move(stops), std::move(options));
}

AnswerStream::AnswerStream(const Tokenizer& tokenizer, StopStrings stops, AnswerOptions options)
    : tokenizer_(&tokenizer),
      options_(std::move(options)),
      stops_(std::move(stops)),
      decoder_(tokenizer, options_.special),
      parser_(MakeOutputParser(options_.format, options_.output)) {}

AnswerDelta AnswerStream::Push(std::span<const TokenId> block) {
  SB_CHECK(!finished_) << "a token behind the end of an answer";
  AnswerDelta delta;
  for (const TokenId id : block) {
    ++delta.tokens;
    PushToken(id, delta);
    if (finished_) break;
  }
  return delta;
}

AnswerDelta AnswerStream::Finish(bool stopped) {
  SB_CHECK(!finished_) << "an answer that ends twice";
  AnswerDelta delta;
  Feed({.text = decoder_.Flush(), .begins_token = false}, delta);
  if (!finished_) End(read_, stopped, delta);
  return delta;
}

void AnswerStream::PushToken(TokenId id, AnswerDelta& delta) {
  answer_.tokens.push_back({.id = id, .text_offset = read_});
  const bool special = tokenizer_->IsSpecial(id);
  if (!tokenizer_->IsAdded(id) || (special && options_.special == SpecialTokens::kSkip)) {
    return Feed({.text = decoder_.Push(id)}, delta);
  }
  Feed({.text = decoder_.Flush()}, delta);  // a character that the marker breaks off
  if (finished_) return;
  Feed({.text = std::string(tokenizer_->TokenBytes(id)),
        .kind = special ? Piece::Kind::kSpecial : Piece::Kind::kMarker,
        .begins_token = false},
       delta);
}

void AnswerStream::Feed(Piece piece, AnswerDelta& delta) {
  const size_t begin = read_;
  read_ += piece.text.size();
  const bool search = std::ssize(answer_.tokens) > options_.min_tokens;
  const auto match = search ? stops_.Push(piece.text) : std::nullopt;
  held_.push_back(std::move(piece));
  if (!match) return Release(read_ - stops_.held(), delta);
  answer_.stop = stops_.text(match->stop);
  delta.stopped = true;
  const size_t end = begin + match->end;
  End(options_.include_stop ? end : end - answer_.stop.size(), /*stopped=*/false, delta);
}

void AnswerStream::Release(size_t end, AnswerDelta& delta) {
  while (!held_.empty()) {
    Piece& piece = held_.front();
    const size_t left = end - answer_.text.size();
    if (left >= piece.text.size()) {
      CountReasoning(piece);
      HandOut(piece.text, piece.kind, delta);
      held_.pop_front();
      continue;
    }
    if (piece.kind != Piece::Kind::kText && !finished_) return;
    CountReasoning(piece);
    const bool special = piece.kind == Piece::Kind::kSpecial;
    HandOut(std::string_view(piece.text).substr(0, left),
            special ? Piece::Kind::kSpecial : Piece::Kind::kText, delta);
    piece.text.erase(0, left);
    return;
  }
}

// Where the text before a token has reached the parser.
void AnswerStream::CountReasoning(Piece& piece) {
  if (std::exchange(piece.begins_token, false) && parser_->in_reasoning()) {
    ++answer_.reasoning_tokens;
  }
}

void AnswerStream::HandOut(std::string_view text, Piece::Kind kind, AnswerDelta& delta) {
  if (text.empty()) return;
  delta.text += text;
  answer_.text += text;
  OutputEvents events;
  if (kind == Piece::Kind::kText) parser_->Text(text, events);
  if (kind == Piece::Kind::kMarker) parser_->Marker(text, events);
  answer_.parts.Add(events);
  std::move(events.begin(), events.end(), std::back_inserter(delta.events));
}

void AnswerStream::End(size_t end, bool stopped, AnswerDelta& delta) {
  finished_ = true;
  Release(end, delta);
  for (Piece& piece : held_) CountReasoning(piece);  // of the stop string
  held_.clear();
  for (AnswerToken& token : answer_.tokens) {
    token.text_offset = std::min(token.text_offset, answer_.text.size());
  }
  OutputEvents events;
  parser_->Finish(stopped, events);
  answer_.parts.Add(events);
  std::move(events.begin(), events.end(), std::back_inserter(delta.events));
}

}  // namespace signalbox
