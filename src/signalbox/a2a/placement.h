// SPDX-License-Identifier: Apache-2.0
//
// The receiving half of a transport: packets as they travel, and how they become the rows, ids,
// weights and counts that a contract promises. Internal to a2a; see transport.h.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "signalbox/a2a/exchange.h"

namespace signalbox {

// What travels for one row: token, lane (-1: all lanes of the token), their ids, their weights, the
// values. Words of four bytes; the integers are bit patterns.
struct PacketFormat {
  int lanes;
  int hidden;

  PacketFormat(const Contract& contract, const ExchangeShape& shape)
      : lanes(contract.dedup_wire ? shape.top_k : 1), hidden(shape.hidden) {}

  int64_t header_words() const { return 2 + 2 * lanes; }
  int64_t words() const { return header_words() + hidden; }

  static void PutInt(float* word, int32_t value) { *word = std::bit_cast<float>(value); }
  static int32_t GetInt(const float* word) { return std::bit_cast<int32_t>(*word); }

  int32_t Token(const float* packet) const { return GetInt(packet); }
  int32_t Lane(const float* packet) const { return GetInt(packet + 1); }
  int32_t Id(const float* packet, int lane) const { return GetInt(packet + 2 + lane); }
  float Weight(const float* packet, int lane) const { return packet[2 + lanes + lane]; }
  std::span<const float> Values(const float* packet) const {
    return {packet + header_words(), static_cast<size_t>(hidden)};
  }
};

// A row to be placed. Listed by sender, token and lane.
struct Arrival {
  Origin origin;
  int expert = -1;                // local; -1 in shapes whose rows are for several
  float weight = 0.f;             // of the lane
  const float* packet = nullptr;  // valid during Place
  int64_t position = -1;          // row it was given; -1: dropped
};

// The rows of `packets` (those of each rank after one another, counts[r] from rank r) on the rank
// at `position` of the group. Internal when a packet is not one of ours.
Result<std::vector<Arrival>> ListArrivals(const Contract& contract, const ExchangeShape& shape,
                                          int position, const float* packets,
                                          std::span<const int64_t> counts);

// Received rows in memory that is used again by later calls. Rows that hold no token are blank: as
// the contract leaves them.
class RowStore {
 public:
  RowStore(const Contract& contract, const ExchangeShape& shape, int position)
      : c_(contract), s_(shape), first_slot_(position * shape.slots) {}

  // Gives every arrival a position and fills the store with this call's rows. `salt` draws the
  // order of rows where the contract leaves it open. False: rows exceed the buffers of a contract
  // that does not drop them; nothing was written then.
  bool Place(std::vector<Arrival>& arrivals, uint64_t salt);

  // Writes `id` into the ids of rows without a token.
  void Sanitise(int32_t id);

  const Delivered& delivered() const { return d_; }

 private:
  std::vector<uint32_t> Order(const std::vector<Arrival>& arrivals, uint64_t salt) const;
  int64_t AssignPositions(std::vector<Arrival>& arrivals, std::span<const uint32_t> order);
  void Resize(int64_t capacity);
  void BlankRow(int64_t row);
  void WriteRow(const Arrival& arrival);
  void WriteLanes(const Arrival& arrival);
  void Count(const std::vector<Arrival>& arrivals);
  bool IsLocal(int32_t id) const { return id >= first_slot_ && id < first_slot_ + s_.slots; }
  int32_t BlankId() const;

  const Contract& c_;
  const ExchangeShape& s_;
  const int first_slot_;
  Delivered d_;
  std::vector<uint8_t> blank_;                     // [capacity] row holds what BlankRow writes
  std::vector<int64_t> zone_begin_;                // [slots]
  std::vector<std::pair<int32_t, float>> packed_;  // local lanes of the row being written
};

}  // namespace signalbox
