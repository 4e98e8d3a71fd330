// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "signalbox/cli/flag_help.h"
#include "signalbox/cli/flag_rows.h"
#include "signalbox/cli/layout_flags.h"
#include "signalbox/cli/serve_flags.h"
#include "signalbox/plan/faults.h"

namespace signalbox {
namespace {

std::vector<std::string> FaultNames() {
  return {std::begin(EnumText<LayoutFault>::kNames), std::end(EnumText<LayoutFault>::kNames)};
}

// What decides who holds what; every command that loads or plans a model takes it. Aliases are what
// other engines call the same thing.
std::vector<FlagSpec> LayoutRows() {
  using K = FlagKind;
  return {
      Also({"model", K::kText, "", "directory of the model"}, {"model-path"}),
      Also({"tokenizer-path", K::kText, "", "directory of the tokenizer: the model's own"},
           {"tokenizer"}),
      {"chat-template", K::kText, "",
       "file of the chat template: the model's own, chat_template.jinja in its directory"},
      {"reasoning-parser", K::kText, "auto",
       "how reasoning is told apart; auto is by model, a name must fit it (qwen3, kimi_k3)"},
      {"tool-call-parser", K::kText, "auto",
       "how tool calls are told apart; auto is by model, a name must fit it (qwen3_coder, "
       "kimi_k3)"},
      Also({"tp", K::kInt, "1", "ranks; attention is cut over tp / dp of them"},
           {"tp-size", "tensor-parallel-size"}),
      Also({"dp", K::kInt, "1", "groups of ranks with sequences of their own"},
           {"dp-size", "data-parallel-size"}),
      {"enable-dp-attention", K::kSwitch, "", "let --dp cut the attention ranks"},
      Also({"ep", K::kInt, "1", "ranks that divide whole experts; tp / ep cut their width"},
           {"ep-size", "expert-parallel-size"}),
      {"enable-expert-parallel", K::kSwitch, "", "the same as --ep of all ranks"},
      Also({"ep-num-redundant-experts", K::kInt, "0", "slots beyond one per expert"},
           {"num-redundant-experts", "eplb-config.num-redundant-experts"}),
      Ruled({"enable-eplb", K::kSwitch, "", "move experts between ranks while serving"},
            {{FlagRule::Verdict::kRefused,
              "experts are not moved between ranks while serving; --ep-num-redundant-experts N "
              "places replicas once, when loading"}}),
      Also({"moe-a2a-backend", K::kText, "",
            "contract that moves rows to experts; none sums over all ranks"},
           {"all2all-backend"}),
      Also({"moe-a2a-mode", K::kText, "auto", "mode of that contract"},
           {std::string(ModeFlagAlias().substr(2))}),
      {"moe-a2a-contract", K::kText, "", "file with a contract of your own"},
      Ruled({"moe-runner-backend", K::kText, "auto",
             "what computes experts for rows that were moved", RunnerChoices()},
            {{FlagRule::Verdict::kNoted,
              "these are kernels of GPUs, and auto chooses",
              {"triton", "triton_kernel", "cutlass", "deep_gemm", "marlin", "aiter"}}}),
      {"shared-experts",
       K::kText,
       "auto",
       "where the shared expert lives",
       {"auto", "fused", "replicated", "sharded"}},
      {"disable-shared-experts-fusion", K::kSwitch, "",
       "keep the shared expert out of routed slots"},
      {"max-dispatch-tokens-per-rank", K::kInt, "0",
       "rows that a rank dispatches at most; 0 is the contract's"},
      {"launcher",
       K::kText,
       "",
       "what ranks are: threads of this process, or mpirun's processes",
       {"threads", "mpi"}},
      From(1, Also({"rank-timeout", K::kInt, "60",
                    "seconds that ranks wait for one another within a step before all give up"},
                   {"watchdog-timeout"})),
  };
}

std::vector<FlagSpec> StepRows() {
  using K = FlagKind;
  return {
      From(-1, Also({"chunked-prefill-size", K::kInt, "512",
                     "prompt tokens in one step at most; -1: as many as ranks can dispatch"},
                    {"max-num-batched-tokens"})),
      {"max-prefill-tokens", K::kInt, "0",
       "the same limit under another name, where it is lower; 0 is none"},
      Also({"max-running-requests", K::kInt, "0",
            "requests at a time that the layout must hold; 0 is not known"},
           {"max-num-seqs"}),
      Also({"cuda-graph-max-bs", K::kInt, "0",
            "requests of the largest step that is captured in a graph; 0 captures nothing"},
           {"cuda-graph-max-bs-decode", "max-cudagraph-capture-size"}),
      Also({"disable-cuda-graph", K::kSwitch, "", "capture nothing"}, {"enforce-eager"}),
      Ruled(Also({"speculative-algorithm",
                  K::kText,
                  "none",
                  "who drafts tokens: mtp, under any of its names, is the model's own head",
                  {"none", "mtp", "EAGLE", "NEXTN", "eagle", "deepseek_mtp", "qwen3_next_mtp"}},
                 {"speculative-config.method"}),
            {{FlagRule::Verdict::kRefused,
              "only a model's own draft head can draft; use mtp",
              {"EAGLE3", "eagle3", "STANDALONE", "NGRAM", "ngram", "draft_model", "medusa",
               "mlp_speculator"}}}),
      Also({"speculative-num-steps", K::kInt, "0",
            "tokens drafted per step; 0 is 3 when there is a draft"},
           {"num-speculative-tokens", "speculative-config.num-speculative-tokens"}),
      {"speculative-num-draft-tokens", K::kInt, "0",
       "rows that a step checks for each request: one more than --speculative-num-steps; 0 is "
       "that"},
      Also({"speculative-draft-model-path", K::kText, "",
            "directory of the draft head; only the model's own can be named"},
           {"speculative-draft-model", "speculative-config.model"}),
      Also({"deterministic", K::kSwitch, "",
            "what a request gets does not depend on others, bit for bit; refused where a layout "
            "cannot promise it"},
           {"enable-deterministic-inference"}),
  };
}

std::vector<FlagSpec> CacheRows() {
  using K = FlagKind;
  return {
      Also({"mem-fraction-static", K::kNumber, "0",
            "share of the memory of machine or container for weights and cache; 0: the cache is "
            "sized by --max-total-tokens"},
           {"gpu-memory-utilization"}),
      Also({"context-length", K::kInt, "0",
            "tokens of a prompt and its answer at most; 0 is the model's"},
           {"max-model-len"}),
      {"max-total-tokens", K::kInt, "0",
       "tokens that the KV cache of an attention group holds at most; 0 follows the model's "
       "context"},
      {"kv-cache-dtype",
       K::kText,
       "auto",
       "what the cache holds keys and values in; auto is fp32 on the CPU, which is exact, fp8 is "
       "fp8_e4m3 without a scale",
       {"auto", "fp32", "float32", "bf16", "bfloat16", "fp8_e4m3", "fp8"}},
      From(-1, {"max-prefix-states", K::kInt, "-1",
                "states of linear layers kept for prompts that begin alike; -1 is two for each "
                "request at a time"}),
      Also({"disable-radix-cache", K::kSwitch, "", "compute every prompt whole"},
           {"no-enable-prefix-caching"}),
  };
}

std::vector<FlagSpec> DeviceRows() {
  using K = FlagKind;
  return {
      {"device",
       K::kText,
       "auto",
       "auto is the fastest there is; reference is the scalar one",
       {"auto", "cpu", "cuda", "reference"}},
      {"threads", K::kInt, "0", "threads of the CPU device; 0 is all processors"},
      {"expert-activations",
       K::kText,
       "float",
       "what experts in MXFP4 are given; int8, with a scale per 32 numbers, is faster and rounds",
       {"float", "int8"}},
      {"delta-rule",
       K::kText,
       "recurrent",
       "form of the gated delta rule in prefill; chunked is faster and depends on how prompts are "
       "cut",
       {"recurrent", "chunked"}},
      {"latent-attention",
       K::kText,
       "absorbed",
       "form of latent attention in prefill; expanded makes the keys and values of all heads",
       {"absorbed", "expanded"}},
      {"rope-frequencies",
       K::kText,
       "fp32",
       "rotary frequencies; bf16 is for references of a library that cast the whole model",
       {"fp32", "bf16"}},
      {"inject", K::kText, "", "a mistake to make on purpose, past the checker", FaultNames()},
      {"no-startup-check", K::kSwitch, "",
       "do not compare the first layers of the layout with one rank before the first token"},
  };
}

// What a request asks for.
std::vector<FlagSpec> RequestRows() {
  using K = FlagKind;
  return {
      {"prompt", K::kText, "", "text to continue; with --chat the user's message"},
      {"chat", K::kSwitch, "", "put the prompt through the model's chat template"},
      {"system", K::kText, "", "system message of the conversation"},
      {"no-thinking", K::kSwitch, "", "ask the chat template for an answer without reasoning"},
      {"max-new-tokens", K::kInt, "512", "tokens to generate at most"},
      {"min-new-tokens", K::kInt, "0", "tokens before the model may end"},
      {"ignore-eos", K::kSwitch, "", "go on past the model's end token, to --max-new-tokens"},
      {"stop", K::kTexts, "", "text at which the answer ends"},
      {"include-stop", K::kSwitch, "", "the stop text is part of the answer"},
      {"temperature", K::kNumber, "0", "0 is greedy"},
      {"top-p", K::kNumber, "1", "sample from the most likely that hold this share; 1 is all"},
      From(-1, {"top-k", K::kInt, "0", "sample from so many of the most likely; -1 or 0 is all"}),
      {"min-p", K::kNumber, "0", "sample from those this share as likely as the most likely"},
      {"repetition-penalty", K::kNumber, "1",
       "logits of tokens of prompt and answer are divided by it (multiplied below 0)"},
      From(-2, {"presence-penalty", K::kNumber, "0", "taken off tokens of the answer, -2 to 2"}),
      From(-2, {"frequency-penalty", K::kNumber, "0",
                "taken off tokens of the answer for each time they occur, -2 to 2"}),
      {"seed", K::kInt, "0",
       "of sampling at a temperature above 0, of synth and of random prompts"},
      {"json-object", K::kSwitch, "", "the answer is a JSON object"},
      {"json-schema", K::kText, "", "the answer is JSON that fits this schema; @FILE reads it"},
      {"regex", K::kText, "", "the answer matches this regular expression; @FILE reads it"},
      {"ebnf", K::kText, "", "the answer derives from `root` of this grammar; @FILE reads it"},
  };
}

// What is measured, and with what.
std::vector<FlagSpec> MeasuringRows() {
  using K = FlagKind;
  return {
      {"data", K::kText, "", "JSON lines with a question and an answer each"},
      {"output", K::kText, "",
       "file that gets every answer, a JSON line each, in order of the problems"},
      {"limit", K::kInt, "0", "problems to ask at most; 0 is all"},
      {"parallel", K::kInt, "16", "requests at a time"},
      {"parallel", K::kText, "1,8,64,200", "requests at a time, a list", {}, "bench serve"},
      Also({"url", K::kText, "", "server that is asked, http://HOST:PORT, instead of a model here"},
           {"base-url"}),
      {"request-rate", K::kNumber, "0",
       "requests begun per second, at random times, within --parallel; 0: as soon as may be"},
      Also({"num-prompts", K::kInt, "0",
            "requests of each measurement; 0 is four for each at a time, at least 16"},
           {"num-requests"}),
      Also({"input-tokens", K::kInt, "128", "tokens of random prompts, where there is no --data"},
           {"random-input-len", "random-input"}),
      Also({"output-tokens", K::kInt, "64", "tokens of each answer; with --data at most"},
           {"random-output-len", "random-output"}),
      {"plot", K::kText, "", "SVG file that gets throughput and time to first token as a picture"},
      {"reference", K::kText, "", "safetensors file with ids.N and logits.N"},
      {"tolerance", K::kNumber, "0",
       "largest relative Frobenius error that passes; 0 is 1e-4 for a reference, 1e-5 for a "
       "layout"},
      {"tokens", K::kInt, "64", "canary tokens of the prompts together"},
      {"tokens", K::kText, "1,128,4096", "tokens of each rank, a list", {}, "bench a2a"},
      {"max-ranks", K::kInt, "4", "ranks of a layout at most"},
      {"problems", K::kInt, "20", "prompts whose greedy text must be that of one rank"},
      {"jobs", K::kInt, "0", "layouts to try side by side; 0 is as many as processors"},
      {"every", K::kInt, "1", "try only every so-manieth layout"},
      {"ranks", K::kInt, "2", "ranks, each a thread"},
      {"experts", K::kInt, "16", "experts over all ranks"},
      {"top-k", K::kInt, "4", "experts of a token", {}, "bench a2a"},
      {"hidden", K::kInt, "1024", "width of a row"},
      {"repeats", K::kInt, "10", "measurements, of which the median is shown"},
      {"batch", K::kText, "1,4,16", "sequences of a row, a list"},
      {"depth", K::kText, "0,1024", "tokens that each sequence has in the cache, a list"},
      {"prompt-tokens", K::kText, "128,512", "tokens of each prompt, a list"},
      {"new-tokens", K::kInt, "64", "tokens of each request, where there are drafts"},
  };
}

std::vector<FlagSpec> OutputRows() {
  using K = FlagKind;
  return {
      {"format", K::kText, "text", "of the output", {"text", "json"}},
      {"format", K::kText, "text", "of the output", {"text", "json", "svg"}, "plan"},
      {"format",
       K::kText,
       "mxfp4",
       "mxfp4: of the routed experts; fp8: of projections and experts; the rest is BF16",
       {"bf16", "fp8", "mxfp4"},
       "synth"},
      {"layers", K::kInt, "0", "write this many layers; 0 is all of them"},
      {"headers-only", K::kSwitch, "", "write shapes without data: a sparse file of zeros"},
      {"all", K::kSwitch, "", "one line per tensor instead of one per pattern"},
      {"quiet", K::kSwitch, "", "no progress on stderr"},
      {"config", K::kText, "", "YAML file with flags by name"},
      {"print-config", K::kSwitch, "",
       "print what command line, environment and file come to, as such a file, and end"},
  };
}

struct Section {
  std::string group;
  std::vector<FlagSpec> rows;
  bool of_layout = false;  // of every command that loads or plans a model
};

const std::vector<Section>& Sections() {
  static const std::vector<Section> kSections = {
      {"Layout", LayoutRows(), true},
      {"Steps and drafts", StepRows(), true},
      {"Cache", CacheRows(), true},
      {"Device", DeviceRows()},
      {"Serving", ServeRows()},
      {"Requests", RequestRows()},
      {"Measuring", MeasuringRows()},
      {"Output and configuration", OutputRows()},
      {std::string(kCarriedGroup), CarriedFlags(), true},
      {std::string(kCarriedGroup), CarriedServeFlags()},
  };
  return kSections;
}

}  // namespace

std::span<const FlagSpec> FlagTable() {
  static const std::vector<FlagSpec> kFlags = [] {
    std::vector<FlagSpec> all;
    for (const Section& section : Sections()) {
      const std::vector<FlagSpec> rows = Grouped(section.group, section.rows);
      all.insert(all.end(), rows.begin(), rows.end());
    }
    return all;
  }();
  return kFlags;
}

namespace {

// What a request of generate and chat takes.
std::vector<std::string> WithSampling(std::vector<std::string> flags) {
  flags.insert(flags.end(),
               {"max-new-tokens", "min-new-tokens", "ignore-eos", "stop", "include-stop",
                "temperature", "top-p", "top-k", "min-p", "repetition-penalty", "presence-penalty",
                "frequency-penalty", "seed", "json-object", "json-schema", "regex", "ebnf"});
  return flags;
}

std::vector<std::string> WithLayout(std::vector<std::string> flags) {
  for (const Section& section : Sections()) {
    if (!section.of_layout) continue;
    for (const FlagSpec& f : section.rows) flags.push_back(f.name);
  }
  return flags;
}

std::vector<std::string> WithServing(std::vector<std::string> flags) {
  for (const auto& rows : {ServeRows(), CarriedServeFlags()}) {
    for (const FlagSpec& f : rows) flags.push_back(f.name);
  }
  return flags;
}

std::vector<CommandSpec> AllCommands() {
  std::vector<CommandSpec> commands = {
      {"serve",
       "an OpenAI-compatible HTTP server",
       {"MODEL"},
       WithServing(WithLayout({"device", "threads", "expert-activations", "delta-rule",
                               "latent-attention", "inject", "no-startup-check", "quiet"}))},
      {"generate",
       "one completion; the text alone on stdout",
       {"MODEL"},
       WithLayout(WithSampling({"prompt", "chat", "system", "no-thinking", "device", "threads",
                                "expert-activations", "delta-rule", "latent-attention", "inject",
                                "no-startup-check", "quiet"}))},
      {"chat",
       "talk to the model in the terminal",
       {"MODEL"},
       WithLayout(WithSampling({"system", "no-thinking", "device", "threads", "expert-activations",
                                "delta-rule", "latent-attention", "inject", "no-startup-check",
                                "quiet"}))},
      {"eval",
       "ask every problem of a file, here or at a server, and count right answers",
       {"[MODEL]"},
       WithLayout({"url", "api-key", "data", "output", "limit", "parallel", "no-thinking",
                   "max-new-tokens", "device", "threads", "expert-activations", "delta-rule",
                   "latent-attention", "inject", "no-startup-check", "format", "quiet"})},
      {"plan", "derive and prove the layout, without weights", {"MODEL"}, WithLayout({"format"})},
      {"verify",
       "compare a layout with one rank, or logits with a reference",
       {"MODEL"},
       WithLayout({"reference", "tolerance", "tokens", "inject", "device", "threads",
                   "expert-activations", "delta-rule", "latent-attention", "rope-frequencies",
                   "format", "quiet"})},
      {"matrix",
       "every contract in every small layout against one rank: refused, or the same numbers and "
       "text",
       {"MODEL..."},
       {"max-ranks", "problems", "every", "jobs", "format", "quiet"}},
      {"inspect",
       "what is in a checkpoint and what it is used for",
       {"MODEL"},
       {"model", "all", "format"}},
      {"backends", "contracts and expert runners", {}, {"format"}},
      {"synth",
       "write a checkpoint with random weights at real shapes",
       {"CONFIG.json", "OUT"},
       {"format", "layers", "seed", "headers-only", "quiet"}},
      {"bench a2a",
       "dispatch and combine over thread ranks, beside a copy of the same bytes",
       {},
       {"moe-a2a-backend", "moe-a2a-mode", "moe-a2a-contract", "ranks", "tokens", "experts",
        "hidden", "top-k", "repeats", "format"}},
      {"bench decode",
       "steps of one token for each sequence, beside what memory can give",
       {"MODEL"},
       WithLayout({"batch", "depth", "repeats", "new-tokens", "seed", "device", "threads",
                   "expert-activations", "delta-rule", "latent-attention", "format"})},
      {"bench prefill",
       "prompts computed, in time and bytes",
       {"MODEL"},
       WithLayout({"batch", "prompt-tokens", "repeats", "seed", "device", "threads",
                   "expert-activations", "delta-rule", "latent-attention", "format"})},
      {"bench serve",
       "a server under load: throughput and times at several numbers of requests at a time",
       {},
       {"url", "api-key", "parallel", "request-rate", "num-prompts", "input-tokens",
        "output-tokens", "data", "seed", "plot", "format", "quiet"}},
      {"env", "this machine and this build", {}, {"format"}},
      {"flags", "every flag of every command, as the page docs/flags.md", {}, {}},
      {"completions",
       "a script for bash, zsh or fish that completes commands and flags",
       {"SHELL"},
       {}},
      {"version", "the program's version", {}, {}},
  };
  // Whatever takes flags takes them from a file as well.
  for (CommandSpec& command : commands) {
    if (!command.flags.empty())
      command.flags.insert(command.flags.end(), {"config", "print-config"});
  }
  return commands;
}

}  // namespace

std::span<const CommandSpec> CommandTable() {
  static const std::vector<CommandSpec> kCommands = AllCommands();
  return kCommands;
}

}  // namespace signalbox
