#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

/// The candidate with the smallest edit distance to `word` (insert, delete, replace, swap of neighbours), or "" when
/// none is near enough to be what was meant (more than a third of the letters differ, and more than two).
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace nibble
