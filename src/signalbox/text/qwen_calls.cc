// SPDX-License-Identifier: Apache-2.0
//
// The two ways in which Qwen models spell a call.
#include <array>
#include <utility>

#include "signalbox/text/jinja_ops.h"
#include "signalbox/text/jinja_template.h"
#include "signalbox/text/qwen_parser.h"
#include "signalbox/text/tag_scanner.h"

namespace signalbox {
namespace {

using jinja::Value;

constexpr std::string_view kSpace = " \t\r\n";

std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

// --- {"name": "f", "arguments": {"a": 1}} -------------------------------------------------------

class HermesCallParser final : public CallParser {
 public:
  bool Read(std::string& pending, std::string& unread, OutputEvents& events) override {
    static constexpr std::string_view kTags[] = {"</tool_call>"};
    const auto [at, tag] = FindTag(pending, kTags);
    body_ += pending.substr(0, at);
    pending.erase(0, at + (tag ? kTags[0].size() : 0));
    if (tag) End(unread, events);
    return tag.has_value();
  }

  void Finish(std::string_view pending, std::string& unread, OutputEvents& events) override {
    body_ += pending;
    End(unread, events);
  }

 private:
  void End(std::string& unread, OutputEvents& events) {
    if (!ReadCall(events)) unread = body_;
    body_.clear();
  }

  bool ReadCall(OutputEvents& events) {
    const auto call = Value::FromJson(Trimmed(body_));
    if (!call.ok() || !call->is_dict()) return false;
    const Value* name = call->dict().Find("name");
    if (name == nullptr || !name->is_string() || name->str().empty()) return false;
    const Value* arguments = call->dict().Find("arguments");
    if (arguments == nullptr) arguments = call->dict().Find("parameters");
    std::string json = "{}";
    if (arguments != nullptr && !arguments->is_none()) {
      const auto text =
          arguments->is_string() ? Value::FromJson(arguments->str()) : Result<Value>(*arguments);
      if (!text.ok() || !text->is_dict()) return false;
      jinja::Runtime runtime{
          .budget = jinja::Budget(jinja::Limits().steps), .now = {}, .namespaces = {}};
      auto dumped = jinja::ToJson(runtime, *text, {});
      if (!dumped.ok()) return false;
      json = std::move(dumped).value();
    }
    writer_.Begin(name->str(), events);
    writer_.Whole(json, events);
    writer_.End(events);
    return true;
  }

  std::string body_;
  CallWriter writer_;
};

// --- <function=f><parameter=a>1</parameter></function>
// --------------------------------------------

class XmlCallParser final : public CallParser {
 public:
  explicit XmlCallParser(ParameterTypes types) : types_(std::move(types)) {}

  bool Read(std::string& pending, std::string& unread, OutputEvents& events) override {
    for (;;) {
      switch (Step(pending, events)) {
        case Progress::kMore:
          continue;
        case Progress::kWait:
          return false;
        case Progress::kDone:
          End(unread, events);
          return true;
      }
    }
  }

  void Finish(std::string_view pending, std::string& unread, OutputEvents& events) override {
    if (!called_) unread_ += pending;
    End(unread, events);
  }

 private:
  enum class Place { kBetween, kFunctionName, kParameterName, kValue };
  enum class Progress { kMore, kWait, kDone };
  static constexpr std::array<std::string_view, 5> kTags = {
      "<function=", "<parameter=", "</parameter>", "</function>", "</tool_call>"};

  Progress Step(std::string& pending, OutputEvents& events) {
    if (place_ == Place::kFunctionName || place_ == Place::kParameterName) {
      return StepName(pending, events);
    }
    if (place_ == Place::kValue && !value_begun_) {
      if (pending.empty()) return Progress::kWait;
      value_begun_ = true;
      if (pending[0] == '\n') pending.erase(0, 1);
    }
    const auto [at, tag] = FindTag(pending, kTags);
    // The newline before a closing tag is none of the value.
    const bool newline = at > 0 && pending[at - 1] == '\n';
    const size_t text = place_ == Place::kValue && newline ? at - 1 : at;
    if (place_ == Place::kValue) {
      ValuePiece(std::string_view(pending).substr(0, text), events);
    } else if (!called_) {
      unread_ += pending.substr(0, text);
    }
    if (!tag) {
      pending.erase(0, text);
      return Progress::kWait;
    }
    pending.erase(0, at + kTags[*tag].size());
    if (place_ == Place::kValue) EndValue(events);
    if (*tag == 4) return Progress::kDone;
    if (*tag == 0) place_ = Place::kFunctionName;
    if (*tag == 1 && writer_.in_call()) place_ = Place::kParameterName;
    if (*tag == 3) writer_.End(events);
    if (!called_) unread_ += kTags[*tag];
    return Progress::kMore;
  }

  // The rest of `<function=NAME>`. A newline ends it too, where the bracket is missing.
  Progress StepName(std::string& pending, OutputEvents& events) {
    const size_t end = pending.find_first_of(">\n");
    if (end == std::string::npos) return Progress::kWait;
    const std::string name(Trimmed(std::string_view(pending).substr(0, end)));
    // The newline stays: it may be the one before the value.
    const size_t taken = pending[end] == '>' ? end + 1 : end;
    if (!called_) unread_ += pending.substr(0, taken);
    pending.erase(0, taken);
    const Place was = std::exchange(place_, Place::kBetween);
    if (was == Place::kFunctionName) {
      writer_.End(events);
      if (name.empty() || name.find_first_of(" \t<") != std::string::npos) return Progress::kMore;
      called_ = true;
      unread_.clear();
      function_ = name;
      writer_.Begin(name, events);
    } else {
      is_text_ = IsText(name);
      if (!writer_.BeginArgument(name, is_text_, events)) return Progress::kMore;
      place_ = Place::kValue;
      value_begun_ = false;
      value_.clear();
    }
    return Progress::kMore;
  }

  // A parameter that may be a text is one, and so is one that nothing is known of.
  bool IsText(const std::string& parameter) const {
    const auto tool = types_.find(function_);
    if (tool == types_.end()) return true;
    const auto type = tool->second.find(parameter);
    return type == tool->second.end() || type->second.empty() ||
           type->second.find("string") != std::string::npos;
  }

  void ValuePiece(std::string_view text, OutputEvents& events) {
    if (is_text_) {
      writer_.Value(text, events);
    } else {
      value_ += text;
    }
  }

  void EndValue(OutputEvents& events) {
    place_ = Place::kBetween;
    if (!is_text_) {
      const std::string_view value = Trimmed(value_);
      // Qwen3.5's template shows scalars as Python does, and so does the model.
      writer_.Value(value == "True"    ? "true"
                    : value == "False" ? "false"
                    : value == "None"  ? "null"
                                       : std::string_view(value_),
                    events);
    }
    writer_.EndArgument(events);
  }

  void End(std::string& unread, OutputEvents& events) {
    if (place_ == Place::kValue) EndValue(events);
    place_ = Place::kBetween;
    writer_.End(events);
    unread = std::exchange(unread_, {});
    called_ = false;
  }

  ParameterTypes types_;
  CallWriter writer_;
  Place place_ = Place::kBetween;
  bool called_ = false;  // since <tool_call>
  std::string unread_;   // until then
  std::string function_;
  bool is_text_ = true;
  bool value_begun_ = false;
  std::string value_;  // of a parameter that is no text
};

}  // namespace

std::unique_ptr<CallParser> MakeHermesCallParser() {
  return std::make_unique<HermesCallParser>();
}

std::unique_ptr<CallParser> MakeXmlCallParser(ParameterTypes types) {
  return std::make_unique<XmlCallParser>(std::move(types));
}

}  // namespace signalbox
