// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdlib>

#include <nlohmann/json.hpp>

#include "signalbox/text/jinja_value.h"

namespace signalbox::jinja {
namespace {

// Builds a Value from parser events. The parser keeps its own stack on the heap and this builder
// refuses deep nesting, so no document can overflow the stack.
class Builder {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  explicit Builder(bool trusted) : trusted_(trusted) {}

  bool null() { return Add(Value::None()); }
  bool boolean(bool b) { return Add(Value::Bool(b)); }
  bool number_integer(number_integer_t i) { return Add(Value::Int(i)); }
  bool number_unsigned(number_unsigned_t u) {
    return Add(u <= static_cast<number_unsigned_t>(INT64_MAX)
                   ? Value::Int(static_cast<int64_t>(u))
                   : Value::Float(static_cast<double>(u)));
  }
  bool number_float(number_float_t d, const string_t&) { return Add(Value::Float(d)); }
  bool string(string_t& s) { return Add(Value::String(s, trusted_)); }
  bool binary(binary_t&) { return Fail("binary data"); }
  bool start_object(std::size_t) { return Open(/*is_dict=*/true); }
  bool start_array(std::size_t) { return Open(/*is_dict=*/false); }
  bool key(string_t& s) {
    open_.back().key = Value::String(s, trusted_);
    return true;
  }
  bool end_object() {
    Value dict = Value::FromDict(std::move(open_.back().dict));
    open_.pop_back();
    return Add(std::move(dict));
  }
  bool end_array() {
    Value list = Value::List(std::move(open_.back().items));
    open_.pop_back();
    return Add(std::move(list));
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    return Fail("an error at byte " + std::to_string(position));
  }

  Result<Value> Finish(bool parsed) && {
    if (parsed) return std::move(root_);
    return InvalidArgument({.what = "the text is not valid JSON",
                            .found = found_,
                            .expected = "one JSON document nested at most " +
                                        std::to_string(kMaxValueDepth) + " deep"});
  }

 private:
  struct Container {
    bool is_dict;
    Value key;
    Dict dict;
    Value::Items items;
  };

  bool Open(bool is_dict) {
    if (open_.size() >= static_cast<size_t>(kMaxValueDepth)) return Fail("deeper nesting");
    open_.push_back({.is_dict = is_dict, .key = {}, .dict = {}, .items = {}});
    return true;
  }

  bool Add(Value value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().is_dict) {
      open_.back().dict.Set(std::move(open_.back().key), std::move(value));
    } else {
      open_.back().items.push_back(std::move(value));
    }
    return true;
  }

  bool Fail(std::string found) {
    found_ = std::move(found);
    return false;
  }

  bool trusted_;
  Value root_;
  std::vector<Container> open_;
  std::string found_;
};

}  // namespace

Result<Value> Value::FromJson(std::string_view json, bool trusted) {
  Builder builder(trusted);
  const bool parsed = nlohmann::json::sax_parse(json.begin(), json.end(), &builder);
  return std::move(builder).Finish(parsed);
}

}  // namespace signalbox::jinja
