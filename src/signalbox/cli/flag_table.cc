// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cli/flags.h"

namespace signalbox {

std::span<const FlagSpec> FlagTable() {
  using K = FlagKind;
  static const std::vector<FlagSpec> kFlags = {
      {"prompt", K::kText, "", "text to continue; with --chat the user's message"},
      {"chat", K::kSwitch, "", "put the prompt through the model's chat template"},
      {"system", K::kText, "", "system message of the conversation"},
      {"no-thinking", K::kSwitch, "", "ask the chat template for an answer without reasoning"},
      {"max-new-tokens", K::kInt, "512", "tokens to generate at most"},
      {"temperature", K::kNumber, "0", "0 is greedy"},
      {"seed", K::kInt, "0", "of the sampling at a temperature above 0, and of synth"},
      {"data", K::kText, "", "JSON lines with a question and an answer each"},
      {"limit", K::kInt, "0", "problems to ask at most; 0 is all"},
      {"parallel", K::kInt, "16", "requests at a time"},
      {"reference", K::kText, "", "safetensors file with ids.N and logits.N"},
      {"tolerance", K::kNumber, "1e-4", "largest relative Frobenius error that passes"},
      {"chunked-prefill-size", K::kInt, "512", "prompt tokens in one step at most"},
      {"max-total-tokens", K::kInt, "0",
       "tokens that the KV cache holds; 0 follows the model's context"},
      {"device", K::kText, "cpu", "cpu, or the scalar reference", {"cpu", "reference"}},
      {"delta-rule",
       K::kText,
       "recurrent",
       "form of the gated delta rule in prefill; chunked is faster and depends on how prompts are "
       "cut",
       {"recurrent", "chunked"}},
      {"threads", K::kInt, "0", "threads of the CPU device; 0 is all processors"},
      {"layers", K::kInt, "0", "write this many layers; 0 is all of them"},
      {"headers-only", K::kSwitch, "", "write shapes without data: a sparse file of zeros"},
      {"format",
       K::kText,
       "mxfp4",
       "of the routed experts; the rest is BF16",
       {"bf16", "mxfp4"},
       "synth"},
      {"all", K::kSwitch, "", "one line per tensor instead of one per pattern"},
      {"format", K::kText, "text", "of the output", {"text", "json"}},
      {"quiet", K::kSwitch, "", "no progress on stderr"},
  };
  return kFlags;
}

std::span<const CommandSpec> CommandTable() {
  static const std::vector<CommandSpec> kCommands = {
      {"generate",
       "one completion; the text alone on stdout",
       {"MODEL"},
       {"prompt", "chat", "system", "no-thinking", "max-new-tokens", "temperature", "seed",
        "device", "threads", "delta-rule", "chunked-prefill-size", "max-total-tokens", "quiet"}},
      {"chat",
       "talk to the model in the terminal",
       {"MODEL"},
       {"system", "no-thinking", "max-new-tokens", "temperature", "seed", "device", "threads",
        "delta-rule", "chunked-prefill-size", "max-total-tokens", "quiet"}},
      {"eval",
       "ask every problem of a file and count right answers",
       {"MODEL"},
       {"data", "limit", "parallel", "no-thinking", "max-new-tokens", "device", "threads",
        "delta-rule", "chunked-prefill-size", "max-total-tokens", "format", "quiet"}},
      {"verify",
       "compare with a reference, value by value",
       {"MODEL"},
       {"reference", "tolerance", "chunked-prefill-size", "device", "threads", "delta-rule",
        "format", "quiet"}},
      {"inspect", "what is in a checkpoint and what it is used for", {"MODEL"}, {"all", "format"}},
      {"synth",
       "write a checkpoint with random weights at real shapes",
       {"CONFIG", "OUT"},
       {"format", "layers", "seed", "headers-only", "quiet"}},
      {"env", "this machine and this build", {}, {"format"}},
      {"version", "the program's version", {}, {}},
  };
  return kCommands;
}

}  // namespace signalbox
