#pragma once
// What a template wrote.

#include <string>
#include <vector>

#include "nibble/core/text/chat/conversation.h"

namespace nibble::jinja {

/// A part that {% generation %} marks, in bytes and in code points. Inside a macro or a set block it begins where the
/// text stood before that was written, as Transformers has it, so it may not be the part of the text that it should be.
struct GeneratedSpan {
  TextSpan bytes, points;
};

struct Rendering {
  std::string text;
  std::vector<GeneratedSpan> generated;  ///< in the order they were written
};

}  // namespace nibble::jinja
