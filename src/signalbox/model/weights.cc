// SPDX-License-Identifier: Apache-2.0
#include "signalbox/model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "signalbox/base/check.h"
#include "signalbox/base/text_util.h"
#include "signalbox/tensor/checkpoint_weights.h"

namespace signalbox {
namespace {

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
};

const Shard& ShardOf(Split split, const WeightShards& shards) {
  static constexpr Shard kAll;
  switch (split) {
    case Split::kWhole:
      return kAll;
    case Split::kHeads:
    case Split::kSharedHeads:
      return shards.heads;
    case Split::kExpertWidth:
      return shards.expert_width;
    case Split::kSharedWidth:
      return shards.shared_width;
    case Split::kDenseWidth:
      return shards.dense_width;
  }
  return kAll;
}

// This rank's rows (or columns) of a part, relative to the part's own start.
Result<Range> RangeOf(const TensorPart& part, const WeightShards& shards) {
  const Shard& shard = ShardOf(part.split, shards);
  const int64_t unit = part.size / part.units;
  if (part.split == Split::kSharedHeads && shard.count > part.units &&
      shard.count % part.units == 0) {
    const int64_t head = shard.index * part.units / shard.count;
    return Range{head * unit, (head + 1) * unit};
  }
  if (part.units % shard.count != 0) {
    return Refused({.what = "weights cannot be cut evenly",
                    .where = std::string(ToString(part.role)),
                    .found = fmt::format("{} units over {} ranks", part.units, shard.count),
                    .expected = "a rank count that divides the units"});
  }
  const int64_t share = part.units / shard.count * unit;
  return Range{shard.index * share, (shard.index + 1) * share};
}

Result<MatrixView> Cut(const MatrixView& m, int axis, Range r) {
  return axis == 0 ? m.Rows(r.begin, r.end) : m.Cols(r.begin, r.end);
}

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, bool vectors)
      : checkpoint_(checkpoint), vectors_(vectors), ledger_(checkpoint) {}

  TensorLedger& ledger() { return ledger_; }
  int64_t bytes() const { return bytes_; }

  Status Load(const std::vector<TensorRule>& rules, const std::string& prefix,
              const WeightShards& shards, LayerWeights* out) {
    shards_ = shards;
    for (const TensorRule& rule : rules) {
      Status status;
      switch (rule.kind) {
        case TensorRule::Kind::kMatrix:
          status = LoadMatrix(rule, prefix, out);
          break;
        case TensorRule::Kind::kVector:
          status = LoadVector(rule, prefix, out);
          break;
        case TensorRule::Kind::kExperts:
          status = LoadExperts(rule, prefix, out);
          break;
      }
      if (!status.ok()) return status.At(prefix + rule.name);
    }
    return OkStatus();
  }

 private:
  Status LoadMatrix(const TensorRule& rule, const std::string& prefix, LayerWeights* out) {
    const int64_t rows = rule.axis == 0 ? rule.total() : rule.other;
    const int64_t cols = rule.axis == 0 ? rule.other : rule.total();
    SB_ASSIGN_OR_RETURN(MatrixView whole, ReadMatrix(ledger_, prefix + rule.name, rows, cols));
    int64_t at = 0;
    for (const TensorPart& part : rule.parts) {
      SB_ASSIGN_OR_RETURN(Range r, RangeOf(part, shards_));
      SB_ASSIGN_OR_RETURN(MatrixView view, Cut(whole, rule.axis, {at + r.begin, at + r.end}));
      out->Set(part.role, view);
      bytes_ += view.bytes();
      at += part.size;
    }
    return OkStatus();
  }

  Status LoadVector(const TensorRule& rule, const std::string& prefix, LayerWeights* out) {
    std::vector<int64_t> shape = {rule.total()};
    shape.insert(shape.end(), rule.trailing.begin(), rule.trailing.end());
    if (!vectors_) return FindTensor(ledger_, prefix + rule.name, shape).status();
    SB_ASSIGN_OR_RETURN(std::vector<float> all, ReadTensor(ledger_, prefix + rule.name, shape));
    int64_t width = 1;
    for (int64_t n : rule.trailing) width *= n;
    int64_t at = 0;
    for (const TensorPart& part : rule.parts) {
      SB_ASSIGN_OR_RETURN(Range r, RangeOf(part, shards_));
      if (part.role == Role::kPadding) continue;  // behind the parts that are used
      out->Append(part.role,
                  std::span(all).subspan(static_cast<size_t>((at + r.begin) * width),
                                         static_cast<size_t>((r.end - r.begin) * width)));
      at += part.size;
    }
    return OkStatus();
  }

  Status LoadExperts(const TensorRule& rule, const std::string& prefix, LayerWeights* out) {
    const bool fused = HasWeight(checkpoint_, prefix + rule.name);
    std::vector<MatrixView> whole;  // [experts], fused spelling only
    if (fused) {
      const int64_t rows = rule.axis == 0 ? rule.total() : rule.other;
      const int64_t cols = rule.axis == 0 ? rule.other : rule.total();
      SB_ASSIGN_OR_RETURN(whole, ReadFused(ledger_, prefix + rule.name, rule.experts, rows, cols));
    }
    std::vector<ExpertId> slots;
    for (int32_t e = 0; !shards_.slots && e < rule.experts; ++e) slots.emplace_back(e);
    if (shards_.slots) slots = *shards_.slots;
    out->experts.resize(slots.size());

    int64_t at = 0;
    for (const TensorPart& part : rule.parts) {
      SB_ASSIGN_OR_RETURN(Range r, RangeOf(part, shards_));
      // Every expert is read, also those of other ranks: their shapes and formats are checked, not
      // their bytes.
      std::vector<MatrixView> views;
      for (int64_t e = 0; e < rule.experts; ++e) {
        if (fused) {
          SB_ASSIGN_OR_RETURN(MatrixView v, Cut(whole[static_cast<size_t>(e)], rule.axis,
                                                {at + r.begin, at + r.end}));
          views.push_back(v);
          continue;
        }
        const std::string name = prefix + fmt::format(fmt::runtime(part.expert_name), e);
        SB_ASSIGN_OR_RETURN(MatrixView v,
                            ReadMatrix(ledger_, name, rule.axis == 0 ? part.size : rule.other,
                                       rule.axis == 0 ? rule.other : part.size));
        SB_ASSIGN_OR_RETURN(v, Cut(v, rule.axis, r));
        views.push_back(v);
      }
      for (size_t s = 0; s < slots.size(); ++s) {
        const MatrixView& v = views[static_cast<size_t>(slots[s].value())];
        ExpertWeights& expert = out->experts[s];
        (part.role == Role::kExpertGate ? expert.gate
         : part.role == Role::kExpertUp ? expert.up
                                        : expert.down) = v;
        bytes_ += v.bytes();
      }
      at += part.size;
    }
    return OkStatus();
  }

  const Checkpoint& checkpoint_;
  const bool vectors_;   // are read
  WeightShards shards_;  // of the layer at hand
  TensorLedger ledger_;
  int64_t bytes_ = 0;
};

bool AnyWithPrefix(const Checkpoint& checkpoint, const std::string& prefix) {
  if (prefix.empty()) return false;
  const auto tensors = checkpoint.tensors();
  const auto it =
      std::lower_bound(tensors.begin(), tensors.end(), prefix,
                       [](const TensorRef& t, const std::string& p) { return t.name() < p; });
  return it != tensors.end() && it->name().starts_with(prefix);
}

std::string LayerPrefix(const std::string& trunk, size_t layer) {
  return fmt::format("{}layers.{}.", trunk, layer);
}

// Names that one rule can stand for, without suffixes such as ".weight" or "_scale".
void Describe(const std::vector<TensorRule>& rules, const std::string& prefix,
              const std::string& place, std::map<std::string, std::string>* uses) {
  for (const TensorRule& rule : rules) {
    std::string roles;
    for (const TensorPart& part : rule.parts) {
      const std::string role(ToString(part.role));
      if (roles.find(role) == std::string::npos) roles += (roles.empty() ? "" : ", ") + role;
    }
    (*uses)[prefix + rule.name] = place + roles;
    if (rule.kind != TensorRule::Kind::kExperts) continue;
    for (const TensorPart& part : rule.parts) {
      for (int64_t e = 0; e < rule.experts; ++e) {
        (*uses)[prefix + fmt::format(fmt::runtime(part.expert_name), e)] =
            fmt::format("{}{} {}", place, ToString(part.role), e);
      }
    }
  }
}

// "X.weight_scale_inv" -> "X": the module path that rules use.
std::string ModulePath(const std::string& tensor) {
  for (std::string_view suffix : {"_scale_inv", "_scale", "_packed"}) {
    if (tensor.ends_with(suffix))
      return ModulePath(tensor.substr(0, tensor.size() - suffix.size()));
  }
  return tensor.ends_with(".weight") ? tensor.substr(0, tensor.size() - 7) : tensor;
}

}  // namespace

const MatrixView& LayerWeights::matrix(Role role) const {
  const MatrixView& m = matrix_[Index(role)];
  SB_CHECK(!m.empty()) << "no weight for " << ToString(role);
  return m;
}

std::span<const float> LayerWeights::vector(Role role) const {
  const std::vector<float>& v = vector_[Index(role)];
  SB_CHECK(!v.empty()) << "no weight for " << ToString(role);
  return v;
}

int64_t LayerWeights::bytes() const {
  int64_t bytes = 0;
  for (const MatrixView& m : matrix_) bytes += m.empty() ? 0 : m.bytes();
  for (const std::vector<float>& v : vector_)
    bytes += static_cast<int64_t>(v.size() * sizeof(float));
  return bytes;
}

void LayerWeights::Append(Role role, std::span<const float> values) {
  std::vector<float>& v = vector_[Index(role)];
  v.insert(v.end(), values.begin(), values.end());
}

Result<std::string> TrunkPrefix(const Checkpoint& checkpoint, const ModelFacts& facts) {
  const FamilyFiles files = FilesOf(facts);
  std::string tried;
  for (const std::string& prefix : files.trunk_prefixes) {
    if (HasWeight(checkpoint, prefix + "embed_tokens")) return prefix;
    tried += (tried.empty() ? "" : " or ") + prefix + "embed_tokens.weight";
  }
  return BadCheckpoint({.what = "no embedding in the checkpoint",
                        .where = checkpoint.path(),
                        .found = fmt::format("{} tensors", checkpoint.tensors().size()),
                        .expected = tried,
                        .remedy = "check that config.json and the weights belong together"});
}

namespace {

Result<ModelWeights> Bind(const Checkpoint& checkpoint, const ModelFacts& facts,
                          std::span<const WeightShards> shards, bool vectors,
                          const LoadProgress& progress) {
  const FamilyFiles files = FilesOf(facts);
  SB_ASSIGN_OR_RETURN(const std::string trunk, TrunkPrefix(checkpoint, facts));
  Loader loader(checkpoint, vectors);
  const auto shards_of = [&](size_t layer) {
    return shards.empty() ? WeightShards{} : shards[layer];
  };
  ModelWeights weights;
  SB_RETURN_IF_ERROR(loader.Load(TrunkRules(facts), trunk, {}, &weights.trunk));
  SB_RETURN_IF_ERROR(loader.Load(HeadRules(facts), "", {}, &weights.trunk));
  if (facts.tied_embeddings) {
    weights.trunk.Set(Role::kHead, weights.trunk.matrix(Role::kEmbedding));
    loader.ledger().Skip("lm_head.*", "tied to the embedding");
  }
  for (size_t l = 0; l < facts.layers.size(); ++l) {
    weights.layers.emplace_back();
    SB_RETURN_IF_ERROR(loader.Load(LayerRules(facts, facts.layers[l]), LayerPrefix(trunk, l),
                                   shards_of(l), &weights.layers.back()));
    if (progress) progress(loader.bytes());
  }
  // transformers drops the draft module when it saves a model, so its absence is no error.
  if (facts.mtp && AnyWithPrefix(checkpoint, files.mtp_prefix)) {
    weights.mtp.emplace();
    SB_RETURN_IF_ERROR(loader.Load(MtpRules(facts), files.mtp_prefix, {}, &weights.mtp->module));
    SB_RETURN_IF_ERROR(loader.Load(LayerRules(facts, *facts.mtp), LayerPrefix(files.mtp_prefix, 0),
                                   shards_of(facts.layers.size()), &weights.mtp->layer));
    if (progress) progress(loader.bytes());
  }
  for (const auto& [pattern, reason] : files.skipped) loader.ledger().Skip(pattern, reason);
  SB_RETURN_IF_ERROR(loader.ledger().Finish());
  weights.bytes = loader.bytes();
  return weights;
}

}  // namespace

Result<ModelWeights> LoadWeights(const Checkpoint& checkpoint, const ModelFacts& facts,
                                 std::span<const WeightShards> shards,
                                 const LoadProgress& progress) {
  return Bind(checkpoint, facts, shards, /*vectors=*/true, progress);
}

Result<ModelWeights> BindWeights(const Checkpoint& checkpoint, const ModelFacts& facts) {
  return Bind(checkpoint, facts, {}, /*vectors=*/false, {});
}

std::vector<TensorUse> DescribeTensors(const Checkpoint& checkpoint, const ModelFacts& facts) {
  const FamilyFiles files = FilesOf(facts);
  std::map<std::string, std::string> uses;
  const auto prefix = TrunkPrefix(checkpoint, facts);
  const std::string trunk = prefix.ok() ? *prefix : files.trunk_prefixes.front();
  Describe(TrunkRules(facts), trunk, "", &uses);
  Describe(HeadRules(facts), "", "", &uses);
  for (size_t l = 0; l < facts.layers.size(); ++l) {
    Describe(LayerRules(facts, facts.layers[l]), LayerPrefix(trunk, l), fmt::format("layer {} ", l),
             &uses);
  }
  if (facts.mtp) {
    Describe(MtpRules(facts), files.mtp_prefix, "", &uses);
    Describe(LayerRules(facts, *facts.mtp), LayerPrefix(files.mtp_prefix, 0), "draft layer ",
             &uses);
  }
  std::vector<TensorUse> result;
  for (const TensorRef& tensor : checkpoint.tensors()) {
    TensorUse use{tensor.name(), ""};
    // Vector rules carry the full name, matrices the module path.
    for (const std::string& key : {tensor.name(), ModulePath(tensor.name())}) {
      if (const auto it = uses.find(key); it != uses.end()) use.use = it->second;
    }
    result.push_back(use);
  }
  for (const auto& [pattern, reason] : files.skipped) {
    for (TensorUse& use : result) {
      if (use.use.empty() && GlobMatch(pattern, use.name)) use.use = "skipped: " + reason;
    }
  }
  return result;
}

}  // namespace signalbox
