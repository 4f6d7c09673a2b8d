#pragma once
// The objects of templates: functions, iterators, ranges, views of dicts, namespaces. For .cpp files of jinja/.

#include <functional>
#include <string>

#include "nibble/core/text/chat/jinja/values/value.h"

namespace nibble::jinja {

/// A function or a bound method.
class Function final : public Object {
 public:
  using Body = std::function<Value(Interpreter&, Arguments&)>;
  /// depth: of the values that `body` holds, plus one.
  Function(std::string name, Body body, int depth) : name_(std::move(name)), body_(std::move(body)), depth_(depth) {}
  std::string type() const override { return "function"; }
  std::string print(Budget&) const override { return "<function " + name_ + ">"; }
  bool callable() const override { return true; }
  Value call(Interpreter& interpreter, Arguments arguments) override { return body_(interpreter, arguments); }
  int depth() const override { return depth_; }
  static Value make(std::string name, Body body, int depth = 1);

 private:
  std::string name_;
  Body body_;
  int depth_;
};

/// A generator: gives its elements once.
class Iterator final : public Object, public std::enable_shared_from_this<Iterator> {
 public:
  Iterator(std::string type, Next next, int depth);
  std::string type() const override { return type_; }
  std::string print(Budget&) const override { return "<" + type_ + " object>"; }
  Next iterate() override;
  int depth() const override { return depth_; }
  /// `next` holds values that nest `depth` deep.
  static Value make(int depth, Next next, std::string type = "generator");

 private:
  std::string type_;
  Next next_;
  int depth_;
};

class Range final : public Object {
 public:
  Range(int64_t start, int64_t stop, int64_t step);
  std::string type() const override { return "range"; }
  std::string print(Budget& budget) const override;
  std::optional<Value> attribute(std::string_view name) override;
  std::optional<size_t> length() override { return count_; }
  Next iterate() override;
  bool is_sequence() const override { return true; }
  Value element(size_t index) override;
  /// The range of the elements start, start + step, ... before stop (indices that Python's slices give).
  Value slice(int64_t start, int64_t stop, int64_t step) const;

 private:
  int64_t start_, stop_, step_;
  size_t count_;
};

/// dict.keys(), .values(), .items().
class DictView final : public Object {
 public:
  enum class Part : uint8_t { keys, values, items };
  DictView(Value dict, Part part) : dict_(std::move(dict)), part_(part) {}
  std::string type() const override;
  std::string print(Budget& budget) const override;
  std::optional<size_t> length() override { return dict_.as_dict().size(); }
  Next iterate() override;
  int depth() const override { return dict_.depth() + 1; }
  Part part() const { return part_; }
  const Dict& dict() const { return dict_.as_dict(); }

 private:
  Value element_at(size_t k) const;
  Value dict_;
  Part part_;
};

/// namespace(): attributes that {% set ns.x = ... %} changes. The interpreter keeps all of them until the rendering
/// ends and empties them then, since they may hold each other.
class Namespace final : public Object {
 public:
  explicit Namespace(Dict attributes) : attributes_(std::move(attributes)) {}
  std::string type() const override { return "Namespace"; }
  std::string print(Budget& budget) const override;
  std::optional<Value> attribute(std::string_view name) override;
  void set(std::string_view name, Value value);
  void clear() { attributes_ = {}; }
  static void check_name(std::string_view name);

 private:
  Dict attributes_;
  mutable bool printing_ = false;
};

}  // namespace nibble::jinja
