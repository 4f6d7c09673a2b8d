// Attributes and methods of Python's values other than text.

#include <algorithm>
#include <cmath>

#include "nibble/core/text/chat/jinja/arguments.h"
#include "nibble/core/text/chat/jinja/failure.h"
#include "nibble/core/text/chat/jinja/filters/filters.h"
#include "nibble/core/text/chat/jinja/operators.h"
#include "nibble/core/text/chat/jinja/values/objects.h"

namespace nibble::jinja {

namespace {

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Value unsafe(const Value& value, std::string_view name) {
  return Value::undefined("access to attribute '" + std::string(name) + "' of '" + value.type() +
                          "' object is unsafe.");
}

template <typename Body>
Value method(const Value& self, std::string_view name, Body body) {
  return Function::make(
      std::string(name),
      [self, body](Interpreter& interpreter, Arguments& arguments) { return body(interpreter, self, arguments); },
      self.depth() + 1);
}

Value copied(Interpreter&, const Value& self, Arguments& arguments) {
  const Bound bound("copy", arguments, {});
  return self;
}

// A method that is there in Python and that no template has use for.
Value not_here(const Value& self, std::string_view name) {
  return Function::make(std::string(name),
                        [type = self.type(), name = std::string(name)](Interpreter&, Arguments&) -> Value {
                          throw Failure("the method " + name + " of '" + type + "' is not known here");
                        });
}

std::optional<Value> sequence_attribute(const Value& self, std::string_view name) {
  if (self.sequence().group && (name == "grouper" || name == "list")) return self.items()[name == "grouper" ? 0 : 1];
  if (name == "count") {
    return method(self, name, [](Interpreter& interpreter, const Value& items, Arguments& arguments) {
      const Bound bound("count", arguments, {"value"}, 1);
      const auto same = [&](const Value& item) { return equal(item, bound[0], interpreter.budget()); };
      return Value::integer(static_cast<size_t>(std::count_if(items.items().begin(), items.items().end(), same)));
    });
  }
  if (name == "index") {
    return method(self, name, [](Interpreter& interpreter, const Value& items, Arguments& arguments) {
      const Bound bound("index", arguments, {"value", "start", "stop"}, 1);
      const auto size = static_cast<int64_t>(items.items().size());
      const auto place = [&](size_t k, int64_t otherwise) {
        const int64_t index = bound.integer(k, otherwise);
        return std::clamp<int64_t>(index < 0 ? index + size : index, 0, size);
      };
      for (int64_t k = place(1, 0); k < place(2, size); ++k) {
        if (equal(items.items()[static_cast<size_t>(k)], bound[0], interpreter.budget()))
          return Value::integer(Integer(k));
      }
      throw Failure("the value is not in the " + items.type());
    });
  }
  if (!self.is(Kind::list)) return std::nullopt;
  if (name == "copy") return method(self, name, copied);
  if (is_one_of(name, {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"}))
    return unsafe(self, name);
  return std::nullopt;
}

Value dict_get(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  if (!arguments.named.empty()) throw Failure("dict.get() takes no keyword arguments");
  const Bound bound("get", arguments, {"key", "default"}, 1);
  const Value* found = self.as_dict().find(bound[0], interpreter.budget());
  return found ? *found : bound[1];
}

std::optional<Value> dict_attribute(const Value& self, std::string_view name) {
  const auto view = [&](DictView::Part part) {
    return method(self, name, [part](Interpreter&, const Value& dict, Arguments& arguments) {
      const Bound bound("view", arguments, {});
      return Value::object(std::make_shared<DictView>(dict, part));
    });
  };
  if (name == "get") return method(self, name, dict_get);
  if (name == "items") return view(DictView::Part::items);
  if (name == "keys") return view(DictView::Part::keys);
  if (name == "values") return view(DictView::Part::values);
  if (name == "copy") return method(self, name, copied);
  if (is_one_of(name, {"clear", "pop", "popitem", "setdefault", "update"})) return unsafe(self, name);
  if (name == "fromkeys") return not_here(self, name);
  return std::nullopt;
}

std::optional<Value> number_attribute(const Value& self, std::string_view name) {
  const bool whole = self.is_index();
  if (name == "real") return whole ? Value::integer(self.as_integer()) : self;
  if (name == "imag") return whole ? Value::integer(Integer(0)) : Value::floating(0.0);
  if (name == "conjugate")
    return method(self, name, [](Interpreter&, const Value& number, Arguments&) { return positive(number); });
  if (whole && name == "numerator") return Value::integer(self.as_integer());
  if (whole && name == "denominator") return Value::integer(Integer(1));
  if (whole && name == "bit_length")
    return method(self, name, [](Interpreter&, const Value& number, Arguments&) {
      const std::string bits = number.as_integer().digits(2);
      return Value::integer(number.as_integer().is_zero() ? 0 : bits.size() - (bits[0] == '-' ? 1 : 0));
    });
  if (whole && name == "bit_count")
    return method(self, name, [](Interpreter&, const Value& number, Arguments&) {
      const std::string bits = number.as_integer().digits(2);
      return Value::integer(static_cast<size_t>(std::count(bits.begin(), bits.end(), '1')));
    });
  if (!whole && name == "is_integer")
    return method(self, name, [](Interpreter&, const Value& number, Arguments&) {
      return Value::boolean(std::isfinite(number.as_floating()) &&
                            number.as_floating() == std::trunc(number.as_floating()));
    });
  if (name == "as_integer_ratio" || (whole && is_one_of(name, {"from_bytes", "to_bytes"})) ||
      (!whole && is_one_of(name, {"fromhex", "hex"})))
    return not_here(self, name);
  return std::nullopt;
}

// What every object of Python has, as far as a template may ask for it.
bool is_dunder(std::string_view name) {
  return is_one_of(name,
                   {"__class__", "__delattr__",      "__dir__",    "__doc__",  "__eq__",          "__format__",
                    "__ge__",    "__getattribute__", "__gt__",     "__hash__", "__init__",        "__init_subclass__",
                    "__le__",    "__lt__",           "__ne__",     "__new__",  "__reduce__",      "__reduce_ex__",
                    "__repr__",  "__setattr__",      "__sizeof__", "__str__",  "__subclasshook__"}) ||
         name == "__len__" || name == "__iter__" || name == "__getitem__" || name == "__contains__";
}

}  // namespace

std::optional<Value> python_attribute(const Value& value, std::string_view name) {
  if (name.starts_with("__") && is_dunder(name)) return unsafe(value, name);
  switch (value.kind()) {
    case Kind::text:
      return text_method(value, name);
    case Kind::list:
    case Kind::tuple:
      return sequence_attribute(value, name);
    case Kind::dict:
      return dict_attribute(value, name);
    case Kind::boolean:
    case Kind::integer:
    case Kind::floating:
      return number_attribute(value, name);
    case Kind::object:
      return value.as_object()->attribute(name);
    default:
      return std::nullopt;
  }
}

}  // namespace nibble::jinja
