#include "nibble/core/io/json/yaml.h"

#include <yaml-cpp/yaml.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"

namespace nibble {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostValues = 100000;

template <typename T>
bool read_whole(std::string_view text, T& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

Json plain_scalar(const std::string& text) {
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return nullptr;
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  std::string_view digits = text;
  if (digits.starts_with('+')) digits.remove_prefix(1);
  if (digits.find_first_not_of("0123456789+-.eE") != std::string_view::npos) return text;
  int64_t whole = 0;
  double number = 0;
  if (read_whole(digits, whole)) return whole;
  if (read_whole(digits, number)) return number;
  return text;
}

class YamlReader {
 public:
  YamlReader(const std::string& place, const JsonLimits& limits) : place_(place), limits_(limits) {}

  Json read(const YAML::Node& node, int depth) {
    if (depth > limits_.max_depth) {
      fail(node.Mark(), "more than " + std::to_string(limits_.max_depth) + " lists or mappings inside each other");
    }
    if (++values_ > kMostValues) fail(node.Mark(), "has more than " + std::to_string(kMostValues) + " values");
    switch (node.Type()) {
      case YAML::NodeType::Scalar:
        return node.Tag() == "?" ? plain_scalar(node.Scalar()) : Json(node.Scalar());
      case YAML::NodeType::Sequence: {
        Json list = Json::array();
        for (const YAML::Node& one : node) list.push_back(read(one, depth + 1));
        return list;
      }
      case YAML::NodeType::Map: {
        Json object = Json::object();
        for (const auto& entry : node) {
          if (!entry.first.IsScalar()) fail(entry.first.Mark(), "a key must be text");
          const std::string& key = entry.first.Scalar();
          if (object.contains(key)) fail(entry.first.Mark(), "key \"" + key.substr(0, 40) + "\" is there twice");
          object[key] = read(entry.second, depth + 1);
        }
        return object;
      }
      default:
        return nullptr;
    }
  }

  [[noreturn]] void fail(const YAML::Mark& mark, const std::string& reason) const {
    std::string place = place_;
    if (!mark.is_null()) place += ":" + std::to_string(mark.line + 1) + ":" + std::to_string(mark.column + 1);
    throw InputError(place, reason, "correct the file");
  }

 private:
  const std::string& place_;
  const JsonLimits& limits_;
  int values_ = 0;
};

}  // namespace

bool is_yaml(const std::string& path) { return path.ends_with(".yaml") || path.ends_with(".yml"); }

nlohmann::ordered_json parse_yaml(const std::string& text, const std::string& place, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) throw InputError(place, "is too large", "a recipe is a small file");
  YamlReader reader(place, limits);
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    if (documents.size() > 1) throw InputError(place, "holds several documents", "take the lines --- between them out");
    return documents.empty() ? Json() : reader.read(documents.front(), 0);
  } catch (const YAML::Exception& error) {
    reader.fail(error.mark, "is no YAML: " + error.msg);
  }
}

}  // namespace nibble
