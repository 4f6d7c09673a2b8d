#pragma once
// Runs a parsed template. For .cpp files of jinja/.

#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "nibble/core/text/chat/jinja/budget.h"
#include "nibble/core/text/chat/jinja/rendering.h"
#include "nibble/core/text/chat/jinja/syntax/syntax.h"
#include "nibble/core/text/chat/jinja/values/value.h"

namespace nibble::jinja {

/// Names that were set, and the scope around.
struct Scope {
  std::vector<std::pair<Name, Value>> values;
  std::shared_ptr<Scope> parent;

  void set(Name name, Value value);
  const Value* find(Name name) const;
};
using ScopePtr = std::shared_ptr<Scope>;

class Macro;

class Interpreter {
 public:
  /// `variables` by name; `now` is what strftime_now reads; `steps` are the most.
  Interpreter(const Syntax& syntax, const Dict& variables, const std::tm& now, uint64_t steps);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  /// The text. Throws Failure; line() says where.
  std::string run();
  const std::vector<GeneratedSpan>& spans() const { return spans_; }
  int line() const { return line_; }

  Budget& budget() { return budget_; }
  const std::tm& now() const { return now_; }
  bool autoescape() const { return autoescape_; }

  Value call(const Value& callee, Arguments arguments);
  /// By name, when it runs: map('upper').
  Value call_filter(const std::string& name, Value value, Arguments arguments);
  bool call_test(const std::string& name, const Value& value, Arguments arguments);
  /// object.name and object[index] as Jinja's sandbox has them.
  Value attribute(const Value& object, std::string_view name);
  Value item(const Value& object, const Value& index);
  /// A namespace that lives until the rendering ends.
  Value make_namespace(Dict attributes);

  /// The text a macro writes.
  Value run_macro(const Macro& macro, Arguments arguments);
  /// The text of one more level of a recursive loop.
  Value run_recursive_loop(const Statement& loop, const ScopePtr& scope, const Value& iterable, int depth);

 private:
  enum class Flow : uint8_t { normal, break_loop, continue_loop };
  class Capture;

  // Expressions (expressions.cpp).
  Value evaluate(const Expression& expression, const ScopePtr& scope);
  Value evaluate_name(const Expression& expression, const ScopePtr& scope);
  Value evaluate_items(const Expression& expression, const ScopePtr& scope);
  Value evaluate_concat(const Expression& expression, const ScopePtr& scope);
  Value evaluate_dict(const Expression& expression, const ScopePtr& scope);
  Value evaluate_compare(const Expression& expression, const ScopePtr& scope);
  Value evaluate_conditional(const Expression& expression, const ScopePtr& scope);
  Value evaluate_item(const Expression& expression, const ScopePtr& scope);
  Value evaluate_filter(const Expression& expression, const ScopePtr& scope, const Value* piped);
  Arguments evaluate_arguments(const CallArguments& arguments, const ScopePtr& scope);

  // Statements (statements.cpp).
  Flow run_block(const Block& block, const ScopePtr& scope);
  Flow run_statement(const Statement& statement, const ScopePtr& scope);
  Flow run_condition(const Statement& statement, const ScopePtr& scope);
  Flow run_loop(const Statement& statement, const ScopePtr& scope, const Value& iterable, int depth);
  Flow run_set_block(const Statement& statement, const ScopePtr& scope);
  Flow run_filter_block(const Statement& statement, const ScopePtr& scope);
  Flow run_with(const Statement& statement, const ScopePtr& scope);
  void run_call_block(const Statement& statement, const ScopePtr& scope);
  void run_generation(const Statement& statement, const ScopePtr& scope);
  std::vector<const Parameter*> bind_parameters(const MacroSyntax& macro, Arguments& arguments, const ScopePtr& scope);
  Value make_macro(const MacroSyntax& macro, const ScopePtr& scope);
  Next filtered(const Statement& loop, const ScopePtr& scope, Next next);
  void assign(const Target& target, const Value& value, const ScopePtr& scope);
  void write(const Value& value);
  void write(std::string_view text);
  /// What a filter or call block gives, which must be text.
  void write_text(const Value& value);
  /// -1 where the template never says it.
  Name find_name(std::string_view name) const;
  static ScopePtr inside(const ScopePtr& scope) { return std::make_shared<Scope>(Scope{{}, scope}); }

  const Syntax& syntax_;
  std::vector<const Value*> context_;  // by Name: variables and globals, null where there is none
  const Dict& variables_;
  std::tm now_;
  Budget budget_;
  int line_ = 1;
  int calls_ = 0;
  bool autoescape_ = false;
  std::string text_;           // what is certain to come out
  std::string* out_ = &text_;  // text_, or what a macro or block gathers
  std::vector<GeneratedSpan> spans_;
  TextSpan counted_;  // bytes and code points of text_ that were counted for spans_
  ScopePtr root_;
  std::vector<std::shared_ptr<Object>> kept_;  // namespaces
  std::vector<ScopePtr> kept_scopes_;          // of macros, which their scopes hold
};

/// A macro or the body of a call block, with the scope it was written in.
class Macro final : public Object {
 public:
  Macro(const MacroSyntax& syntax, ScopePtr scope) : syntax_(syntax), scope_(std::move(scope)) {}
  std::string type() const override { return "Macro"; }
  std::string print(Budget&) const override;
  std::optional<Value> attribute(std::string_view name) override;
  bool callable() const override { return true; }
  Value call(Interpreter& interpreter, Arguments arguments) override;
  const MacroSyntax& syntax() const { return syntax_; }
  const ScopePtr& scope() const { return scope_; }

 private:
  const MacroSyntax& syntax_;
  ScopePtr scope_;
};

}  // namespace nibble::jinja
