#include "nibble/core/text/tokenizers/json/added_tokens.h"

#include <algorithm>

#include "nibble/core/text/unicode/characters.h"
#include "nibble/core/text/unicode/utf8.h"

namespace nibble {

namespace {

char32_t last_character(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return utf8_at(text, at);
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  return (begin == 0 || !is_word_character(last_character(text.substr(0, begin)))) &&
         (end == text.size() || !is_word_character(utf8_at(text, end)));
}

size_t before_white_space(std::string_view text, size_t begin, size_t limit) {
  while (begin > limit) {
    const char32_t c = last_character(text.substr(0, begin));
    if (!is_white_space(c)) break;
    --begin;
    while ((static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  }
  return begin;
}

size_t behind_white_space(std::string_view text, size_t end) {
  while (end < text.size() && is_white_space(utf8_at(text, end))) end += utf8_length(text[end]);
  return end;
}

}  // namespace

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens, const Vocabulary& vocabulary,
                         const Normalizers& normalizers) {
  for (const AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    if (token.special) special_.insert(token.content);
    std::optional<int32_t> id = id_of(token.content);
    if (!id) id = vocabulary.id_of(token.content);
    if (!id) id = std::max(end(), static_cast<int32_t>(vocabulary.size()));
    ids_[token.content] = *id;
    tokens_[*id] = token;
  }
  std::vector<std::pair<std::string, int32_t>> raw, normal;
  for (const bool special : {true, false}) {  // of equal texts a special token comes first
    for (const AddedToken& token : tokens) {
      if (token.content.empty() || special_.contains(token.content) != special) continue;
      const int32_t id = ids_.at(token.content);
      std::string spelling = token.normalized ? nibble::normalized(normalizers, token.content) : token.content;
      (token.normalized ? normal : raw).emplace_back(spelling, id);
      tokens_.at(id).spelling = std::move(spelling);
    }
  }
  raw_ = LiteralMatcher(std::move(raw));
  normalized_ = LiteralMatcher(std::move(normal));
}

const AddedToken* AddedTokens::find(int32_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : &found->second;
}

std::optional<int32_t> AddedTokens::id_of(std::string_view content) const {
  const auto found = ids_.find(content);
  return found == ids_.end() ? std::nullopt : std::optional<int32_t>(found->second);
}

void AddedTokens::split(const LiteralMatcher& matcher, SplitText& text) const {
  if (matcher.empty()) return;
  text.split([&](std::string_view piece, std::vector<TextPiece>& parts) {
    size_t done = 0;
    const auto add = [&](size_t begin, size_t end, int32_t token) {
      parts.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end), token});
    };
    for (const LiteralMatch& match : matcher.find_all(piece)) {
      const AddedToken& token = tokens_.at(match.id);
      if (token.single_word && !stands_alone(piece, match.begin, match.end)) continue;
      const size_t begin = token.lstrip ? std::max(done, before_white_space(piece, match.begin, done)) : match.begin;
      const size_t end = token.rstrip ? behind_white_space(piece, match.end) : match.end;
      if (begin >= end) continue;  // a token of white space that the one before took with it
      if (begin > done) add(done, begin, -1);
      add(begin, end, match.id);
      done = end;
    }
    if (done < piece.size()) add(done, piece.size(), -1);
  });
}

AddedToken read_added_token(const JsonFields& from) {
  AddedToken token;
  token.content = from.string("content");
  token.special = from.boolean_or("special", false);
  token.single_word = from.boolean_or("single_word", false);
  token.lstrip = from.boolean_or("lstrip", false);
  token.rstrip = from.boolean_or("rstrip", false);
  token.normalized = from.boolean_or("normalized", !token.special);
  return token;
}

std::vector<AddedToken> read_added_tokens(const JsonFields& list) {
  std::vector<AddedToken> tokens;
  for (size_t k = 0; k < list.size(); ++k) tokens.push_back(read_added_token(list.item(k)));
  return tokens;
}

}  // namespace nibble
