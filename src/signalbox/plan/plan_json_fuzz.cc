// SPDX-License-Identifier: Apache-2.0
//
// A plan that somebody else wrote: read, checked, printed and written again without a crash, and
// what was read is what is written.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "signalbox/base/check.h"
#include "signalbox/plan/exchange.h"
#include "signalbox/plan/one_rank.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace signalbox;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (Result<PlanDocument> read = PlanFromJson(text); read.ok()) {
    const CheckContext context{.mesh = read->mesh,
                               .program = OneRankPlan({.moe = true, .shared = true}).steps};
    if (Result<CheckedPlan> checked = CheckPlan(read->plan, context); checked.ok()) {
      static_cast<void>(checked->exit().ToString(read->mesh));
    }
    const Result<PlanDocument> again = PlanFromJson(PlanToJson(read->plan, read->mesh));
    SB_CHECK(again.ok() && again->plan == read->plan && again->mesh == read->mesh);
  }
  if (Result<ReferenceCase> read = ReferenceCaseFromJson(text); read.ok()) {
    static_cast<void>(CheckPlan(read->plan, read->context).ok());
  }
  return 0;
}
