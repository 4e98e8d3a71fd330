// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a safetensors file: read or refused, and what is read can be touched. The input is
// tried as a whole file, and as the header of a sound one, which gets past the length field at
// once.
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "signalbox/tensor/safetensors.h"

namespace {

using signalbox::SafetensorsFile;

void ReadAll(std::span<const std::byte> bytes) {
  signalbox::Result<SafetensorsFile> file = SafetensorsFile::FromBytes(bytes, "fuzz");
  if (!file.ok()) {
    SB_CHECK(file.status().code() == signalbox::StatusCode::kBadCheckpoint);
    SB_CHECK(file.status().message().size() < 4096) << "a message as long as its input";
    return;
  }
  size_t touched = 0;
  uint8_t sum = 0;
  for (const signalbox::TensorInfo& info : file->tensors()) {
    for (const std::byte b : file->Data(info)) sum ^= std::to_integer<uint8_t>(b);
    touched += static_cast<size_t>(info.bytes);
    SB_CHECK(file->Find(info.name) == &info) << info.name;
    (void)file->IsAligned(info);
  }
  SB_CHECK(touched <= bytes.size()) << "tensors share bytes";
  const volatile uint8_t sink = sum;  // keeps the loads
  (void)sink;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ReadAll(std::as_bytes(std::span(data, size)));
  constexpr size_t kDataBytes = 16;
  std::string framed(8 + size + kDataBytes, '\1');
  const uint64_t length = size;
  std::memcpy(framed.data(), &length, sizeof(length));
  if (size > 0) std::memcpy(framed.data() + 8, data, size);
  ReadAll(std::as_bytes(std::span(framed)));
  return 0;
}
