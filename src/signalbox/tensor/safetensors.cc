// SPDX-License-Identifier: Apache-2.0
#include "signalbox/tensor/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include <nlohmann/json.hpp>

#include "signalbox/base/json_util.h"
#include "signalbox/base/text_util.h"

namespace signalbox {
namespace {

constexpr int64_t kLengthBytes = 8;  // the u64 before the header
constexpr std::string_view kDamaged =
    "the file is incomplete or damaged: download or export it again";

Status Bad(std::string_view what, std::string found, std::string expected) {
  return BadCheckpoint({.what = std::string(what),
                        .found = std::move(found),
                        .expected = std::move(expected),
                        .remedy = std::string(kDamaged)});
}

std::string TensorPlace(std::string_view name) {
  return "tensor " + Quoted(name);
}

// Receives the header event by event, so that memory follows what is kept, not what a hostile
// header makes a tree of. Checks everything but how tensors lie towards each other.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(int64_t data_begin, int64_t data_bytes)
      : data_begin_(data_begin), data_bytes_(data_bytes) {}

  std::vector<TensorInfo> TakeTensors() { return std::move(tensors_); }
  std::map<std::string, std::string> TakeMetadata() { return std::move(metadata_); }
  const Status& status() const { return status_; }

  bool start_object(size_t) override {
    switch (state_) {
      case State::kStart:
        return Enter(State::kTop);
      case State::kTop:
        return Enter(name_ == kMetadataKey ? State::kMetadata : State::kTensor);
      default:
        return Unexpected("an object");
    }
  }

  bool end_object() override {
    switch (state_) {
      case State::kTensor:
        return Enter(State::kTop) && FinishTensor();
      case State::kMetadata:
        return Enter(State::kTop);
      default:
        return Enter(State::kEnd);
    }
  }

  bool key(std::string& name) override {
    if (state_ == State::kTop) {
      name_ = std::move(name);
      dtype_.reset();
      shape_.reset();
      offsets_.reset();
      if (name_ == kMetadataKey && std::exchange(metadata_seen_, true)) {
        return Fail(Bad("duplicate name in header", Quoted(name_), ""));
      }
      return true;
    }
    key_ = std::move(name);
    if (state_ == State::kMetadata) {
      return metadata_.contains(key_) ? Fail(Bad("duplicate key in metadata", Quoted(key_), ""))
                                      : true;
    }
    const bool seen = key_ == "dtype"          ? dtype_.has_value()
                      : key_ == "shape"        ? shape_.has_value()
                      : key_ == "data_offsets" ? offsets_.has_value()
                                               : true;
    return seen ? FailTensor("unknown or repeated key in header entry", Quoted(key_),
                             "dtype, shape and data_offsets, once each")
                : true;
  }

  bool string(std::string& value) override {
    if (state_ == State::kMetadata) {
      metadata_.emplace(key_, std::move(value));
      return true;
    }
    if (state_ != State::kTensor || key_ != "dtype") return Unexpected("a string");
    dtype_ = ParseDType(value);
    if (dtype_) return true;
    return Fail(BadCheckpoint({.what = "tensor has an element type this version cannot read",
                               .where = TensorPlace(name_),
                               .found = Quoted(value),
                               .expected = "F64, F32, BF16, F16, F8_E4M3, F8_E8M0, U8, I8, I32, "
                                           "I64 or BOOL",
                               .remedy = "convert the checkpoint to one of these"}));
  }

  bool start_array(size_t) override {
    if (state_ != State::kTensor || key_ == "dtype") return Unexpected("an array");
    (key_ == "shape" ? shape_ : offsets_).emplace();
    return Enter(State::kNumbers);
  }

  bool end_array() override { return Enter(State::kTensor); }

  bool number_unsigned(uint64_t value) override {
    if (state_ != State::kNumbers) return Unexpected("a number");
    std::vector<int64_t>& list = key_ == "shape" ? *shape_ : *offsets_;
    const size_t limit = key_ == "shape" ? kMaxTensorRank : 2;
    if (list.size() == limit) {
      return FailTensor(key_ + " is too long", "more", fmt::format("at most {} numbers", limit));
    }
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return FailTensor(key_ + " is too large", fmt::format("{}", value), "a signed 64-bit number");
    }
    list.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool number_integer(int64_t value) override {
    if (state_ != State::kNumbers) return Unexpected("a number");
    return FailTensor(key_ + " is negative", fmt::format("{}", value), "0 or more");
  }

  bool number_float(double, const std::string&) override { return Unexpected("a fraction"); }
  bool boolean(bool) override { return Unexpected("true or false"); }
  bool null() override { return Unexpected("null"); }
  bool binary(nlohmann::json::binary_t&) override { return Unexpected("binary data"); }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    const Status syntax = JsonSyntaxError(position, error.what(), StatusCode::kBadCheckpoint);
    return Fail(Bad("header is not valid JSON", syntax.detail().found, "a JSON object"));
  }

 private:
  static constexpr std::string_view kMetadataKey = "__metadata__";
  enum class State { kStart, kTop, kTensor, kNumbers, kMetadata, kEnd };

  bool Enter(State state) {
    state_ = state;
    return true;
  }

  bool Fail(Status status) {
    status_ = std::move(status);
    return false;
  }

  bool FailTensor(std::string_view what, std::string found, std::string expected) {
    return Fail(Bad(what, std::move(found), std::move(expected)).At(TensorPlace(name_)));
  }

  bool Unexpected(std::string_view found) {
    switch (state_) {
      case State::kTop:
        return FailTensor("header entry has the wrong kind", std::string(found), "an object");
      case State::kTensor:
        return FailTensor(fmt::format("{} has the wrong kind", Quoted(key_)), std::string(found),
                          key_ == "dtype" ? "a string" : "an array");
      case State::kNumbers:
        return FailTensor(key_ + " has an entry of the wrong kind", std::string(found),
                          "an integer");
      case State::kMetadata:
        return Fail(Bad("metadata entry has the wrong kind", std::string(found), "a string")
                        .At("__metadata__, key " + Quoted(key_)));
      default:
        return Fail(Bad("header has the wrong kind", std::string(found), "a JSON object"));
    }
  }

  bool FinishTensor() {
    if (!dtype_ || !shape_ || !offsets_ || offsets_->size() != 2) {
      return FailTensor("header entry is incomplete", "", "dtype, shape and two data_offsets");
    }
    TensorInfo info = {.name = name_, .dtype = *dtype_, .shape = std::move(*shape_)};
    const auto [begin, end] = std::pair((*offsets_)[0], (*offsets_)[1]);
    const std::string range = fmt::format("bytes {} to {}", begin, end);
    if (begin > end || end > data_bytes_) {
      return FailTensor("tensor lies outside the file's data", range,
                        fmt::format("within 0 to {}", data_bytes_));
    }
    const std::optional<int64_t> elements = ElementCount(info.shape);
    int64_t bytes = 0;
    if (!elements || __builtin_mul_overflow(*elements, ByteSize(info.dtype), &bytes)) {
      return FailTensor("tensor is too large", ShapeToString(info.shape), "fewer than 2^63 bytes");
    }
    if (bytes != end - begin) {
      return FailTensor("tensor has another size than its shape",
                        fmt::format("{} bytes", end - begin),
                        fmt::format("{} bytes for {}", bytes, info.ToString()));
    }
    info.offset = data_begin_ + begin;
    info.bytes = bytes;
    tensors_.push_back(std::move(info));
    return true;
  }

  const int64_t data_begin_;
  const int64_t data_bytes_;
  State state_ = State::kStart;
  std::string name_;  // key of the top object being read
  std::string key_;   // key inside it
  std::optional<DType> dtype_;
  std::optional<std::vector<int64_t>> shape_;
  std::optional<std::vector<int64_t>> offsets_;
  bool metadata_seen_ = false;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
  Status status_;
};

// The tensors must fill [begin, end) of the file, each byte once.
Status CheckCoverage(std::span<const TensorInfo> tensors, int64_t begin, int64_t end) {
  std::vector<const TensorInfo*> order(tensors.size());
  std::transform(tensors.begin(), tensors.end(), order.begin(), [](auto& t) { return &t; });
  std::sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return std::pair(a->offset, a->bytes) < std::pair(b->offset, b->bytes);
  });
  int64_t covered = begin;
  const TensorInfo* last = nullptr;
  for (const TensorInfo* info : order) {
    if (info->offset != covered) {
      const bool overlap = info->offset < covered;
      const std::string after = last == nullptr ? "the header" : Quoted(last->name);
      return Bad(overlap ? "tensors overlap" : "data has a hole before tensor",
                 fmt::format("begin at byte {}", info->offset - begin),
                 fmt::format("{}, right after {}", covered - begin, after))
          .At(TensorPlace(info->name));
    }
    covered += info->bytes;
    last = info;
  }
  if (covered != end) {
    return Bad("data goes on after the last tensor", fmt::format("{} bytes of data", end - begin),
               fmt::format("{}", covered - begin));
  }
  return OkStatus();
}

}  // namespace

std::string ShapeToString(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::optional<int64_t> ElementCount(std::span<const int64_t> shape) {
  int64_t count = 1;
  for (const int64_t n : shape) {
    if (n < 0 || __builtin_mul_overflow(count, n, &count)) return std::nullopt;
  }
  return count;
}

std::string TensorInfo::ToString() const {
  return fmt::format("{} {}", signalbox::ToString(dtype), ShapeToString(shape));
}

Result<SafetensorsFile> SafetensorsFile::Open(const std::filesystem::path& path) {
  Result<MappedFile> mapped = MappedFile::Open(path);
  // Whatever keeps a model file from being read is the checkpoint's fault to the reader.
  if (!mapped.ok()) return BadCheckpoint(mapped.status().detail());
  SafetensorsFile file;
  file.path_ = path.string();
  file.bytes_ = mapped->bytes();
  file.file_ = std::move(mapped).value();
  SB_RETURN_IF_ERROR(file.Parse().At(file.path_));
  return file;
}

Result<SafetensorsFile> SafetensorsFile::FromBytes(std::span<const std::byte> bytes,
                                                   std::string name) {
  SafetensorsFile file;
  file.path_ = std::move(name);
  file.bytes_ = bytes;
  SB_RETURN_IF_ERROR(file.Parse().At(file.path_));
  return file;
}

Status SafetensorsFile::Parse() {
  if (file_bytes() < kLengthBytes) {
    return Bad("file is too short to be safetensors", fmt::format("{} bytes", file_bytes()),
               "8 bytes of header length, then the header");
  }
  uint64_t length = 0;
  for (int64_t i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<uint64_t>(bytes_[i]) << (8 * i);
  }
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeader)) {
    return Bad("file is not safetensors, or its header is too long",
               fmt::format("header length {}", length),
               fmt::format("at most {}", kMaxSafetensorsHeader));
  }
  const int64_t data_begin = kLengthBytes + static_cast<int64_t>(length);
  if (data_begin > file_bytes()) {
    return Bad("file ends inside its header", fmt::format("{} bytes", file_bytes()),
               fmt::format("more than {}", data_begin));
  }
  const std::string_view header(reinterpret_cast<const char*>(bytes_.data()) + kLengthBytes,
                                length);
  // The format wants the brace first. The JSON parser would skip blanks or a byte order mark, and
  // would take a NUL for the end.
  if (!header.starts_with('{') || header.find('\0') != std::string_view::npos) {
    return Bad("header is not valid JSON", Quoted(header.substr(0, 16)), "a JSON object");
  }
  HeaderReader reader(data_begin, file_bytes() - data_begin);
  nlohmann::json::sax_parse(header.begin(), header.end(), &reader);
  SB_RETURN_IF_ERROR(reader.status());
  tensors_ = reader.TakeTensors();
  metadata_ = reader.TakeMetadata();
  std::sort(tensors_.begin(), tensors_.end(), [](auto& a, auto& b) { return a.name < b.name; });
  const auto twin = std::adjacent_find(tensors_.begin(), tensors_.end(),
                                       [](auto& a, auto& b) { return a.name == b.name; });
  if (twin != tensors_.end()) return Bad("duplicate name in header", Quoted(twin->name), "");
  return CheckCoverage(tensors_, data_begin, file_bytes());
}

const TensorInfo* SafetensorsFile::Find(std::string_view name) const {
  const auto it = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const TensorInfo& info, std::string_view key) { return info.name < key; });
  return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

std::span<const std::byte> SafetensorsFile::Data(const TensorInfo& info) const {
  SB_CHECK(info.offset >= 0 && info.bytes <= file_bytes() - info.offset)
      << info.name << " is not of " << path_;
  return bytes_.subspan(static_cast<size_t>(info.offset), static_cast<size_t>(info.bytes));
}

bool SafetensorsFile::IsAligned(const TensorInfo& info) const {
  const auto address = reinterpret_cast<uintptr_t>(Data(info).data());
  return address % static_cast<uintptr_t>(ByteSize(info.dtype)) == 0;
}

void SafetensorsFile::Advise(MappedFile::Access access) const {
  if (file_) file_->Advise(access);
}

}  // namespace signalbox
