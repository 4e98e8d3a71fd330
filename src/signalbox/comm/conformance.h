// SPDX-License-Identifier: Apache-2.0
//
// What every transport must do, as a program that all ranks run: each operation on each group of a
// partition of the world, compared bit by bit with a serial model. For tests.
//
//   Case c = MakeCase(comm.size(), seed);
//   SB_RETURN_IF_ERROR(CheckCase(comm, c));
#pragma once

#include <fmt/ranges.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "signalbox/comm/communicator.h"

namespace signalbox {

// The world as a product of two or three axes, of which `chosen` span the groups.
struct Case {
  int ranks = 1;
  std::vector<int> axes;                     // sizes, the last varies fastest
  unsigned chosen = 0;                       // bit a: ranks of a group differ along axis a
  std::vector<std::vector<int64_t>> counts;  // [members, members] of floats, zeros included
  uint32_t seed = 0;

  std::string ToString() const {
    return fmt::format("axes {}, chosen {:#b}, counts {}, seed {}", axes, chosen, counts, seed);
  }
};

inline std::vector<RankId> GroupOf(const Case& c, int rank) {
  std::vector<RankId> group;
  for (int other = 0; other < c.ranks; ++other) {
    bool same = true;
    int a = rank, b = other;
    for (size_t axis = c.axes.size(); axis-- > 0;) {
      if (!(c.chosen >> axis & 1) && a % c.axes[axis] != b % c.axes[axis]) same = false;
      a /= c.axes[axis];
      b /= c.axes[axis];
    }
    if (same) group.push_back(RankId(other));
  }
  return group;
}

inline std::vector<std::vector<int>> Factorisations(int n) {
  std::vector<std::vector<int>> all;
  for (int a = 1; a <= n; ++a) {
    for (int b = 1; a * b <= n; ++b) {
      if (n % (a * b) == 0) all.push_back({a, b, n / (a * b)});
    }
  }
  return all;
}

// Counts drawn from `seed`; some zero, some above the size from which an all-reduce is split.
inline Case MakeCase(int ranks, const std::vector<int>& axes, unsigned chosen, uint32_t seed) {
  Case c{.ranks = ranks, .axes = axes, .chosen = chosen, .seed = seed};
  std::mt19937 random(seed);
  constexpr int64_t kSizes[] = {0, 0, 1, 3, 16, 17, 100, 257};
  const size_t members = GroupOf(c, 0).size();
  c.counts.assign(members, std::vector<int64_t>(members));
  for (auto& row : c.counts) {
    for (int64_t& count : row) count = kSizes[random() % std::size(kSizes)];
  }
  if (random() % 4 == 0) c.counts[0][0] = 9001;
  return c;
}

inline Case MakeCase(int ranks, uint32_t seed) {
  std::mt19937 random(seed);
  const auto all = Factorisations(ranks);
  const std::vector<int>& axes = all[random() % all.size()];
  const unsigned chosen = random() % 8;
  return MakeCase(ranks, axes, chosen, seed);
}

// What rank `r` sends in operation `op`: values whose sum depends on the order of addition.
inline std::vector<float> DataOf(const Case& c, int op, RankId r, int64_t n) {
  std::mt19937 random(c.seed * 1000003u + op * 1009u + r.value());
  std::vector<float> data(n);
  for (float& x : data) {
    x = (static_cast<float>(random() % 2001) - 1000.0f) * std::exp2f(int(random() % 24) - 12);
  }
  return data;
}

template <typename T>
Status ExpectSame(const std::vector<T>& found, const std::vector<T>& expected, const Case& c,
                  std::string_view what) {
  if (found.size() == expected.size() &&
      (found.empty() ||
       std::memcmp(found.data(), expected.data(), found.size() * sizeof(T)) == 0)) {
    return OkStatus();
  }
  return OutOfTolerance({.what = fmt::format("{} differs from the model", what),
                         .where = c.ToString(),
                         .found = fmt::format("{} elements", found.size()),
                         .expected = fmt::format("{} elements", expected.size())});
}

// One rank's view of the case: its group, and the model's answers.
class CaseRunner {
 public:
  CaseRunner(Communicator& comm, const Case& c)
      : comm_(comm), case_(c), group_(GroupOf(c, comm.rank().value())) {
    while (group_[me_] != comm.rank()) ++me_;
    members_ = static_cast<int>(group_.size());
  }

  Status RunAll() {
    SB_RETURN_IF_ERROR(AllReduce());
    SB_RETURN_IF_ERROR(ReduceScatter());
    SB_RETURN_IF_ERROR(AllGather());
    SB_RETURN_IF_ERROR(Broadcast());
    SB_RETURN_IF_ERROR(AllToAll());
    SB_RETURN_IF_ERROR(Agree());
    return comm_.Barrier(group_);
  }

 private:
  const std::vector<int64_t>& counts() const { return case_.counts[0]; }
  int64_t total() const { return std::accumulate(counts().begin(), counts().end(), int64_t{0}); }

  // The sum over members, in their order.
  std::vector<float> Total(int op) const {
    std::vector<float> sum = DataOf(case_, op, group_[0], total());
    for (int m = 1; m < members_; ++m) {
      const std::vector<float> more = DataOf(case_, op, group_[m], total());
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
    }
    return sum;
  }

  Status AllReduce() {
    std::vector<float> data = DataOf(case_, 1, comm_.rank(), total());
    SB_RETURN_IF_ERROR(comm_.AllReduceSum(group_, data));
    return ExpectSame(data, Total(1), case_, "all-reduce");
  }

  Status ReduceScatter() {
    const std::vector<float> input = DataOf(case_, 2, comm_.rank(), total());
    std::vector<float> output(counts()[me_]);
    SB_RETURN_IF_ERROR(comm_.ReduceScatterSum(group_, input, counts(), output));
    const std::vector<float> sum = Total(2);
    const int64_t begin = std::accumulate(counts().begin(), counts().begin() + me_, int64_t{0});
    return ExpectSame(output, {sum.begin() + begin, sum.begin() + begin + counts()[me_]}, case_,
                      "reduce-scatter");
  }

  Status AllGather() {
    const std::vector<float> mine = DataOf(case_, 3, comm_.rank(), counts()[me_]);
    std::vector<float> all(total()), expected;
    std::vector<int64_t> bytes = counts();
    for (int64_t& b : bytes) b *= sizeof(float);
    for (int m = 0; m < members_; ++m) {
      const std::vector<float> part = DataOf(case_, 3, group_[m], counts()[m]);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    SB_RETURN_IF_ERROR(comm_.AllGather(group_, BytesOf(mine), bytes, WritableBytesOf(all)));
    return ExpectSame(all, expected, case_, "all-gather");
  }

  Status Broadcast() {
    const RankId root = group_[case_.seed % members_];
    std::vector<float> data = DataOf(case_, 4, comm_.rank(), total());
    SB_RETURN_IF_ERROR(comm_.Broadcast(group_, root, WritableBytesOf(data)));
    return ExpectSame(data, DataOf(case_, 4, root, total()), case_, "broadcast");
  }

  // counts[p][q] floats go from member p to member q.
  Status AllToAll() {
    std::vector<int64_t> send_bytes, recv_bytes;
    std::vector<float> expected;
    for (int m = 0; m < members_; ++m) {
      send_bytes.push_back(case_.counts[me_][m] * int64_t{sizeof(float)});
      recv_bytes.push_back(case_.counts[m][me_] * int64_t{sizeof(float)});
      const std::vector<int64_t>& row = case_.counts[m];
      const std::vector<float> sent =
          DataOf(case_, 5, group_[m], std::accumulate(row.begin(), row.end(), int64_t{0}));
      const auto from = sent.begin() + std::accumulate(row.begin(), row.begin() + me_, int64_t{0});
      expected.insert(expected.end(), from, from + row[me_]);
    }
    const std::vector<int64_t>& mine = case_.counts[me_];
    const std::vector<float> send =
        DataOf(case_, 5, comm_.rank(), std::accumulate(mine.begin(), mine.end(), int64_t{0}));
    std::vector<float> recv(expected.size());
    SB_RETURN_IF_ERROR(
        comm_.AllToAll(group_, BytesOf(send), send_bytes, WritableBytesOf(recv), recv_bytes));
    SB_RETURN_IF_ERROR(ExpectSame(recv, expected, case_, "all-to-all"));

    std::vector<std::byte> learned;
    std::vector<int64_t> learned_bytes;
    SB_RETURN_IF_ERROR(
        comm_.AllToAllLearn(group_, BytesOf(send), send_bytes, learned, learned_bytes));
    SB_RETURN_IF_ERROR(ExpectSame(learned_bytes, recv_bytes, case_, "learned counts"));
    const auto bytes = BytesOf(expected);
    return ExpectSame(learned, {bytes.begin(), bytes.end()}, case_, "learning all-to-all");
  }

  Status Agree() {
    const auto value = [&](RankId r) { return int64_t{r.value()} * 7 - 3; };
    std::vector<int64_t> low{value(comm_.rank()), 5}, high = low, sum = low;
    SB_RETURN_IF_ERROR(comm_.Agree(group_, Agreement::kMin, low));
    SB_RETURN_IF_ERROR(comm_.Agree(group_, Agreement::kMax, high));
    SB_RETURN_IF_ERROR(comm_.Agree(group_, Agreement::kSum, sum));
    int64_t expected_sum = 0;
    for (RankId r : group_) expected_sum += value(r);
    SB_RETURN_IF_ERROR(ExpectSame(low, {value(group_.front()), 5}, case_, "minimum"));
    SB_RETURN_IF_ERROR(ExpectSame(high, {value(group_.back()), 5}, case_, "maximum"));
    return ExpectSame(sum, {expected_sum, int64_t{5} * members_}, case_, "sum");
  }

  Communicator& comm_;
  const Case& case_;
  const std::vector<RankId> group_;
  int me_ = 0;
  int members_ = 0;
};

inline Status CheckCase(Communicator& comm, const Case& c) {
  return CaseRunner(comm, c).RunAll();
}

}  // namespace signalbox
