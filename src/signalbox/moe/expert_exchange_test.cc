// SPDX-License-Identifier: Apache-2.0
//
// Every contract between its dispatch and its combine, with every runner that can read its rows,
// against a plain loop over experts on one rank.
#include "signalbox/moe/expert_exchange.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "signalbox/comm/fakes.h"
#include "signalbox/comm/thread_world.h"
#include "signalbox/moe/placement.h"

namespace signalbox::expert_exchange_test {
namespace {

using ::testing::HasSubstr;

constexpr int kHidden = 16;
constexpr int kInner = 8;
constexpr int kTopK = 3;
constexpr CommOptions kComm{.deadline = std::chrono::milliseconds(30'000)};

// Experts, and one row through one of them, written without any of the code under test.
class Model {
 public:
  explicit Model(int experts) {
    std::mt19937 random(11);
    std::normal_distribution<float> normal(0.f, 0.4f);
    for (int i = 0; i < 3 * experts; ++i) {
      for (float& v : data_.emplace_back(kHidden * kInner)) v = normal(random);
    }
  }
  int experts() const { return static_cast<int>(data_.size()) / 3; }
  ExpertWeights Weights(int e) const {
    return {F32View(data_[3 * e], kInner, kHidden), F32View(data_[3 * e + 1], kInner, kHidden),
            F32View(data_[3 * e + 2], kHidden, kInner)};
  }
  void AddExpert(int e, const float* x, double weight, std::vector<double>& sum) const {
    std::vector<double> inner(kInner);
    for (int i = 0; i < kInner; ++i) {
      double gate = 0, up = 0;
      for (int h = 0; h < kHidden; ++h) {
        gate += double{data_[3 * e][i * kHidden + h]} * x[h];
        up += double{data_[3 * e + 1][i * kHidden + h]} * x[h];
      }
      inner[i] = gate / (1 + std::exp(-gate)) * up;
    }
    for (int h = 0; h < kHidden; ++h) {
      for (int i = 0; i < kInner; ++i) {
        sum[h] += weight * data_[3 * e + 2][h * kInner + i] * inner[i];
      }
    }
  }

 private:
  std::vector<std::vector<float>> data_;
};

// One rank's rows: logical experts and the slots chosen for them.
struct Tokens {
  std::vector<float> x;          // [rows, hidden]
  std::vector<int32_t> experts;  // [rows, top_k]; -1 = masked
  std::vector<int32_t> slots;    // [rows, top_k]
  std::vector<float> weights;    // [rows, top_k]

  int64_t rows() const { return static_cast<int64_t>(experts.size()) / kTopK; }
  Routing routing() const { return {.ids = slots, .weights = weights}; }
};

enum class Draw : uint8_t { kMixed, kOneExpert, kAllMasked };

Tokens DrawTokens(const ExpertPlacement& placement, int64_t rows, uint64_t seed,
                  Draw draw = Draw::kMixed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Tokens t;
  for (int64_t i = 0; i < rows * kHidden; ++i) t.x.push_back(normal(random));
  std::vector<int32_t> experts(placement.experts());
  for (int e = 0; e < placement.experts(); ++e) experts[e] = e;
  for (int64_t row = 0; row < rows; ++row) {
    std::ranges::shuffle(experts, random);
    const bool idle = random() % 6 == 0;
    for (int k = 0; k < kTopK; ++k) {
      int32_t expert = idle || random() % 5 == 0 ? -1 : experts[k];
      if (draw == Draw::kOneExpert) expert = k == 1 ? 1 : -1;
      if (draw == Draw::kAllMasked) expert = -1;
      t.experts.push_back(expert);
      t.slots.push_back(expert < 0 ? -1 : placement.Choose(ExpertId(expert), row).value());
      t.weights.push_back(0.1f + 0.1f * static_cast<float>(random() % 9));
    }
  }
  return t;
}

// Largest error of a row relative to its largest value; infinite where a NaN is. Rows without any
// expert must be exactly zero.
double Error(const Model& model, const Tokens& t, std::span<const float> out) {
  double worst = 0;
  for (int64_t row = 0; row < t.rows(); ++row) {
    std::vector<double> want(kHidden);
    for (int64_t i = row * kTopK; i < (row + 1) * kTopK; ++i) {
      if (t.experts[i] >= 0) {
        model.AddExpert(t.experts[i], &t.x[row * kHidden], t.weights[i], want);
      }
    }
    double scale = 0, error = 0;
    for (int h = 0; h < kHidden; ++h) {
      const float found = out[row * kHidden + h];
      if (std::isnan(found)) return std::numeric_limits<double>::infinity();
      scale = std::max(scale, std::abs(want[h]));
      error = std::max(error, std::abs(found - want[h]));
    }
    if (error > 0) worst = std::max(worst, error / scale);
  }
  return worst;
}

// How a plan would take rows through the experts.
struct Way {
  RowShape runner = RowShape::kFlat;
  bool permute_weighs = false;  // else the runner does, where it is the caller's task
  bool mask_tail = true;
};

bool Executable(const Contract& c) {
  return c.shape != RowShape::kNone && !c.own_router && c.overflow != OverflowPolicy::kDropByPolicy;
}

std::vector<Contract> Executables() {
  std::vector<Contract> contracts;
  std::ranges::copy_if(AllContracts(), std::back_inserter(contracts), Executable);
  return contracts;
}

// The ways that the typing rules of plans allow.
std::vector<Way> WaysFor(const Contract& c) {
  if (c.shape == RowShape::kFused) return {{.runner = RowShape::kFused}};
  std::vector<Way> ways;
  for (RowShape runner :
       {RowShape::kFlat, RowShape::kExpertMajorPadded, RowShape::kExpertMajorCompact}) {
    if (DedupRows(runner) && !DedupRows(c.shape)) continue;
    ways.push_back({.runner = runner});
    if (!DedupRows(runner) && c.weighting == Weighting::kCaller) {
      ways.push_back({.runner = runner, .permute_weighs = true, .mask_tail = false});
    }
  }
  return ways;
}

struct Rank {
  Ops& ops;
  Scratch& scratch;
  std::vector<ExpertWeights> experts;
};

// Everything between dispatch and combine, chosen by the contract's fields.
Status RunRows(ExpertExchange& exchange, const Rank& rank, const Way& way) {
  const Contract& c = exchange.contract();
  const bool caller = c.weighting == Weighting::kCaller;
  const bool run_weighs = caller && !way.permute_weighs;
  if (c.shape == RowShape::kFused) {
    return exchange.Run(rank.ops, rank.scratch, rank.experts, false);
  }
  if (c.ids == ReceivedIds::kGlobal) SB_RETURN_IF_ERROR(exchange.RemapIds(SlotSpace::kLocal));
  if (way.mask_tail) SB_RETURN_IF_ERROR(exchange.MaskTail());
  if (way.runner != c.shape) SB_RETURN_IF_ERROR(exchange.Permute(way.runner));
  SB_RETURN_IF_ERROR(exchange.Run(rank.ops, rank.scratch, rank.experts, run_weighs));
  if (way.runner != c.shape || way.permute_weighs) {
    return exchange.PermuteResults(c.shape, caller && way.permute_weighs);
  }
  return OkStatus();
}

Status Layer(ExpertExchange& exchange, const Rank& rank, const Way& way, const Tokens& tokens,
             std::span<float> out) {
  SB_RETURN_IF_ERROR(exchange.Dispatch(tokens.x, tokens.routing()));
  SB_RETURN_IF_ERROR(RunRows(exchange, rank, way));
  return exchange.Combine(out, exchange.contract().weighting != Weighting::kCaller);
}

// Runs `program` on every rank of a world with one exchange and that rank's experts.
using Program = std::function<Status(ExpertExchange&, const Rank&, const ExpertPlacement&)>;
Status OnRanks(const Contract& c, const Model& model, int ranks, int redundant,
               const Program& program, ExchangeOptions options = {.capacity = 8}) {
  SB_ASSIGN_OR_RETURN(const ExpertPlacement placement,
                      ExpertPlacement::Create(
                          {.experts = model.experts(), .redundant = redundant, .ranks = ranks}));
  options.slots = placement.slots_per_rank();
  options.hidden = kHidden;
  options.top_k = kTopK;
  std::vector<RankId> group;
  for (int r = 0; r < ranks; ++r) group.push_back(RankId(r));
  return RunRanks(ranks, kComm, [&](Communicator& world) -> Status {
    CountingCommunicator comm(world);
    SB_ASSIGN_OR_RETURN(const auto exchange, ExpertExchange::Create(c, comm, group, options));
    const auto ops = MakeReferenceOps();
    Scratch scratch;
    Rank rank{.ops = *ops, .scratch = scratch};
    for (ExpertId e : placement.ExpertsOn(exchange->position())) {
      rank.experts.push_back(model.Weights(e.value()));
    }
    SB_RETURN_IF_ERROR(program(*exchange, rank, placement));
    // RED-01: what combine returns is complete, nothing is left to be reduced.
    EXPECT_EQ(comm.count(OpKind::kAllReduceSum).calls, 0);
    EXPECT_EQ(comm.count(OpKind::kReduceScatterSum).calls, 0);
    return OkStatus();
  });
}

// One layer of `rows` drawn rows; its error.
Result<double> LayerError(ExpertExchange& exchange, const Rank& rank, const Way& way,
                          const Model& model, const Tokens& tokens) {
  std::vector<float> out(tokens.x.size(), kPoison);
  SB_RETURN_IF_ERROR(Layer(exchange, rank, way, tokens, out));
  return Error(model, tokens, out);
}

TEST(ExpertExchangeMatrix, Red01EveryContractEqualsOneRank) {
  const Model twelve(12), ten(10);
  int layers = 0;
  double worst = 0;
  for (const Contract& c : Executables()) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      for (const Model* model : {&twelve, &ten}) {
        SCOPED_TRACE(
            fmt::format("{}, {} ranks, {} experts", ContractId(c), ranks, model->experts()));
        std::vector<double> errors(ranks);
        const auto program = [&](ExpertExchange& exchange, const Rank& rank,
                                 const ExpertPlacement& placement) -> Status {
          const int me = exchange.position();
          // Calls in a row, so that what one leaves behind meets the next.
          for (const Way& way : WaysFor(c)) {
            for (const auto& rows : {std::array{5, 0, 1, 7}, std::array{0, 3, 8, 1}}) {
              const Tokens tokens = DrawTokens(placement, rows[me], 100 * me + rows[me]);
              SB_ASSIGN_OR_RETURN(const double error,
                                  LayerError(exchange, rank, way, *model, tokens));
              EXPECT_LE(error, 1e-5) << "runner " << ToString(way.runner);
              errors[me] = std::max(errors[me], error);
            }
          }
          return OkStatus();
        };
        const Status status = OnRanks(c, *model, ranks, 12 - model->experts(), program);
        EXPECT_TRUE(status.ok()) << status.ToString();
        layers += 2 * static_cast<int>(WaysFor(c).size());
        worst = std::max(worst, *std::ranges::max_element(errors));
      }
    }
  }
  RecordProperty("layers", layers);
  RecordProperty("worst_error", fmt::format("{:.2e}", worst));
  EXPECT_GT(layers, 24 * 4 * 2 * 2);
}

// CAP-11: experts without rows leave memory unwritten; none of it may be read.
TEST(ExpertExchange, Cap11AllRowsToOneExpert) {
  const Model model(12);
  for (const Contract& c : Executables()) {
    SCOPED_TRACE(ContractId(c));
    const auto program = [&](ExpertExchange& exchange, const Rank& rank,
                             const ExpertPlacement& placement) -> Status {
      for (const Way& way : WaysFor(c)) {
        const Tokens tokens = DrawTokens(placement, 8, exchange.position(), Draw::kOneExpert);
        SB_ASSIGN_OR_RETURN(const double error, LayerError(exchange, rank, way, model, tokens));
        EXPECT_LE(error, 1e-5) << "runner " << ToString(way.runner);
      }
      return OkStatus();
    };
    const Status status = OnRanks(c, model, 3, 0, program);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
}

// IDX-14: rows without an expert give exactly zero, also after calls that gave them other values,
// and rows that ask for other ranks' experts only are nobody else's.
TEST(ExpertExchange, Idx14MaskedAndForeignIds) {
  const Model model(12);
  for (const Contract& c : Executables()) {
    SCOPED_TRACE(ContractId(c));
    const auto program = [&](ExpertExchange& exchange, const Rank& rank,
                             const ExpertPlacement& placement) -> Status {
      const int me = exchange.position();
      for (const Way& way : WaysFor(c)) {
        for (Draw draw : {Draw::kMixed, Draw::kAllMasked}) {
          Tokens tokens = DrawTokens(placement, 4, me, draw);
          if (draw == Draw::kMixed) {
            for (size_t i = 0; i < tokens.slots.size(); ++i) {
              tokens.experts[i] = 6 * (1 - me) + static_cast<int32_t>(i) % 6;
              tokens.slots[i] = tokens.experts[i];
            }
          }
          std::vector<float> out(tokens.x.size(), kPoison);
          SB_RETURN_IF_ERROR(Layer(exchange, rank, way, tokens, out));
          EXPECT_LE(Error(model, tokens, out), 1e-5);
          const bool zero = std::ranges::all_of(out, [](float v) { return v == 0.f; });
          EXPECT_EQ(zero, draw == Draw::kAllMasked);
        }
      }
      return OkStatus();
    };
    const Status status = OnRanks(c, model, 2, 0, program);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
}

// CAP-13: combine takes no ids, so that no caller can pass those that arrived; and it needs nothing
// of what was given to dispatch, which may be gone by then.
TEST(ExpertExchange, Cap13CombineUsesTheRoutingOfTheSender) {
  const Model model(12);
  int checked = 0;
  for (const Contract& c : Executables()) {
    if (c.shape == RowShape::kFused) continue;
    SCOPED_TRACE(ContractId(c));
    ++checked;
    const auto program = [&](ExpertExchange& exchange, const Rank& rank,
                             const ExpertPlacement& placement) -> Status {
      const Tokens tokens = DrawTokens(placement, 7, 3 + exchange.position());
      Tokens gone = tokens;
      SB_RETURN_IF_ERROR(exchange.Dispatch(gone.x, gone.routing()));
      std::ranges::fill(gone.x, kPoison);
      std::ranges::fill(gone.slots, kPoisonId);
      std::ranges::fill(gone.weights, kPoison);
      SB_RETURN_IF_ERROR(RunRows(exchange, rank, WaysFor(c).front()));
      std::vector<float> out(tokens.x.size(), kPoison);
      SB_RETURN_IF_ERROR(exchange.Combine(out, c.weighting != Weighting::kCaller));
      EXPECT_LE(Error(model, tokens, out), 1e-5);
      return OkStatus();
    };
    const Status status = OnRanks(c, model, 2, 0, program);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  EXPECT_GT(checked, 15);
}

TEST(ExpertExchange, MoreRowsThanCapacityAreRefusedOnAllRanksAndTheNextCallWorks) {
  const Model model(12);
  for (const Contract& c : Executables()) {
    if (c.overflow == OverflowPolicy::kImpossible) continue;
    SCOPED_TRACE(ContractId(c));
    const auto program = [&](ExpertExchange& exchange, const Rank& rank,
                             const ExpertPlacement& placement) -> Status {
      const int me = exchange.position();
      const Way way = WaysFor(c).front();
      const Tokens many = DrawTokens(placement, me == 0 ? 9 : 2, 1, Draw::kOneExpert);
      std::vector<float> out(many.x.size());
      const Status refused = Layer(exchange, rank, way, many, out);
      EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused.ToString();
      const Tokens few = DrawTokens(placement, 8, 2);
      SB_ASSIGN_OR_RETURN(const double error, LayerError(exchange, rank, way, model, few));
      EXPECT_LE(error, 1e-5);
      return OkStatus();
    };
    const Status status = OnRanks(c, model, 2, 0, program);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
}

// Deliberate mistakes have to show in the values, or no verification could find them.
TEST(ExpertExchange, MistakesAreVisible) {
  const Model model(12);
  int poisoned = 0;
  for (const Contract& c : Executables()) {
    SCOPED_TRACE(ContractId(c));
    // Room behind the last row, if the contract has fixed buffers.
    const bool has_tail = c.shape != RowShape::kFused && c.rows_bound != RowsBound::kExact;
    for (const Way& way : WaysFor(c)) {
      std::array<double, 2> errors{};
      const auto program = [&](ExpertExchange& exchange, const Rank& rank,
                               const ExpertPlacement& placement) -> Status {
        const Tokens tokens = DrawTokens(placement, 6, 40 + exchange.position());
        SB_ASSIGN_OR_RETURN(errors[exchange.position()],
                            LayerError(exchange, rank, way, model, tokens));
        return OkStatus();
      };
      Status status = OnRanks(c, model, 2, 0, program, {.capacity = 8, .faults = {.id_offset = 1}});
      EXPECT_TRUE(status.ok()) << status.ToString();
      EXPECT_GT(*std::ranges::min_element(errors), 0.1);

      status = OnRanks(c, model, 2, 0, program, {.capacity = 8, .faults = {.read_poison = true}});
      EXPECT_TRUE(status.ok()) << status.ToString();
      const double worst = *std::ranges::max_element(errors);
      if (!has_tail) continue;
      EXPECT_GT(worst, 0.1);
      // Unwritten memory shows as NaN, unless the tail was masked before.
      if (!way.mask_tail && c.tail != TailRows::kZeroed) {
        EXPECT_TRUE(std::isinf(worst));
        ++poisoned;
      }
    }
  }
  EXPECT_GT(poisoned, 5);
}

TEST(ExpertExchange, CountsWhatItSends) {
  const Model model(12);
  for (const Contract& c : Executables()) {
    SCOPED_TRACE(ContractId(c));
    const auto program = [&](ExpertExchange& exchange, const Rank& rank,
                             const ExpertPlacement& placement) -> Status {
      Tokens tokens = DrawTokens(placement, 2, 5);
      tokens.experts = {0, 1, 7, 2, 3, 4};  // rank 1 holds experts 6 to 11
      tokens.slots = tokens.experts;
      for (int call = 0; call < 3; ++call) {
        SB_RETURN_IF_ERROR(LayerError(exchange, rank, WaysFor(c).front(), model, tokens).status());
      }
      const int64_t rows = c.dedup_wire ? 3 : 6;
      const int64_t on_rank_1 = 1;
      const TrafficTotal& total = exchange.dispatched();
      EXPECT_EQ(total.calls, 3);
      EXPECT_EQ(total.rows, 3 * rows);
      EXPECT_EQ(total.bytes, 3 * rows * kHidden * int64_t{sizeof(float)});
      EXPECT_EQ(total.remote_rows, 3 * (exchange.position() == 0 ? on_rank_1 : rows - on_rank_1));
      EXPECT_GT(total.remote_bytes, total.remote_rows * kHidden * int64_t{sizeof(float)});
      EXPECT_EQ(exchange.combined().calls, c.shape == RowShape::kFused ? 0 : 3);
      return OkStatus();
    };
    const Status status = OnRanks(c, model, 2, 0, program);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
}

TEST(ExpertExchange, StepsOutOfOrderAreErrors) {
  const Model model(12);
  for (const Contract& c : Executables()) {
    SCOPED_TRACE(ContractId(c));
    const bool fused = c.shape == RowShape::kFused;
    const bool library = c.weighting != Weighting::kCaller;
    const auto program = [&](ExpertExchange& exchange, const Rank& rank,
                             const ExpertPlacement& placement) -> Status {
      const Tokens tokens = DrawTokens(placement, 3, 1);
      std::vector<float> out(tokens.x.size());
      const auto run = [&] { return exchange.Run(rank.ops, rank.scratch, rank.experts, false); };
      for (const Status& status :
           {exchange.RemapIds(SlotSpace::kLocal), exchange.MaskTail(),
            exchange.Permute(RowShape::kFlat), exchange.PermuteResults(RowShape::kFlat, false)}) {
        EXPECT_EQ(status.code(), fused ? StatusCode::kInvalidArgument : StatusCode::kInternal);
      }
      EXPECT_EQ(run().code(), StatusCode::kInternal);
      EXPECT_EQ(exchange.Combine(out, library).code(), StatusCode::kInternal);
      EXPECT_EQ(exchange.Dispatch(std::span(tokens.x).first(kHidden), tokens.routing()).code(),
                StatusCode::kInternal);
      SB_RETURN_IF_ERROR(exchange.Dispatch(tokens.x, tokens.routing()));
      EXPECT_EQ(exchange.Combine(out, library).code(), StatusCode::kInternal);
      EXPECT_EQ(exchange.Run(rank.ops, rank.scratch, {}, false).code(), StatusCode::kInternal);
      SB_RETURN_IF_ERROR(RunRows(exchange, rank, WaysFor(c).front()));
      EXPECT_EQ(run().code(), StatusCode::kInternal);
      EXPECT_THAT(exchange.Combine(out, !library).message(),
                  HasSubstr(library ? "combine always multiplies" : "combine never multiplies"));
      EXPECT_EQ(exchange.Combine(std::span(out).first(1), library).code(), StatusCode::kInternal);
      SB_RETURN_IF_ERROR(exchange.Combine(out, library));
      EXPECT_LE(Error(model, tokens, out), 1e-5);
      return OkStatus();
    };
    const Status status = OnRanks(c, model, 2, 0, program);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
}

}  // namespace
}  // namespace signalbox::expert_exchange_test
