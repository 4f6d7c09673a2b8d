#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>

#include "nibble/core/base/error.h"
#include "nibble/core/text/matching/onig_bytes.h"
#include "nibble/core/text/matching/pattern.h"
#include "nibble/core/text/unicode/newer_characters.h"
#include "nibble/core/text/unicode/utf8.h"

namespace nibble {

namespace {

// A match may backtrack as often as Oniguruma allows by default, a search (a match tried at each place) ten times that,
// and all searches of a text together may take the time of 10 s + 10 us a byte, some fifty times what real tokenizers
// need.
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
constexpr unsigned long kRetriesInMatch = 1'000, kRetriesInSearch = 10'000;
#else
constexpr unsigned long kRetriesInMatch = 10'000'000, kRetriesInSearch = 100'000'000;
#endif
constexpr std::chrono::seconds kTextTime{10};
constexpr std::chrono::microseconds kByteTime{10};

std::string onig_message(int code, OnigErrorInfo* info = nullptr) {
  OnigUChar buffer[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int length =
      info != nullptr ? onig_error_code_to_str(buffer, code, info) : onig_error_code_to_str(buffer, code);
  return {reinterpret_cast<const char*>(buffer), static_cast<size_t>(length)};
}

bool inside_character(std::string_view text, size_t position) {
  return position < text.size() && (static_cast<unsigned char>(text[position]) & 0xC0) == 0x80;
}

// Since Oniguruma 6.9.9 (tokenizers has a newer one) [:punct:] has symbols too: they are written out for older ones.
std::string with_symbols_in_punct(const std::string& expression) {
  constexpr std::string_view kPunct = "[:punct:]", kNoPunct = "[:^punct:]";
  std::string result;
  int depth = 0;  // of brackets
  for (size_t at = 0; at < expression.size();) {
    const std::string_view rest = std::string_view(expression).substr(at);
    size_t taken = 1;
    if (rest[0] == '\\') {
      taken = std::min<size_t>(2, rest.size());
    } else if (depth > 0 && rest.starts_with(kPunct)) {
      result += "\\p{P}\\p{S}";
      at += kPunct.size();
      continue;
    } else if (depth > 0 && rest.starts_with(kNoPunct)) {
      result += "[^\\p{P}\\p{S}]";
      at += kNoPunct.size();
      continue;
    } else if (depth > 0 && rest.starts_with("[:") && rest.find(":]") != std::string_view::npos) {
      taken = rest.find(":]") + 2;
    } else if (rest[0] == '[') {
      ++depth;
      if (rest.starts_with("[^")) ++taken;
      if (rest.substr(taken).starts_with(']')) ++taken;  // stands for itself at the beginning
    } else if (rest[0] == ']' && depth > 0) {
      --depth;
    }
    result += rest.substr(0, taken);
    at += taken;
  }
  return result;
}

struct RegionDeleter {
  void operator()(OnigRegion* region) const { onig_region_free(region, 1); }
};
struct ParamDeleter {
  void operator()(OnigMatchParam* param) const { onig_free_match_param(param); }
};
struct RegexDeleter {
  void operator()(regex_t* regex) const { onig_free(regex); }
};

class RegularExpression {
 public:
  RegularExpression(const std::string& expression, const std::string& place) : place_(place) {
    static std::once_flag once;
    std::call_once(once, [] {
      OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
      onig_initialize(encodings, 1);
    });
    require_utf8(expression, place);
    regex_t* regex = nullptr;
    OnigErrorInfo info;
    const std::string written = with_symbols_in_punct(expression);
    const char* text = written.data();
    const int code = onig_new(&regex, onig_bytes(text), onig_bytes(text + written.size()), ONIG_OPTION_NONE,
                              ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT, &info);
    if (code != ONIG_NORMAL)
      throw InputError(place, "is no regular expression that Oniguruma takes: " + onig_message(code, &info));
    regex_.reset(regex);
  }

  void find_all(std::string_view text, std::vector<PatternMatch>& matches) const {
    const std::unique_ptr<OnigRegion, RegionDeleter> region(onig_region_new());
    const std::unique_ptr<OnigMatchParam, ParamDeleter> limits(onig_new_match_param());
    onig_initialize_match_param(limits.get());
    onig_set_retry_limit_in_match_of_match_param(limits.get(), kRetriesInMatch);
    onig_set_retry_limit_in_search_of_match_param(limits.get(), kRetriesInSearch);
    const auto deadline = std::chrono::steady_clock::now() + kTextTime + kByteTime * static_cast<int64_t>(text.size());

    std::string buffer;
    const std::string_view searched = with_stand_ins(text, buffer);
    const OnigUChar* begin = onig_bytes(searched.data());
    const OnigUChar* end = onig_bytes(searched.data() + searched.size());
    size_t from = 0;
    bool after_match = false;
    for (size_t searches = 0; from <= text.size(); ++searches) {
      const int found = onig_search_with_param(regex_.get(), begin, end, begin + from, end, region.get(),
                                               ONIG_OPTION_NONE, limits.get());
      if (found == ONIG_MISMATCH) break;
      if (found < 0)
        throw InputError(place_, "gives up on a text: " + onig_message(found), "the expression backtracks too much");
      if (searches % 256 == 0 && std::chrono::steady_clock::now() > deadline)
        throw InputError(place_, "takes too long on a text", "the expression backtracks too much");
      const auto first = static_cast<size_t>(region->beg[0]), last = static_cast<size_t>(region->end[0]);
      if (inside_character(text, first) || inside_character(text, last))
        throw InputError(place_, "matches inside of a character");
      // An empty match right behind the last match is none; the search goes on one character later.
      if (first == last) {
        if (!(after_match && matches.back().end == last)) matches.push_back({first, last});
        after_match = true;
        from = last < text.size() ? last + utf8_length(text[last]) : text.size() + 1;
        continue;
      }
      matches.push_back({first, last});
      after_match = true;
      from = last;
    }
  }

 private:
  std::string place_;
  std::unique_ptr<regex_t, RegexDeleter> regex_;
};

}  // namespace

Pattern regular_expression(const std::string& expression, const std::string& place) {
  return [regex = std::make_shared<const RegularExpression>(expression, place)](
             std::string_view text, std::vector<PatternMatch>& matches) { regex->find_all(text, matches); };
}

}  // namespace nibble
