// SPDX-License-Identifier: Apache-2.0
//
// inspect, synth and env.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <thread>

#include <nlohmann/json.hpp>

#include "signalbox/base/progress.h"
#include "signalbox/base/text_util.h"
#include "signalbox/cli/commands.h"
#include "signalbox/model/config.h"
#include "signalbox/model/synth.h"
#include "signalbox/model/weights.h"
#include "signalbox/ops/ops.h"
#include "signalbox/tensor/checkpoint.h"

namespace signalbox {
namespace {

using Json = nlohmann::json;

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

// "model.layers.12.mlp.experts.7.up_proj" -> "model.layers.*.mlp.experts.*.up_proj".
std::string Pattern(const std::string& text) {
  std::string pattern;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool digit = text[i] >= '0' && text[i] <= '9';
    const bool starts = i == 0 || text[i - 1] == '.' || text[i - 1] == ' ';
    if (!digit || !starts) {
      pattern += text[i];
      continue;
    }
    while (i + 1 < text.size() && text[i + 1] >= '0' && text[i + 1] <= '9') ++i;
    pattern += '*';
  }
  return pattern;
}

struct Row {
  std::string name;
  std::string dtype;
  std::string shape;
  std::string use;
  int64_t count = 0;
  int64_t bytes = 0;
};

std::vector<Row> Rows(const Checkpoint& checkpoint, const std::vector<TensorUse>& uses, bool all) {
  std::vector<Row> rows;
  std::map<std::string, size_t> index;
  for (size_t i = 0; i < uses.size(); ++i) {
    const TensorInfo& info = *checkpoint.tensors()[i].info;
    Row row{.name = all ? info.name : Pattern(info.name),
            .dtype = std::string(ToString(info.dtype)),
            .shape = ShapeText(info.shape),
            .use = uses[i].use.empty() ? "UNKNOWN"
                   : all               ? uses[i].use
                                       : Pattern(uses[i].use)};
    const std::string key = row.name + row.dtype + row.shape + row.use;
    const auto [it, fresh] = index.try_emplace(key, rows.size());
    if (fresh) rows.push_back(row);
    rows[it->second].count += 1;
    rows[it->second].bytes += info.bytes;
  }
  return rows;
}

std::string MixerSummary(const ModelFacts& facts) {
  std::vector<std::pair<std::string, int64_t>> kinds;
  for (const LayerFacts& layer : facts.layers) {
    const std::string kind(MixerName(layer));
    const auto it =
        std::find_if(kinds.begin(), kinds.end(), [&](const auto& k) { return k.first == kind; });
    if (it == kinds.end()) {
      kinds.emplace_back(kind, 1);
    } else {
      ++it->second;
    }
  }
  std::string text;
  for (const auto& [kind, count] : kinds) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, kind);
  }
  return text;
}

void PrintText(const Checkpoint& checkpoint, const ModelConfig& config,
               const std::vector<Row>& rows) {
  const ModelFacts& f = config.facts;
  fmt::print("{}: hidden {}, vocabulary {}, {} layers ({}){}\n", f.family, f.hidden, f.vocab,
             f.layers.size(), MixerSummary(f), f.mtp ? ", draft layer" : "");
  const auto moe = std::find_if(f.layers.begin(), f.layers.end(),
                                [](const LayerFacts& l) { return l.is_moe(); });
  if (moe != f.layers.end()) {
    const MoeFacts& m = std::get<MoeFacts>(moe->ffn);
    fmt::print(
        "experts {} of {} per token, width {}{}\n", m.top_k, m.experts, m.inner,
        (m.latent > 0 ? fmt::format(" in a latent space of {}", m.latent) : "") +
            (m.shared_inner > 0 ? fmt::format(", shared expert width {}", m.shared_inner) : ""));
  }
  size_t name = 6;
  size_t shape = 5;
  for (const Row& r : rows) {
    name = std::max(name, r.name.size());
    shape = std::max(shape, r.shape.size());
  }
  fmt::print("\n{:>6}  {:<{}}  {:<7}  {:<{}}  {:>10}  {}\n", "count", "tensor", name, "dtype",
             "shape", shape, "bytes", "used for");
  for (const Row& r : rows) {
    fmt::print("{:>6}  {:<{}}  {:<7}  {:<{}}  {:>10}  {}\n", r.count, r.name, name, r.dtype,
               r.shape, shape, HumanBytes(r.bytes), r.use);
  }
  fmt::print("\n{} tensors in {} file(s), {}\n", checkpoint.tensors().size(),
             checkpoint.files().size(), HumanBytes(checkpoint.total_bytes()));
}

std::string FirstValue(const char* path, std::string_view key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with(key)) continue;
    const size_t at = line.find_first_not_of(" \t", line.find(':') + 1);
    return at == std::string::npos ? "" : line.substr(at);
  }
  return "unknown";
}

}  // namespace

Status RunInspect(const Invocation& invocation) {
  const std::string& directory = invocation.positionals[0];
  SB_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(directory));
  SB_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(directory));
  const std::vector<TensorUse> uses = DescribeTensors(checkpoint, config.facts);
  const std::vector<Row> rows = Rows(checkpoint, uses, invocation.flags.Switch("all"));
  if (invocation.flags.Text("format") == "json") {
    Json list = Json::array();
    for (const Row& r : rows) {
      list.push_back({{"tensor", r.name},
                      {"count", r.count},
                      {"dtype", r.dtype},
                      {"shape", r.shape},
                      {"bytes", r.bytes},
                      {"use", r.use}});
    }
    fmt::print("{}\n", Json{{"family", config.facts.family},
                            {"layers", config.facts.layers.size()},
                            {"hidden", config.facts.hidden},
                            {"tensors", list},
                            {"bytes", checkpoint.total_bytes()}}
                           .dump(1));
  } else {
    PrintText(checkpoint, config, rows);
  }
  // The listing comes first: it shows what is wrong. Loading is what decides.
  return LoadWeights(checkpoint, config.facts, {}).status();
}

Status RunSynth(const Invocation& invocation) {
  const FlagValues& flags = invocation.flags;
  std::unique_ptr<Progress> progress;
  const std::string& format = flags.Text("format");
  const SynthOptions options{.format = format == "mxfp4" ? SynthFormat::kMxfp4
                                       : format == "fp8" ? SynthFormat::kFp8
                                                         : SynthFormat::kBf16,
                             .layers = flags.Int("layers"),
                             .seed = static_cast<uint64_t>(flags.Int("seed")),
                             .headers_only = flags.Switch("headers-only")};
  Status status = WriteSynthetic(
      invocation.positionals[0], invocation.positionals[1], options,
      [&](int64_t done, int64_t total) {
        if (!progress) {
          progress = std::make_unique<Progress>(Progress::Options{.label = "writing",
                                                                  .total = total,
                                                                  .unit = Progress::Unit::kBytes,
                                                                  .quiet = flags.Switch("quiet")});
        }
        progress->Update(done);
      });
  if (progress) progress->Finish();
  return status;
}

Status RunEnv(const Invocation& invocation) {
  const int64_t memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  const std::vector<std::pair<std::string, std::string>> facts = {
      {"version", SIGNALBOX_VERSION},
      {"compiler", __VERSION__},
      {"processor", FirstValue("/proc/cpuinfo", "model name")},
      {"processors", std::to_string(std::thread::hardware_concurrency())},
      {"memory", HumanBytes(memory)},
      {"instruction set", std::string(ToString(DetectIsa()))},
  };
  if (invocation.flags.Text("format") == "json") {
    Json object = Json::object();
    for (const auto& [key, value] : facts) object[key] = value;
    fmt::print("{}\n", object.dump(1));
  } else {
    for (const auto& [key, value] : facts) fmt::print("{:<16} {}\n", key, value);
  }
  return OkStatus();
}

}  // namespace signalbox
