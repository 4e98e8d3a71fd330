// SPDX-License-Identifier: Apache-2.0
//
// Models for tests of the planner: programs of testdata/programs.case with sizes. Test code.
#pragma once

#include <string>
#include <string_view>

#include "signalbox/plan/planner.h"

namespace signalbox {

// The steps of that program in testdata/programs.case.
std::vector<Step> NamedProgram(std::string_view name);

// A model of two layers of one kind, by the name of its program. Hidden 4096; 8 heads, 2 of keys
// and values; 16 experts of width 512 in mxfp4, 4 per token; shared expert as wide, in bf16; latent
// width 2048; MLP of width 4096.
LayoutFacts TestModel(std::string_view program);

// The first known contract of a kind, renamed to it: "flat-local" and "flat-global" (ids),
// "flat-weights" (weights of all experts in place of ids; equal token counts), "rank-major" (no
// counts), "by-expert" (padded), "by-expert-all-ids" (takes no id -1), "fused", "own-router".
Contract KindOfContract(std::string_view kind);

// Every known contract that exchanges rows.
std::vector<Contract> ExchangeContracts();

}  // namespace signalbox
