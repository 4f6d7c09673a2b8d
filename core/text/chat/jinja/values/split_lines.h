#pragma once
// Finding, splitting and replacing as Python's str does. For .cpp files of jinja/.

#include <string>
#include <string_view>
#include <vector>

#include "nibble/core/text/chat/jinja/budget.h"

namespace nibble::jinja {

/// The first place of `wanted` at or behind `from`, and the last of all; npos where there is none. Linear in the text
/// whatever is wanted, where std::string::find may take their product.
size_t find_text(std::string_view text, std::string_view wanted, size_t from = 0);
size_t find_last_text(std::string_view text, std::string_view wanted);

/// At most `limit` cuts, all of them where it is negative.
std::vector<std::string_view> split_left(std::string_view text, std::string_view separator, int64_t limit);
std::vector<std::string_view> split_right(std::string_view text, std::string_view separator, int64_t limit);
/// At runs of white space, without empty pieces.
std::vector<std::string_view> split_words(std::string_view text, int64_t limit);
std::vector<std::string_view> split_words_right(std::string_view text, int64_t limit);
/// str.splitlines().
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);

/// str.replace(); all where `limit` is negative.
std::string replace_all(std::string_view text, std::string_view old, std::string_view with, int64_t limit,
                        Budget& budget);

/// islower or isupper.
bool is_in_case(std::string_view text, bool lower);

}  // namespace nibble::jinja
