#include "nibble/core/text/chat/jinja/interpreter.h"

#include <algorithm>

#include "nibble/core/text/chat/jinja/arguments.h"
#include "nibble/core/text/chat/jinja/filters/filters.h"
#include "nibble/core/text/chat/jinja/operators.h"
#include "nibble/core/text/chat/jinja/values/objects.h"
#include "nibble/core/text/chat/jinja/values/print_value.h"

namespace nibble::jinja {

namespace {

// Jinja's object_type_repr.
std::string described(const Value& value) { return value.is_none() ? "None" : value.type() + " object"; }

// What a filter, test or function may read of what it gets; the values inside of lists and dicts count when it meets
// them.
size_t bytes_of(const Value& value) { return sizeof(Value) + (value.is_text() ? value.as_text().size() : 0); }

size_t bytes_of(const Arguments& arguments) {
  size_t bytes = 0;
  for (const Value& value : arguments.positional) bytes += bytes_of(value);
  for (const auto& [name, value] : arguments.named) bytes += name.size() + bytes_of(value);
  return bytes;
}

}  // namespace

void Scope::set(Name name, Value value) {
  for (auto& [known, old] : values) {
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  values.emplace_back(name, std::move(value));
}

const Value* Scope::find(Name name) const {
  for (const Scope* scope = this; scope; scope = scope->parent.get()) {
    for (const auto& [known, value] : scope->values) {
      if (known == name) return &value;
    }
  }
  return nullptr;
}

Interpreter::Interpreter(const Syntax& syntax, const Dict& variables, const std::tm& now, uint64_t steps)
    : syntax_(syntax), variables_(variables), now_(now), budget_(steps), root_(std::make_shared<Scope>()) {
  for (const std::string& name : syntax.names) {
    const Value* value = variables_.find(name);
    context_.push_back(value ? value : globals().find(name));
  }
}

Interpreter::~Interpreter() {
  for (const ScopePtr& scope : kept_scopes_) scope->values.clear();
  for (const std::shared_ptr<Object>& object : kept_) static_cast<Namespace&>(*object).clear();
}

Name Interpreter::find_name(std::string_view name) const {
  const auto found = std::find(syntax_.names.begin(), syntax_.names.end(), name);
  return found == syntax_.names.end() ? -1 : static_cast<Name>(found - syntax_.names.begin());
}

Value Interpreter::make_namespace(Dict attributes) {
  budget_.take(256);
  auto object = std::make_shared<Namespace>(std::move(attributes));
  kept_.push_back(object);
  return Value::object(std::move(object));
}

Value Interpreter::call(const Value& callee, Arguments arguments) {
  budget_.step();
  budget_.read(bytes_of(arguments));
  if (callee.is_undefined()) throw Failure(callee.undefined_message());
  if (!callee.is(Kind::object)) throw Failure("'" + callee.type() + "' object is not callable");
  return std::shared_ptr<Object>(callee.as_object())->call(*this, std::move(arguments));  // it stays while it runs
}

Value Interpreter::call_filter(const std::string& name, Value value, Arguments arguments) {
  budget_.step();
  budget_.read(bytes_of(value) + bytes_of(arguments));
  const Filter filter = find_filter(name);
  if (!filter) throw Failure("No filter named '" + name + "'.");
  return filter(*this, value, arguments);
}

bool Interpreter::call_test(const std::string& name, const Value& value, Arguments arguments) {
  budget_.step();
  budget_.read(bytes_of(value) + bytes_of(arguments));
  const Test test = find_test(name);
  if (!test) throw Failure("No test named '" + name + "'.");
  return test(*this, value, arguments);
}

Value Interpreter::attribute(const Value& object, std::string_view name) {
  if (std::optional<Value> found = python_attribute(object, name)) return std::move(*found);
  if (object.is_undefined()) throw Failure(object.undefined_message());
  if (object.is(Kind::dict)) {
    if (const Value* found = object.as_dict().find(name)) return *found;
  }
  budget_.take(name.size());
  return Value::undefined("'" + described(object) + "' has no attribute '" + std::string(name) + "'");
}

Value Interpreter::item(const Value& object, const Value& index) {
  if (std::optional<Value> found = subscript(object, index, budget_)) return std::move(*found);
  if (index.is_text()) {
    if (std::optional<Value> found = python_attribute(object, index.as_text())) return std::move(*found);
    budget_.take(index.as_text().size());
    return Value::undefined("'" + described(object) + "' has no attribute '" + index.as_text() + "'");
  }
  return Value::undefined(described(object) + " has no element " + repr(index, budget_));
}

std::optional<Value> Macro::attribute(std::string_view name) {
  if (name == "name") return syntax_.name.empty() ? Value() : Value::text(syntax_.name);
  if (name == "catch_kwargs") return Value::boolean(syntax_.uses_kwargs);
  if (name == "catch_varargs") return Value::boolean(syntax_.uses_varargs);
  if (name == "caller") return Value::boolean(syntax_.uses_caller);
  if (name != "arguments") return std::nullopt;
  Items names;
  for (const Parameter& parameter : syntax_.parameters) names.push_back(Value::text(parameter.text));
  return Value::tuple(std::move(names));
}

std::string Macro::print(Budget&) const {
  return "<Macro " + (syntax_.name.empty() ? "anonymous" : repr_text(syntax_.name)) + ">";
}

Value Macro::call(Interpreter& interpreter, Arguments arguments) {
  return interpreter.run_macro(*this, std::move(arguments));
}

}  // namespace nibble::jinja
