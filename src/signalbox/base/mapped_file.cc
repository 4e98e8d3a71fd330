// SPDX-License-Identifier: Apache-2.0
#include "signalbox/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace signalbox {
namespace {

std::string ErrnoText(int error) {
  return std::generic_category().message(error);
}

Status OpenError(const std::filesystem::path& path, int error) {
  ErrorDetail detail = {.what = "cannot open file", .where = path.string()};
  detail.found = ErrnoText(error);
  return error == ENOENT || error == ENOTDIR ? NotFound(std::move(detail))
                                             : InvalidArgument(std::move(detail));
}

// Closes on every way out of Open; the mapping outlives the descriptor.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

Result<MappedFile> MappedFile::Open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a pipe must return, so that it can be refused.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) return OpenError(path, errno);
  struct stat info;
  if (::fstat(file.fd, &info) != 0) return OpenError(path, errno);
  if (!S_ISREG(info.st_mode)) {
    return InvalidArgument({.what = "cannot map file",
                            .where = path.string(),
                            .found = S_ISDIR(info.st_mode) ? "a directory" : "a pipe or device",
                            .expected = "a regular file"});
  }
  // mmap refuses length 0.
  if (info.st_size == 0) return MappedFile({});
  const size_t size = static_cast<size_t>(info.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd, 0);
  if (address == MAP_FAILED) return OpenError(path, errno);
  return MappedFile({static_cast<const std::byte*>(address), size});
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::Advise(Access access) const {
  if (bytes_.empty()) return;
  ::madvise(const_cast<std::byte*>(bytes_.data()), bytes_.size(),
            access == Access::kSequential ? MADV_SEQUENTIAL : MADV_WILLNEED);
}

}  // namespace signalbox
