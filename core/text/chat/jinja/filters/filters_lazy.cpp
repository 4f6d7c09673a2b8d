// Filters that give generators: their elements are made when they are asked for, and once.

#include <memory>

#include "nibble/core/text/chat/jinja/arguments.h"
#include "nibble/core/text/chat/jinja/failure.h"
#include "nibble/core/text/chat/jinja/filters/filters.h"
#include "nibble/core/text/chat/jinja/operators.h"
#include "nibble/core/text/chat/jinja/values/objects.h"
#include "nibble/core/text/chat/jinja/values/print_value.h"

namespace nibble::jinja {

namespace {

// A generator function: `start` runs when the first element is asked for, as the body of one does in Python.
Value generator(int depth, std::function<Next()> start) {
  return Iterator::make(depth, [start = std::move(start), next = Next()](Value& element) mutable {
    if (!next) next = start();
    return next(element);
  });
}

Next nothing() {
  return [](Value&) { return false; };
}

std::function<Value(const Value&)> mapping(Interpreter& interpreter, Arguments arguments) {
  if (arguments.positional.empty() && !arguments.named.empty()) {
    Value attribute, otherwise;
    bool has_attribute = false;
    for (auto& [name, value] : arguments.named) {
      if (name == "attribute") {
        attribute = value;
        has_attribute = true;
      } else if (name == "default") {
        otherwise = value;
      } else {
        throw Failure("Unexpected keyword argument '" + name + "'");
      }
    }
    if (!has_attribute) throw Failure("map requires a filter argument");
    return [&interpreter, path = AttributePath(attribute), otherwise](const Value& item) {
      return path.get_or(interpreter, item, otherwise);
    };
  }
  if (arguments.positional.empty()) throw Failure("map requires a filter argument");
  const std::string name = str(arguments.positional[0], interpreter.budget());
  arguments.positional.erase(arguments.positional.begin());
  return [&interpreter, name, arguments](const Value& item) { return interpreter.call_filter(name, item, arguments); };
}

Value map(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  return generator(depth_of(value, arguments), [&interpreter, value, arguments]() -> Next {
    if (!value.truth()) return nothing();
    return [&interpreter, next = iterate(value), change = mapping(interpreter, arguments)](Value& element) {
      interpreter.budget().step();
      interpreter.budget().check_stack();
      Value item;
      if (!next(item)) return false;
      element = change(item);
      return true;
    };
  });
}

std::function<bool(const Value&)> condition(Interpreter& interpreter, Arguments arguments, bool of_attribute) {
  AttributePath path{Value()};
  if (of_attribute) {
    if (arguments.positional.empty()) throw Failure("Missing parameter for attribute name");
    path = AttributePath(arguments.positional[0]);
    arguments.positional.erase(arguments.positional.begin());
  }
  if (arguments.positional.empty())
    return [&interpreter, path](const Value& item) { return path.get(interpreter, item).truth(); };
  const std::string name = str(arguments.positional[0], interpreter.budget());
  arguments.positional.erase(arguments.positional.begin());
  return [&interpreter, path, name, arguments](const Value& item) {
    return interpreter.call_test(name, path.get(interpreter, item), arguments);
  };
}

template <bool wanted, bool of_attribute>
Value select(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  return generator(depth_of(value, arguments), [&interpreter, value, arguments]() -> Next {
    if (!value.truth()) return nothing();
    return
        [&interpreter, next = iterate(value), holds = condition(interpreter, arguments, of_attribute)](Value& element) {
          interpreter.budget().check_stack();
          while (next(element)) {
            interpreter.budget().step();
            if (holds(element) == wanted) return true;
          }
          return false;
        };
  });
}

Value unique(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const int depth = depth_of(value, arguments);
  const Bound bound("unique", arguments, {"case_sensitive", "attribute"});
  return generator(
      depth, [&interpreter, value, exact = bound.truth(0, false), path = AttributePath(bound[1])]() -> Next {
        return [&interpreter, next = iterate(value), exact, path, seen = std::make_shared<Dict>()](Value& element) {
          while (next(element)) {
            interpreter.budget().step();
            interpreter.budget().take(sizeof(Value));
            const Value own = path.get(interpreter, element);
            const Value key = exact ? own : ignoring_case(own);
            if (seen->find(key, interpreter.budget())) continue;
            seen->set(key, Value(), interpreter.budget());
            return true;
          }
          return false;
        };
      });
}

Value items(Interpreter&, const Value& value, Arguments& arguments) {
  const Bound bound("items", arguments, {});
  return generator(value.depth(), [value]() -> Next {
    if (value.is_undefined()) return nothing();
    if (!value.is(Kind::dict)) throw Failure("Can only get item pairs from a mapping.");
    return DictView(value, DictView::Part::items).iterate();
  });
}

Value batch(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const int depth = depth_of(value, arguments);
  const Bound bound("batch", arguments, {"linecount", "fill_with"}, 1);
  const int64_t size = to_index(bound[0]);
  return generator(depth + 1, [&interpreter, value, size, fill = bound[1]]() -> Next {
    // CPython's loop: a batch ends when it has exactly `size` elements, so 0 gives an empty one first and then all.
    auto rest = std::make_shared<Items>();
    return [&interpreter, next = iterate(value), size, fill, rest](Value& element) {
      Value item;
      while (next(item)) {
        interpreter.budget().step();
        const bool full = static_cast<int64_t>(rest->size()) == size;
        if (full) element = Value::list(std::exchange(*rest, {}));
        rest->push_back(item);
        if (full) return true;
      }
      if (rest->empty()) return false;
      if (!fill.is_none() && static_cast<int64_t>(rest->size()) < size) {
        interpreter.budget().take(static_cast<size_t>(size) * sizeof(Value));
        rest->resize(static_cast<size_t>(size), fill);
      }
      element = Value::list(std::exchange(*rest, {}));
      return true;
    };
  });
}

Value slices(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const int depth = depth_of(value, arguments);
  const Bound bound("slice", arguments, {"slices", "fill_with"}, 1);
  const int64_t count = to_index(bound[0]);
  return generator(depth + 1, [&interpreter, value, count, fill = bound[1]]() -> Next {
    const Items all = collect(value, interpreter.budget());
    if (count == 0) throw Failure("integer division or modulo by zero");
    const int64_t size = static_cast<int64_t>(all.size()), each = count > 0 ? size / count : 0,
                  extra = count > 0 ? size % count : 0;
    return [all, count, fill, each, extra, k = int64_t{0}, at = int64_t{0}](Value& element) mutable {
      if (k >= count) return false;
      const int64_t end = at + each + (k < extra ? 1 : 0);
      Items part(all.begin() + at, all.begin() + end);
      if (!fill.is_none() && k >= extra) part.push_back(fill);
      element = Value::list(std::move(part));
      at = end;
      ++k;
      return true;
    };
  });
}

}  // namespace

std::vector<NamedFilter> lazy_filters() {
  return {{"batch", batch},
          {"items", items},
          {"map", map},
          {"reject", select<false, false>},
          {"rejectattr", select<false, true>},
          {"select", select<true, false>},
          {"selectattr", select<true, true>},
          {"slice", slices},
          {"unique", unique}};
}

}  // namespace nibble::jinja
