#pragma once
// What a template computes with: Python's values as far as Jinja templates meet them. All are constant once made (the
// sandbox of Transformers forbids changing lists and dicts); only objects (iterators, namespaces, ...) have state.
// For .cpp files of jinja/.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "nibble/core/text/chat/jinja/budget.h"
#include "nibble/core/text/chat/jinja/values/integer.h"

namespace nibble::jinja {

class Value;
class Dict;
class Interpreter;

using Items = std::vector<Value>;

/// Gives the next element, false at the end.
using Next = std::function<bool(Value&)>;

/// What a call hands over.
struct Arguments {
  Items positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// A thing with state or behaviour: iterators, functions, macros, namespaces, the loop variable.
class Object {
 public:
  virtual ~Object() = default;
  /// Python's name of its type, for messages.
  virtual std::string type() const = 0;
  /// str() and repr() of it.
  virtual std::string print(Budget&) const { return "<" + type() + ">"; }
  /// Python's attribute; nullopt where there is none.
  virtual std::optional<Value> attribute(std::string_view name);
  virtual bool callable() const { return false; }
  virtual Value call(Interpreter& interpreter, Arguments arguments);
  /// len() of it; nullopt where Python has none.
  virtual std::optional<size_t> length() { return std::nullopt; }
  /// An iterator over it; null where Python has none.
  virtual Next iterate() { return nullptr; }
  /// obj[index] for things that count as sequences; index is in range.
  virtual bool is_sequence() const { return false; }
  virtual Value element(size_t index);
  /// How deep values nest in it.
  virtual int depth() const { return 1; }
};

enum class Kind : uint8_t { none, undefined, boolean, integer, floating, text, list, tuple, dict, object };

/// Undefined: what to say when it is used.
struct Missing {
  std::string message;
};

struct Text {
  std::string bytes;    // UTF-8
  bool markup = false;  // Python's Markup: text that is HTML already
};

struct Sequence {
  Items items;
  int depth = 1;
  bool group = false;  // the pair that groupby gives: also .grouper and .list
};

class Value {
 public:
  /// Containers nested deeper than this are refused, here and in Python's JSON.
  static constexpr int kMaxDepth = 400;

  Value() = default;  ///< None
  static Value undefined(std::string message);
  static Value boolean(bool value) { return Value(Data(value)); }
  static Value integer(Integer value) { return Value(Data(std::move(value))); }
  static Value integer(size_t value) { return Value(Data(Integer(static_cast<int64_t>(value)))); }
  static Value floating(double value) { return Value(Data(value)); }
  static Value text(std::string bytes, bool markup = false);
  static Value list(Items items);
  static Value tuple(Items items, bool group = false);
  static Value dict(Dict dict);
  static Value object(std::shared_ptr<Object> object) { return Value(Data(std::move(object))); }

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool is(Kind kind) const { return this->kind() == kind; }
  bool is_none() const { return is(Kind::none); }
  bool is_undefined() const { return is(Kind::undefined); }
  bool is_text() const { return is(Kind::text); }
  bool is_sequence() const { return is(Kind::list) || is(Kind::tuple); }
  /// Booleans, integers and floats.
  bool is_number() const { return is(Kind::boolean) || is(Kind::integer) || is(Kind::floating); }
  /// Booleans and integers: what Python takes as an index.
  bool is_index() const { return is(Kind::boolean) || is(Kind::integer); }

  bool as_boolean() const { return std::get<bool>(data_); }
  /// Of an integer or boolean.
  Integer as_integer() const;
  double as_floating() const { return std::get<double>(data_); }
  const std::string& as_text() const { return std::get<std::shared_ptr<const Text>>(data_)->bytes; }
  bool is_markup() const { return is_text() && std::get<std::shared_ptr<const Text>>(data_)->markup; }
  const Items& items() const { return sequence().items; }
  const Sequence& sequence() const;
  const Dict& as_dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  const std::shared_ptr<Object>& as_object() const { return std::get<std::shared_ptr<Object>>(data_); }
  template <typename T>
  T* object_as() const {
    return is(Kind::object) ? dynamic_cast<T*>(as_object().get()) : nullptr;
  }
  const std::string& undefined_message() const { return std::get<std::shared_ptr<const Missing>>(data_)->message; }

  /// Python's truth.
  bool truth() const;
  /// Python's type name: 'str', 'NoneType', 'dict', ...
  std::string type() const;
  int depth() const;
  /// Python's `is` as far as a template can tell.
  bool same_as(const Value& other) const;

  /// hash(); throws Failure for lists, dicts and other things without one.
  size_t hash(Budget& budget) const;

 private:
  struct Tuple {
    std::shared_ptr<const Sequence> sequence;
  };
  // In the order of Kind.
  using Data =
      std::variant<std::monostate, std::shared_ptr<const Missing>, bool, Integer, double, std::shared_ptr<const Text>,
                   std::shared_ptr<const Sequence>, Tuple, std::shared_ptr<const Dict>, std::shared_ptr<Object>>;
  explicit Value(Data data) : data_(std::move(data)) {}
  Data data_;
};

/// Keys in the order they came.
class Dict {
 public:
  /// Replaces the value of an equal key. Throws Failure for a key without hash.
  void set(Value key, Value value, Budget& budget);
  void set(std::string_view key, Value value);
  void erase(std::string_view key);
  const Value* find(const Value& key, Budget& budget) const;
  const Value* find(std::string_view key) const;
  const std::vector<std::pair<Value, Value>>& items() const { return items_; }
  size_t size() const { return items_.size(); }
  int depth() const { return depth_; }

 private:
  static constexpr size_t kIndexedFrom = 9;
  /// The item for whose key `same` holds; `hash` is the key's.
  template <typename Same>
  const std::pair<Value, Value>* entry(size_t hash, const Same& same) const;
  void put(const std::pair<Value, Value>* known, size_t hash, Value key, Value value);
  std::vector<std::pair<Value, Value>> items_;
  std::vector<size_t> hashes_;                     // of the keys of items_
  std::unordered_multimap<size_t, size_t> index_;  // hash -> item, from kIndexedFrom items on
  int depth_ = 1;
};

/// Python's ==.
bool equal(const Value& a, const Value& b, Budget& budget);

/// Python's order of two values: < 0, 0, > 0; 2 when they are not ordered (NaN). Throws Failure for types without.
int compare(const Value& a, const Value& b, Budget& budget, std::string_view operation = "<");

/// iter(value). Throws Failure: "'int' object is not iterable".
Next iterate(const Value& value);
/// Whether iterate works.
bool is_iterable(const Value& value);
/// len(value); nullopt where Python has none.
std::optional<size_t> length_of(const Value& value);

/// Number of an integer, boolean or float.
double to_double(const Value& number);

}  // namespace nibble::jinja
