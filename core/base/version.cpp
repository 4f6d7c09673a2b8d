#include "nibble/core/base/version.h"

namespace nibble {

std::string_view version() { return NIBBLE_VERSION; }

}  // namespace nibble
