#pragma once
// A Jinja template, run as Transformers runs the chat templates of models: Jinja2's language in its immutable sandbox
// with trim_blocks and lstrip_blocks, break and continue, {% generation %}, raise_exception, strftime_now and a tojson
// that writes JSON as Python does (Jinja2 3.1.6, Transformers 5). Templates are files of others: nesting, steps, time
// and the size of all text are limited.

#include <ctime>
#include <memory>
#include <string>
#include <string_view>

#include "nibble/core/text/chat/jinja/budget.h"
#include "nibble/core/text/chat/jinja/rendering.h"
#include "nibble/core/text/chat/jinja/values/value.h"

namespace nibble::jinja {

struct Syntax;

/// Constant once made; render() may be called from many threads.
class Template {
 public:
  /// Templates larger than this are refused.
  static constexpr size_t kMaxBytes = size_t{4} << 20;

  /// `place` is what errors name: a file. Throws InputError "place:line: reason" for a template that is wrong.
  Template(std::string_view source, std::string place);
  ~Template();
  Template(Template&&) noexcept;

  /// Throws InputError "place:line: reason" for what goes wrong while it runs, raise_exception and more than `steps`
  /// included.
  Rendering render(const Dict& variables, const std::tm& now, uint64_t steps = Budget::kSteps) const;

 private:
  std::string place_;
  std::unique_ptr<const Syntax> syntax_;
};

}  // namespace nibble::jinja
