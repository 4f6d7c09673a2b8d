#include "nibble/core/models/families/gguf/gguf_keys.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <span>
#include <variant>

#include "nibble/core/base/error.h"

namespace nibble {

double shortest_decimal(float value) {
  std::array<char, 64> text;
  const char* end = std::to_chars(text.begin(), text.end(), value).ptr;
  double result = 0;
  std::from_chars(text.begin(), end, result);
  return result;
}

bool GgufKeys::flag(const std::string& key, bool absent) const {
  const auto found = file_.metadata().find(prefix_ + key);
  if (found == file_.metadata().end()) return absent;
  if (!std::holds_alternative<bool>(found->second)) fail(key, "is neither true nor false");
  return std::get<bool>(found->second);
}

std::optional<double> GgufKeys::number(const std::string& key) const {
  const std::optional<double> value = file_.number(prefix_ + key);
  if (!value || static_cast<double>(static_cast<float>(*value)) != *value) return value;
  return shortest_decimal(static_cast<float>(*value));
}

int64_t GgufKeys::layers() const {
  const int64_t all = needed("block_count"), further = integer("nextn_predict_layers").value_or(0);
  if (further < 0 || further >= all) fail("nextn_predict_layers", "is not less than block_count");
  const size_t tensors = file_.tensors().size() + file_.unreadable().size();
  if (static_cast<size_t>(all) > tensors)  // before lists of so many entries are made
    fail("block_count", "is " + std::to_string(all) + ", but the file has " + std::to_string(tensors) + " tensors");
  return all - further;
}

std::vector<int64_t> GgufKeys::by_layer(const std::string& key) const {
  const auto found = file_.metadata().find(prefix_ + key);
  if (found == file_.metadata().end()) return {};
  const auto count = static_cast<size_t>(layers());
  const auto of_list = [&](const auto& list) {
    if (list.size() < count)
      fail(key, "has " + std::to_string(list.size()) + " entries for " + std::to_string(count) + " layers");
    return std::vector<int64_t>(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(count));
  };
  if (const auto* list = std::get_if<std::vector<int32_t>>(&found->second)) return of_list(*list);
  if (const auto* list = std::get_if<std::vector<int64_t>>(&found->second)) return of_list(*list);
  if (const auto* list = std::get_if<std::vector<bool>>(&found->second)) return of_list(*list);
  return std::vector<int64_t>(count, integer(key).value_or(0));
}

int64_t GgufKeys::needed_most(const std::string& key) const {
  const std::vector<int64_t> values = by_layer(key);
  const auto most = std::ranges::max_element(values);
  if (most == values.end() || *most < 1) fail(key, "is missing or not positive");
  return *most;
}

std::vector<float> GgufKeys::values(const std::string& tensor) const {
  const GgufTensor* found = file_.find(tensor);
  if (!found) return {};
  const Tensor row = file_.rows(*found, 0, 1, pool_);
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
