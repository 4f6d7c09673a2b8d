// Jinja2's tests: `x is odd`.

#include <algorithm>
#include <array>

#include "nibble/core/text/chat/jinja/arguments.h"
#include "nibble/core/text/chat/jinja/failure.h"
#include "nibble/core/text/chat/jinja/filters/filters.h"
#include "nibble/core/text/chat/jinja/operators.h"
#include "nibble/core/text/chat/jinja/values/print_value.h"
#include "nibble/core/text/chat/jinja/values/split_lines.h"

namespace nibble::jinja {

namespace {

void no_arguments(Arguments& arguments) { const Bound bound("test", arguments, {}); }

template <bool (*holds)(const Value&)>
bool plain(Interpreter&, const Value& value, Arguments& arguments) {
  no_arguments(arguments);
  return holds(value);
}

template <bool (*holds)(const Value&, Budget&)>
bool counted(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  no_arguments(arguments);
  return holds(value, interpreter.budget());
}

template <bool (*holds)(const Value&, const Value&, Budget&)>
bool with_one(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("test", arguments, {"other"}, 1);
  return holds(value, bound[0], interpreter.budget());
}

bool rest_is(Interpreter& interpreter, const Value& value, const Value& by, int64_t rest) {
  if (value.is_text()) throw Failure("not all arguments converted during string formatting");
  return equal(arithmetic("%", value, by, interpreter.budget()), Value::integer(Integer(rest)), interpreter.budget());
}

bool odd(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  no_arguments(arguments);
  return rest_is(interpreter, value, Value::integer(Integer(2)), 1);
}

bool even(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  no_arguments(arguments);
  return rest_is(interpreter, value, Value::integer(Integer(2)), 0);
}

bool divisible(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("divisibleby", arguments, {"num"}, 1);
  return rest_is(interpreter, value, bound[0], 0);
}

bool is_defined(const Value& v) { return !v.is_undefined(); }
bool is_undefined(const Value& v) { return v.is_undefined(); }
bool is_none(const Value& v) { return v.is_none(); }
bool is_boolean(const Value& v) { return v.is(Kind::boolean); }
bool is_false(const Value& v) { return v.is(Kind::boolean) && !v.as_boolean(); }
bool is_true(const Value& v) { return v.is(Kind::boolean) && v.as_boolean(); }
bool is_integer(const Value& v) { return v.is(Kind::integer); }
bool is_float(const Value& v) { return v.is(Kind::floating); }
bool is_number(const Value& v) { return v.is_number(); }
bool is_string(const Value& v) { return v.is_text(); }
bool is_mapping(const Value& v) { return v.is(Kind::dict); }
bool is_escaped(const Value& v) { return v.is_markup(); }
bool is_lower_case(const Value& v, Budget& budget) { return is_in_case(str(v, budget), true); }
bool is_upper_case(const Value& v, Budget& budget) { return is_in_case(str(v, budget), false); }
bool is_callable(const Value& v) { return v.is_undefined() || (v.is(Kind::object) && v.as_object()->callable()); }
// Names are looked up in a dict: a value without hash is an error.
bool is_filter(const Value& v, Budget& budget) { return v.hash(budget), v.is_text() && find_filter(v.as_text()); }
bool is_test(const Value& v, Budget& budget) { return v.hash(budget), v.is_text() && find_test(v.as_text()); }

bool is_sequence(const Value& v) {
  if (v.is(Kind::object)) return v.as_object()->is_sequence();
  return v.is_text() || v.is_sequence() || v.is(Kind::dict) || v.is_undefined();
}

bool not_equal(const Value& a, const Value& b, Budget& budget) { return !equal(a, b, budget); }
bool greater(const Value& a, const Value& b, Budget& budget) { return compare(a, b, budget, ">") == 1; }
bool less(const Value& a, const Value& b, Budget& budget) { return compare(a, b, budget, "<") == -1; }
bool greater_equal(const Value& a, const Value& b, Budget& budget) {
  const int order = compare(a, b, budget, ">=");
  return order == 0 || order == 1;
}
bool less_equal(const Value& a, const Value& b, Budget& budget) {
  const int order = compare(a, b, budget, "<=");
  return order == 0 || order == -1;
}
bool same_as(const Value& a, const Value& b, Budget&) { return a.same_as(b); }
bool is_in(const Value& a, const Value& b, Budget& budget) { return contains(b, a, budget); }

constexpr std::array kTests = {NamedTest{"odd", odd},
                               NamedTest{"even", even},
                               NamedTest{"divisibleby", divisible},
                               NamedTest{"defined", plain<is_defined>},
                               NamedTest{"undefined", plain<is_undefined>},
                               NamedTest{"filter", counted<is_filter>},
                               NamedTest{"test", counted<is_test>},
                               NamedTest{"none", plain<is_none>},
                               NamedTest{"boolean", plain<is_boolean>},
                               NamedTest{"false", plain<is_false>},
                               NamedTest{"true", plain<is_true>},
                               NamedTest{"integer", plain<is_integer>},
                               NamedTest{"float", plain<is_float>},
                               NamedTest{"lower", counted<is_lower_case>},
                               NamedTest{"upper", counted<is_upper_case>},
                               NamedTest{"string", plain<is_string>},
                               NamedTest{"mapping", plain<is_mapping>},
                               NamedTest{"number", plain<is_number>},
                               NamedTest{"sequence", plain<is_sequence>},
                               NamedTest{"iterable", plain<is_iterable>},
                               NamedTest{"callable", plain<is_callable>},
                               NamedTest{"sameas", with_one<same_as>},
                               NamedTest{"escaped", plain<is_escaped>},
                               NamedTest{"in", with_one<is_in>},
                               NamedTest{"==", with_one<equal>},
                               NamedTest{"eq", with_one<equal>},
                               NamedTest{"equalto", with_one<equal>},
                               NamedTest{"!=", with_one<not_equal>},
                               NamedTest{"ne", with_one<not_equal>},
                               NamedTest{">", with_one<greater>},
                               NamedTest{"gt", with_one<greater>},
                               NamedTest{"greaterthan", with_one<greater>},
                               NamedTest{"ge", with_one<greater_equal>},
                               NamedTest{">=", with_one<greater_equal>},
                               NamedTest{"<", with_one<less>},
                               NamedTest{"lt", with_one<less>},
                               NamedTest{"lessthan", with_one<less>},
                               NamedTest{"<=", with_one<less_equal>},
                               NamedTest{"le", with_one<less_equal>}};

}  // namespace

Test find_test(std::string_view name) {
  const auto* found = std::find_if(kTests.begin(), kTests.end(), [&](const NamedTest& t) { return t.name == name; });
  return found == kTests.end() ? nullptr : found->test;
}

}  // namespace nibble::jinja
