#pragma once
// Errors of a directory that a recipe key names.

#include <string>

#include "nibble/core/base/error.h"

namespace nibble {

/// open(); what it finds wrong has `key` in front.
template <typename Open>
auto with_key(const std::string& key, const Open& open) {
  try {
    return open();
  } catch (const InputError& error) {
    throw InputError(key, error.what());
  } catch (const UsageError& error) {
    throw UsageError(error.what(), "", key);
  }
}

}  // namespace nibble
