#include "nibble/core/text/chat/jinja/loop.h"

#include <algorithm>

#include "nibble/core/text/chat/jinja/arguments.h"
#include "nibble/core/text/chat/jinja/failure.h"
#include "nibble/core/text/chat/jinja/values/objects.h"

namespace nibble::jinja {

bool Loop::advance() {
  if (!peek()) return false;
  before_ = std::move(current_);
  current_ = std::move(ahead_.front());
  ahead_.pop_front();
  ++index0_;
  nesting_ = std::max(nesting_, current_.depth() + 1);
  if (nesting_ > Value::kMaxDepth) throw Failure("values are nested too deep");
  return true;
}

const Value* Loop::peek() {
  if (ahead_.empty() && next_) {
    Value value;
    if (!next_(value)) return nullptr;
    ahead_.push_back(std::move(value));
  }
  return ahead_.empty() ? nullptr : &ahead_.front();
}

void Loop::release() {
  next_ = nullptr;
  scope_.reset();
}

std::optional<size_t> Loop::length() {
  if (!length_) {  // a generator: all of it is read now
    for (Value value; next_ && next_(value);) ahead_.push_back(std::move(value));
    length_ = ahead_.size() + static_cast<size_t>(index0_ + 1);
  }
  return length_;
}

std::string Loop::print(Budget&) const {
  return "<LoopContext " + std::to_string(index0_ + 1) + "/" +
         std::to_string(const_cast<Loop*>(this)->length().value_or(0)) + ">";  // counting may read the rest
}

Value Loop::changed(Items values, Budget& budget) {
  const auto same = [&](const Value& a, const Value& b) { return equal(a, b, budget); };
  for (const Value& value : values) nesting_ = std::max(nesting_, value.depth() + 1);
  if (last_changed_ && std::equal(last_changed_->begin(), last_changed_->end(), values.begin(), values.end(), same))
    return Value::boolean(false);
  last_changed_ = std::move(values);
  return Value::boolean(true);
}

std::optional<Value> Loop::attribute(std::string_view name) {
  const auto number = [](int64_t value) { return Value::integer(Integer(value)); };
  if (name == "index0") return number(index0_);
  if (name == "index") return number(index0_ + 1);
  if (name == "first") return Value::boolean(index0_ == 0);
  if (name == "last") return Value::boolean(peek() == nullptr);
  if (name == "length") return Value::integer(*length());
  if (name == "revindex0") return number(static_cast<int64_t>(*length()) - index0_ - 1);
  if (name == "revindex") return number(static_cast<int64_t>(*length()) - index0_);
  if (name == "depth0") return number(depth_);
  if (name == "depth") return number(depth_ + 1);
  if (name == "previtem") return index0_ == 0 ? Value::undefined("there is no previous item") : before_;
  if (name == "nextitem") {
    const Value* next = peek();
    return next ? *next : Value::undefined("there is no next item");
  }
  if (name == "cycle") {
    return Function::make("cycle", [index = index0_](Interpreter&, Arguments& arguments) {
      if (arguments.positional.empty()) throw Failure("no items for cycling given");
      return arguments.positional[static_cast<size_t>(index) % arguments.positional.size()];
    });
  }
  if (name == "changed") {
    return Function::make(
        "changed",
        [loop = shared_from_this()](Interpreter& interpreter, Arguments& arguments) {
          return loop->changed(std::move(arguments.positional), interpreter.budget());
        },
        nesting_ + 1);
  }
  return std::nullopt;
}

Value Loop::call(Interpreter& interpreter, Arguments arguments) {
  const Bound bound("loop", arguments, {"iterable"}, 1);
  if (!recursive_) throw Failure("The loop must have the 'recursive' marker to be called recursively.");
  if (!scope_) throw Failure("the loop has ended");
  return interpreter.run_recursive_loop(*recursive_, scope_, bound[0], depth_ + 1);
}

}  // namespace nibble::jinja
