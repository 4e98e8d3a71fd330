// SPDX-License-Identifier: Apache-2.0
#include "signalbox/plan/value.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <numeric>

namespace signalbox {
namespace {

// "" for 1, "2.5 " otherwise.
std::string Prefix(Rational coefficient) {
  return coefficient == Rational{} ? "" : coefficient.ToString() + " ";
}

std::optional<int64_t> ParseInt(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

}  // namespace

std::optional<Rational> Rational::Make(int64_t num, int64_t den) {
  if (den == 0 || num == INT64_MIN || den == INT64_MIN) return std::nullopt;
  const int64_t divisor = std::gcd(num, den) * (den < 0 ? -1 : 1);
  return Rational{num / divisor, den / divisor};
}

std::optional<Rational> Rational::Product(Rational a, Rational b) {
  int64_t num, den;
  if (__builtin_mul_overflow(a.num, b.num, &num)) return std::nullopt;
  if (__builtin_mul_overflow(a.den, b.den, &den)) return std::nullopt;
  return Make(num, den);
}

std::optional<Rational> Rational::Sum(Rational a, Rational b) {
  int64_t left, right, num, den;
  if (__builtin_mul_overflow(a.num, b.den, &left)) return std::nullopt;
  if (__builtin_mul_overflow(b.num, a.den, &right)) return std::nullopt;
  if (__builtin_add_overflow(left, right, &num)) return std::nullopt;
  if (__builtin_mul_overflow(a.den, b.den, &den)) return std::nullopt;
  return Make(num, den);
}

std::optional<Rational> Rational::Parse(std::string_view text) {
  if (const size_t slash = text.find('/'); slash != text.npos) {
    const auto num = ParseInt(text.substr(0, slash));
    const auto den = ParseInt(text.substr(slash + 1));
    if (!num || !den) return std::nullopt;
    return Make(*num, *den);
  }
  const size_t point = text.find('.');
  if (point == text.npos) {
    const auto num = ParseInt(text);
    return num ? Make(*num, 1) : std::nullopt;
  }
  const std::string_view decimals = text.substr(point + 1);
  if (decimals.empty() || decimals.size() > 9 || decimals[0] == '-') return std::nullopt;
  const auto num = ParseInt(std::string(text.substr(0, point)) + std::string(decimals));
  if (!num) return std::nullopt;
  int64_t den = 1;
  for (size_t i = 0; i < decimals.size(); ++i) den *= 10;
  return Make(*num, den);
}

std::string Rational::ToString() const {
  if (den == 1) return std::to_string(num);
  for (int64_t scale = 10, digits = 1; digits <= 4; ++digits, scale *= 10) {
    constexpr int64_t kExact = int64_t{1} << 40;  // doubles with four decimals are exact below it
    if (scale % den != 0 || num > kExact || num < -kExact) continue;
    return fmt::format("{:.{}f}", double(num) / double(den), digits);
  }
  return fmt::format("{}/{}", num, den);
}

std::string ToString(const std::vector<Addend>& sum) {
  if (sum.empty()) return "nothing";
  std::vector<std::string> parts;
  for (const Addend& a : sum) parts.push_back(Prefix(a.coefficient) + a.text);
  return fmt::format("{}", fmt::join(parts, " + "));
}

AxisSet Value::Owed() const {
  AxisSet owed;
  for (const Term& term : terms) owed = owed | term.part;
  return owed;
}

std::string Value::ToString(const Mesh& mesh) const {
  std::vector<std::string> sum;
  for (const Term& term : terms) {
    sum.push_back(Prefix(term.coefficient) + term.name);
    if (!term.part.empty()) sum.back() += " partial over " + mesh.Names(term.part);
  }
  std::string s = fmt::format("rows: {}", rows.empty() ? "all" : mesh.Names(rows));
  if (!cols.empty()) s += ", features: " + mesh.Names(cols);
  s += fmt::format(" | {}", sum.empty() ? "nothing" : fmt::format("{}", fmt::join(sum, " + ")));

  std::vector<std::string> notes;
  if (facts.shape != RowShape::kNone) {
    notes.push_back(fmt::format("{} rows over {}", signalbox::ToString(facts.shape),
                                mesh.Names(facts.dispatched)));
  }
  if (facts.latent) notes.push_back("latent");
  if (facts.ids == IdSpace::kPosition) {
    notes.push_back("ids by position");
  } else if (facts.ids != IdSpace::kNone) {
    notes.push_back(fmt::format("{} ids", signalbox::ToString(facts.ids)));
  }
  if (!facts.own_replicas.empty()) {
    notes.push_back("own replicas along " + mesh.Names(facts.own_replicas));
  }
  if (facts.shared_slot != SharedSlot::kNone) {
    notes.push_back(fmt::format("shared in {} slot", signalbox::ToString(facts.shared_slot)));
  }
  if (facts.weighted_by != Actor::kNobody) {
    notes.push_back(fmt::format("weighted by {}", signalbox::ToString(facts.weighted_by)));
  }
  if (facts.scaled_by != Actor::kNobody) {
    notes.push_back(fmt::format("scaled by {}", signalbox::ToString(facts.scaled_by)));
  }
  if (facts.pad != PadRows::kNone) {
    notes.push_back(fmt::format("padding {}", signalbox::ToString(facts.pad)));
  }
  if (!notes.empty()) s += fmt::format(" | {}", fmt::join(notes, ", "));
  return s;
}

}  // namespace signalbox
