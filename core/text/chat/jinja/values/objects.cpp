#include "nibble/core/text/chat/jinja/values/objects.h"

#include "nibble/core/text/chat/jinja/arguments.h"
#include "nibble/core/text/chat/jinja/failure.h"
#include "nibble/core/text/chat/jinja/values/print_value.h"

namespace nibble::jinja {

Iterator::Iterator(std::string type, Next next, int depth)
    : type_(std::move(type)), next_(std::move(next)), depth_(depth) {
  if (depth_ > Value::kMaxDepth) throw Failure("maximum recursion depth exceeded");
}

Next Iterator::iterate() {
  return [self = shared_from_this()](Value& next) { return self->next_(next); };
}

Value Iterator::make(int depth, Next next, std::string type) {
  return Value::object(std::make_shared<Iterator>(std::move(type), std::move(next), depth + 1));
}

Value Function::make(std::string name, Body body, int depth) {
  if (depth > Value::kMaxDepth) throw Failure("values are nested too deep");
  return Value::object(std::make_shared<Function>(std::move(name), std::move(body), depth));
}

Range::Range(int64_t start, int64_t stop, int64_t step) : start_(start), stop_(stop), step_(step) {
  constexpr uint64_t kMax = 100000;  // the sandbox's
  if (step == 0) throw Failure("range() arg 3 must not be zero");
  const bool empty = step > 0 ? start >= stop : start <= stop;
  const uint64_t distance = empty      ? 0
                            : step > 0 ? static_cast<uint64_t>(stop) - static_cast<uint64_t>(start)
                                       : static_cast<uint64_t>(start) - static_cast<uint64_t>(stop);
  const uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : 0 - static_cast<uint64_t>(step);
  const uint64_t count = empty ? 0 : (distance - 1) / stride + 1;
  if (count > kMax) throw Failure("Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).");
  count_ = count;
}

std::string Range::print(Budget&) const {
  return "range(" + std::to_string(start_) + ", " + std::to_string(stop_) +
         (step_ == 1 ? "" : ", " + std::to_string(step_)) + ")";
}

std::optional<Value> Range::attribute(std::string_view name) {
  if (name == "start") return Value::integer(Integer(start_));
  if (name == "stop") return Value::integer(Integer(stop_));
  if (name == "step") return Value::integer(Integer(step_));
  return std::nullopt;
}

Value Range::element(size_t index) { return Value::integer(Integer(start_ + static_cast<int64_t>(index) * step_)); }

Value Range::slice(int64_t start, int64_t stop, int64_t step) const {
  return Value::object(std::make_shared<Range>(start_ + start * step_, start_ + stop * step_, step_ * step));
}

Next Range::iterate() {
  return [start = start_, step = step_, count = count_, k = size_t{0}](Value& next) mutable {
    if (k >= count) return false;
    next = Value::integer(Integer(start + static_cast<int64_t>(k++) * step));
    return true;
  };
}

std::string DictView::type() const {
  return part_ == Part::keys ? "dict_keys" : part_ == Part::values ? "dict_values" : "dict_items";
}

Value DictView::element_at(size_t k) const {
  const auto& [key, value] = dict().items()[k];
  return part_ == Part::keys ? key : part_ == Part::values ? value : Value::tuple({key, value});
}

std::string DictView::print(Budget& budget) const {
  std::string text;
  for (size_t k = 0; k < dict().size(); ++k) text += (k == 0 ? "" : ", ") + repr(element_at(k), budget);
  return type() + "([" + text + "])";
}

Next DictView::iterate() {
  return [view = *this, k = size_t{0}](Value& next) mutable {
    if (k >= view.dict().size()) return false;
    next = view.element_at(k++);
    return true;
  };
}

void Namespace::check_name(std::string_view name) {
  if (name.starts_with('_'))
    throw Failure("Chat templates cannot store underscore-prefixed attributes on a namespace, but got '" +
                  std::string(name) + "'. Please rename the attribute.");
}

std::string Namespace::print(Budget& budget) const {
  if (printing_) return "<Namespace {...}>";
  printing_ = true;
  std::string text;
  try {
    for (const auto& [name, value] : attributes_.items())
      text += (text.empty() ? "" : ", ") + repr(name, budget) + ": " + repr(value, budget);
  } catch (...) {
    printing_ = false;
    throw;
  }
  printing_ = false;
  return "<Namespace {" + text + "}>";
}

std::optional<Value> Namespace::attribute(std::string_view name) {
  const Value* found = attributes_.find(name);
  return found ? std::optional(*found) : std::nullopt;
}

void Namespace::set(std::string_view name, Value value) {
  check_name(name);
  attributes_.set(name, std::move(value));
}

}  // namespace nibble::jinja
