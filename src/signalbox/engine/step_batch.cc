// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/step_batch.h"

#include <cstring>

namespace signalbox {
namespace {

// Writes or reads the same fields in the same order; one list for both directions.
class Writer {
 public:
  static constexpr bool kReading = false;
  template <typename T>
  void Value(T& value) {
    const auto* p = reinterpret_cast<const std::byte*>(&value);
    bytes.insert(bytes.end(), p, p + sizeof(T));
  }
  void Size(size_t& size) {
    int64_t n = static_cast<int64_t>(size);
    Value(n);
  }
  std::vector<std::byte> bytes;
};

class Reader {
 public:
  static constexpr bool kReading = true;
  explicit Reader(std::span<const std::byte> from) : left(from) {}
  template <typename T>
  void Value(T& value) {
    if (left.size() < sizeof(T)) {
      failed = true;
      return;
    }
    std::memcpy(&value, left.data(), sizeof(T));
    left = left.subspan(sizeof(T));
  }
  // Of a list; every element takes at least one byte, so a damaged size cannot ask for more than
  // there is.
  void Size(size_t& size) {
    int64_t n = 0;
    Value(n);
    failed |= n < 0 || n > static_cast<int64_t>(left.size());
    size = failed ? 0 : static_cast<size_t>(n);
  }
  std::span<const std::byte> left;
  bool failed = false;
};

template <typename Archive, typename T, typename Each>
void List(Archive& a, std::vector<T>& list, const Each& each) {
  size_t size = list.size();
  a.Size(size);
  if constexpr (Archive::kReading) list.resize(size);
  for (T& element : list) each(element);
}

template <typename Archive, typename T>
void Values(Archive& a, std::vector<T>& list) {
  List(a, list, [&](T& v) { a.Value(v); });
}

template <typename Archive>
void Visit(Archive& a, StepCommand& command) {
  a.Value(command.kind);
  a.Value(command.batch.want_hidden);
  Values(a, command.batch.release);
  List(a, command.batch.sequences, [&](SequenceStep& s) {
    a.Value(s.sequence);
    a.Value(s.logits);
    Values(a, s.tokens);
  });
  List(a, command.drafts, [&](DraftStep& d) {
    a.Value(d.sequence);
    a.Value(d.slot);
    Values(a, d.tokens);
    Values(a, d.hidden);
  });
}

}  // namespace

std::vector<std::byte> Encode(const StepCommand& command) {
  Writer writer;
  StepCommand copy = command;
  Visit(writer, copy);
  return std::move(writer.bytes);
}

Result<StepCommand> Decode(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  StepCommand command;
  Visit(reader, command);
  if (!reader.failed && reader.left.empty()) return command;
  return Internal(
      {.what = "step command of another form", .found = std::to_string(bytes.size()) + " bytes"});
}

}  // namespace signalbox
