#pragma once
// Template text to tokens, as Jinja2's lexer does with trim_blocks and lstrip_blocks. For .cpp files of jinja/.

#include <string>
#include <string_view>
#include <vector>

#include "nibble/core/text/chat/jinja/values/value.h"

namespace nibble::jinja {

enum class TokenKind : uint8_t {
  data,
  variable_begin,
  variable_end,
  block_begin,
  block_end,
  name,
  text,
  number,
  symbol,
  end
};

struct Token {
  TokenKind kind = TokenKind::end;
  int line = 1;
  std::string text;  // of data, names, strings (unescaped) and symbols
  Value number;

  bool is_symbol(std::string_view symbol) const { return kind == TokenKind::symbol && text == symbol; }
  bool is_name(std::string_view name) const { return kind == TokenKind::name && text == name; }
};

/// Throws SyntaxFailure.
std::vector<Token> tokenize(std::string_view source);

}  // namespace nibble::jinja
