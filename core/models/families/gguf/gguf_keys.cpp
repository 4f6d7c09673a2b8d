#include "nibble/core/models/families/gguf/gguf_keys.h"

#include <span>
#include <variant>

#include "nibble/core/base/error.h"

namespace nibble {

bool GgufKeys::flag(const std::string& key, bool absent) const {
  const auto found = file_.metadata().find(prefix_ + key);
  if (found == file_.metadata().end()) return absent;
  if (!std::holds_alternative<bool>(found->second)) fail(key, "is neither true nor false");
  return std::get<bool>(found->second);
}

std::vector<float> GgufKeys::values(const std::string& tensor, MemoryPool& pool) const {
  const GgufTensor* found = file_.find(tensor);
  if (!found) return {};
  const Tensor row = file_.rows(*found, 0, 1, pool);
  const std::span<const float> elements = row.span<const float>();
  return {elements.begin(), elements.end()};
}

int64_t GgufKeys::needed(const std::string& key) const {
  const std::optional<int64_t> value = integer(key);
  if (!value || *value < 1) fail(key, "is missing or not positive");
  return *value;
}

double GgufKeys::needed_number(const std::string& key) const {
  const std::optional<double> value = number(key);
  if (!value) fail(key, "is missing");
  return *value;
}

void GgufKeys::fail(const std::string& key, const std::string& reason) const {
  throw InputError(file_.path() + ": " + prefix_ + key, reason, kElsewhere);
}

}  // namespace nibble
