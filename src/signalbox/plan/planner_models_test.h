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

// A model of one layer kind, hidden 64: "gated", "shared", "routed", "scaled", "dense", "latent",
// "latent-snapshot", "latent-dense" (the program's name). 8 heads of 2 key/value heads, 16 experts
// of width 64, 4 per token; latent width 32.
LayoutFacts TestModel(std::string_view program);

// Every known contract that exchanges rows, and a copy of one under another name.
std::vector<Contract> ExchangeContracts();

}  // namespace signalbox
