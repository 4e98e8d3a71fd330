// SPDX-License-Identifier: Apache-2.0
#include "signalbox/cli/flags.h"
#include "signalbox/plan/faults.h"

namespace signalbox {
namespace {

std::vector<std::string> FaultNames() {
  return {std::begin(EnumText<LayoutFault>::kNames), std::end(EnumText<LayoutFault>::kNames)};
}

}  // namespace

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
      {"tolerance", K::kNumber, "0",
       "largest relative Frobenius error that passes; 0 is 1e-4 for a reference, 1e-5 for a "
       "layout"},
      {"tokens", K::kInt, "64", "canary tokens of the prompts together"},
      {"inject", K::kText, "", "a mistake to make on purpose, past the checker", FaultNames()},
      {"max-ranks", K::kInt, "4", "ranks of a layout at most"},
      {"problems", K::kInt, "20", "prompts whose greedy text must be that of one rank"},
      {"every", K::kInt, "1", "try only every so-manieth layout"},
      {"no-startup-check", K::kSwitch, "",
       "do not compare the first layers of the layout with one rank before the first token"},
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
      {"tp", K::kInt, "1", "ranks; attention is cut over tp / dp of them"},
      {"dp", K::kInt, "1", "groups of ranks with sequences of their own"},
      {"enable-dp-attention", K::kSwitch, "", "let --dp cut the attention ranks"},
      {"ep", K::kInt, "1", "ranks that divide whole experts; tp / ep cut their width"},
      {"ep-num-redundant-experts", K::kInt, "0", "slots beyond one per expert"},
      {"moe-a2a-backend", K::kText, "",
       "contract that moves rows to experts; none sums over all ranks"},
      {"moe-a2a-mode", K::kText, "auto", "mode of that contract"},
      {"moe-a2a-contract", K::kText, "", "file with a contract of your own"},
      {"shared-experts",
       K::kText,
       "auto",
       "where the shared expert lives",
       {"auto", "fused", "replicated", "sharded"}},
      {"max-running-requests", K::kInt, "0",
       "requests at a time that the layout must hold; 0 is not known"},
      {"max-dispatch-tokens-per-rank", K::kInt, "0",
       "rows that a rank dispatches at most; 0 is the contract's"},
      {"ranks", K::kInt, "2", "ranks, each a thread"},
      {"tokens", K::kText, "1,128,4096", "tokens of each rank, a list", {}, "bench a2a"},
      {"experts", K::kInt, "16", "experts over all ranks"},
      {"top-k", K::kInt, "4", "experts of a token"},
      {"hidden", K::kInt, "1024", "width of a row"},
      {"repeats", K::kInt, "10", "measurements, of which the median is shown"},
      {"format", K::kText, "text", "of the output", {"text", "json", "svg"}, "plan"},
      {"all", K::kSwitch, "", "one line per tensor instead of one per pattern"},
      {"format", K::kText, "text", "of the output", {"text", "json"}},
      {"quiet", K::kSwitch, "", "no progress on stderr"},
  };
  return kFlags;
}

namespace {

const std::vector<std::string> kLayoutFlags = {"tp",
                                               "dp",
                                               "enable-dp-attention",
                                               "ep",
                                               "ep-num-redundant-experts",
                                               "moe-a2a-backend",
                                               "moe-a2a-mode",
                                               "moe-a2a-contract",
                                               "shared-experts",
                                               "max-running-requests",
                                               "max-dispatch-tokens-per-rank"};

std::vector<std::string> WithLayout(std::vector<std::string> flags) {
  flags.insert(flags.end(), kLayoutFlags.begin(), kLayoutFlags.end());
  return flags;
}

}  // namespace

std::span<const CommandSpec> CommandTable() {
  static const std::vector<CommandSpec> kCommands = {
      {"generate",
       "one completion; the text alone on stdout",
       {"MODEL"},
       WithLayout({"prompt", "chat", "system", "no-thinking", "max-new-tokens", "temperature",
                   "seed", "device", "threads", "delta-rule", "chunked-prefill-size",
                   "max-total-tokens", "inject", "no-startup-check", "quiet"})},
      {"chat",
       "talk to the model in the terminal",
       {"MODEL"},
       WithLayout({"system", "no-thinking", "max-new-tokens", "temperature", "seed", "device",
                   "threads", "delta-rule", "chunked-prefill-size", "max-total-tokens", "inject",
                   "no-startup-check", "quiet"})},
      {"eval",
       "ask every problem of a file and count right answers",
       {"MODEL"},
       WithLayout({"data", "limit", "parallel", "no-thinking", "max-new-tokens", "device",
                   "threads", "delta-rule", "chunked-prefill-size", "max-total-tokens", "inject",
                   "no-startup-check", "format", "quiet"})},
      {"plan",
       "derive and prove the layout, without weights",
       {"MODEL"},
       WithLayout({"chunked-prefill-size", "format"})},
      {"verify",
       "compare a layout with one rank, or logits with a reference",
       {"MODEL"},
       WithLayout({"reference", "tolerance", "tokens", "inject", "chunked-prefill-size", "device",
                   "threads", "delta-rule", "format", "quiet"})},
      {"matrix",
       "every contract in every small layout against one rank: refused, or the same numbers and "
       "text",
       {"MODEL..."},
       {"max-ranks", "problems", "every", "format", "quiet"}},
      {"inspect", "what is in a checkpoint and what it is used for", {"MODEL"}, {"all", "format"}},
      {"backends", "contracts and expert runners", {}, {"format"}},
      {"synth",
       "write a checkpoint with random weights at real shapes",
       {"CONFIG", "OUT"},
       {"format", "layers", "seed", "headers-only", "quiet"}},
      {"bench a2a",
       "dispatch and combine over thread ranks, beside a copy of the same bytes",
       {},
       {"moe-a2a-backend", "moe-a2a-mode", "moe-a2a-contract", "ranks", "tokens", "experts",
        "hidden", "top-k", "repeats", "format"}},
      {"env", "this machine and this build", {}, {"format"}},
      {"version", "the program's version", {}, {}},
  };
  return kCommands;
}

}  // namespace signalbox
