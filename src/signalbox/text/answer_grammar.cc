// SPDX-License-Identifier: Apache-2.0
#include "signalbox/text/answer_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "signalbox/text/xtml.h"

namespace signalbox {
namespace {

constexpr std::string_view kEndOfThought = "</think>";
constexpr std::string_view kBeginOfCall = "<tool_call>";
constexpr size_t kNewlines = 2;

Status NotAllowed(TokenId id) {
  return InvalidArgument(
      {.what = "token outside the grammar", .found = fmt::format("token {}", id)});
}

void Set(TokenId id, bool value, std::span<uint32_t> mask) {
  const auto i = static_cast<size_t>(id);
  if (i / 32 >= mask.size()) return;
  const uint32_t bit = uint32_t{1} << (i % 32);
  mask[i / 32] = value ? mask[i / 32] | bit : mask[i / 32] & ~bit;
}

bool Contains(const std::vector<TokenId>& ids, TokenId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

Result<TokenId> MarkerToken(const Tokenizer& tokenizer, std::string_view spelling) {
  const std::optional<TokenId> id = tokenizer.TokenToId(spelling);
  if (id && tokenizer.IsAdded(*id)) return *id;
  return InvalidArgument({.what = "no structured output for this model's chat format",
                          .where = "tokenizer",
                          .expected = fmt::format("a token {}", spelling)});
}

// Tokens of a run of tags: <|close|>, then "think", then <|sep|>.
Result<std::vector<TokenId>> Tags(const Tokenizer& tokenizer,
                                  std::span<const std::string_view> parts) {
  std::vector<TokenId> ids;
  for (const std::string_view part : parts) {
    if (std::find(xtml::kMarkers.begin(), xtml::kMarkers.end(), part) != xtml::kMarkers.end()) {
      SB_ASSIGN_OR_RETURN(const TokenId id, MarkerToken(tokenizer, part));
      ids.push_back(id);
    } else {
      SB_ASSIGN_OR_RETURN(const auto name, tokenizer.EncodeUntrusted(std::string(part)));
      ids.insert(ids.end(), name.begin(), name.end());
    }
  }
  return ids;
}

Status AddXtml(const Tokenizer& tokenizer, AnswerFrame& frame) {
  using xtml::kClose;
  using xtml::kOpen;
  using xtml::kSep;
  static constexpr std::string_view kToAnswer[] = {kClose, "think", kSep, kOpen, "response", kSep};
  static constexpr std::string_view kToStop[] = {kClose, "response", kSep, kClose, "message", kSep};
  SB_ASSIGN_OR_RETURN(frame.opening, Tags(tokenizer, kToAnswer));
  SB_ASSIGN_OR_RETURN(frame.closing, Tags(tokenizer, kToStop));
  for (const std::string_view marker : xtml::kMarkers) {
    if (marker == kClose) continue;
    SB_ASSIGN_OR_RETURN(const TokenId id, MarkerToken(tokenizer, marker));
    frame.not_thought.push_back(id);
  }
  return OkStatus();
}

Status AddThinkTags(const Tokenizer& tokenizer, AnswerFrame& frame) {
  SB_ASSIGN_OR_RETURN(const TokenId end, MarkerToken(tokenizer, kEndOfThought));
  const std::optional<TokenId> call = tokenizer.TokenToId(kBeginOfCall);
  if (call && tokenizer.IsAdded(*call)) frame.not_thought.push_back(*call);
  frame.opening = {end};
  frame.marker = kEndOfThought;
  frame.spelled.resize(kEndOfThought.size());
  frame.bytes.resize(frame.vocab);
  for (size_t i = 0; i < frame.vocab; ++i) {
    const auto id = static_cast<TokenId>(i);
    // What a parser does not see does not part what it sees.
    if (tokenizer.IsSpecial(id)) continue;
    frame.bytes[i] = tokenizer.TokenBytes(id);
    const std::string& bytes = frame.bytes[i];
    if (bytes == "\n" || bytes == "\n\n") frame.newlines.emplace_back(id, bytes.size());
    if (id == end || bytes.find(kEndOfThought.back()) == std::string::npos) continue;
    for (size_t n = 0; n < frame.spelled.size(); ++n) {
      const std::string text = std::string(kEndOfThought.substr(0, n)) + bytes;
      if (text.find(kEndOfThought) != std::string::npos) frame.spelled[n].push_back(id);
    }
  }
  return OkStatus();
}

// How many bytes at the end of `text` begin the marker.
size_t WrittenOf(std::string_view text, std::string_view marker) {
  size_t n = std::min(text.size(), marker.size() - 1);
  while (n > 0 && !text.ends_with(marker.substr(0, n))) --n;
  return n;
}

}  // namespace

Result<std::shared_ptr<const AnswerFrame>> AnswerFrame::Make(const Tokenizer& tokenizer,
                                                             OutputFormat format,
                                                             std::vector<TokenId> stop_ids) {
  auto frame = std::make_shared<AnswerFrame>();
  frame->vocab = tokenizer.vocab_size();
  frame->stop_ids = std::move(stop_ids);
  frame->not_thought = frame->stop_ids;
  switch (format) {
    case OutputFormat::kPlain:
      break;
    case OutputFormat::kHermes:
    case OutputFormat::kXml:
      SB_RETURN_IF_ERROR(AddThinkTags(tokenizer, *frame));
      break;
    case OutputFormat::kXtml:
      SB_RETURN_IF_ERROR(AddXtml(tokenizer, *frame));
      break;
  }
  return std::shared_ptr<const AnswerFrame>(std::move(frame));
}

AnswerGrammar::AnswerGrammar(std::shared_ptr<const AnswerFrame> frame,
                             std::unique_ptr<GrammarMatcher> matcher, bool in_reasoning)
    : frame_(std::move(frame)),
      matcher_(std::move(matcher)),
      place_(in_reasoning && !frame_->opening.empty() ? Place::kReasoning : Place::kAnswer) {}

Status AnswerGrammar::FillMask(std::span<uint32_t> mask) {
  const auto only = [&](std::span<const TokenId> ids) {
    std::fill(mask.begin(), mask.end(), 0);
    for (const TokenId id : ids) Set(id, true, mask);
  };
  switch (place_) {
    case Place::kReasoning:
      std::fill(mask.begin(), mask.end(), ~uint32_t{0});
      for (size_t i = frame_->vocab; i < mask.size() * 32; ++i)
        Set(static_cast<TokenId>(i), false, mask);
      for (const TokenId id : frame_->not_thought) Set(id, false, mask);
      if (!frame_->spelled.empty())
        for (const TokenId id : frame_->spelled[written_]) Set(id, false, mask);
      break;
    case Place::kOpening:
      only(std::span(frame_->opening).subspan(dictated_, 1));
      break;
    case Place::kAnswer: {
      SB_RETURN_IF_ERROR(matcher_->FillMask(mask));
      for (const auto& [id, size] : frame_->newlines)
        if (size <= newlines_) Set(id, true, mask);
      if (frame_->closing.empty()) break;
      for (const TokenId id : frame_->stop_ids) Set(id, false, mask);
      Set(frame_->closing[0], matcher_->CanEnd(), mask);
      break;
    }
    case Place::kClosing:
      if (dictated_ < frame_->closing.size()) {
        only(std::span(frame_->closing).subspan(dictated_, 1));
      } else {
        only(frame_->stop_ids);
      }
      break;
  }
  return OkStatus();
}

Status AnswerGrammar::AcceptInReasoning(TokenId id) {
  if (id == frame_->opening[0]) {
    dictated_ = 1;
    place_ = dictated_ < frame_->opening.size() ? Place::kOpening : Place::kAnswer;
    newlines_ = frame_->newlines.empty() ? 0 : kNewlines;
    return OkStatus();
  }
  const bool known = id >= 0 && static_cast<size_t>(id) < frame_->vocab;
  if (!known || Contains(frame_->not_thought, id)) return NotAllowed(id);
  if (frame_->marker.empty()) return OkStatus();
  if (Contains(frame_->spelled[written_], id)) return NotAllowed(id);
  const std::string text =
      frame_->marker.substr(0, written_) + frame_->bytes[static_cast<size_t>(id)];
  written_ = WrittenOf(text, frame_->marker);
  return OkStatus();
}

Status AnswerGrammar::AcceptInAnswer(TokenId id) {
  const bool stops = Contains(frame_->stop_ids, id);
  if (!frame_->closing.empty() && stops) return NotAllowed(id);
  if (!frame_->closing.empty() && id == frame_->closing[0]) {
    if (!matcher_->CanEnd()) return NotAllowed(id);
    dictated_ = 1;
    place_ = Place::kClosing;
    return OkStatus();
  }
  Status accepted = matcher_->Accept(id);
  if (accepted.ok()) {
    newlines_ = 0;
    return accepted;
  }
  for (const auto& [newline, size] : frame_->newlines) {
    if (newline != id || size > newlines_) continue;
    newlines_ -= size;
    return OkStatus();
  }
  return accepted;
}

Status AnswerGrammar::Accept(TokenId id) {
  switch (place_) {
    case Place::kReasoning:
      return AcceptInReasoning(id);
    case Place::kOpening:
      if (id != frame_->opening[dictated_]) return NotAllowed(id);
      if (++dictated_ == frame_->opening.size()) place_ = Place::kAnswer;
      return OkStatus();
    case Place::kAnswer:
      return AcceptInAnswer(id);
    case Place::kClosing: {
      const bool closed = dictated_ == frame_->closing.size();
      if (closed ? !Contains(frame_->stop_ids, id) : id != frame_->closing[dictated_])
        return NotAllowed(id);
      dictated_ += closed ? 0 : 1;
      return OkStatus();
    }
  }
  return OkStatus();
}

}  // namespace signalbox
