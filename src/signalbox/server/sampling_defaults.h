// SPDX-License-Identifier: Apache-2.0
//
// How requests are sampled that do not say: temperature 1 and nothing cut off, as OpenAI's API has
// it, or what the model's own generation_config.json recommends.
//
//   SB_ASSIGN_OR_RETURN(SamplingParams sampling, ModelSamplingDefaults("models/tiny"));
#pragma once

#include <string>

#include "signalbox/base/status.h"
#include "signalbox/engine/sampler.h"

namespace signalbox {

SamplingParams OpenAiSamplingDefaults();
// What the file does not say is as in OpenAI's; "do_sample": false is greedy. kBadCheckpoint for
// values of a wrong kind or out of range.
Result<SamplingParams> ModelSamplingDefaults(const std::string& directory);

}  // namespace signalbox
