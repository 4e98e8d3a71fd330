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

// Every known contract that exchanges rows, and a copy of one under another name.
std::vector<Contract> ExchangeContracts();

}  // namespace signalbox
