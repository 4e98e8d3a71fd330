// SPDX-License-Identifier: Apache-2.0
//
// For tests of this module: random exchanges, and one function that runs a contract's transport on
// thread ranks and compares everything that a rank can see with the oracle.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "signalbox/a2a/oracle.h"
#include "signalbox/a2a/worklist.h"

namespace signalbox {

enum class Skew : uint8_t { kRandom, kOneExpert, kOneRank };

// What to draw. Tokens are per rank; `masked` turns some lanes into -1, whole tokens among them.
struct Scenario {
  ExchangeShape shape;
  std::vector<int64_t> tokens;  // [ranks]
  Skew skew = Skew::kRandom;
  bool masked = false;
  uint64_t seed = 1;

  std::string ToString() const;
};

// Contracts that a transport can run: they exchange rows, take our routing and lose no token.
bool Executable(const Contract& contract);
std::vector<Contract> Executables();
// Three tokens per rank, two lanes, four slots per rank, room for four tokens.
Scenario SmallScenario(int ranks);

// Every row encodes its rank, token and column, so that a value names the place it came from.
// Experts of a token are distinct. REQUIRES: top_k <= ranks * slots.
std::vector<RankInput> DrawInputs(const Scenario& scenario);

// The experts of rank `rank`: an affine map that differs from slot to slot.
ExpertFn TestExperts(const ExchangeShape& shape, int rank);
// sum over lanes of weight * expert(x), [tokens, hidden], in double.
std::vector<float> DenseReference(const ExchangeShape& shape, const RankInput& input);

// Dispatch, experts and combine of `rounds` calls on one transport per rank, rank by rank equal to
// the oracle bit by bit (rows in canonical order), finite, close to the dense reference, with the
// traffic of the dedup formula. Returns what differs, or an empty string. Where the oracle refuses
// the inputs, every rank must be refused too. Worst-case buffers are asked for only where they
// exist.
std::string CompareWithOracle(const Contract& contract, const Scenario& scenario, int rounds = 2);

// Rows that `input`'s rank sends: one per (token, rank) or one per (token, expert).
int64_t RowsByFormula(const Contract& contract, const ExchangeShape& shape, const RankInput& input);

}  // namespace signalbox
