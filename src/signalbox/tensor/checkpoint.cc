// SPDX-License-Identifier: Apache-2.0
#include "signalbox/tensor/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "signalbox/base/json_util.h"
#include "signalbox/base/text_util.h"

namespace signalbox {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSingleName = "model.safetensors";
constexpr std::string_view kSuffix = ".safetensors";

std::string FileName(const SafetensorsFile& file) {
  return fs::path(file.path()).filename().string();
}

bool IsBareFileName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

std::string SampleOfSet(const std::set<std::string>& names) {
  return SampleOf(std::vector<std::string_view>(names.begin(), names.end()));
}

// The parts of NAME-00002-of-00005.safetensors.
struct ShardName {
  std::string_view name;
  int number = 0;
  int count = 0;
};

std::optional<ShardName> ParseShardName(std::string_view file) {
  constexpr std::string_view kForm = "-00000-of-00000.safetensors";
  if (file.size() <= kForm.size()) return std::nullopt;
  const std::string_view tail = file.substr(file.size() - kForm.size());
  ShardName shard = {.name = file.substr(0, file.size() - kForm.size())};
  int* number = &shard.number;
  for (size_t i = 0; i < kForm.size(); ++i) {
    if (i == 6) number = &shard.count;
    if (kForm[i] != '0') {
      if (tail[i] != kForm[i]) return std::nullopt;
    } else if (tail[i] < '0' || tail[i] > '9') {
      return std::nullopt;
    } else {
      *number = *number * 10 + (tail[i] - '0');
    }
  }
  return shard;
}

// Whether `files` are exactly NAME-00001-of-N .. NAME-N-of-N.
bool IsCompleteSet(const std::set<std::string>& files) {
  int expected = 1;
  std::string_view name;
  for (const std::string& file : files) {  // in order of their numbers
    const std::optional<ShardName> shard = ParseShardName(file);
    if (!shard || (expected > 1 && shard->name != name) || shard->number != expected ||
        shard->count != static_cast<int>(files.size())) {
      return false;
    }
    name = shard->name;
    ++expected;
  }
  return expected > 1;
}

Result<std::set<std::string>> ListSafetensors(const fs::path& dir) {
  std::set<std::string> files;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    if (name.ends_with(kSuffix)) files.insert(std::move(name));
  }
  if (error) {
    return BadCheckpoint(
        {.what = "cannot list model directory", .where = dir.string(), .found = error.message()});
  }
  return files;
}

// The weight files of a directory without an index.
Result<std::set<std::string>> ChooseFiles(const fs::path& dir) {
  SB_ASSIGN_OR_RETURN(const std::set<std::string> files, ListSafetensors(dir));
  if (files.contains(std::string(kSingleName))) return std::set{std::string(kSingleName)};
  if (files.size() == 1 || IsCompleteSet(files)) return files;
  return BadCheckpoint(
      {.what = files.empty() ? "no weights in model directory"
                             : "cannot tell which files of the model directory are the weights",
       .where = dir.string(),
       .found = files.empty() ? "no .safetensors file"
                              : fmt::format("{} files: {}", files.size(), SampleOfSet(files)),
       .expected = fmt::format("{}, {}, one .safetensors file, or a complete set "
                               "NAME-00001-of-0000N.safetensors",
                               kSingleName, kIndexName),
       .remedy = "finish the download, or remove the files that are not part of the model"});
}

Result<std::vector<IndexEntry>> ReadIndex(const fs::path& path) {
  Result<MappedFile> file = MappedFile::Open(path);
  if (!file.ok()) return BadCheckpoint(file.status().detail());
  const std::span<const std::byte> bytes = file->bytes();
  Result<std::vector<IndexEntry>> index =
      ParseIndex({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!index.ok()) return index.status().At(path.string());
  return index;
}

// Files that the index names, all present.
Result<std::set<std::string>> IndexedFiles(const fs::path& dir,
                                           const std::vector<IndexEntry>& index) {
  std::set<std::string> files;
  for (const IndexEntry& entry : index) files.insert(entry.file);
  std::set<std::string> missing;
  std::error_code error;
  for (const std::string& file : files) {
    if (!fs::exists(dir / file, error)) missing.insert(file);
  }
  if (!missing.empty()) {
    return BadCheckpoint({.what = "weight files are missing",
                          .where = dir.string(),
                          .found = fmt::format("{} of {} not there: {}", missing.size(),
                                               files.size(), SampleOfSet(missing)),
                          .expected = fmt::format("every file that {} names", kIndexName),
                          .remedy = "finish the download"});
  }
  // Readers disagree about which of the two counts, so nobody knows which weights were meant.
  if (!files.contains(std::string(kSingleName)) && fs::exists(dir / kSingleName, error)) {
    return BadCheckpoint(
        {.what = "model directory holds two sets of weights",
         .where = dir.string(),
         .found = fmt::format("{} and an index that names other files", kSingleName),
         .expected = "one of them",
         .remedy = fmt::format("remove {} or {}", kSingleName, kIndexName)});
  }
  return files;
}

// Both sides sorted by tensor name.
Status CheckAgainstIndex(std::span<const TensorRef> tensors, std::span<const IndexEntry> index) {
  std::vector<std::string_view> missing;
  std::vector<std::string_view> extra;
  auto t = tensors.begin();
  auto i = index.begin();
  while (t != tensors.end() || i != index.end()) {
    if (i == index.end() || (t != tensors.end() && t->name() < i->tensor)) {
      extra.push_back((t++)->name());
    } else if (t == tensors.end() || i->tensor < t->name()) {
      missing.push_back((i++)->tensor);
    } else {
      if (FileName(*t->file) != i->file) {
        return BadCheckpoint({.what = "tensor lies in another file than the index says",
                              .where = "tensor " + Quoted(t->name()),
                              .found = Quoted(FileName(*t->file)),
                              .expected = Quoted(i->file),
                              .remedy = "download index and weights again, from one revision"});
      }
      ++t;
      ++i;
    }
  }
  if (missing.empty() && extra.empty()) return OkStatus();
  std::string found;
  if (!missing.empty()) {
    found = fmt::format("{} only in the index: {}", missing.size(), SampleOf(missing));
  }
  if (!extra.empty()) {
    found += fmt::format("{}{} only in the files: {}", found.empty() ? "" : "; ", extra.size(),
                         SampleOf(extra));
  }
  return BadCheckpoint({.what = "index and weight files disagree",
                        .found = std::move(found),
                        .expected = "the same tensors in both",
                        .remedy = "download index and weights again, from one revision"});
}

// Names that differ in numbers only (layers, experts) count as one kind of tensor.
std::string KindOf(std::string_view name) {
  std::string kind;
  for (const char c : name) {
    if (c < '0' || c > '9') {
      kind += c;
    } else if (kind.empty() || kind.back() != '#') {
      kind += '#';
    }
  }
  return kind;
}

}  // namespace

Result<std::vector<IndexEntry>> ParseIndex(std::string_view json) {
  SB_ASSIGN_OR_RETURN(const nlohmann::json root, ParseJson(json, StatusCode::kBadCheckpoint));
  const auto map = root.is_object() ? root.find("weight_map") : root.end();
  if (map == root.end() || !map->is_object()) {
    return BadCheckpoint(
        {.what = "index has no weight_map", .expected = "{\"weight_map\": {TENSOR: FILE, ...}}"});
  }
  std::vector<IndexEntry> index;
  index.reserve(map->size());
  for (const auto& [tensor, file] : map->items()) {
    const std::string* name = file.get_ptr<const std::string*>();
    if (name == nullptr || !IsBareFileName(*name)) {
      return BadCheckpoint({.what = "index names no file in its own directory",
                            .where = "tensor " + Quoted(tensor),
                            .found = name == nullptr ? file.type_name() : Quoted(*name),
                            .expected = "a file name without a directory"});
    }
    index.push_back({.tensor = tensor, .file = *name});
  }
  std::sort(index.begin(), index.end(), [](auto& a, auto& b) { return a.tensor < b.tensor; });
  return index;
}

Result<Checkpoint> Checkpoint::Open(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    return BadCheckpoint({.what = "no such model",
                          .where = path.string(),
                          .expected = "a model directory or a .safetensors file"});
  }
  std::vector<SafetensorsFile> files;
  if (!fs::is_directory(path, error)) {
    SB_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
    files.push_back(std::move(file));
    return FromFiles(path.string(), std::move(files));
  }
  std::optional<std::vector<IndexEntry>> index;
  std::set<std::string> names;
  if (fs::exists(path / kIndexName, error)) {
    SB_ASSIGN_OR_RETURN(index, ReadIndex(path / kIndexName));
    SB_ASSIGN_OR_RETURN(names, IndexedFiles(path, *index));
  } else {
    SB_ASSIGN_OR_RETURN(names, ChooseFiles(path));
  }
  for (const std::string& name : names) {
    SB_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path / name));
    files.push_back(std::move(file));
  }
  return FromFiles(path.string(), std::move(files), index ? &*index : nullptr);
}

Result<Checkpoint> Checkpoint::FromFiles(std::string name, std::vector<SafetensorsFile> files,
                                         const std::vector<IndexEntry>* index) {
  Checkpoint checkpoint;
  checkpoint.path_ = std::move(name);
  checkpoint.files_ = std::move(files);
  std::vector<TensorRef>& tensors = checkpoint.tensors_;
  for (const SafetensorsFile& file : checkpoint.files_) {
    for (const TensorInfo& info : file.tensors()) {
      tensors.push_back({.info = &info, .file = &file});
      checkpoint.total_bytes_ += info.bytes;
    }
  }
  std::sort(tensors.begin(), tensors.end(), [](auto& a, auto& b) { return a.name() < b.name(); });
  const auto twin = std::adjacent_find(tensors.begin(), tensors.end(),
                                       [](auto& a, auto& b) { return a.name() == b.name(); });
  if (twin != tensors.end()) {
    return BadCheckpoint(
        {.what = "tensor is stored twice",
         .where = checkpoint.path_ + ", tensor " + Quoted(twin->name()),
         .found = fmt::format("{} and {}", FileName(*twin->file), FileName(*(twin + 1)->file)),
         .expected = "one file",
         .remedy = "remove the files that are not part of the model"});
  }
  if (index != nullptr) {
    SB_RETURN_IF_ERROR(CheckAgainstIndex(tensors, *index).At(checkpoint.path_));
  }
  return checkpoint;
}

const TensorRef* Checkpoint::Find(std::string_view name) const {
  const auto it =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const TensorRef& ref, std::string_view key) { return ref.name() < key; });
  return it != tensors_.end() && it->name() == name ? &*it : nullptr;
}

TensorLedger::TensorLedger(const Checkpoint& checkpoint)
    : checkpoint_(&checkpoint), used_(checkpoint.tensors().size(), false) {}

namespace {

// The first tensor whose name is not below `name`, searched in growing steps from `start`. Half a
// million names that begin alike are slow to compare.
size_t LowerBoundFrom(std::span<const TensorRef> tensors, size_t start, std::string_view name) {
  size_t low = start;  // everything below it is below `name`
  size_t high = start;
  size_t step = 1;
  if (start < tensors.size() && tensors[start].name() < name) {
    for (; high < tensors.size() && tensors[high].name() < name; step *= 2) {
      low = high + 1;
      high += step;
    }
    high = std::min(high, tensors.size());
  } else {
    while (low > 0 && !(tensors[low - 1].name() < name)) {
      high = low - 1;
      low -= std::min(step, low);
      step *= 2;
    }
  }
  const auto begin = tensors.begin() + static_cast<std::ptrdiff_t>(low);
  const auto end = tensors.begin() + static_cast<std::ptrdiff_t>(high);
  const auto it =
      std::lower_bound(begin, end, name,
                       [](const TensorRef& ref, std::string_view key) { return ref.name() < key; });
  return static_cast<size_t>(it - tensors.begin());
}

}  // namespace

const TensorRef* TensorLedger::Take(std::string_view name) {
  const std::span<const TensorRef> tensors = checkpoint_->tensors();
  last_ = LowerBoundFrom(tensors, last_, name);
  if (last_ == tensors.size() || tensors[last_].name() != name) return nullptr;
  used_[last_] = true;
  return &tensors[last_];
}

void TensorLedger::Skip(std::string_view pattern, std::string_view reason) {
  Skipped skipped = {.pattern = std::string(pattern), .reason = std::string(reason)};
  const std::span<const TensorRef> tensors = checkpoint_->tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (used_[i] || !GlobMatch(pattern, tensors[i].name())) continue;
    used_[i] = true;
    ++skipped.tensors;
    skipped.bytes += tensors[i].info->bytes;
  }
  if (skipped.tensors > 0) skipped_.push_back(std::move(skipped));
}

std::vector<const TensorRef*> TensorLedger::Unread() const {
  std::vector<const TensorRef*> unread;
  const std::span<const TensorRef> tensors = checkpoint_->tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!used_[i]) unread.push_back(&tensors[i]);
  }
  return unread;
}

Status TensorLedger::Finish() const {
  const std::vector<const TensorRef*> unread = Unread();
  if (unread.empty()) return OkStatus();
  struct Kind {
    int64_t count = 0;
    const TensorRef* first = nullptr;
  };
  std::map<std::string, Kind> kinds;
  for (const TensorRef* ref : unread) {
    Kind& kind = kinds[KindOf(ref->name())];
    if (kind.count++ == 0) kind.first = ref;
  }
  std::vector<Kind> largest;
  for (const auto& [name, kind] : kinds) largest.push_back(kind);
  std::stable_sort(largest.begin(), largest.end(),
                   [](const Kind& a, const Kind& b) { return a.count > b.count; });
  std::string found;
  for (size_t i = 0; i < std::min<size_t>(3, largest.size()); ++i) {
    found += fmt::format("{}{} like {} {}", i > 0 ? ", " : "", largest[i].count,
                         Quoted(largest[i].first->name()), largest[i].first->info->ToString());
  }
  if (largest.size() > 3) found += fmt::format(" and {} other kinds", largest.size() - 3);
  return BadCheckpoint(
      {.what =
           fmt::format("{} of {} tensors have no use in this model", unread.size(), used_.size()),
       .where = checkpoint_->path(),
       .found = std::move(found),
       .expected = "every tensor to be read",
       .remedy = "check that config.json belongs to these weights; an unknown kind of weight is "
                 "refused because leaving it out would change the answers"});
}

}  // namespace signalbox
