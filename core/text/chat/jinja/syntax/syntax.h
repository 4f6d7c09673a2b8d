#pragma once
// A parsed template. For .cpp files of jinja/.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nibble/core/text/chat/jinja/values/value.h"

namespace nibble::jinja {

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<Expression>;
using Block = std::vector<Statement>;

/// Names are numbers into the template's table of them.
using Name = int;

/// What stands between the parentheses of a call, filter or test.
struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr more_positional, more_named;  // *args, **kwargs; may be null
};

enum class ExpressionKind : uint8_t {
  constant,
  name,
  tuple,
  list,
  dict,         // parts: key, value, key, value, ...
  negative,     // -x
  positive,     // +x
  arithmetic,   // parts: left, right; text: the operator
  concat,       // ~
  compare,      // parts: the first and those compared with; operators: one for each of the others
  conjunction,  // and
  disjunction,  // or
  negation,     // not
  conditional,  // parts: condition, then, else (may be null)
  attribute,    // parts: object; text: the name
  item,         // parts: object, index
  slice,        // parts: begin, end, step; each may be null
  call,         // parts: callee
  filter,       // parts: value (null inside {% filter %} and {% set x | f %}); text: the name
  test          // parts: value; text: the name
};

enum class Comparison : uint8_t { equal, not_equal, less, less_equal, greater, greater_equal, in, not_in };

struct Expression {
  ExpressionKind kind = ExpressionKind::constant;
  int line = 1;
  int depth = 1;  // of the tree
  Name name = -1;
  std::string text;
  Value value;
  std::vector<ExpressionPtr> parts;
  std::vector<Comparison> operators;
  CallArguments arguments;
};

/// What is assigned to: a name, a namespace's attribute, or a tuple of those.
struct Target {
  enum class Kind : uint8_t { name, attribute, tuple } kind = Kind::name;
  Name name = -1;  // the namespace of an attribute
  std::string attribute;
  std::vector<Target> parts;
};

struct Parameter {
  Name name = -1;
  std::string text;
  ExpressionPtr otherwise;  // null: none
};

/// A macro, or the body of a call block.
struct MacroSyntax {
  std::string name;
  std::vector<Parameter> parameters;
  Block body;
  bool uses_caller = false, uses_kwargs = false, uses_varargs = false;
};

enum class StatementKind : uint8_t {
  data,
  output,     // expressions
  condition,  // expressions[k] guards blocks[k]; one block more is the else
  loop,       // target, expressions[0] the iterable, [1] the condition or null; blocks: body, else
  set,        // target, expressions[0]
  set_block,  // target, expressions[0] the filter or null; blocks[0]
  macro,
  call_block,   // expressions[0] the call; macro: the caller
  filter,       // expressions[0]; blocks[0]
  with,         // targets, expressions; blocks[0]
  generation,   // macro: the body
  named_block,  // text: its name; blocks[0]; scoped
  autoescape,   // expressions[0]; blocks[0]
  break_loop,
  continue_loop,
  load_other  // include, import, extends: text
};

struct Statement {
  StatementKind kind = StatementKind::data;
  int line = 1;
  std::string text;
  std::vector<ExpressionPtr> expressions;
  std::vector<Target> targets;
  std::vector<Block> blocks;
  std::unique_ptr<MacroSyntax> macro;
  Name name = -1;          // of a macro
  bool recursive = false;  // loop
  bool scoped = false;     // named_block
};

/// A whole template.
struct Syntax {
  Block body;
  std::vector<std::string> names;
};

}  // namespace nibble::jinja
