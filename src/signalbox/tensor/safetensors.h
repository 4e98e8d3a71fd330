// SPDX-License-Identifier: Apache-2.0
//
// SafetensorsFile: zero-copy reader of one .safetensors file.
//
// The file is: header length (u64, little-endian), header (JSON object: tensor name -> dtype,
// shape, data_offsets; optional "__metadata__" map of strings), data. Everything the header says is
// checked before anything is used: lengths, names, types, shapes, and that the tensors fill the
// data without overlap or hole. Hostile files give an error, never a crash. Format:
// https://github.com/huggingface/safetensors#format
//
// Alignment: the format does not promise any. Data() is bytes; read wider elements with memcpy, or
// ask IsAligned() before casting the pointer. Files from SafetensorsWriter are always aligned.
//
//   SB_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
//   const TensorInfo* t = file.Find("lm_head.weight");
//   std::span<const std::byte> bytes = file.Data(*t);
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "signalbox/base/mapped_file.h"
#include "signalbox/base/status.h"
#include "signalbox/tensor/dtype.h"

namespace signalbox {

// What one header entry says.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // empty: one element
  int64_t offset = 0;          // of the first byte, from the start of the file
  int64_t bytes = 0;

  // "BF16 [512, 2048]"
  std::string ToString() const;
};

// "[512, 2048]"
std::string ShapeToString(std::span<const int64_t> shape);
// Product of the dimensions; none when a dimension is negative or the product exceeds int64.
std::optional<int64_t> ElementCount(std::span<const int64_t> shape);

inline constexpr int64_t kMaxSafetensorsHeader = 100'000'000;  // the reference reader's limit
inline constexpr size_t kMaxTensorRank = 8;

class SafetensorsFile {
 public:
  // BAD_CHECKPOINT for every error; `where` is the file, and the tensor when one is to blame.
  static Result<SafetensorsFile> Open(const std::filesystem::path& path);
  // The same over bytes that the caller keeps alive; `name` stands for the path.
  static Result<SafetensorsFile> FromBytes(std::span<const std::byte> bytes, std::string name);

  // As given to Open or FromBytes.
  const std::string& path() const { return path_; }
  std::span<const TensorInfo> tensors() const { return tensors_; }  // sorted by name
  const TensorInfo* Find(std::string_view name) const;              // null when absent
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // `info` must come from this file.
  std::span<const std::byte> Data(const TensorInfo& info) const;
  // Whether Data(info) may be read through a pointer to the element type.
  bool IsAligned(const TensorInfo& info) const;
  // A hint about how the data will be read; nothing for FromBytes.
  void Advise(MappedFile::Access access) const;
  int64_t file_bytes() const { return static_cast<int64_t>(bytes_.size()); }

 private:
  SafetensorsFile() = default;
  Status Parse();

  std::string path_;
  std::optional<MappedFile> file_;    // what bytes_ points into, unless the caller owns the bytes
  std::span<const std::byte> bytes_;  // the whole file
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace signalbox
