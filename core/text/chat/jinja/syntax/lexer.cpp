#include "nibble/core/text/chat/jinja/syntax/lexer.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "nibble/core/formatting/readable.h"
#include "nibble/core/text/chat/jinja/failure.h"
#include "nibble/core/text/chat/jinja/values/unicode_text.h"

namespace nibble::jinja {

namespace {

// Longest first.
constexpr std::array<std::string_view, 27> kSymbols = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                       "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                       ">",  "<",  "=",  ".",  ":",  "|",  ",", ";", ""};

std::string unify_line_ends(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t k = 0; k < source.size(); ++k) {
    if (source[k] != '\r') {
      text += source[k];
    } else {
      text += '\n';
      if (k + 1 < source.size() && source[k + 1] == '\n') ++k;
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

bool is_decimal_digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(unify_line_ends(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) read_root();
    add(TokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const { throw SyntaxFailure(reason, line_); }

  std::string_view rest() const { return std::string_view(source_).substr(at_); }

  void advance(size_t count) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                         source_.begin() + static_cast<ptrdiff_t>(at_ + count), '\n'));
    at_ += count;
    line_starts_ = at_ > 0 && source_[at_ - 1] == '\n';
  }

  void skip_space() {
    const std::string_view left = rest();
    advance(left.size() - stripped(left, true, false).size());
  }

  void add(TokenKind kind, std::string_view text) { tokens_.push_back({kind, line_, std::string(text), {}}); }

  // Text up to the next tag, and the tag.
  void read_root() {
    size_t tag = at_;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        add(TokenKind::data, rest());
        advance(source_.size() - at_);
        return;
      }
      const char second = source_[tag + 1];
      if (second == '{' || second == '%' || second == '#') break;
      ++tag;
    }
    const char kind = source_[tag + 1];
    const char sign =
        tag + 2 < source_.size() && (source_[tag + 2] == '-' || source_[tag + 2] == '+') ? source_[tag + 2] : ' ';
    const std::string_view text = left_stripped(std::string_view(source_).substr(at_, tag - at_), kind, sign);
    if (!text.empty()) add(TokenKind::data, text);
    advance(tag - at_);
    if (kind == '%' && read_raw()) return;
    advance(sign == ' ' ? 2 : 3);
    if (kind == '#') return skip_comment();
    add(kind == '{' ? TokenKind::variable_begin : TokenKind::block_begin, "");
    read_tag(kind == '{');
  }

  // The text before a tag, without what the tag's sign or lstrip_blocks takes away.
  std::string_view left_stripped(std::string_view text, char kind, char sign) const {
    if (sign == '-') return stripped(text, false, true);
    if (sign == '+' || kind == '{') return text;
    const size_t line = text.rfind('\n') + 1;  // 0 without a line break
    if (line == 0 && !line_starts_ && at_ > 0) return text;
    const std::string_view last = text.substr(line);
    return !last.empty() && stripped(last, true, false).empty() ? text.substr(0, line) : text;
  }

  void skip_comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail("Missing end of comment tag");
    const char sign = end > at_ ? source_[end - 1] : ' ';
    advance(end + 2 - at_);
    after_tag(sign);
  }

  // White space behind "#}" or "%}".
  void after_tag(char sign) {
    if (sign == '-') {
      skip_space();
    } else if (sign != '+' && at_ < source_.size() && source_[at_] == '\n') {
      advance(1);
    }
  }

  // "{%", sign, `word`, "%}" at `position`: where it ends, and the sign in front of "%}"; npos when it is not there.
  size_t match_word_tag(size_t position, std::string_view word, char& sign_behind) const {
    const auto skip = [&](size_t from) {
      while (from < source_.size() && is_space(static_cast<unsigned char>(source_[from]))) ++from;
      return from;
    };
    size_t k = position + 2;
    if (k < source_.size() && (source_[k] == '-' || source_[k] == '+')) ++k;
    k = skip(k);
    if (source_.compare(k, word.size(), word) != 0) return std::string::npos;
    k = skip(k + word.size());
    sign_behind = ' ';
    if (k < source_.size() && (source_[k] == '-' || source_[k] == '+')) sign_behind = source_[k++];
    return source_.compare(k, 2, "%}") == 0 ? k + 2 : std::string::npos;
  }

  bool read_raw() {
    char sign = ' ';
    const size_t begin = match_word_tag(at_, "raw", sign);
    if (begin == std::string::npos || sign == '+') return false;
    advance(begin - at_);
    if (sign == '-') skip_space();
    for (size_t end = source_.find("{%", at_); end != std::string::npos; end = source_.find("{%", end + 1)) {
      const size_t behind = match_word_tag(end, "endraw", sign);
      if (behind == std::string::npos) continue;
      const char front = source_[end + 2] == '-' || source_[end + 2] == '+' ? source_[end + 2] : ' ';
      const std::string_view text = left_stripped(std::string_view(source_).substr(at_, end - at_), '%', front);
      if (!text.empty()) add(TokenKind::data, text);
      advance(behind - at_);
      after_tag(sign);
      return true;
    }
    fail("Missing end of raw directive");
  }

  // Tokens up to the end of the tag.
  void read_tag(bool variable) {
    std::string open;  // the brackets that wait for their end
    while (at_ < source_.size()) {
      if (open.empty() && read_tag_end(variable)) return;
      const char32_t c = utf8_at(source_, at_);
      if (is_space(c)) {
        skip_space();
      } else if (c == '\'' || c == '"') {
        read_string(static_cast<char>(c));
      } else if (c < 0x80 && is_decimal_digit(static_cast<char>(c))) {
        read_number();
      } else if (starts_identifier(c) || continues_identifier(c)) {
        read_name();
      } else {
        read_symbol(open);
      }
    }
  }

  bool read_tag_end(bool variable) {
    const std::string_view left = rest();
    const char sign = left[0] == '-' || (left[0] == '+' && !variable) ? left[0] : ' ';
    if (left.substr(sign == ' ' ? 0 : 1, 2) != (variable ? "}}" : "%}")) return false;
    add(variable ? TokenKind::variable_end : TokenKind::block_end, "");
    advance(sign == ' ' ? 2 : 3);
    if (!variable) {
      after_tag(sign);
    } else if (sign == '-') {
      skip_space();
    }
    return true;
  }

  void read_name() {
    size_t end = at_;
    while (end < source_.size() && continues_identifier(utf8_at(source_, end))) end += utf8_length(source_[end]);
    if (end == at_) end += utf8_length(source_[at_]);
    if (!starts_identifier(utf8_at(source_, at_))) fail("Invalid character in identifier");
    add(TokenKind::name, std::string_view(source_).substr(at_, end - at_));
    advance(end - at_);
  }

  void read_symbol(std::string& open) {
    const std::string_view symbol =
        *std::find_if(kSymbols.begin(), kSymbols.end(), [&](std::string_view s) { return rest().starts_with(s); });
    if (symbol.empty()) fail("unexpected char " + std::string(rest().substr(0, utf8_length(source_[at_]))));
    if (symbol == "(" || symbol == "[" || symbol == "{") {
      open += symbol == "(" ? ')' : symbol == "[" ? ']' : '}';
    } else if (symbol == ")" || symbol == "]" || symbol == "}") {
      if (open.empty() || open.back() != symbol[0]) fail("unexpected '" + std::string(symbol) + "'");
      open.pop_back();
    }
    add(TokenKind::symbol, symbol);
    advance(symbol.size());
  }

  // Digits with single underscores between them from `position` on; where they end.
  template <typename IsDigit>
  size_t skip_digits(size_t position, IsDigit is_digit_of_base) const {
    while (position < source_.size() &&
           (is_digit_of_base(source_[position]) ||
            (source_[position] == '_' && position + 1 < source_.size() && is_digit_of_base(source_[position + 1]))))
      ++position;
    return position;
  }

  void read_number() {
    const auto digit = [](char c) { return is_decimal_digit(c); };
    const auto at = [&](size_t k) { return k < source_.size() ? source_[k] : '\0'; };
    size_t end = skip_digits(at_, digit);
    bool whole = true;
    if (!(at_ > 0 && source_[at_ - 1] == '.')) {  // x.0.1 is no float
      if (at(end) == '.' && is_decimal_digit(at(end + 1))) {
        end = skip_digits(end + 1, digit);
        whole = false;
      }
      if (at(end) == 'e' || at(end) == 'E') {
        const size_t power = end + (at(end + 1) == '+' || at(end + 1) == '-' ? 2 : 1);
        if (is_decimal_digit(at(power))) {
          end = skip_digits(power, digit);
          whole = false;
        }
      }
    }
    Value number;
    if (whole) {
      end = read_integer(number);
    } else {
      number = Value::floating(std::strtod(plain_digits(at_, end).c_str(), nullptr));
    }
    add(TokenKind::number, std::string_view(source_).substr(at_, end - at_));
    tokens_.back().number = std::move(number);
    advance(end - at_);
  }

  size_t read_integer(Value& number) const {
    const char letter = at_ + 1 < source_.size() ? static_cast<char>(source_[at_ + 1] | 0x20) : '\0';
    const unsigned base = source_[at_] != '0' ? 10 : letter == 'b' ? 2 : letter == 'o' ? 8 : letter == 'x' ? 16 : 10;
    const auto of_base = [base](char c) { return Integer::parse({&c, 1}, base).has_value(); };
    size_t begin = base == 10 ? at_ : at_ + 2;
    size_t end = skip_digits(begin, of_base);
    if (base != 10 && end == begin) {  // "0x" without digits: a zero and a name
      begin = at_;
      end = at_ + 1;
    } else if (base == 10 && source_[at_] == '0') {
      end = skip_digits(at_, [](char c) { return c == '0'; });
    }
    const std::optional<Integer> value = Integer::parse(plain_digits(begin, end), base);
    if (!value) fail("a number is too large");
    number = Value::integer(*value);
    return end;
  }

  std::string plain_digits(size_t begin, size_t end) const {
    std::string digits = source_.substr(begin, end - begin);
    std::erase(digits, '_');
    return digits;
  }

  void read_string(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail("unexpected char " + std::string(1, quote));
    add(TokenKind::text, "");
    tokens_.back().text = unescaped(std::string_view(source_).substr(at_ + 1, end - at_ - 1));
    advance(end + 1 - at_);
  }

  std::string unescaped(std::string_view raw) const {
    std::string text;
    for (size_t k = 0; k < raw.size();) {
      if (raw[k] != '\\') {
        text += raw[k++];
      } else {
        k = unescape_one(raw, k + 1, text);
      }
    }
    return text;
  }

  // The escape whose letter stands at k; where it ends.
  size_t unescape_one(std::string_view raw, size_t k, std::string& text) const {
    constexpr std::string_view kLetters = "\\'\"abfnrtv", kCharacters = "\\'\"\a\b\f\n\r\t\v";
    const char c = raw[k];
    if (c == '\n') return k + 1;
    if (const size_t known = kLetters.find(c); known != std::string_view::npos) {
      text += kCharacters[known];
      return k + 1;
    }
    if (c >= '0' && c <= '7') {
      char32_t value = 0;
      size_t end = k;
      while (end < raw.size() && end < k + 3 && raw[end] >= '0' && raw[end] <= '7')
        value = value * 8 + static_cast<char32_t>(raw[end++] - '0');
      append_utf8(text, value);
      return end;
    }
    if (c == 'x' || c == 'u' || c == 'U') {
      const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      const std::optional<Integer> value = Integer::parse(raw.substr(k + 1, digits), 16);
      if (raw.size() < k + 1 + digits || !value) fail("truncated \\" + std::string(1, c) + " escape");
      const int64_t code = value->small().value_or(-1);
      if (code > 0x10FFFF || code < 0 || (code >= 0xD800 && code < 0xE000)) fail("illegal Unicode character");
      append_utf8(text, static_cast<char32_t>(code));
      return k + 1 + digits;
    }
    if (c == 'N') {
      const size_t close = raw.find('}', k);
      if (raw.substr(k + 1, 1) != "{" || close == std::string_view::npos) fail("malformed \\N character escape");
      UErrorCode status = U_ZERO_ERROR;
      const UChar32 code =
          u_charFromName(U_EXTENDED_CHAR_NAME, std::string(raw.substr(k + 2, close - k - 2)).c_str(), &status);
      if (U_FAILURE(status)) fail("unknown Unicode character name");
      append_utf8(text, static_cast<char32_t>(code));
      return close + 1;
    }
    text += '\\';
    if (static_cast<unsigned char>(c) < 0x80) {
      text += c;
      return k + 1;
    }
    // Python escapes what is not ASCII before it reads escapes: "\é" is the text "\xe9".
    const char32_t point = utf8_at(raw, k);
    text += formatted(point < 0x100 ? "x%02x" : point < 0x10000 ? "u%04x" : "U%08x", static_cast<unsigned>(point));
    return k + utf8_length(c);
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace nibble::jinja
