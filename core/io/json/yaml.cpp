#include "nibble/core/io/json/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "nibble/core/base/error.h"

namespace nibble {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostValues = 100000;

template <typename T, typename... Base>
bool read_whole(std::string_view text, T& number, Base... base) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base...);
  return error == std::errc() && end == text.data() + text.size();
}

// As YAML 1.2's core schema has them.
Json plain_scalar(const std::string& text) {
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return nullptr;
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  const bool negative = text.starts_with('-'), has_sign = negative || text.starts_with('+');
  std::string_view digits = std::string_view(text).substr(has_sign ? 1 : 0);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (digits == ".inf" || digits == ".Inf" || digits == ".INF") return negative ? -kInfinity : kInfinity;
  if (text == ".nan" || text == ".NaN" || text == ".NAN") return std::numeric_limits<double>::quiet_NaN();
  int64_t whole = 0;
  for (const auto& [prefix, base] : {std::pair{"0x", 16}, {"0o", 8}}) {
    if (text.starts_with(prefix) && text.find('-') == text.npos && read_whole(digits.substr(2), whole, base))
      return whole;
  }
  if (digits.starts_with('-') || digits.find_first_not_of("0123456789+-.eE") != digits.npos) return text;
  if (negative) digits = text;
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

/// Takes no notice of anything.
struct NoEvents : YAML::EventHandler {
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

// YAML::LoadAll would tell, but makes documents without end of a token that belongs to none (",a: 1").
bool has_several_documents(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  NoEvents nothing;
  return parser.HandleNextDocument(nothing) && parser.HandleNextDocument(nothing);
}

}  // namespace

bool is_yaml(const std::string& path) { return path.ends_with(".yaml") || path.ends_with(".yml"); }

nlohmann::ordered_json parse_yaml(const std::string& text, const std::string& place, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) throw InputError(place, "is too large", "a recipe is a small file");
  YamlReader reader(place, limits);
  try {
    if (has_several_documents(text)) {
      throw InputError(place, "holds several documents, or what is part of none",
                       "take the lines --- between them out");
    }
    Json value = reader.read(YAML::Load(text), 0);
    value.dump();  // what is no UTF-8, yaml-cpp passes on
    return value;
  } catch (const Json::type_error&) {
    throw InputError(place, "is not UTF-8", "save the file as UTF-8");
  } catch (const YAML::Exception& error) {
    reader.fail(error.mark, "is no YAML: " + error.msg);
  }
}

}  // namespace nibble
