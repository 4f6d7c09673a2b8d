#include "nibble/core/text/chat/jinja/values/json_value.h"

#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/text/unicode/utf8.h"

namespace nibble::jinja {

namespace {

constexpr size_t kMaxDepth = 100;

// Builds values as the parser meets them.
class Builder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return add(Value()); }
  bool boolean(bool value) override { return add(Value::boolean(value)); }
  bool number_integer(number_integer_t value) override { return add(Value::integer(Integer(value))); }
  bool number_unsigned(number_unsigned_t value) override {
    return value <= INT64_MAX ? add(Value::integer(Integer(static_cast<int64_t>(value))))
                              : add(Value::integer(*Integer::parse(std::to_string(value))));
  }
  // Whole numbers above 64 bits come here too, with their digits.
  bool number_float(number_float_t value, const string_t& digits) override {
    const bool negative = digits.starts_with('-');
    const std::optional<Integer> whole = Integer::parse(std::string_view(digits).substr(negative ? 1 : 0));
    if (!whole) return add(Value::floating(value));
    return add(Value::integer(negative ? whole->negated() : *whole));
  }
  bool string(string_t& value) override { return add(Value::text(std::move(value))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(false); }
  bool start_array(size_t) override { return open(true); }
  bool key(string_t& name) override {
    open_.back().key = std::move(name);
    return true;
  }
  bool end_object() override {
    Value dict = Value::dict(std::move(open_.back().dict));
    open_.pop_back();
    return add(std::move(dict));
  }
  bool end_array() override {
    Value list = Value::list(std::move(open_.back().items));
    open_.pop_back();
    return add(std::move(list));
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    const bool too_large = dynamic_cast<const nlohmann::json::out_of_range*>(&error) != nullptr;
    failed_ =
        (too_large ? "has a number that is too large at byte " : "is not JSON at byte ") + std::to_string(position);
    return false;
  }

  const Value& result() const { return result_; }
  const std::string& failed() const { return failed_; }
  bool too_deep() const { return too_deep_; }

 private:
  struct Open {
    bool list = false;
    Items items;
    Dict dict;
    std::string key;
  };

  bool open(bool list) {
    too_deep_ = open_.size() >= kMaxDepth;
    open_.push_back({list, {}, {}, {}});
    return !too_deep_;
  }

  bool add(Value value) {
    if (open_.empty()) {
      result_ = std::move(value);
    } else if (open_.back().list) {
      open_.back().items.push_back(std::move(value));
    } else {
      open_.back().dict.set(open_.back().key, std::move(value));
    }
    return true;
  }

  std::vector<Open> open_;
  Value result_;
  std::string failed_;
  bool too_deep_ = false;
};

}  // namespace

Value parse_json_value(std::string_view text, const std::string& place) {
  require_utf8(text, place);
  Builder builder;
  if (nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) return builder.result();
  if (builder.too_deep()) throw InputError(place, "brackets are nested deeper than " + std::to_string(kMaxDepth));
  throw InputError(place, builder.failed());
}

}  // namespace nibble::jinja
