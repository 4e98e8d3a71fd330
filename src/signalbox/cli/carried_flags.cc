// SPDX-License-Identifier: Apache-2.0
//
// Flags that launch lines of other engines have and that no code here reads, with the reason that
// the user is told.
#include <fmt/format.h>

#include "signalbox/cache/cache_pool.h"
#include "signalbox/cli/flag_help.h"
#include "signalbox/cli/flag_rows.h"

namespace signalbox {
namespace {

using K = FlagKind;

// Flags of one reason, of which a value other than the default says the same.
struct Carried {
  std::vector<std::string> names;
  K kind;
  std::vector<FlagRule> rules;
  std::string fallback = {};
};

FlagRule Taken(std::vector<std::string> values = {}, std::string why = {}) {
  return {FlagRule::Verdict::kTaken, std::move(why), std::move(values)};
}
FlagRule Noted(std::string why, std::vector<std::string> values = {}) {
  return {FlagRule::Verdict::kNoted, std::move(why), std::move(values)};
}
FlagRule Refuse(std::string why, std::vector<std::string> values = {}) {
  return {FlagRule::Verdict::kRefused, std::move(why), std::move(values)};
}

std::vector<FlagSpec> Expanded(const std::vector<Carried>& all) {
  std::vector<FlagSpec> rows;
  for (const Carried& carried : all) {
    for (const std::string& name : carried.names)
      rows.push_back(Ruled({name, carried.kind, carried.fallback, ""}, carried.rules));
  }
  return Grouped(std::string(kCarriedGroup), std::move(rows));
}

std::vector<Carried> WeightsAndTokenizer() {
  return {
      {{"trust-remote-code"}, K::kSwitch, {Noted("no code of a checkpoint is ever run")}},
      {{"dtype"},
       K::kText,
       {Noted("weights stay as they are stored, and sums are made in FP32")},
       "auto"},
      {{"quantization"},
       K::kText,
       {Noted("whether and how weights are quantised is read from the checkpoint")}},
      {{"quantization-param-path"}, K::kText, {Noted("an FP8 cache needs no scales here")}},
      {{"load-format"},
       K::kText,
       {Taken({"safetensors"}),
        Refuse("weights are not made up when loading; signalbox synth writes a checkpoint with "
               "random ones",
               {"dummy"}),
        Refuse("safetensors is the only format that is read")},
       "auto"},
      {{"revision", "tokenizer-revision", "code-revision", "download-dir"},
       K::kText,
       {Noted("a model is a directory; nothing is downloaded")}},
      {{"tokenizer-mode"},
       K::kText,
       {Noted("there is one tokenizer, with the ids of the model's own")},
       "auto"},
      {{"skip-tokenizer-init"}, K::kSwitch, {Refuse("without a tokenizer there is no text")}},
      {{"hf-overrides", "json-model-override-args"},
       K::kText,
       {Refuse("facts of a model come from its config.json alone")},
       "{}"},
      {{"enable-multimodal"}, K::kSwitch, {Refuse("models are of text alone")}},
      {{"language-only", "language-model-only"}, K::kSwitch, {Taken({}, "models are of text")}},
      {{"limit-mm-per-prompt"}, K::kText, {Noted("models are of text alone")}},
      {{"enable-lora"}, K::kSwitch, {Refuse("adapters are not offered")}},
      {{"lora-paths", "lora-modules"}, K::kTexts, {Refuse("adapters are not offered")}},
      {{"cpu-offload-gb", "swap-space"},
       K::kText,
       {Noted("weights and cache are in the memory of the CPU")},
       "0"},
  };
}

std::vector<Carried> KernelsAndGraphs() {
  const std::string own = "the device (--device) has operations of its own";
  const std::string graphs = "the CPU device captures no graphs";
  return {
      {{"attention-backend", "prefill-attention-backend", "decode-attention-backend",
        "linear-attn-backend", "mm-attention-backend", "sampling-backend", "fp8-gemm-backend",
        "speculative-draft-attention-backend", "speculative-attention-mode"},
       K::kText,
       {Noted(own)}},
      {{"speculative-moe-runner-backend", "speculative-moe-a2a-backend"},
       K::kText,
       {Noted("the draft head uses what the model's layers use")}},
      {{"speculative-draft-model-quantization"},
       K::kText,
       {Noted("whether and how weights are quantised is read from the checkpoint")}},
      {{"speculative-accept-threshold-single", "speculative-accept-threshold-acc"},
       K::kText,
       {Refuse("drafts never change the text: one is accepted when it is what is drawn")},
       "1.0"},
      {{"speculative-eagle-topk"},
       K::kInt,
       {Refuse("drafts are one chain of tokens, not a tree; use 1")},
       "1"},
      {{"grammar-backend", "guided-decoding-backend"},
       K::kText,
       {Taken({"xgrammar", "auto"}), Noted("grammars are compiled by XGrammar")}},
      {{"cuda-graph-bs", "cudagraph-capture-sizes"}, K::kTexts, {Noted(graphs)}},
      {{"disable-cuda-graph-padding", "enable-profile-cuda-graph"}, K::kSwitch, {Noted(graphs)}},
      {{"enable-torch-compile"}, K::kSwitch, {Noted("nothing is compiled when loading")}},
      {{"torch-compile-max-bs", "compilation-config"},
       K::kText,
       {Noted("nothing is compiled when loading")}},
      {{"base-gpu-id", "gpu-id-step"}, K::kText, {Noted("this build has no GPU device")}},
      {{"mamba-ssm-dtype", "mamba-cache-dtype", "mamba-ssm-cache-dtype"},
       K::kText,
       {Taken({"float32"}), Noted("recurrent states are FP32")},
       "auto"},
  };
}

std::vector<Carried> RanksAndExperts() {
  const std::string hosts =
      "ranks on several hosts are processes of mpirun (see --launcher), which says who is where";
  const std::string moved = "experts are not moved between ranks while serving";
  const std::string counted = "how much every expert gets is always counted: GET /expert_load";
  return {
      {{"nnodes"}, K::kInt, {Refuse(hosts)}, "1"},
      {{"node-rank", "data-parallel-start-rank"}, K::kInt, {Refuse(hosts)}, "0"},
      {{"headless"}, K::kSwitch, {Refuse(hosts)}},
      {{"dist-init-addr", "nccl-init-addr", "nccl-port", "master-addr", "master-port",
        "data-parallel-address", "data-parallel-rpc-port", "data-parallel-size-local",
        "dist-timeout", "distributed-executor-backend"},
       K::kText,
       {Noted(hosts)}},
      {{"pipeline-parallel-size", "pp-size", "pp"},
       K::kInt,
       {Refuse("layers are not divided between ranks; use --tp and --ep")},
       "1"},
      {{"disaggregation-mode"},
       K::kText,
       {Refuse("prompts and answers are computed by the same ranks")},
       "null"},
      {{"kv-transfer-config"},
       K::kText,
       {Refuse("prompts and answers are computed by the same ranks")}},
      {{"disable-custom-all-reduce", "enable-p2p-check", "enable-nccl-nvls", "enable-symm-mem"},
       K::kSwitch,
       {Noted("sums between ranks are made by threads or by MPI")}},
      {{"enable-two-batch-overlap", "enable-single-batch-overlap", "disable-overlap-schedule",
        "async-scheduling", "enable-dbo"},
       K::kSwitch,
       {Noted("one step runs after another")}},
      {{"enable-dp-lm-head"}, K::kSwitch, {Noted("where logits are computed is in the plan")}},
      {{"moe-dense-tp-size"}, K::kText, {Noted("layers without experts are cut like attention")}},
      {{"eplb-algorithm", "eplb-rebalance-num-iterations", "eplb-rebalance-layers-per-chunk",
        "eplb-min-rebalancing-utilization-threshold", "eplb-config.window-size",
        "eplb-config.step-interval", "eplb-config.log-balancedness"},
       K::kText,
       {Noted(moved)}},
      {{"init-expert-location"},
       K::kText,
       {Refuse("experts are placed in order; a recorded placement is not read")},
       "trivial"},
      {{"ep-dispatch-algorithm"},
       K::kText,
       {Noted("which replica of an expert computes a row is in the plan")}},
      {{"enable-expert-distribution-metrics"}, K::kSwitch, {Taken({}, counted)}},
      {{"expert-distribution-recorder-mode", "expert-distribution-recorder-buffer-size"},
       K::kText,
       {Noted(counted)}},
  };
}

std::vector<Carried> Scheduling() {
  const std::string page = std::to_string(kBlockTokens);
  return {
      {{"page-size", "block-size"},
       K::kInt,
       {Noted("a page of the cache holds " + page + " tokens")},
       page},
      {{"schedule-policy", "scheduling-policy"},
       K::kText,
       {Noted("requests begin in the order they came in")},
       "fcfs"},
      {{"schedule-conservativeness", "num-continuous-decode-steps"},
       K::kText,
       {Noted("the cache is given out as it is used; who finds none left waits")}},
      {{"enable-mixed-chunk", "enable-chunked-prefill"},
       K::kSwitch,
       {Taken({}, "prompts are cut, and share steps with answers")}},
      {{"radix-eviction-policy"},
       K::kText,
       {Noted("what was used longest ago makes room first")},
       "lru"},
      {{"enable-hierarchical-cache"}, K::kSwitch, {Noted("the cache is in the memory of the CPU")}},
      {{"soft-watchdog-timeout"}, K::kText, {Noted("--rank-timeout ends a step that hangs")}},
  };
}

}  // namespace

std::vector<FlagSpec> CarriedFlags() {
  std::vector<FlagSpec> rows;
  for (const auto& part :
       {WeightsAndTokenizer(), KernelsAndGraphs(), RanksAndExperts(), Scheduling()}) {
    const std::vector<FlagSpec> some = Expanded(part);
    rows.insert(rows.end(), some.begin(), some.end());
  }
  return rows;
}

std::vector<FlagSpec> CarriedServeFlags() {
  return Expanded({
      {{"enable-auto-tool-choice"}, K::kSwitch, {Taken({}, "tool calls are always told apart")}},
      {{"enable-reasoning"}, K::kSwitch, {Taken({}, "reasoning is always told apart")}},
      {{"skip-server-warmup"},
       K::kSwitch,
       {Noted("the server is ready when one request has been computed, which takes a moment")}},
      {{"warmups"}, K::kText, {Noted("one request is computed before the server is ready")}},
      {{"enable-trace"}, K::kSwitch, {Noted("no traces are written")}},
      {{"otlp-traces-endpoint", "collect-detailed-traces"},
       K::kText,
       {Noted("no traces are written")}},
      {{"ssl-keyfile", "ssl-certfile", "ssl-ca-certs"},
       K::kText,
       {Refuse("TLS is the work of a proxy in front")}},
      {{"root-path", "fastapi-root-path"},
       K::kText,
       {Refuse("paths begin at /; a proxy in front can take a prefix off")}},
      {{"stream-interval"}, K::kText, {Noted("the text of every step is sent at once")}, "1"},
      {{"random-seed"}, K::kText, {Noted("every request brings a seed of its own")}},
      {{"api-server-count", "tokenizer-worker-num"},
       K::kText,
       {Noted("one thread serves all connections")},
       "1"},
      {{"disable-frontend-multiprocessing"}, K::kSwitch, {Taken({}, "the server is one process")}},
      {{"is-embedding"}, K::kSwitch, {Refuse("models generate text")}},
      {{"task", "runner"}, K::kText, {Taken({"generate"}), Refuse("models generate text")}, "auto"},
      {{"hf-chat-template-name"},
       K::kText,
       {Refuse("of several templates that a model names, default and tool_use are used")},
       "default"},
      {{"generation-config"},
       K::kText,
       {Taken({"auto"}), Refuse("defaults are the model's or OpenAI's: see --sampling-defaults")},
       "auto"},
      {{"log-level", "log-level-http", "uvicorn-log-level"},
       K::kText,
       {Noted("what is told is up to --log-requests and --decode-log-interval")},
       "info"},
      {{"disable-log-requests", "disable-uvicorn-access-log"},
       K::kSwitch,
       {Taken({}, "requests are told of with --log-requests alone")}},
      {{"disable-log-stats"}, K::kSwitch, {Noted("--decode-log-interval 0 does it")}},
      {{"enable-cache-report", "enable-prompt-tokens-details"},
       K::kSwitch,
       {Taken({}, "the usage always says so")}},
      {{"crash-dump-folder"}, K::kText, {Noted("no requests are kept")}},
      {{"response-role"}, K::kText, {Refuse("answers are the assistant's")}, "assistant"},
      {{"chat-template-content-format"},
       K::kText,
       {Noted("contents may be texts or lists of parts in every request")},
       "auto"},
  });
}

}  // namespace signalbox
