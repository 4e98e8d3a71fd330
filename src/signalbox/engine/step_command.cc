// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/step_command.h"

#include <cstring>

namespace signalbox {
namespace {

// Writes or reads the same fields in the same order; one list for both directions.
class Writer {
 public:
  static constexpr bool kReading = false;
  template <typename T>
  void Value(T& value) {
    const size_t size = bytes.size();
    bytes.resize(size + sizeof(T));
    std::memcpy(bytes.data() + size, &value, sizeof(T));
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

template <typename Archive, typename Sequence, typename Each>
void List(Archive& a, Sequence& list, const Each& each) {
  size_t size = list.size();
  a.Size(size);
  if constexpr (Archive::kReading) list.resize(size);
  for (auto& element : list) each(element);
}

template <typename Archive, typename Sequence>
void Values(Archive& a, Sequence& list) {
  List(a, list, [&](auto& v) { a.Value(v); });
}

template <typename Archive>
void Visit(Archive& a, StepCommand& command) {
  a.Value(command.kind);
  a.Value(command.phase);
  a.Value(command.keep_hidden);
  a.Value(command.return_hidden);
  a.Value(command.trace);
  a.Value(command.layers);
  Values(a, command.copies);
  List(a, command.windows, [&](Window& w) {
    a.Value(w.part);
    a.Value(w.past);
    a.Value(w.slot);
    a.Value(w.logits);
    a.Value(w.hidden);
    Values(a, w.tokens);
    Values(a, w.pages);
    Values(a, w.after);
  });
}

template <typename Archive>
void Visit(Archive& a, std::vector<AddendTrace>& trace) {
  List(a, trace, [&](AddendTrace& t) {
    a.Value(t.rank);
    a.Value(t.layer);
    Values(a, t.addend);
    Values(a, t.tokens);
    Values(a, t.data);
  });
}

template <typename T>
std::vector<std::byte> Write(T value) {
  Writer writer;
  Visit(writer, value);
  return std::move(writer.bytes);
}

template <typename T>
Result<T> Read(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  T value;
  Visit(reader, value);
  if (!reader.failed && reader.left.empty()) return value;
  return Internal(
      {.what = "message of another form", .found = std::to_string(bytes.size()) + " bytes"});
}

}  // namespace

std::vector<std::byte> Encode(const StepCommand& command) {
  return Write(command);
}
Result<StepCommand> Decode(std::span<const std::byte> bytes) {
  return Read<StepCommand>(bytes);
}
std::vector<std::byte> EncodeTrace(const std::vector<AddendTrace>& trace) {
  return Write(trace);
}
Result<std::vector<AddendTrace>> DecodeTrace(std::span<const std::byte> bytes) {
  return Read<std::vector<AddendTrace>>(bytes);
}

}  // namespace signalbox
