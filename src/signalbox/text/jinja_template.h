// SPDX-License-Identifier: Apache-2.0
//
// A sandboxed template engine for the subset of Jinja that chat templates use, with the settings of
// Hugging Face: trim_blocks, lstrip_blocks, break and continue, tojson without HTML escapes,
// raise_exception, strftime_now, and the tags of {% generation %} ignored.
//
// The result says which bytes the template's author wrote and which came with the context. Nothing
// of the host is reachable: values are JSON-like and immutable, and every loop, copy and nesting is
// bounded, so that no template and no context can hang the process or exhaust its memory.
//
// Known differences from Jinja. Refused: include, import, extends, block, call, filter, with,
// recursive loops, unpacked arguments, str % formatting, printing functions, tuples as dict keys,
// integers beyond 64 bits. Lenient: filters return lists where Jinja returns generators; a loop or
// macro body sees a context variable although the template sets that name further down. Plain: safe
// does nothing, and case mappings are one to one.
//
//   SB_ASSIGN_OR_RETURN(auto t, jinja::Template::Parse("{{ bos }}{{ text }}"));
//   SB_ASSIGN_OR_RETURN(auto context, jinja::Value::FromJson(R"({"text": "hi"})"));
//   SB_ASSIGN_OR_RETURN(Segments out, t.Render(context.dict()));  // {"hi", untrusted}
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "signalbox/base/status.h"
#include "signalbox/text/jinja_value.h"
#include "signalbox/text/segment.h"

namespace signalbox::jinja {

struct Stmt;

struct Limits {
  size_t template_bytes = 1 << 20;
  size_t output_bytes = 64 << 20;
  // Evaluated nodes plus one for every 16 bytes produced or visited: a few seconds at most.
  size_t steps = 20'000'000;
};

struct RenderOptions {
  Limits limits;
  std::optional<std::tm> now;  // what strftime_now shows; the local time where unset
};

class Template {
 public:
  // kInvalidArgument with the line for what is not a template of the subset.
  static Result<Template> Parse(std::string_view source, const Limits& limits = {});

  // Renders with the entries of `context` as variables. kInvalidArgument with the line, whether the
  // template raised an exception, used a value wrongly or went over a limit. Thread-safe.
  Result<Segments> Render(const Dict& context, const RenderOptions& options = {}) const;

 private:
  explicit Template(std::vector<Stmt> body);

  std::shared_ptr<const std::vector<Stmt>> body_;
};

}  // namespace signalbox::jinja
