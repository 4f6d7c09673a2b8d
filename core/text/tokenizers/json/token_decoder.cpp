#include "nibble/core/text/tokenizers/json/token_decoder.h"

#include <algorithm>
#include <array>

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

class ByteLevel final : public TokenDecoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::string bytes;
    for (const std::string& token : tokens) bytes += bytes_of_byte_level(token).value_or(token);
    tokens.assign(1, replace_invalid_utf8(bytes));
  }
};

// "<0x0A>" spells a byte; runs of them that are no UTF-8 become U+FFFD, one a byte.
class ByteFallback final : public TokenDecoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::vector<std::string> result;
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

 private:
  static int byte_of(const std::string& token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
    const int low = digit(token[4]);
    const int high = token[3] == '+' ? 0 : digit(token[3]);  // Rust's number parser takes a sign
    return high < 0 || low < 0 ? -1 : high * 16 + low;
  }
  static int digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  }
};

class Fuse final : public TokenDecoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::string whole;
    for (const std::string& token : tokens) whole += token;
    tokens.assign(1, std::move(whole));
  }
};

// Takes up to `start` and `stop` times `content`, one character, from the ends of each token.
class Strip final : public TokenDecoder {
 public:
  Strip(std::string content, int64_t start, int64_t stop) : content_(std::move(content)), start_(start), stop_(stop) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      for (int64_t k = 0; k < start_ && token.starts_with(content_); ++k) token.erase(0, content_.size());
      for (int64_t k = 0; k < stop_ && token.ends_with(content_); ++k) token.resize(token.size() - content_.size());
    }
  }

 private:
  std::string content_;
  int64_t start_, stop_;
};

class Replace final : public TokenDecoder {
 public:
  Replace(std::unique_ptr<Pattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(std::vector<std::string>& tokens) const override {
    std::vector<PatternMatch> matches;
    for (std::string& token : tokens) {
      matches.clear();
      pattern_->find_all(token, matches);
      for (size_t k = matches.size(); k-- > 0;)
        token.replace(matches[k].begin, matches[k].end - matches[k].begin, content_);
    }
  }

 private:
  std::unique_ptr<Pattern> pattern_;
  std::string content_;
};

class Metaspace final : public TokenDecoder {
 public:
  Metaspace(std::string replacement, bool prepends) : replacement_(std::move(replacement)), prepends_(prepends) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (size_t k = 0; k < tokens.size(); ++k) replace_all(tokens[k], replacement_, k == 0 && prepends_ ? "" : " ");
  }

 private:
  std::string replacement_;
  bool prepends_;
};

// BERT's way back to blanks as people write them.
constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kCleanups = {{{" .", "."},
                                                                                      {" ?", "?"},
                                                                                      {" !", "!"},
                                                                                      {" ,", ","},
                                                                                      {" ' ", "'"},
                                                                                      {" n't", "n't"},
                                                                                      {" 'm", "'m"},
                                                                                      {" do not", " don't"},
                                                                                      {" 's", "'s"},
                                                                                      {" 've", "'ve"},
                                                                                      {" 're", "'re"}}};

class WordPiece final : public TokenDecoder {
 public:
  WordPiece(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (size_t k = 0; k < tokens.size(); ++k) {
      std::string& token = tokens[k];
      if (k > 0 && token.starts_with(prefix_)) {
        token.erase(0, prefix_.size());
      } else if (k > 0) {
        token.insert(0, " ");
      }
      if (!cleanup_) continue;
      for (const auto& [what, with] : kCleanups) replace_all(token, what, with);
    }
  }

 private:
  std::string prefix_;
  bool cleanup_;
};

// Output of a CTC head: repeated tokens count once, the padding token says nothing.
class Ctc final : public TokenDecoder {
 public:
  Ctc(std::string pad, std::string delimiter, bool cleanup)
      : pad_(std::move(pad)), delimiter_(std::move(delimiter)), cleanup_(cleanup) {}
  void apply(std::vector<std::string>& tokens) const override {
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    for (std::string& token : tokens) {
      replace_all(token, pad_, "");
      if (!cleanup_) continue;
      for (const auto& [what, with] : kCleanups) replace_all(token, what, with);
      replace_all(token, delimiter_, " ");
    }
    std::erase(tokens, "");
  }

 private:
  std::string pad_, delimiter_;
  bool cleanup_;
};

class BpeSuffix final : public TokenDecoder {
 public:
  explicit BpeSuffix(std::string suffix) : suffix_(std::move(suffix)) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (size_t k = 0; k < tokens.size(); ++k) replace_all(tokens[k], suffix_, k + 1 < tokens.size() ? " " : "");
  }

 private:
  std::string suffix_;
};

void add_decoder(const JsonFields& from, TokenDecoders& steps) {
  const std::string type = from.string("type");
  if (type == "Sequence") {
    const JsonFields list = from.at("decoders");
    for (size_t k = 0; k < list.size(); ++k) add_decoder(list.item(k), steps);
  } else if (type == "ByteLevel") {
    steps.push_back(std::make_unique<ByteLevel>());
  } else if (type == "ByteFallback") {
    steps.push_back(std::make_unique<ByteFallback>());
  } else if (type == "Fuse") {
    steps.push_back(std::make_unique<Fuse>());
  } else if (type == "Strip") {
    std::string content = from.string("content");
    if (content.empty() || utf8_length(content[0]) != content.size()) from.at("content").fail("is not one character");
    steps.push_back(
        std::make_unique<Strip>(std::move(content), from.integer_or("start", 0), from.integer_or("stop", 0)));
  } else if (type == "Replace") {
    steps.push_back(std::make_unique<Replace>(read_pattern(from.at("pattern")), from.string("content")));
  } else if (type == "Metaspace") {
    const bool prepends = from.has("prepend_scheme") ? from.string("prepend_scheme") != "never"
                                                     : from.boolean_or("add_prefix_space", true);
    steps.push_back(std::make_unique<Metaspace>(from.string_or("replacement", "\xE2\x96\x81"), prepends));
  } else if (type == "WordPiece") {
    steps.push_back(std::make_unique<WordPiece>(from.string_or("prefix", "##"), from.boolean_or("cleanup", true)));
  } else if (type == "CTC") {
    steps.push_back(std::make_unique<Ctc>(from.string_or("pad_token", "<pad>"),
                                          from.string_or("word_delimiter_token", "|"),
                                          from.boolean_or("cleanup", true)));
  } else if (type == "BPEDecoder") {
    steps.push_back(std::make_unique<BpeSuffix>(from.string_or("suffix", "</w>")));
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
