#include "nibble/core/text/chat/jinja/values/split_lines.h"

#include <algorithm>
#include <cstring>

#include "nibble/core/text/chat/jinja/values/unicode_text.h"

namespace nibble::jinja {

size_t find_text(std::string_view text, std::string_view wanted, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const void* found = memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
  return found ? static_cast<size_t>(static_cast<const char*>(found) - text.data()) : std::string_view::npos;
}

size_t find_last_text(std::string_view text, std::string_view wanted) {
  constexpr size_t kShort = 32;
  if (wanted.size() <= kShort || wanted.size() > text.size()) return text.rfind(wanted);
  const std::string turned_text(text.rbegin(), text.rend()), turned(wanted.rbegin(), wanted.rend());
  const size_t at = find_text(turned_text, turned);
  return at == std::string_view::npos ? at : text.size() - at - wanted.size();
}

std::vector<std::string_view> split_left(std::string_view text, std::string_view separator, int64_t limit) {
  std::vector<std::string_view> pieces;
  while (limit < 0 || static_cast<int64_t>(pieces.size()) < limit) {
    const size_t at = find_text(text, separator);
    if (at == std::string_view::npos) break;
    pieces.push_back(text.substr(0, at));
    text.remove_prefix(at + separator.size());
  }
  pieces.push_back(text);
  return pieces;
}

std::vector<std::string_view> split_right(std::string_view text, std::string_view separator, int64_t limit) {
  std::vector<std::string_view> pieces;
  while (limit < 0 || static_cast<int64_t>(pieces.size()) < limit) {
    const size_t at = find_last_text(text, separator);
    if (at == std::string_view::npos) break;
    pieces.push_back(text.substr(at + separator.size()));
    text = text.substr(0, at);
  }
  pieces.push_back(text);
  std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

std::vector<std::string_view> split_words(std::string_view text, int64_t limit) {
  std::vector<std::string_view> pieces;
  text = stripped(text, true, false);
  while (!text.empty()) {
    size_t end = 0;
    while (end < text.size() && !is_space(utf8_at(text, end))) end += utf8_length(text[end]);
    if (limit >= 0 && static_cast<int64_t>(pieces.size()) >= limit) end = stripped(text, false, true).size();
    pieces.push_back(text.substr(0, end));
    text = stripped(text.substr(end), true, false);
  }
  return pieces;
}

std::vector<std::string_view> split_words_right(std::string_view text, int64_t limit) {
  std::vector<std::string_view> pieces;
  text = stripped(text, false, true);
  while (!text.empty()) {
    size_t begin = text.size();
    for (size_t k = text.size(); k-- > 0;) {
      if ((static_cast<unsigned char>(text[k]) & 0xC0) == 0x80) continue;
      if (is_space(utf8_at(text, k))) break;
      begin = k;
    }
    if (limit >= 0 && static_cast<int64_t>(pieces.size()) >= limit)
      begin = text.size() - stripped(text, true, false).size();
    pieces.push_back(text.substr(begin));
    text = stripped(text.substr(0, begin), false, true);
  }
  std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin;
    while (end < text.size() && !is_line_break(utf8_at(text, end))) end += utf8_length(text[end]);
    size_t next = end;
    if (end < text.size()) next += text.substr(end, 2) == "\r\n" ? 2 : utf8_length(text[end]);
    lines.push_back(text.substr(begin, (keep_ends ? next : end) - begin));
    begin = next;
  }
  return lines;
}

std::string replace_all(std::string_view text, std::string_view old, std::string_view with, int64_t limit,
                        Budget& budget) {
  std::string result;
  const auto left = [&] { return limit < 0 || limit-- > 0; };
  if (old.empty()) {  // between all characters
    size_t position = 0;
    while (left()) {
      budget.grow(result, with.size());
      result += with;
      if (position >= text.size()) return result;
      const size_t length = utf8_length(text[position]);
      result += text.substr(position, length);
      position += length;
    }
    return result.append(text.substr(position));
  }
  size_t position = 0;
  for (size_t at = find_text(text, old); at != std::string_view::npos && left(); at = find_text(text, old, position)) {
    budget.grow(result, with.size());
    result.append(text.substr(position, at - position)).append(with);
    position = at + old.size();
  }
  return result.append(text.substr(position));
}

bool is_in_case(std::string_view text, bool lower) {
  bool found = false;
  for (const char32_t c : code_points(text)) {
    if (lower ? is_upper(c) || is_titlecase(c) : is_lower(c) || is_titlecase(c)) return false;
    found |= lower ? is_lower(c) : is_upper(c);
  }
  return found;
}

}  // namespace nibble::jinja
