// SPDX-License-Identifier: Apache-2.0
#include "signalbox/tensor/safetensors_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <numeric>
#include <optional>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "signalbox/base/text_util.h"

namespace signalbox {
namespace {

constexpr int64_t kHeaderAlignment = 64;
constexpr int64_t kMaxDataBytes = int64_t{1} << 62;  // leaves offsets room for the header

Status WriteError(const std::filesystem::path& path, int error) {
  ErrorDetail detail = {.what = "cannot write file", .where = path.string()};
  detail.found = std::generic_category().message(error);
  if (error != ENOSPC && error != EDQUOT && error != EFBIG) {
    return InvalidArgument(std::move(detail));
  }
  detail.remedy = "free space or write somewhere else";
  return ResourceExhausted(std::move(detail));
}

Status WriteAll(int fd, const std::filesystem::path& path, std::span<const std::byte> bytes,
                int64_t at) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return WriteError(path, errno);
    bytes = bytes.subspan(static_cast<size_t>(n));
    at += n;
  }
  return OkStatus();
}

// JSON string, or none when the text is not UTF-8.
std::optional<std::string> JsonString(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    return std::nullopt;
  }
}

// Places the tensors: offsets count from the start of the data.
Result<std::vector<TensorInfo>> Place(std::span<const TensorSpec> tensors) {
  std::vector<const TensorSpec*> order(tensors.size());
  std::transform(tensors.begin(), tensors.end(), order.begin(), [](auto& t) { return &t; });
  std::stable_sort(order.begin(), order.end(), [](const TensorSpec* a, const TensorSpec* b) {
    return ByteSize(a->dtype) > ByteSize(b->dtype);
  });
  std::vector<TensorInfo> placed;
  placed.reserve(tensors.size());
  int64_t end = 0;
  for (const TensorSpec* spec : order) {
    TensorInfo info = {.name = spec->name, .dtype = spec->dtype, .shape = spec->shape};
    info.offset = end;
    const std::optional<int64_t> elements = ElementCount(info.shape);
    if (!elements || info.shape.size() > kMaxTensorRank ||
        __builtin_mul_overflow(*elements, ByteSize(info.dtype), &info.bytes) ||
        __builtin_add_overflow(end, info.bytes, &end) || end > kMaxDataBytes) {
      return InvalidArgument({.what = "tensor cannot be written",
                              .where = Quoted(info.name),
                              .found = "shape " + ShapeToString(info.shape),
                              .expected = "at most 8 dimensions of 0 or more, 2^62 bytes"});
    }
    placed.push_back(std::move(info));
  }
  return placed;
}

// The padded header with its length in front.
Result<std::string> Header(std::span<const TensorInfo> tensors,
                           const std::map<std::string, std::string>& metadata) {
  const auto not_utf8 = [](std::string_view text) {
    return InvalidArgument({.what = "name is not UTF-8", .found = Quoted(text)});
  };
  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      const auto k = JsonString(key);
      const auto v = JsonString(value);
      if (!k || !v) return not_utf8(key);
      json += (json.back() == '{' ? "" : ",") + *k + ":" + *v;
    }
    json += "}";
  }
  for (const TensorInfo& info : tensors) {
    const auto name = JsonString(info.name);
    if (!name) return not_utf8(info.name);
    json += fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                        json.size() == 1 ? "" : ",", *name, ToString(info.dtype),
                        fmt::join(info.shape, ","), info.offset, info.offset + info.bytes);
  }
  json += "}";
  const int64_t used = 8 + static_cast<int64_t>(json.size());
  json.append(static_cast<size_t>((kHeaderAlignment - used % kHeaderAlignment) % kHeaderAlignment),
              ' ');
  if (static_cast<int64_t>(json.size()) > kMaxSafetensorsHeader) {
    return InvalidArgument({.what = "too many tensors for one file",
                            .found = fmt::format("a header of {} bytes", json.size()),
                            .expected = fmt::format("at most {}", kMaxSafetensorsHeader),
                            .remedy = "write several shards"});
  }
  std::string length;
  for (int i = 0; i < 8; ++i) length += static_cast<char>(json.size() >> (8 * i) & 0xff);
  return length + json;
}

}  // namespace

Result<SafetensorsWriter> SafetensorsWriter::Create(
    const std::filesystem::path& path, std::span<const TensorSpec> tensors,
    const std::map<std::string, std::string>& metadata) {
  SB_ASSIGN_OR_RETURN(std::vector<TensorInfo> placed, Place(tensors));
  SB_ASSIGN_OR_RETURN(const std::string header, Header(placed, metadata));
  int64_t size = static_cast<int64_t>(header.size());
  for (TensorInfo& info : placed) {
    info.offset += static_cast<int64_t>(header.size());
    size = info.offset + info.bytes;
  }
  std::sort(placed.begin(), placed.end(), [](auto& a, auto& b) { return a.name < b.name; });
  const auto twin = std::adjacent_find(placed.begin(), placed.end(),
                                       [](auto& a, auto& b) { return a.name == b.name; });
  if (twin != placed.end() || std::ranges::count(placed, "__metadata__", &TensorInfo::name) > 0) {
    return InvalidArgument({.what = "tensor name is reserved or given twice",
                            .found = Quoted(twin != placed.end() ? twin->name : "__metadata__")});
  }

  SafetensorsWriter writer;
  writer.path_ = path;
  writer.partial_ = path.string() + ".partial";
  writer.tensors_ = std::move(placed);
  writer.fd_ = ::open(writer.partial_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (writer.fd_ < 0) return WriteError(writer.partial_, errno);
  if (::ftruncate(writer.fd_, size) != 0) return WriteError(writer.partial_, errno);
  SB_RETURN_IF_ERROR(WriteAll(writer.fd_, writer.partial_, std::as_bytes(std::span(header)), 0));
  return writer;
}

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&& other) noexcept
    : path_(std::move(other.path_)),
      partial_(std::move(other.partial_)),
      fd_(std::exchange(other.fd_, -1)),
      tensors_(std::move(other.tensors_)) {}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(partial_.c_str());
}

Status SafetensorsWriter::Write(std::string_view name, int64_t at,
                                std::span<const std::byte> bytes) {
  const auto it = std::ranges::lower_bound(
      tensors_, name, {}, [](const TensorInfo& info) { return std::string_view(info.name); });
  SB_CHECK(fd_ >= 0 && it != tensors_.end() && it->name == name) << "no tensor " << name;
  SB_CHECK(at >= 0 && at <= it->bytes && static_cast<int64_t>(bytes.size()) <= it->bytes - at)
      << bytes.size() << " bytes at " << at << " of " << name << ", which has " << it->bytes;
  return WriteAll(fd_, partial_, bytes, it->offset + at);
}

Status SafetensorsWriter::Close() {
  SB_CHECK(fd_ >= 0) << "closed before";
  const int closed = ::close(std::exchange(fd_, -1));
  if (closed == 0 && std::rename(partial_.c_str(), path_.c_str()) == 0) return OkStatus();
  Status status = WriteError(path_, errno);
  ::unlink(partial_.c_str());
  return status;
}

}  // namespace signalbox
