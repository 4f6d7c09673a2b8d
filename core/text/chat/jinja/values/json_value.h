#pragma once
// JSON text as template values: keys in their order, whole numbers of any size. For .cpp files of jinja/ and
// template_request.cpp.

#include <string>
#include <string_view>

#include "nibble/core/text/chat/jinja/values/value.h"

namespace nibble::jinja {

/// Throws InputError naming `place` and the byte for text that is not JSON, or brackets deeper than 100.
Value parse_json_value(std::string_view text, const std::string& place);

}  // namespace nibble::jinja
