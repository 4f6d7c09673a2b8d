#pragma once
// The `loop` variable: where a for loop is. For .cpp files of jinja/.

#include <deque>
#include <optional>

#include "nibble/core/text/chat/jinja/interpreter.h"

namespace nibble::jinja {

class Loop final : public Object, public std::enable_shared_from_this<Loop> {
 public:
  /// `length` of the iterable where it has one. `recursive`: the statement when it is marked so.
  Loop(Next next, std::optional<size_t> length, int depth, const Statement* recursive, ScopePtr scope)
      : next_(std::move(next)), length_(length), depth_(depth), recursive_(recursive), scope_(std::move(scope)) {}

  /// Goes on to the next element; false at the end.
  bool advance();
  const Value& current() const { return current_; }

  std::string type() const override { return "LoopContext"; }
  std::string print(Budget&) const override;
  std::optional<Value> attribute(std::string_view name) override;
  bool callable() const override { return true; }
  Value call(Interpreter& interpreter, Arguments arguments) override;
  std::optional<size_t> length() override;
  int depth() const override { return nesting_; }
  /// When the loop has ended: what outlives it holds neither scopes nor what it iterated over.
  void release();

 private:
  const Value* peek();
  Value changed(Items values, Budget& budget);

  Next next_;
  std::optional<size_t> length_;
  int depth_;
  const Statement* recursive_;
  ScopePtr scope_;
  std::deque<Value> ahead_;
  int64_t index0_ = -1;
  int nesting_ = 1;
  Value before_, current_;
  std::optional<Items> last_changed_;
};

}  // namespace nibble::jinja
