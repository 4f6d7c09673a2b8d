#include "nibble/core/text/tokenizers/json/token_decoder.h"

#include <algorithm>
#include <utility>

#include "nibble/core/text/matching/pattern.h"
#include "nibble/core/text/tokenizers/json/normalizers.h"
#include "nibble/core/text/tokenizers/models/byte_level.h"
#include "nibble/core/text/unicode/utf8.h"

namespace nibble {

namespace {

void replace_all(std::string& text, std::string_view what, std::string_view with) {
  if (what.empty()) return;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size()))
    text.replace(at, what.size(), with);
}

using Tokens = std::vector<std::string>;

void bytes_as_text(Tokens& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) bytes += bytes_of_byte_level(token).value_or(token);
  tokens.assign(1, replace_invalid_utf8(bytes));
}

int digit(char c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'a' && c <= 'f' ? c - 'a' + 10
         : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                : -1;
}

int byte_of(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const int low = digit(token[4]);
  const int high = token[3] == '+' ? 0 : digit(token[3]);  // Rust's number parser takes a sign
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

// "<0x0A>" spells a byte; runs of them that are no UTF-8 become U+FFFD, one a byte.
void join_bytes(Tokens& tokens) {
  Tokens result;
  std::string run;
  const auto flush = [&] {
    if (first_invalid_utf8(run) == run.size()) {
      if (!run.empty()) result.push_back(run);
    } else {
      result.insert(result.end(), run.size(), "\xEF\xBF\xBD");
    }
    run.clear();
  };
  for (std::string& token : tokens) {
    const int byte = byte_of(token);
    if (byte >= 0) {
      run.push_back(static_cast<char>(static_cast<unsigned char>(byte)));
      continue;
    }
    flush();
    result.push_back(std::move(token));
  }
  flush();
  tokens = std::move(result);
}

void fuse(Tokens& tokens) {
  std::string whole;
  for (const std::string& token : tokens) whole += token;
  tokens.assign(1, whole);
}

/// change(token, its number)
TokenDecoder each_token(auto change) {
  return [change = std::move(change)](Tokens& tokens) {
    for (size_t k = 0; k < tokens.size(); ++k) change(tokens[k], k);
  };
}

// Takes up to `start` and `stop` times `content`, one character, from the ends of each token.
TokenDecoder strip(const std::string& content, int64_t start, int64_t stop) {
  return each_token([=](std::string& token, size_t) {
    for (int64_t k = 0; k < start && token.starts_with(content); ++k) token.erase(0, content.size());
    for (int64_t k = 0; k < stop && token.ends_with(content); ++k) token.resize(token.size() - content.size());
  });
}

TokenDecoder replacing(const Pattern& pattern, const std::string& content) {
  return each_token([=](std::string& token, size_t) {
    std::vector<PatternMatch> matches;
    pattern(token, matches);
    for (size_t k = matches.size(); k-- > 0;)
      token.replace(matches[k].begin, matches[k].end - matches[k].begin, content);
  });
}

TokenDecoder metaspace(const std::string& replacement, bool prepends) {
  return each_token(
      [=](std::string& token, size_t k) { replace_all(token, replacement, k == 0 && prepends ? "" : " "); });
}

// BERT's way back to blanks as people write them.
void clean_up(std::string& token) {
  constexpr std::pair<std::string_view, std::string_view> kCleanups[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [what, with] : kCleanups) replace_all(token, what, with);
}

TokenDecoder word_piece(const std::string& prefix, bool cleans_up) {
  return each_token([=](std::string& token, size_t k) {
    if (k > 0 && token.starts_with(prefix)) {
      token.erase(0, prefix.size());
    } else if (k > 0) {
      token.insert(0, " ");
    }
    if (cleans_up) clean_up(token);
  });
}

// Output of a CTC head: repeated tokens count once, the padding token says nothing.
TokenDecoder ctc(const std::string& pad, const std::string& delimiter, bool cleans_up) {
  return [=](Tokens& tokens) {
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    for (std::string& token : tokens) {
      replace_all(token, pad, "");
      if (!cleans_up) continue;
      clean_up(token);
      replace_all(token, delimiter, " ");
    }
    std::erase(tokens, "");
  };
}

TokenDecoder bpe_suffix(const std::string& suffix) {
  return [=](Tokens& tokens) {
    for (size_t k = 0; k < tokens.size(); ++k) replace_all(tokens[k], suffix, k + 1 < tokens.size() ? " " : "");
  };
}

void add_decoder(const JsonFields& from, TokenDecoders& steps) {
  const std::string type = from.string("type");
  if (type == "Sequence") {
    const JsonFields list = from.at("decoders");
    for (size_t k = 0; k < list.size(); ++k) add_decoder(list.item(k), steps);
  } else if (type == "ByteLevel") {
    steps.emplace_back(bytes_as_text);
  } else if (type == "ByteFallback") {
    steps.emplace_back(join_bytes);
  } else if (type == "Fuse") {
    steps.emplace_back(fuse);
  } else if (type == "Strip") {
    const std::string content = from.string("content");
    if (content.empty() || utf8_length(content[0]) != content.size()) from.at("content").fail("is not one character");
    steps.push_back(strip(content, from.integer_or("start", 0), from.integer_or("stop", 0)));
  } else if (type == "Replace") {
    steps.push_back(replacing(read_pattern(from.at("pattern")), from.string("content")));
  } else if (type == "Metaspace") {
    const bool prepends = from.has("prepend_scheme") ? from.string("prepend_scheme") != "never"
                                                     : from.boolean_or("add_prefix_space", true);
    steps.push_back(metaspace(from.string_or("replacement", "\xE2\x96\x81"), prepends));
  } else if (type == "WordPiece") {
    steps.push_back(word_piece(from.string_or("prefix", "##"), from.boolean_or("cleanup", true)));
  } else if (type == "CTC") {
    steps.push_back(ctc(from.string_or("pad_token", "<pad>"), from.string_or("word_delimiter_token", "|"),
                        from.boolean_or("cleanup", true)));
  } else if (type == "BPEDecoder") {
    steps.push_back(bpe_suffix(from.string_or("suffix", "</w>")));
  } else {
    from.fail("the decoder '" + type + "' is not known");
  }
}

}  // namespace

TokenDecoders read_token_decoders(const JsonFields& description) {
  TokenDecoders steps;
  if (!description.value().is_null()) add_decoder(description, steps);
  return steps;
}

}  // namespace nibble
