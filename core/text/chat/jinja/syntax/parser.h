#pragma once
// Template text to its syntax tree. For .cpp files of jinja/.

#include <string_view>

#include "nibble/core/text/chat/jinja/syntax/syntax.h"

namespace nibble::jinja {

/// Parses a template as Jinja2 does with Transformers' extensions, and checks what Jinja2 checks when it compiles
/// (names of filters and tests, places of break and continue). Throws SyntaxFailure.
Syntax parse_template(std::string_view source);

/// What Jinja2 checks when it compiles, called by parse_template.
void check_syntax(const Syntax& syntax);

}  // namespace nibble::jinja
