// SPDX-License-Identifier: Apache-2.0
//
// Instead of grammar_xgrammar.cc, in a build without XGrammar.
#include "signalbox/text/grammar.h"

namespace signalbox {

Result<std::unique_ptr<GrammarCompiler>> MakeGrammarCompiler(const Tokenizer&,
                                                             std::vector<TokenId>) {
  return Refused({.what = "this build has no structured output",
                  .found = "no XGrammar when it was configured",
                  .remedy = "run scripts/setup.sh build, and build again"});
}

}  // namespace signalbox
