// SPDX-License-Identifier: Apache-2.0
//
// MappedFile: a whole regular file, mapped read-only. Pages are shared with every other process
// that reads the file and are fetched on first touch.
//
// Out of scope: a file that another process shortens while it is mapped. Touching the lost pages
// raises SIGBUS, as with every mapped file; replace model files by rename, never in place.
//
//   SB_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open("model.safetensors"));
//   file.Advise(MappedFile::Access::kSequential);
//   Parse(file.bytes());
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "signalbox/base/status.h"

namespace signalbox {

class MappedFile {
 public:
  enum class Access {
    kSequential,  // read ahead, drop behind
    kWillNeed,    // start reading all of it now
  };

  // NOT_FOUND when there is no such file; INVALID_ARGUMENT when it is a directory, a pipe or a
  // device, or cannot be opened. An empty file gives empty bytes().
  static Result<MappedFile> Open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  // The address is page-aligned and does not change when the MappedFile is moved.
  std::span<const std::byte> bytes() const { return bytes_; }
  // A hint to the kernel; whether it is followed changes speed only.
  void Advise(Access access) const;

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

}  // namespace signalbox
