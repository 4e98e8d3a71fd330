// SPDX-License-Identifier: Apache-2.0
//
// Any text is either refused or a contract that prints and parses back to itself.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "signalbox/a2a/contract.h"
#include "signalbox/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using signalbox::ContractFromText;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto contract = ContractFromText(text, "input");
  if (!contract.ok()) return 0;
  const auto again = ContractFromText(signalbox::ContractToText(*contract), "printed");
  SB_CHECK(again.ok() && *again == *contract) << "a contract changed by printing";
  return 0;
}
