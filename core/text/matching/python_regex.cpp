#include "nibble/core/text/matching/python_regex.h"

#include <mutex>

#include "nibble/core/base/error.h"
#include "nibble/core/text/matching/onig_bytes.h"

namespace nibble {

namespace {

#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
constexpr unsigned long kMostRetries = 1'000;
#else
constexpr unsigned long kMostRetries = 1'000'000;  // a sane pattern on a module path needs a few hundred
#endif

struct Region {
  OnigRegion* value = onig_region_new();
  ~Region() { onig_region_free(value, 1); }

  std::optional<std::string> first_group(std::string_view text) const {
    if (value->num_regs < 2 || value->beg[1] < 0) return std::nullopt;
    const auto begin = static_cast<size_t>(value->beg[1]);
    return std::string(text.substr(begin, static_cast<size_t>(value->end[1]) - begin));
  }
};

}  // namespace

struct PythonRegex::Compiled {
  std::string pattern;
  regex_t* regex = nullptr;
  regex_t* whole = nullptr;  // the pattern and then the end, so that alternatives are tried until one fills the text
  ~Compiled() {
    if (regex) onig_free(regex);
    if (whole) onig_free(whole);
  }

  regex_t* compile(const std::string& text) const {
    regex_t* result = nullptr;
    OnigErrorInfo info;
    const OnigUChar* begin = onig_bytes(text.data());
    // Python counts plain groups even beside named ones
    const int status = onig_new(&result, begin, begin + text.size(), ONIG_OPTION_CAPTURE_GROUP, ONIG_ENCODING_UTF8,
                                ONIG_SYNTAX_PYTHON, &info);
    if (status == ONIG_NORMAL) return result;
    OnigUChar message[ONIG_MAX_ERROR_MESSAGE_LEN];
    const int length = onig_error_code_to_str(message, status, &info);
    throw UsageError("\"" + pattern + "\" is no regular expression: " +
                         std::string(reinterpret_cast<const char*>(message), static_cast<size_t>(length)),
                     "correct it");
  }

  /// Length of the match at the start of text, or -1; with `within` where the first one from byte `from` on begins.
  int match(regex_t* compiled, std::string_view text, OnigRegion* region, bool within = false, size_t from = 0) const {
    OnigMatchParam* limits = onig_new_match_param();
    onig_initialize_match_param(limits);
    onig_set_retry_limit_in_match_of_match_param(limits, kMostRetries);
    onig_set_retry_limit_in_search_of_match_param(limits, kMostRetries);
    const OnigUChar* begin = onig_bytes(text.data());
    const OnigUChar* end = begin + text.size();
    const int found =
        within ? onig_search_with_param(compiled, begin, end, begin + from, end, region, ONIG_OPTION_NONE, limits)
               : onig_match_with_param(compiled, begin, end, begin, region, ONIG_OPTION_NONE, limits);
    onig_free_match_param(limits);
    if (found < 0 && found != ONIG_MISMATCH) {
      const bool name = text.size() < 200 && text.find('\n') == text.npos;
      throw UsageError(
          "the pattern \"" + pattern + "\" takes too long on " +
              (name ? "\"" + std::string(text) + "\"" : "a text of " + std::to_string(text.size()) + " bytes"),
          "write it without nested repetitions");
    }
    return found;
  }
};

PythonRegex::PythonRegex(const std::string& pattern) {
  static std::once_flag initialized;
  std::call_once(initialized, [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
  });
  auto result = std::make_shared<Compiled>();
  result->pattern = pattern;
  result->regex = result->compile(pattern);
  result->whole = result->compile("(?:" + pattern + ")\\Z");
  compiled_ = result;
}

bool PythonRegex::matches_whole(std::string_view text) const {
  return compiled_->match(compiled_->whole, text, nullptr) == static_cast<int>(text.size());
}

bool PythonRegex::matches_start(std::string_view text) const {
  return compiled_->match(compiled_->regex, text, nullptr) >= 0;
}

bool PythonRegex::matches_within(std::string_view text) const {
  return compiled_->match(compiled_->regex, text, nullptr, true) >= 0;
}

std::optional<std::string> PythonRegex::first_group(std::string_view text) const {
  Region region;
  if (compiled_->match(compiled_->regex, text, region.value) < 0) return std::nullopt;
  return region.first_group(text);
}

std::optional<std::string> PythonRegex::first_group_of_last(std::string_view text) const {
  Region region;
  std::optional<std::string> found;
  for (size_t from = 0; from <= text.size();) {
    if (compiled_->match(compiled_->regex, text, region.value, true, from) < 0) break;
    found = region.first_group(text);
    const auto begin = static_cast<size_t>(region.value->beg[0]), end = static_cast<size_t>(region.value->end[0]);
    from = end;
    if (end > begin) continue;
    do {  // past one character, whose other bytes begin none
      ++from;
    } while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xc0) == 0x80);
  }
  return found;
}

}  // namespace nibble
