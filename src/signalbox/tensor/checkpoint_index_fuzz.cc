// SPDX-License-Identifier: Apache-2.0
//
// Any text as model.safetensors.index.json beside two sound files: a checkpoint comes out only when
// the index is exact, and then every weight in it is read or refused.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "signalbox/tensor/checkpoint.h"
#include "signalbox/tensor/checkpoint_weights.h"

namespace {

using signalbox::Checkpoint;
using signalbox::SafetensorsFile;

std::string FileOf(std::string header, size_t data_bytes) {
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  return file + header + std::string(data_bytes, '\1');
}

SafetensorsFile Parse(const std::string& bytes, const std::string& name) {
  auto file = SafetensorsFile::FromBytes(std::as_bytes(std::span(bytes)), name);
  SB_CHECK(file.ok()) << file.status().message();
  return std::move(file).value();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string first =
      FileOf(R"({"q.weight":{"dtype":"U8","shape":[1,16],"data_offsets":[0,16]},)"
             R"("q.weight_scale":{"dtype":"U8","shape":[1,1],"data_offsets":[16,17]}})",
             17);
  static const std::string second =
      FileOf(R"({"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})", 4);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto index = signalbox::ParseIndex(text);
  if (!index.ok()) {
    SB_CHECK(index.status().message().size() < 4096) << "a message as long as its input";
    return 0;
  }
  for (const signalbox::IndexEntry& entry : *index) {
    SB_CHECK(entry.file.find('/') == std::string::npos && entry.file != "..") << entry.file;
  }
  std::vector<SafetensorsFile> files;
  files.push_back(Parse(first, "x"));
  files.push_back(Parse(second, "y"));
  const auto checkpoint = Checkpoint::FromFiles("fuzz", std::move(files), &*index);
  if (!checkpoint.ok()) return 0;
  SB_CHECK(index->size() == 3) << "an index that is not exact was taken";
  signalbox::TensorLedger ledger(*checkpoint);
  SB_CHECK(ReadMatrix(ledger, "q", 1, 32).ok());
  SB_CHECK(ReadVector(ledger, "a", 2).ok());
  SB_CHECK(ledger.Finish().ok());
  return 0;
}
