// SPDX-License-Identifier: Apache-2.0
//
// Flags that name what a model already says: the parsers of its answers, its tokenizer, its draft
// head. Whoever names the model's own gets it; any other is refused before weights are read.
//
//   SB_RETURN_IF_ERROR(CheckModelFlags(flags, "models/kimi"));   // --reasoning-parser qwen3:
//   kRefused
#pragma once

#include <string>

#include "signalbox/base/status.h"
#include "signalbox/cli/flags.h"

namespace signalbox {

// kInvalidArgument for a parser that nobody knows, kRefused with the reason for one that does not
// fit, kBadCheckpoint where the model's tokenizer or template cannot be read.
// REQUIRES: the command has the flags of layouts.
Status CheckModelFlags(const FlagValues& flags, const std::string& model);

}  // namespace signalbox
