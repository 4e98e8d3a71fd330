// SPDX-License-Identifier: Apache-2.0
#include "signalbox/engine/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "signalbox/base/check.h"
#include "signalbox/tensor/safetensors.h"

namespace signalbox {
namespace {

template <typename T>
Result<std::vector<T>> ReadAs(const SafetensorsFile& file, const std::string& name, DType dtype) {
  const TensorInfo* info = file.Find(name);
  if (info == nullptr || info->dtype != dtype) {
    return InvalidArgument(
        {.what = "reference file lacks a tensor",
         .where = file.path(),
         .found = info == nullptr ? "nothing" : std::string(ToString(info->dtype)),
         .expected = fmt::format("{} of type {}", name, ToString(dtype))});
  }
  const auto bytes = file.Data(*info);
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace

Result<std::vector<ReferenceSequence>> ReadReference(const std::string& path, int64_t vocab) {
  SB_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  std::vector<ReferenceSequence> sequences;
  for (int n = 0; file.Find(fmt::format("ids.{}", n)) != nullptr; ++n) {
    ReferenceSequence s;
    SB_ASSIGN_OR_RETURN(s.ids, ReadAs<int32_t>(file, fmt::format("ids.{}", n), DType::kI32));
    SB_ASSIGN_OR_RETURN(s.logits, ReadAs<float>(file, fmt::format("logits.{}", n), DType::kF32));
    if (s.logits.size() != s.ids.size() * static_cast<size_t>(vocab)) {
      return InvalidArgument(
          {.what = "reference of another shape",
           .where = fmt::format("{}, logits.{}", path, n),
           .found = fmt::format("{} values", s.logits.size()),
           .expected = fmt::format("{} tokens of {} logits", s.ids.size(), vocab)});
    }
    sequences.push_back(std::move(s));
  }
  if (!sequences.empty()) return sequences;
  return InvalidArgument(
      {.what = "no sequences in the reference", .where = path, .expected = "ids.0 and logits.0"});
}

Result<std::vector<float>> AllLogits(Engine& engine, const std::vector<TokenId>& ids,
                                     int64_t chunk) {
  constexpr int64_t kName = -1;  // no caller's sequence has it
  std::vector<float> logits;
  StepBatch batch;
  for (size_t at = 0; at < ids.size(); at += static_cast<size_t>(chunk)) {
    const size_t end = std::min(ids.size(), at + static_cast<size_t>(chunk));
    batch.sequences = {{.sequence = kName,
                        .tokens = {ids.begin() + static_cast<std::ptrdiff_t>(at),
                                   ids.begin() + static_cast<std::ptrdiff_t>(end)},
                        .logits = LogitRows::kAll}};
    SB_ASSIGN_OR_RETURN(const StepOutput out, engine.Run(batch));
    logits.insert(logits.end(), out.logits.begin(), out.logits.end());
  }
  batch = {.release = {kName}};
  SB_ASSIGN_OR_RETURN(const StepOutput ignored, engine.Run(batch));
  return logits;
}

double RelativeError(std::span<const float> got, std::span<const float> want) {
  SB_CHECK(got.size() == want.size()) << got.size() << " and " << want.size();
  double difference = 0;
  double size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double d = static_cast<double>(got[i]) - want[i];
    difference += d * d;
    size += static_cast<double>(want[i]) * want[i];
  }
  return difference == 0 ? 0 : std::sqrt(difference / size);
}

}  // namespace signalbox
