// SPDX-License-Identifier: Apache-2.0
//
// The first byte chooses the endpoint and the model; the rest is the body. Whatever it is, the
// answer is a call that the engine takes, or an error of the client's with clean JSON.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "signalbox/base/check.h"
#include "signalbox/server/api.h"

namespace signalbox {
namespace {

// The bundled models of the source tree.
const TextModel& ModelOf(bool kimi) {
  static const auto load = [](const std::string& name) {
    EngineOptions options{.threads = 1, .budget = {.tokens = 512, .sequences = 1}};
    auto model = TextModel::Load(SIGNALBOX_SOURCE_DIR "/models/" + name, options);
    SB_CHECK(model.ok()) << model.status().ToString();
    return *std::move(model);
  };
  static const std::unique_ptr<TextModel> kQwen = load("tiny-qwen3.5-moe-mxfp4");
  static const std::unique_ptr<TextModel> kKimi = load("tiny-kimi-k3-mxfp4");
  return kimi ? *kKimi : *kQwen;
}

void Check(const std::optional<ApiError>& error) {
  if (!error) return;
  SB_CHECK(error->status >= 400 && error->status < 500) << error->status << " " << error->message;
  SB_CHECK(nlohmann::json::parse(error->Body(), nullptr, false).is_object());
}

}  // namespace
}  // namespace signalbox

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace signalbox;
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const TextModel& model = ModelOf((data[0] & 8) != 0);
  ApiContext context{.model = &model, .served_names = {"tiny"}, .strict = (data[0] & 16) != 0};
  ApiCall call;
  switch (data[0] % 5) {
    case 0:
      Check(ParseChat(body, context, &call));
      break;
    case 1:
      Check(ParseCompletion(body, context, &call));
      break;
    case 2:
      Check(ParseGenerate(body, context, &call));
      break;
    case 3:
      Check(Tokenize(body, context).error);
      break;
    default:
      Check(Detokenize(body, context).error);
  }
  if (call.reply != nullptr) SB_CHECK(call.requests.size() >= 1);
  return 0;
}
