// SPDX-License-Identifier: Apache-2.0
#include "signalbox/tensor/checkpoint_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <string>
#include <utility>

#include "signalbox/base/math.h"
#include "signalbox/base/text_util.h"
#include "signalbox/tensor/dtype.h"

namespace signalbox {
namespace {

constexpr std::string_view kWrongModel = "check that config.json belongs to these weights";
constexpr std::array<std::string_view, 4> kSuffixes = {"", "_packed", "_scale", "_scale_inv"};

std::string Place(const TensorRef& ref) {
  return ref.file->path() + ", tensor " + Quoted(ref.name());
}

// The tensors that make up one weight; those not stored are null.
struct Parts {
  const TensorRef* plain = nullptr;      // S
  const TensorRef* packed = nullptr;     // S_packed
  const TensorRef* scale = nullptr;      // S_scale
  const TensorRef* scale_inv = nullptr;  // S_scale_inv

  const TensorRef* data() const { return plain != nullptr ? plain : packed; }
};

Status Missing(const Checkpoint& checkpoint, std::string_view name, std::string expected) {
  // Names sort by layer and module, so the neighbour is the likely misunderstanding.
  const std::span<const TensorRef> tensors = checkpoint.tensors();
  const auto it =
      std::lower_bound(tensors.begin(), tensors.end(), name,
                       [](const TensorRef& ref, std::string_view key) { return ref.name() < key; });
  const TensorRef* near = it != tensors.end() ? &*it : !tensors.empty() ? &tensors.back() : nullptr;
  return BadCheckpoint(
      {.what = "tensor is missing",
       .where = checkpoint.path() + ", tensor " + Quoted(name),
       .found = near == nullptr ? "no tensor at all"
                                : "none of this name; next in order is " + Quoted(near->name()),
       .expected = std::move(expected),
       .remedy = "finish the download, or " + std::string(kWrongModel)});
}

// Finds the one spelling in which weight `name` is stored, and marks its tensors as read.
Result<Parts> FindParts(TensorLedger& ledger, std::string_view name) {
  std::array<Parts, 2> found;  // S = "name.weight", S = "name"
  std::vector<std::string_view> weights;
  std::vector<std::string_view> scales;
  for (size_t i = 0; i < found.size(); ++i) {
    const std::string stem = std::string(name) + (i == 0 ? ".weight" : "");
    const std::array<const TensorRef**, 4> slots = {&found[i].plain, &found[i].packed,
                                                    &found[i].scale, &found[i].scale_inv};
    for (size_t k = 0; k < slots.size(); ++k) {
      *slots[k] = ledger.Take(stem + std::string(kSuffixes[k]));
      if (*slots[k] != nullptr) (k < 2 ? weights : scales).push_back((*slots[k])->name());
    }
  }
  const auto place = [&] { return ledger.checkpoint().path() + ", weight " + Quoted(name); };
  if (weights.empty() && scales.empty()) {
    return Missing(ledger.checkpoint(), std::string(name) + ".weight", "weight " + Quoted(name));
  }
  if (weights.size() > 1 || scales.size() > 1) {
    return BadCheckpoint({.what = "weight is stored in two spellings",
                          .where = place(),
                          .found = SampleOf(weights.size() > 1 ? weights : scales, 4),
                          .expected = "one of them",
                          .remedy = "export the checkpoint again with one quantisation tool"});
  }
  const Parts& parts = found[found[0].data() != nullptr ? 0 : 1];
  if (weights.empty() || (!scales.empty() && !parts.scale && !parts.scale_inv)) {
    return BadCheckpoint({.what = "scale without its weight",
                          .where = place(),
                          .found = SampleOf(scales),
                          .expected = "a quantised weight of the same name without its suffix",
                          .remedy = "export the checkpoint again"});
  }
  return parts;
}

Status CheckShape(const TensorRef& ref, std::span<const int64_t> shape, std::string_view what) {
  if (std::ranges::equal(ref.info->shape, shape)) return OkStatus();
  return BadCheckpoint({.what = std::string(what) + " has another shape than the model",
                        .where = Place(ref),
                        .found = ref.info->ToString(),
                        .expected = ShapeToString(shape),
                        .remedy = std::string(kWrongModel)});
}

Status CheckAligned(const TensorRef& ref) {
  if (ref.file->IsAligned(*ref.info)) return OkStatus();
  return BadCheckpoint(
      {.what = "tensor is not aligned to its elements",
       .where = Place(ref),
       .found = fmt::format("{} at byte {}", ToString(ref.info->dtype), ref.info->offset),
       .expected = fmt::format("a multiple of {}", ByteSize(ref.info->dtype)),
       .remedy = "save the file again with the safetensors library"});
}

// What the model asks for: [rows, cols], or [experts, rows, cols].
struct Wanted {
  std::optional<int64_t> experts;
  int64_t rows = 0;
  int64_t cols = 0;

  std::vector<int64_t> Shape(int64_t r, int64_t c) const {
    return experts ? std::vector<int64_t>{*experts, r, c} : std::vector<int64_t>{r, c};
  }
};

Status UnknownFormat(const Parts& parts) {
  std::string found = parts.data()->info->ToString();
  for (const TensorRef* scale : {parts.scale, parts.scale_inv}) {
    if (scale != nullptr) found += " with " + Quoted(scale->name()) + " " + scale->info->ToString();
  }
  if (parts.scale == nullptr && parts.scale_inv == nullptr) found += " without scale";
  return BadCheckpoint({.what = "weight has a format this version does not know",
                        .where = Place(*parts.data()),
                        .found = std::move(found),
                        .expected = "F32, BF16 or F16 without scale; U8 with _scale of U8 or "
                                    "F8_E8M0; or F8_E4M3 with _scale_inv of F32 or BF16",
                        .remedy = "use a BF16, MXFP4 or block-FP8 release of the model"});
}

bool HasDType(const TensorRef* ref, std::initializer_list<DType> dtypes) {
  return ref != nullptr &&
         std::find(dtypes.begin(), dtypes.end(), ref->info->dtype) != dtypes.end();
}

Result<MatrixView> ReadPlain(const Parts& parts, const Wanted& wanted) {
  if (parts.packed != nullptr || parts.scale != nullptr || parts.scale_inv != nullptr) {
    return UnknownFormat(parts);
  }
  const TensorRef& weight = *parts.plain;
  SB_RETURN_IF_ERROR(CheckShape(weight, wanted.Shape(wanted.rows, wanted.cols), "weight"));
  SB_RETURN_IF_ERROR(CheckAligned(weight));
  const DType dtype = weight.info->dtype;
  return MatrixView{.format = dtype == DType::kF32    ? WeightFormat::kF32
                              : dtype == DType::kBf16 ? WeightFormat::kBf16
                                                      : WeightFormat::kF16,
                    .rows = wanted.rows,
                    .cols = wanted.cols,
                    .data = weight.data().data(),
                    .row_bytes = wanted.cols * ByteSize(dtype)};
}

Result<MatrixView> ReadMxfp4(const Parts& parts, const Wanted& wanted) {
  if (!HasDType(parts.scale, {DType::kU8, DType::kF8E8m0})) return UnknownFormat(parts);
  const TensorRef& weight = *parts.data();
  const auto [experts, rows, cols] = wanted;
  SB_RETURN_IF_ERROR(CheckShape(weight, wanted.Shape(rows, CeilDiv(cols, 2)), "MXFP4 weight"));
  const int64_t blocks = CeilDiv(cols, kMxBlock);
  SB_RETURN_IF_ERROR(CheckShape(*parts.scale, wanted.Shape(rows, blocks), "MXFP4 scale"));
  if (cols % kMxBlock != 0) {
    return BadCheckpoint({.what = "MXFP4 weight ends inside a block",
                          .where = Place(weight),
                          .found = fmt::format("{} columns", cols),
                          .expected = fmt::format("a multiple of {}", kMxBlock),
                          .remedy = "use a BF16 release of the model"});
  }
  return MatrixView{.format = WeightFormat::kMxfp4,
                    .rows = rows,
                    .cols = cols,
                    .data = weight.data().data(),
                    .row_bytes = cols / 2,
                    .scale = parts.scale->data().data(),
                    .scale_row_bytes = blocks};
}

Result<MatrixView> ReadFp8(const Parts& parts, const Wanted& wanted) {
  if (parts.packed != nullptr || !HasDType(parts.scale_inv, {DType::kF32, DType::kBf16})) {
    return UnknownFormat(parts);
  }
  const TensorRef& weight = *parts.plain;
  const TensorRef& scale = *parts.scale_inv;
  const auto [experts, rows, cols] = wanted;
  SB_RETURN_IF_ERROR(CheckShape(weight, wanted.Shape(rows, cols), "FP8 weight"));
  const int64_t blocks = CeilDiv(cols, kFp8BlockSize);
  SB_RETURN_IF_ERROR(
      CheckShape(scale, wanted.Shape(CeilDiv(rows, kFp8BlockSize), blocks), "FP8 scale"));
  SB_RETURN_IF_ERROR(CheckAligned(scale));
  return MatrixView{.format = WeightFormat::kFp8Block,
                    .rows = rows,
                    .cols = cols,
                    .data = weight.data().data(),
                    .row_bytes = cols,
                    .scale = scale.data().data(),
                    .scale_row_bytes = blocks * ByteSize(scale.info->dtype),
                    .scale_is_bf16 = scale.info->dtype == DType::kBf16};
}

// The weight, or the first of its experts.
Result<MatrixView> ReadFirst(TensorLedger& ledger, std::string_view name, const Wanted& wanted) {
  if (wanted.rows <= 0 || wanted.cols <= 0 || wanted.experts.value_or(1) <= 0) {
    return BadCheckpoint({.what = "model asks for a weight without elements",
                          .where = ledger.checkpoint().path() + ", weight " + Quoted(name),
                          .found = ShapeToString(wanted.Shape(wanted.rows, wanted.cols)),
                          .expected = "at least 1 in each dimension",
                          .remedy = std::string(kWrongModel)});
  }
  SB_ASSIGN_OR_RETURN(const Parts parts, FindParts(ledger, name));
  switch (parts.data()->info->dtype) {
    case DType::kF32:
    case DType::kBf16:
    case DType::kF16:
      return ReadPlain(parts, wanted);
    case DType::kU8:
      return ReadMxfp4(parts, wanted);
    case DType::kF8E4m3:
      return ReadFp8(parts, wanted);
    default:
      return UnknownFormat(parts);
  }
}

template <typename T>
T Load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));  // any alignment
  return value;
}

}  // namespace

bool HasWeight(const Checkpoint& checkpoint, std::string_view name) {
  for (const std::string_view stem : {".weight", ""}) {
    for (const std::string_view suffix : kSuffixes) {
      if (checkpoint.Find(fmt::format("{}{}{}", name, stem, suffix)) != nullptr) return true;
    }
  }
  return false;
}

Result<MatrixView> ReadMatrix(TensorLedger& ledger, std::string_view name, int64_t rows,
                              int64_t cols) {
  return ReadFirst(ledger, name, {std::nullopt, rows, cols});
}

Result<std::vector<MatrixView>> ReadFused(TensorLedger& ledger, std::string_view name,
                                          int64_t experts, int64_t rows, int64_t cols) {
  SB_ASSIGN_OR_RETURN(MatrixView view, ReadFirst(ledger, name, {experts, rows, cols}));
  const int64_t scale_rows =
      view.format == WeightFormat::kFp8Block ? CeilDiv(rows, kFp8BlockSize) : rows;
  std::vector<MatrixView> views;
  views.reserve(static_cast<size_t>(experts));
  for (int64_t e = 0; e < experts; ++e) {
    views.push_back(view);
    view.data += rows * view.row_bytes;
    if (view.scale != nullptr) view.scale += scale_rows * view.scale_row_bytes;
  }
  return views;
}

Result<const TensorRef*> FindTensor(TensorLedger& ledger, std::string_view name,
                                    std::span<const int64_t> shape) {
  const TensorRef* ref = ledger.Take(name);
  if (ref == nullptr) return Missing(ledger.checkpoint(), name, ShapeToString(shape));
  SB_RETURN_IF_ERROR(CheckShape(*ref, shape, "tensor"));
  const DType dtype = ref->info->dtype;
  if (dtype != DType::kF32 && dtype != DType::kBf16 && dtype != DType::kF16) {
    return BadCheckpoint({.what = "tensor has a dtype that cannot stand here",
                          .where = Place(*ref),
                          .found = ref->info->ToString(),
                          .expected = "F32, BF16 or F16",
                          .remedy = std::string(kWrongModel)});
  }
  return ref;
}

Result<std::vector<float>> ReadTensor(TensorLedger& ledger, std::string_view name,
                                      std::span<const int64_t> shape) {
  SB_ASSIGN_OR_RETURN(const TensorRef* ref, FindTensor(ledger, name, shape));
  const DType dtype = ref->info->dtype;
  const std::byte* data = ref->data().data();
  const auto size = static_cast<size_t>(ByteSize(dtype));
  std::vector<float> values(static_cast<size_t>(ref->info->bytes) / size);
  for (size_t i = 0; i < values.size(); ++i) {
    const std::byte* at = data + i * size;
    values[i] = dtype == DType::kF32    ? Load<float>(at)
                : dtype == DType::kBf16 ? Bf16ToFloat(Load<uint16_t>(at))
                                        : F16ToFloat(Load<uint16_t>(at));
  }
  return values;
}

Result<std::vector<float>> ReadVector(TensorLedger& ledger, std::string_view name, int64_t n) {
  return ReadTensor(ledger, name, std::array{n});
}

std::optional<ScalePosition> FindNanScale(const MatrixView& view) {
  if (view.format == WeightFormat::kMxfp4) {
    const int64_t blocks = view.cols / kMxBlock;
    for (int64_t r = 0; r < view.rows; ++r) {
      const std::byte* row = view.scale + r * view.scale_row_bytes;
      const void* nan = std::memchr(row, 255, static_cast<size_t>(blocks));
      if (nan != nullptr) return ScalePosition{r, static_cast<const std::byte*>(nan) - row};
    }
  }
  if (view.format == WeightFormat::kFp8Block) {
    const int64_t rows = CeilDiv(view.block_row + view.rows, kFp8BlockSize);
    const int64_t blocks = CeilDiv(view.block_col + view.cols, kFp8BlockSize);
    for (int64_t r = 0; r < rows; ++r) {
      const std::byte* row = view.scale + r * view.scale_row_bytes;
      for (int64_t b = 0; b < blocks; ++b) {
        const float scale = view.scale_is_bf16 ? Bf16ToFloat(Load<uint16_t>(row + 2 * b))
                                               : Load<float>(row + 4 * b);
        if (!std::isfinite(scale)) return ScalePosition{r, b};
      }
    }
  }
  return std::nullopt;
}

}  // namespace signalbox
