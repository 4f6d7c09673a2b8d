#pragma once
// The built-in chat templates as others read them: as Jinja, and the tokens that they write.

#include <string>
#include <string_view>
#include <vector>

namespace nibble {

/// The built-in template `name` as Jinja text, as models keep it in chat_template.jinja, with its answers marked by
/// {% generation %}. Throws as builtin_chat_template.
std::string builtin_chat_template_source(std::string_view name);

/// What it writes that is a token of its own in the models it is from: "<|im_start|>", "<|im_end|>".
std::vector<std::string> builtin_chat_template_marks(std::string_view name);

}  // namespace nibble
