// SPDX-License-Identifier: Apache-2.0
//
// OutputParser: tells apart, while a model writes, what it thinks, what it says and which tools it
// calls.
//
// Law: the events of an answer, added up (ParsedOutput), do not depend on how the text was cut into
// pieces; so an answer that is streamed and one that is not give the same objects. Whatever the
// model writes, names are not empty and the arguments of a call are, once finished, valid JSON.
//
//   const bool thinks = OpensReasoning(format, PlainText(prompt));
//   auto parser = MakeOutputParser(format, {.in_reasoning = thinks});
//   parser->Text("12 + 7 = 19</think>", events);
//   parser->Finish(/*stopped=*/true, events);   // from tokens: AnswerStream
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "signalbox/base/status.h"
#include "signalbox/text/chat_format.h"

namespace signalbox {

struct OutputEvent {
  enum class Kind {
    kReasoning,
    kContent,
    kCallName,       // a new call; its whole name
    kCallArguments,  // the next piece of its arguments' JSON text
  };
  Kind kind;
  std::string text;  // not empty
  size_t call = 0;   // of the last two kinds: 0 for the first of the answer

  friend bool operator==(const OutputEvent&, const OutputEvent&) = default;
};
using OutputEvents = std::vector<OutputEvent>;

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON text: an object, or a text where the model wrote no object
  friend bool operator==(const ToolCall&, const ToolCall&) = default;
};

struct ParsedOutput {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> calls;

  void Add(const OutputEvents& events);
  friend bool operator==(const ParsedOutput&, const ParsedOutput&) = default;
};

class OutputParser {
 public:
  virtual ~OutputParser() = default;

  // The next piece of text: valid UTF-8, cut anywhere. Each appends to `events`.
  virtual void Text(std::string_view text, OutputEvents& events) = 0;
  // A token that the tokenizer adds to the vocabulary, `<tool_call>`. For XTML, whose brackets are
  // such tokens, the same characters in Text are nothing but text.
  virtual void Marker(std::string_view spelling, OutputEvents& events) = 0;
  // The end: the model `stopped`, or was cut off. Ends the call that is being written. Where the
  // prompt opened the reasoning and the model stopped without closing it, it has answered without
  // thinking: all of it is content as well.
  virtual void Finish(bool stopped, OutputEvents& events) = 0;
  // Whether text that came now would be reasoning, as far as can be told yet.
  virtual bool in_reasoning() const = 0;
};

// The "type" of a tool's parameter in its JSON schema, by tool and parameter; several are joined by
// commas. XML needs it: there, 5 is a number or a text.
using ParameterTypes = std::map<std::string, std::map<std::string, std::string>>;
// Of the tools of a request, a JSON array as in the OpenAI API; empty text for none.
// kInvalidArgument where it is no array.
Result<ParameterTypes> ParameterTypesOf(std::string_view tools);

struct OutputOptions {
  bool in_reasoning = false;  // the prompt has opened the reasoning
  ParameterTypes types;
};
std::unique_ptr<OutputParser> MakeOutputParser(OutputFormat format, OutputOptions options = {});

// Whether a prompt, of which the last 32 bytes are enough, ends where the model is to think.
bool OpensReasoning(OutputFormat format, std::string_view prompt);

}  // namespace signalbox
