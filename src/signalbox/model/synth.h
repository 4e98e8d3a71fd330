// SPDX-License-Identifier: Apache-2.0
//
// Synth: writes a checkpoint with random weights at the shapes of a config, for benchmarks and
// plans. The tensors and their names come from the weight map, so whatever synth writes, the loader
// reads.
//
//   SB_RETURN_IF_ERROR(WriteSynthetic("configs/qwen3.json", "out", {.layers = 2,
//   .format = SynthFormat::kFp8}));
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "signalbox/base/status.h"

namespace signalbox {

enum class SynthFormat : uint8_t {
  kBf16,   // as the family releases it
  kFp8,    // projections and experts in FP8 with a scale per block; experts one by one
  kMxfp4,  // routed experts in MXFP4, one by one; the rest is BF16
};

struct SynthOptions {
  SynthFormat format = SynthFormat::kMxfp4;
  int64_t layers = 0;  // keep the first so many layers; 0: all
  uint64_t seed = 0;
  bool headers_only = false;  // full logical size, no data: reads as zeros
};

// Writes model.safetensors, config.json, generation_config.json and a byte-level tokenizer.json
// into `out` (made if missing). `progress` gets bytes written and total. Errors: kBadCheckpoint for
// the config, kInvalidArgument for an unusable `out`, kResourceExhausted for a full disk.
Status WriteSynthetic(const std::string& config_path, const std::string& out,
                      const SynthOptions& options,
                      const std::function<void(int64_t done, int64_t total)>& progress = {});

}  // namespace signalbox
