#include "nibble/core/text/chat/jinja/template.h"

#include "nibble/core/base/error.h"
#include "nibble/core/text/chat/jinja/failure.h"
#include "nibble/core/text/chat/jinja/interpreter.h"
#include "nibble/core/text/chat/jinja/syntax/parser.h"
#include "nibble/core/text/unicode/utf8.h"

namespace nibble::jinja {

namespace {

constexpr size_t kMaxReason = 4096;  // bytes

}  // namespace

Template::Template(std::string_view source, std::string place) : place_(std::move(place)) {
  if (source.size() > kMaxBytes)
    throw InputError(place_, "has " + std::to_string(source.size()) + " bytes, more than a template may have");
  require_utf8(source, place_);
  try {
    syntax_ = std::make_unique<const Syntax>(parse_template(source));
  } catch (const SyntaxFailure& failure) {
    throw InputError(place_ + ":" + std::to_string(failure.line), failure.what());
  }
}

Template::~Template() = default;
Template::Template(Template&&) noexcept = default;

Rendering Template::render(const Dict& variables, const std::tm& now, uint64_t steps) const {
  Interpreter interpreter(*syntax_, variables, now, steps);
  try {
    std::string text = interpreter.run();
    return {std::move(text), interpreter.spans()};
  } catch (const Failure& failure) {
    std::string reason = failure.what();  // may hold whatever the template gives raise_exception
    if (reason.size() > kMaxReason) {
      size_t end = kMaxReason;
      while ((static_cast<unsigned char>(reason[end]) & 0xC0) == 0x80) --end;
      reason = reason.substr(0, end) + "...";
    }
    throw InputError(place_ + ":" + std::to_string(interpreter.line()), reason);
  }
}

}  // namespace nibble::jinja
