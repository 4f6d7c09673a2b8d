#pragma once
#include <set>
#include <span>
#include <sstream>
#include <string>

#include "nibble/core/text/matching/nearest.h"

namespace nibble {

/// The nearest (see there) of the parts between the dots of these paths, numbers left out.
inline std::string nearest_part(std::string_view word, std::span<const std::string> paths) {
  std::set<std::string> parts;
  for (const std::string& path : paths) {
    std::istringstream rest(path);
    for (std::string part; std::getline(rest, part, '.');) parts.insert(part);
  }
  std::erase_if(parts, [](const std::string& part) { return part.find_first_not_of("0123456789") == part.npos; });
  return nearest(word, {parts.begin(), parts.end()});
}

}  // namespace nibble
