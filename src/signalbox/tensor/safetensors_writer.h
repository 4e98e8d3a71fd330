// SPDX-License-Identifier: Apache-2.0
//
// SafetensorsWriter: writes one .safetensors file whose tensors are declared up front and then
// filled piece by piece, in any order, so that no tensor needs to fit into memory.
//
// Bytes never written read as zero and take no disk space where the file system has sparse files:
// Create + Close alone makes a file of full logical size with nothing but its header.
// The file appears under its name on Close; until then, and after an error, there is only
// "PATH.partial", which the destructor removes.
// Layout: header padded with spaces to a multiple of 64; tensors ordered by element size, widest
// first, then as declared: that aligns every tensor to its elements without holes.
//
//   SB_ASSIGN_OR_RETURN(auto w, SafetensorsWriter::Create(path, {{"a", DType::kF32, {2, 3}}}));
//   SB_RETURN_IF_ERROR(w.Write("a", 0, std::as_bytes(std::span(values))));
//   SB_RETURN_IF_ERROR(w.Close());
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "signalbox/base/status.h"
#include "signalbox/tensor/dtype.h"
#include "signalbox/tensor/safetensors.h"

namespace signalbox {

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
};

class SafetensorsWriter {
 public:
  // INVALID_ARGUMENT for a duplicate name or a shape that is negative or too large, or when the
  // file cannot be created.
  static Result<SafetensorsWriter> Create(const std::filesystem::path& path,
                                          std::span<const TensorSpec> tensors,
                                          const std::map<std::string, std::string>& metadata = {});
  SafetensorsWriter(SafetensorsWriter&& other) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) = delete;
  ~SafetensorsWriter();

  // `bytes` become bytes [at, at + size) of the named tensor. RESOURCE_EXHAUSTED when the disk is
  // full.
  Status Write(std::string_view name, int64_t at, std::span<const std::byte> bytes);
  // Makes the file appear under its own name. Nothing can be written afterwards.
  Status Close();

 private:
  SafetensorsWriter() = default;

  std::filesystem::path path_;
  std::filesystem::path partial_;
  int fd_ = -1;
  std::vector<TensorInfo> tensors_;  // sorted by name
};

}  // namespace signalbox
