// SPDX-License-Identifier: Apache-2.0
//
// Signalbox as a library: a model behind one object. No global state, no signal handlers, no exit;
// several models may live in one process, and every function may be called from any thread.
//
// Errors: kBadCheckpoint and kRefused from Load (a layout that cannot work is refused with the
// reason before weights are read), kInvalidArgument for a request that can never run. A status says
// what, where, what was found, what was expected and what to do.
//
//   SB_ASSIGN_OR_RETURN(auto model, signalbox::Model::Load("models/tiny", {.tp = 2}));
//   SB_ASSIGN_OR_RETURN(auto answer, model->Generate({.messages = {{"user", "How many?"}}}));
//   std::cout << answer.text;
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "signalbox/base/status.h"

namespace signalbox {

struct ModelOptions {
  // The layout, as the flags of the same names: ranks are threads of this process.
  int tp = 1;
  int dp = 1;
  int ep = 1;
  std::string moe_a2a_backend = {};  // empty: rows are not moved to experts
  std::string moe_a2a_mode = "auto";
  int threads = 0;  // of all ranks together; 0: all processors
  int64_t max_running_requests = 16;
  int64_t max_total_tokens = 0;  // of the KV cache; 0 follows the model's context
  int64_t chunked_prefill_size = 512;
  int draft_tokens = 0;  // that the model's own head guesses per step; 0: none
  bool prefix_cache = true;
  bool deterministic = false;
};

struct Message {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

struct CompletionRequest {
  // Either a conversation, or plain text to continue.
  std::vector<Message> messages = {};
  std::string prompt = {};
  bool thinking = true;  // ask the chat format for reasoning
  int64_t max_new_tokens = 256;
  int64_t min_new_tokens = 0;
  bool ignore_eos = false;
  float temperature = 0.f;  // 0 is greedy
  uint64_t seed = 0;
  int64_t top_k = 0;  // 0: all
  float top_p = 1.f;
  float min_p = 0.f;
  float repetition_penalty = 1.f;
  float presence_penalty = 0.f;
  float frequency_penalty = 0.f;
  std::vector<std::string> stop = {};
};

struct Completion {
  std::string text;       // as it was written, without special tokens
  std::string content;    // of a conversation: the answer without its reasoning
  std::string reasoning;  // of a conversation
  std::string finish;     // "stop", "length", "cancelled" or "failed"
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, that were not computed again
  int64_t new_tokens = 0;
  double accept_length = 1.;  // tokens of a step
};

struct ModelStats {
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t finished = 0;
  int64_t steps = 0;
  int64_t prefill_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t new_tokens = 0;
  int64_t preemptions = 0;
  int64_t free_pages = 0;
  int64_t total_pages = 0;
  double accept_length = 1.;
};

class Model {
 public:
  static Result<std::unique_ptr<Model>> Load(const std::string& directory,
                                             const ModelOptions& options = {});
  virtual ~Model() = default;

  // Waits for the answer.
  virtual Result<Completion> Generate(const CompletionRequest& request) = 0;

  // Text as it comes, whole characters, from a thread of the model.
  using OnText = std::function<void(std::string_view text)>;
  using OnDone = std::function<void(const Result<Completion>& done)>;
  // Returns at once, with a name for Cancel. `on_done` is called once, whatever happens.
  virtual Result<int64_t> Stream(const CompletionRequest& request, OnText on_text,
                                 OnDone on_done) = 0;
  // The request is not in the next step, and its on_done is told so.
  virtual void Cancel(int64_t request) = 0;

  virtual ModelStats stats() const = 0;
};

// "0.1.0"
std::string_view Version();

}  // namespace signalbox
