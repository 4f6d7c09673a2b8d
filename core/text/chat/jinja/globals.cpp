// Jinja2's global functions, with those of Transformers.

#include <ctime>
#include <memory>
#include <utility>

#include "nibble/core/text/chat/jinja/arguments.h"
#include "nibble/core/text/chat/jinja/failure.h"
#include "nibble/core/text/chat/jinja/filters/filters.h"
#include "nibble/core/text/chat/jinja/operators.h"
#include "nibble/core/text/chat/jinja/values/objects.h"
#include "nibble/core/text/chat/jinja/values/print_value.h"

namespace nibble::jinja {

namespace {

class Cycler final : public Object, public std::enable_shared_from_this<Cycler> {
 public:
  explicit Cycler(Items items) : items_(Value::tuple(std::move(items))) {}
  std::string type() const override { return "Cycler"; }
  int depth() const override { return items_.depth() + 1; }

  std::optional<Value> attribute(std::string_view name) override {
    if (name == "current") return items_.items()[at_];
    if (name == "items") return items_;
    if (name == "pos") return Value::integer(at_);
    if (name != "next" && name != "reset") return std::nullopt;
    return Function::make(
        std::string(name),
        [self = shared_from_this(), steps = name == "next"](Interpreter&, Arguments&) {
          return steps ? self->next() : self->reset();
        },
        depth() + 1);
  }

 private:
  Value next() {
    Value item = items_.items()[at_];
    at_ = (at_ + 1) % items_.items().size();
    return item;
  }

  Value reset() {
    at_ = 0;
    return Value();
  }

  Value items_;
  size_t at_ = 0;
};

class Joiner final : public Object {
 public:
  explicit Joiner(std::string separator) : separator_(Value::text(std::move(separator))) {}
  std::string type() const override { return "Joiner"; }
  bool callable() const override { return true; }
  Value call(Interpreter&, Arguments) override { return std::exchange(used_, true) ? separator_ : Value::text(""); }

 private:
  Value separator_;
  bool used_ = false;
};

Value raise_exception(Interpreter& interpreter, Arguments& arguments) {
  const Bound bound("raise_exception", arguments, {"message"}, 1);
  throw Failure(str(bound[0], interpreter.budget()));
}

Value strftime_now(Interpreter& interpreter, Arguments& arguments) {
  const Bound bound("strftime_now", arguments, {"format"}, 1);
  std::string format = bound.text(0), safe;
  if (format.size() > 4096) throw Failure("the format of strftime_now is too long");
  // datetime.strftime fills in what a time without zone and fraction has before the C library sees the format.
  for (size_t k = 0; k < format.size(); ++k) {
    const char next = k + 1 < format.size() ? format[k + 1] : '\0';
    if (format[k] == '%' && (next == 'f' || next == 'z' || next == 'Z')) {
      safe += next == 'f' ? "000000" : "";
      ++k;
    } else if (format[k] == '%' && next != '\0') {
      safe.append(format, k++, 2);
    } else {
      safe += format[k];
    }
  }
  if (safe.empty()) return Value::text("");
  interpreter.budget().take(safe.size() * 32 + 64);
  std::string text(safe.size() * 32 + 64, '\0');
  text.resize(std::strftime(text.data(), text.size(), safe.c_str(), &interpreter.now()));
  return Value::text(std::move(text));
}

// dict(mapping or pairs, key=value, ...).
Dict read_dict(Interpreter& interpreter, Arguments& arguments) {
  if (arguments.positional.size() > 1) throw Failure("dict expected at most 1 argument");
  Dict dict;
  for (const Value& source : arguments.positional) {
    if (source.is(Kind::dict)) {
      dict = source.as_dict();
      continue;
    }
    if (source.is_undefined()) throw Failure(source.undefined_message());  // it is asked for keys()
    for (const Value& pair : collect(source, interpreter.budget())) {
      const Items items = collect(pair, interpreter.budget());
      if (items.size() != 2) throw Failure("dictionary update sequence element has not length 2");
      dict.set(items[0], items[1], interpreter.budget());
    }
  }
  for (auto& [name, value] : arguments.named) dict.set(name, std::move(value));
  interpreter.budget().take(dict.size() * sizeof(Value));
  return dict;
}

Value make_dict(Interpreter& interpreter, Arguments& arguments) {
  return Value::dict(read_dict(interpreter, arguments));
}

Value make_space(Interpreter& interpreter, Arguments& arguments) {
  Dict attributes = read_dict(interpreter, arguments);
  for (const auto& [name, value] : attributes.items()) {
    if (name.is_text()) Namespace::check_name(name.as_text());
  }
  return interpreter.make_namespace(std::move(attributes));
}

Value make_range(Interpreter&, Arguments& arguments) {
  if (!arguments.named.empty()) throw Failure("range() takes no keyword arguments");
  const Bound bound("range", arguments, {"start", "stop", "step"}, 1);
  const int64_t first = to_index(bound[0]);
  if (!bound.has(1)) return Value::object(std::make_shared<Range>(0, first, 1));
  return Value::object(std::make_shared<Range>(first, to_index(bound[1]), bound.integer(2, 1)));
}

Value make_cycler(Interpreter&, Arguments& arguments) {
  if (arguments.positional.empty()) throw Failure("at least one item has to be provided");
  return Value::object(std::make_shared<Cycler>(std::move(arguments.positional)));
}

Value make_joiner(Interpreter&, Arguments& arguments) {
  const Bound bound("joiner", arguments, {"sep"});
  return Value::object(std::make_shared<Joiner>(bound.text(0, ", ")));
}

Value lipsum(Interpreter&, Arguments&) {
  throw Failure("lipsum is refused: a conversation must give the same text every time");
}

Dict make_globals() {
  Dict globals;
  const auto add = [&](const char* name, Value (*body)(Interpreter&, Arguments&)) {
    globals.set(name, Function::make(name, body));
  };
  add("raise_exception", raise_exception);
  add("strftime_now", strftime_now);
  add("namespace", make_space);
  add("dict", make_dict);
  add("range", make_range);
  add("cycler", make_cycler);
  add("joiner", make_joiner);
  add("lipsum", lipsum);
  return globals;
}

}  // namespace

const Dict& globals() {
  static const Dict result = make_globals();
  return result;
}

}  // namespace nibble::jinja
