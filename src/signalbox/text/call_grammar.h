// SPDX-License-Identifier: Apache-2.0
//
// The grammar of an answer that is nothing but calls of tools, in the syntax of the model's own
// format, with arguments that fit the tools' schemas (answer_grammar.h puts it behind the
// reasoning).
//
//   Hermes  arguments are JSON under the schema.
//   XML, XTML  an argument for each property, in the schema's order, those that are not required
//           left out or not. A text is free but for its enum, const, pattern or length; any other
//           value is JSON under its schema.
//
//   SB_ASSIGN_OR_RETURN(GrammarSpec spec, CallGrammar(tokenizer, format, tools, {.name = "f"}));
#pragma once

#include <string>
#include <string_view>

#include "signalbox/base/status.h"
#include "signalbox/text/chat_format.h"
#include "signalbox/text/grammar.h"
#include "signalbox/text/tokenizer.h"

namespace signalbox {

struct CallRules {
  std::string name;      // of the only tool that may be called; empty: any
  bool parallel = true;  // several calls, one after the other
};

// `tools`: a JSON array as in the OpenAI API. kInvalidArgument where a schema asks for what cannot
// be enforced, or the format or the tokenizer has no calls.
Result<GrammarSpec> CallGrammar(const Tokenizer& tokenizer, OutputFormat format,
                                std::string_view tools, const CallRules& rules);

}  // namespace signalbox
