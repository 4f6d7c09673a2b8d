#pragma once
// Typed, bounded reading of the keys of a config.json.

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

/// One JSON object of a config.json. A value of the wrong type or out of bounds is an InputError naming place and key;
/// null counts as absent unless said otherwise. A key may be several spellings, "n_head|num_attention_heads": the first
/// that is there counts, errors name it (or the first of all).
class ConfigReader {
 public:
  /// path: of the object in the file, "" or "rope_parameters."
  ConfigReader(const nlohmann::json& object, std::string place, std::string path = "");

  bool has(std::string_view key) const;
  bool is_null(std::string_view key) const;
  /// In [low, high]. Without a default the key must be there; a default below low says that it is not, one above high
  /// is refused as a value would be.
  int64_t integer(std::string_view key, int64_t low, int64_t high, std::optional<int64_t> absent = {}) const;
  double number(std::string_view key, double low, double high, std::optional<double> absent = {}) const;
  bool boolean(std::string_view key, bool absent) const;
  /// The same, or a number, of which 0 is false.
  bool boolean_or_number(std::string_view key, bool absent) const;
  std::string text(std::string_view key, std::string_view absent) const;
  bool is_text(std::string_view key) const;
  bool is_list(std::string_view key) const;
  std::vector<std::string> texts(std::string_view key) const;
  /// A list of numbers in [low, high]; empty when absent. An entry may be infinite, see JsonLimits::python_numbers.
  std::vector<double> numbers(std::string_view key, double low, double high) const;
  /// One id or a list of them; empty when absent.
  std::vector<int32_t> ids(std::string_view key) const;
  /// The object under `key`; absent and null give nothing.
  std::optional<ConfigReader> object(std::string_view key) const;

  /// InputError about `key`.
  [[noreturn]] void fail(std::string_view key, const std::string& reason, const std::string& remedy = "") const;

 private:
  /// The spelling of `key` that is in the file.
  std::string_view spelled(std::string_view key) const;
  const nlohmann::json* find(std::string_view key) const;

  const nlohmann::json* object_;
  std::string place_, path_;
};

}  // namespace nibble
