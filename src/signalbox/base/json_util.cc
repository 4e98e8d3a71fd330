// SPDX-License-Identifier: Apache-2.0
#include "signalbox/base/json_util.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "signalbox/base/mapped_file.h"
#include "signalbox/base/text_util.h"

namespace signalbox {
namespace {

using Json = nlohmann::json;

// Builds the value; stops at the first duplicate key or at too deep nesting.
class DomBuilder : public nlohmann::json_sax<Json> {
 public:
  explicit DomBuilder(StatusCode code) : code_(code) {}

  bool null() override { return Add(nullptr); }
  bool boolean(bool v) override { return Add(v); }
  bool number_integer(int64_t v) override { return Add(v); }
  bool number_unsigned(uint64_t v) override { return Add(v); }
  bool number_float(double v, const std::string&) override { return Add(v); }
  bool string(std::string& v) override { return Add(std::move(v)); }
  bool binary(Json::binary_t&) override { return false; }  // not in text
  bool start_object(size_t) override { return Open(Json::object()); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(std::string& name) override {
    if (open_.back()->contains(name)) {
      status_ = Status(code_, {.what = "duplicate key in JSON object", .found = Quoted(name)});
      return false;
    }
    member_ = &(*open_.back())[name];
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    status_ = JsonSyntaxError(position, error.what(), code_);
    return false;
  }

  const Status& status() const { return status_; }
  Json TakeRoot() { return std::move(root_); }

 private:
  // Where the next value goes.
  Json* Place(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      open_.back()->push_back(std::move(value));
      return &open_.back()->back();
    }
    *member_ = std::move(value);
    return member_;
  }

  bool Add(Json value) {
    Place(std::move(value));
    return true;
  }

  bool Open(Json container) {
    if (open_.size() == kMaxJsonDepth) {
      status_ = Status(code_, {.what = "JSON is nested too deeply",
                               .expected = fmt::format("at most {} levels", kMaxJsonDepth)});
      return false;
    }
    open_.push_back(Place(std::move(container)));
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  StatusCode code_;
  Json root_;
  // Containers being filled, outermost first. A container is complete before its parent grows
  // again, so the pointers stay valid.
  std::vector<Json*> open_;
  Json* member_ = nullptr;  // value of the key just read
  Status status_;
};

}  // namespace

Status JsonSyntaxError(size_t position, std::string_view what, StatusCode code) {
  // "[json.exception.parse_error.101] parse error at line 1, column 3: syntax error while ...;
  // last read: '...'": the first part names the library, the last can be as long as the file.
  if (const size_t end = what.find("] "); end != std::string_view::npos) {
    what.remove_prefix(end + 2);
  }
  what = what.substr(0, what.find("; last read"));
  return Status(code, {.what = "not valid JSON",
                       .found = fmt::format("{} (byte {})", what.substr(0, 200), position)});
}

Result<Json> ParseJson(std::string_view text, StatusCode code) {
  // The parser takes a NUL for the end of the text.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return JsonSyntaxError(nul, "a NUL character", code);
  }
  DomBuilder builder(code);
  const bool parsed = Json::sax_parse(text.begin(), text.end(), &builder);
  if (!builder.status().ok()) return builder.status();
  SB_CHECK(parsed) << "JSON parser stopped without an error";
  return builder.TakeRoot();
}

Result<Json> ReadJsonFile(const std::filesystem::path& path) {
  Result<MappedFile> file = MappedFile::Open(path);
  if (!file.ok()) return Status(StatusCode::kBadCheckpoint, file.status().detail());
  const std::span<const std::byte> bytes = file->bytes();
  if (static_cast<int64_t>(bytes.size()) > kMaxJsonFileBytes) {
    return BadCheckpoint({.what = "JSON file is too large",
                          .where = path.string(),
                          .found = HumanBytes(static_cast<int64_t>(bytes.size())),
                          .expected = "at most " + HumanBytes(kMaxJsonFileBytes)});
  }
  Result<Json> json = ParseJson({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                                StatusCode::kBadCheckpoint);
  if (!json.ok()) return json.status().At(path.string());
  return json;
}

}  // namespace signalbox
