#include "nibble/core/text/chat/jinja/filters/wrap_text.h"

#include <array>

#include "nibble/core/text/chat/jinja/failure.h"
#include "nibble/core/text/chat/jinja/values/integer.h"
#include "nibble/core/text/chat/jinja/values/split_lines.h"
#include "nibble/core/text/chat/jinja/values/unicode_text.h"

namespace nibble::jinja {

namespace {

bool is_blank(char32_t c) { return c == ' ' || (c >= 0x09 && c <= 0x0D); }
bool is_word(char32_t c) { return c == '_' || is_alphabetic(c) || is_numeric_character(c); }

// textwrap's chunks: words, and runs of blanks; with `hyphens` words are cut after hyphens between letters, and dashes
// ("--") stand alone.
std::vector<std::u32string> chunks_of(const std::u32string& text, bool hyphens) {
  std::vector<std::u32string> chunks;
  const auto letter = [&](size_t k) { return k < text.size() && is_word(text[k]) && !is_numeric_character(text[k]); };
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin + 1;
    if (is_blank(text[begin])) {
      while (end < text.size() && is_blank(text[end])) ++end;
    } else {
      while (end < text.size() && !is_blank(text[end])) {
        const bool after_hyphen = hyphens && text[end - 1] == '-' && end >= begin + 3 && letter(end - 2) &&
                                  letter(end - 3) && letter(end) && letter(end + 1);
        if (after_hyphen) break;
        ++end;
      }
    }
    chunks.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return chunks;
}

}  // namespace

std::vector<std::string> wrap_text(std::string_view line, int64_t width, bool break_long_words, bool break_on_hyphens) {
  if (width <= 0) throw Failure("invalid width " + std::to_string(width) + " (must be > 0)");
  std::vector<std::u32string> chunks = chunks_of(code_points(line), break_on_hyphens);
  std::vector<std::string> lines;
  const auto limit = static_cast<size_t>(width);
  for (size_t k = 0; k < chunks.size();) {
    if (!lines.empty() && is_blank(chunks[k][0])) ++k;  // blanks at the start of a line go, but not of the text
    std::vector<std::u32string> current;
    size_t size = 0;
    for (; k < chunks.size() && size + chunks[k].size() <= limit; ++k) {
      size += chunks[k].size();
      current.push_back(chunks[k]);
    }
    if (k < chunks.size() && chunks[k].size() > limit) {
      if (break_long_words) {
        const size_t room = limit - size;
        size_t end = room;
        if (break_on_hyphens && chunks[k].size() > room) {
          const size_t hyphen = room == 0 ? std::u32string::npos : chunks[k].rfind(U'-', room - 1);
          if (hyphen != std::u32string::npos && hyphen > 0 && chunks[k].find_first_not_of(U'-') < hyphen)
            end = hyphen + 1;
        }
        current.push_back(chunks[k].substr(0, end));  // may be empty, and counts as the line's last blank then
        chunks[k].erase(0, end);
      } else if (current.empty()) {
        current.push_back(chunks[k++]);
      }
    }
    if (!current.empty() && (current.back().empty() || is_blank(current.back()[0]))) current.pop_back();
    if (current.empty()) continue;
    std::string text;
    for (const std::u32string& chunk : current) text += to_utf8(chunk);
    lines.push_back(std::move(text));
  }
  return lines;
}

std::string strip_markup(std::string text) {
  for (const auto& [open, close] : {std::pair{"<!--", "-->"}, std::pair{"<", ">"}}) {
    std::string kept;
    size_t at = 0;
    for (size_t begin = text.find(open); begin != std::string::npos; begin = text.find(open, at)) {
      const size_t end = text.find(close, begin);
      if (end == std::string::npos) break;
      kept.append(text, at, begin - at);
      at = end + std::string_view(close).size();
    }
    text = kept.append(text, at);
  }
  std::string spaced;
  for (const std::string_view word : split_words(text, -1)) spaced.append(spaced.empty() ? "" : " ").append(word);
  constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kNames = {
      {{"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&apos;", "'"}, {"&nbsp;", "\u00A0"}, {"&amp;", "&"}}};
  std::string result;
  for (size_t k = 0; k < spaced.size();) {
    const std::string_view rest = std::string_view(spaced).substr(k);
    size_t length = 1;
    std::string with(1, spaced[k]);
    for (const auto& [name, character] : kNames) {
      if (!rest.starts_with(name)) continue;
      length = name.size();
      with = character;
    }
    const size_t end = rest.substr(0, 12).find(';');
    if (rest.starts_with("&#") && end != std::string_view::npos) {
      const bool hex = rest.size() > 2 && (rest[2] == 'x' || rest[2] == 'X');
      const std::optional<Integer> code = Integer::parse(rest.substr(hex ? 3 : 2, end - (hex ? 3 : 2)), hex ? 16 : 10);
      const int64_t point = code ? code->small().value_or(0) : 0;
      if (point > 0 && point <= 0x10FFFF && (point < 0xD800 || point >= 0xE000)) {
        with.clear();
        append_utf8(with, static_cast<char32_t>(point));
        length = end + 1;
      }
    }
    result += with;
    k += length;
  }
  return result;
}

}  // namespace nibble::jinja
