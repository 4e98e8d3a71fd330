// SPDX-License-Identifier: Apache-2.0
//
// Value: what an activation is, on every rank at once. Which axes shard its rows, which its
// features, which addends have flowed into it and who still owes which part of their sums, and what
// it computes once the layout is erased. The checker derives one for every register after every
// step.
//
// Which rows a rank holds follows from the set `rows` alone, not from the order of the steps that
// led there. Axes that hand out whole sequences give each rank its own; along the others the padded
// batch is an array with one dimension per axis, in mesh order and before the rows of a block, and
// a rank holds the part at its own position along each axis of the set.
//
//   Value h{.rows = {}, .terms = {{.name = "mixer", .part = tp}}};
//   h.ToString(mesh);   // "rows: all | mixer partial over attn_tp"
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "signalbox/a2a/contract_fields.h"
#include "signalbox/mesh/mesh.h"

namespace signalbox {

// An exact fraction in lowest terms with a positive denominator.
struct Rational {
  int64_t num = 1;
  int64_t den = 1;

  // Nothing for a zero denominator or numbers beyond 64 bits.
  static std::optional<Rational> Make(int64_t num, int64_t den);
  static std::optional<Rational> Product(Rational a, Rational b);
  static std::optional<Rational> Sum(Rational a, Rational b);
  // Reads "2.5", "5/2" and "-1"; nothing for anything else.
  static std::optional<Rational> Parse(std::string_view text);
  // "2.5" where the decimal form is exact and short, else "1/3".
  std::string ToString() const;

  friend bool operator==(const Rational&, const Rational&) = default;
};

// The names that addends have in Term::name and in messages.
namespace addend {
inline constexpr std::string_view kResidual = "residual";
inline constexpr std::string_view kMixer = "mixer";
inline constexpr std::string_view kMlp = "dense MLP";
inline constexpr std::string_view kRouted = "routed experts";
inline constexpr std::string_view kShared = "shared expert";
}  // namespace addend

// An addend that has flowed into a value, and who owes its sum.
struct Term {
  std::string name;      // one of addend::, or what a non-linear operation made ("normed input")
  Rational coefficient;  // how often the completed value contains the addend
  AxisSet part;          // axes whose ranks each hold a share of the addend
  friend bool operator==(const Term&, const Term&) = default;
};

// An addend as an expression of the model's operations, the layout erased.
struct Addend {
  std::string text;  // "experts(y)"
  Rational coefficient;
  friend bool operator==(const Addend&, const Addend&) = default;
};

// Whose numbering expert ids are in.
enum class IdSpace : uint8_t {
  kNone,      // no ids here
  kLogical,   // experts as the router numbers them
  kGlobal,    // slots, all ranks' in one count
  kLocal,     // slots of this rank
  kPosition,  // no ids: where a row lies says its slot
};
template <>
struct EnumText<IdSpace> {
  static constexpr std::string_view kNames[] = {"none", "logical", "global", "local", "position"};
};

// What rows beyond the valid ones hold.
enum class PadRows : uint8_t {
  kNone,    // there are none
  kMasked,  // finite numbers, and no expert is asked to compute them
  kPoison,  // unwritten memory; in a routing: ids like any other row's
};
template <>
struct EnumText<PadRows> {
  static constexpr std::string_view kNames[] = {"none", "masked", "poison"};
};

// Who has applied a factor.
enum class Actor : uint8_t { kNobody, kTopK, kDispatch, kRunner, kPermute, kLibrary, kModel };
template <>
struct EnumText<Actor> {
  static constexpr std::string_view kNames[] = {"nobody",  "top-k",   "dispatch", "runner",
                                                "permute", "library", "model"};
};

// Where a shared expert that is fused into the routed ones has its weights.
enum class SharedSlot : uint8_t {
  kNone,
  kOneRank,  // one slot on one rank
  kGlobal,   // one id, and a copy on every rank of the expert group
  kPerRank,  // every rank of the expert group has a slot of its own and sends its rows there
};
template <>
struct EnumText<SharedSlot> {
  static constexpr std::string_view kNames[] = {"none", "one-rank", "global", "per-rank"};
};

// What the steps have done to a value besides moving and summing it.
struct Facts {
  RowShape shape = RowShape::kNone;  // kNone: a row is a token of this rank
  bool latent = false;  // features in the experts' latent space, not the model's hidden one
  PadRows pad = PadRows::kNone;
  IdSpace ids = IdSpace::kNone;
  Actor weighted_by = Actor::kNobody;  // router weights
  Actor scaled_by = Actor::kNobody;    // routed scaling factor
  SharedSlot shared_slot = SharedSlot::kNone;
  AxisSet own_replicas;  // axes along which ranks choose replicas of an expert differently
  AxisSet dispatched;    // axes over which rows were dispatched
  friend bool operator==(const Facts&, const Facts&) = default;
};

struct Value {
  AxisSet rows;              // axes that shard the tokens; along the others every rank has the same
  AxisSet cols;              // axes that shard the features
  std::vector<Term> terms;   // in order of addition
  std::vector<Addend> expr;  // sorted
  Facts facts;

  // Axes over which some addend is still owed.
  AxisSet Owed() const;
  // "rows: attn_dp | residual + mixer partial over attn_tp | padding masked".
  std::string ToString(const Mesh& mesh) const;
  friend bool operator==(const Value&, const Value&) = default;
};

// "residual + 0.5 shared expert": sums as they appear in values and messages.
std::string ToString(const std::vector<Addend>& sum);

}  // namespace signalbox
