// SPDX-License-Identifier: Apache-2.0
//
// Checkpoint: all tensors of a model directory, by name, whatever files they lie in; and
// TensorLedger, which accounts for every one of them.
//
// A Checkpoint is immutable and shared by all ranks. Each reader has its own ledger: what it takes
// counts as read, what it skips has a reason, and Finish() refuses to go on while anything is left.
// Reading weights out of it is checkpoint_weights.h.
//
//   SB_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open("models/tiny"));
//   TensorLedger ledger(checkpoint);
//   ledger.Skip("model.visual.*", "vision is not used for text");
//   ... ReadMatrix(ledger, "lm_head", vocab, hidden) ...
//   SB_RETURN_IF_ERROR(ledger.Finish());
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "signalbox/base/status.h"
#include "signalbox/tensor/safetensors.h"

namespace signalbox {

// One tensor and the file it lies in. Valid as long as its Checkpoint.
struct TensorRef {
  const TensorInfo* info = nullptr;
  const SafetensorsFile* file = nullptr;

  const std::string& name() const { return info->name; }
  std::span<const std::byte> data() const { return file->Data(*info); }
};

// One line of an index: the tensor and the name of the file that must hold it.
struct IndexEntry {
  std::string tensor;
  std::string file;  // a bare file name: no directory, not "." or ".."
};

// The weight_map of a model.safetensors.index.json, sorted by tensor. BAD_CHECKPOINT when the text
// is not such an index or names a file outside the model directory.
Result<std::vector<IndexEntry>> ParseIndex(std::string_view json);

class Checkpoint {
 public:
  // `path` is a model directory or one .safetensors file. In a directory, in this order:
  //   model.safetensors.index.json and the files it names;
  //   model.safetensors;
  //   the only *.safetensors, or one complete set NAME-00001-of-0000N.safetensors.
  // BAD_CHECKPOINT when none of these holds, when a file is damaged or missing, when a tensor is in
  // two files, or when index and files disagree (either way).
  static Result<Checkpoint> Open(const std::filesystem::path& path);
  // From files already open; `name` stands for the directory in messages. With an index the files
  // must hold exactly the tensors it lists, each where it says.
  static Result<Checkpoint> FromFiles(std::string name, std::vector<SafetensorsFile> files,
                                      const std::vector<IndexEntry>* index = nullptr);

  const std::string& path() const { return path_; }
  std::span<const TensorRef> tensors() const { return tensors_; }  // sorted by name
  const TensorRef* Find(std::string_view name) const;              // null when absent
  std::span<const SafetensorsFile> files() const { return files_; }
  // Of all tensors, as stored.
  int64_t total_bytes() const { return total_bytes_; }

 private:
  Checkpoint() = default;

  std::string path_;
  std::vector<SafetensorsFile> files_;
  std::vector<TensorRef> tensors_;
  int64_t total_bytes_ = 0;
};

class TensorLedger {
 public:
  // Tensors left out on purpose.
  struct Skipped {
    std::string pattern;
    std::string reason;
    int64_t tensors = 0;
    int64_t bytes = 0;
  };

  // `checkpoint` must outlive the ledger and every view read through it.
  explicit TensorLedger(const Checkpoint& checkpoint);

  const Checkpoint& checkpoint() const { return *checkpoint_; }
  // Marks the tensor as read, also again; null when absent.
  const TensorRef* Take(std::string_view name);
  // Marks every unread tensor whose name matches `pattern` ('*' = any characters) as left out.
  // A pattern that matches nothing is no error: not every release has, say, a vision tower.
  void Skip(std::string_view pattern, std::string_view reason);

  std::span<const Skipped> skipped() const { return skipped_; }
  std::vector<const TensorRef*> Unread() const;
  // BAD_CHECKPOINT with the count and three names when a tensor is neither read nor skipped.
  Status Finish() const;

 private:
  const Checkpoint* checkpoint_;
  std::vector<bool> used_;  // parallel to checkpoint_->tensors()
  size_t last_ = 0;         // where the last search ended: the next name is likely nearby
  std::vector<Skipped> skipped_;
};

}  // namespace signalbox
