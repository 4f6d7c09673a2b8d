#include "nibble/core/base/error.h"

namespace nibble::detail {

void check_failed(const char* condition, const char* file, int line, const std::string& message) {
  throw std::logic_error(std::string(file) + ":" + std::to_string(line) + ": " + message + " (" + condition + ")");
}

}  // namespace nibble::detail
