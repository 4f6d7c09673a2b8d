#pragma once
// YAML files of any origin as JSON, with limits; errors say file, line and column.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "nibble/core/io/json/json_file.h"

namespace nibble {

/// Whether a file of this name is read as YAML.
bool is_yaml(const std::string& path);

/// One document, in UTF-8, of YAML 1.2's core schema: plain true, false, null and numbers (also 2e-4) are what they
/// look like, all else is text. Mappings keep their order; a key that comes twice, more than limits.max_depth inside
/// each other, or aliases that make more than 100,000 values are refused. Throws InputError "place:line:column:
/// reason".
nlohmann::ordered_json parse_yaml(const std::string& text, const std::string& place, const JsonLimits& limits);

}  // namespace nibble
