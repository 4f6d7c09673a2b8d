#pragma once

#include <string_view>

namespace nibble {

/// Version of nibble, "0.1.0".
std::string_view version();

}  // namespace nibble
