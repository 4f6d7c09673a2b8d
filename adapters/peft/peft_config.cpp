#include "nibble/adapters/peft/peft_config.h"

#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/io/json/json_file.h"

namespace nibble {

namespace {

using Json = nlohmann::ordered_json;  // the order of rank_pattern matters

/// Options of PEFT that change what an adapter computes and are not supported, with the value that means "off".
struct Unsupported {
  const char* key;
  const char* off;  // JSON; null is always off
};
constexpr std::array kUnsupported{
    Unsupported{"alora_invocation_tokens", "null"},
    Unsupported{"arrow_config", "null"},
    Unsupported{"ensure_weight_tying", "false"},
    Unsupported{"kasa_config", "null"},
    Unsupported{"layer_replication", "null"},
    Unsupported{"monteclora_config", "null"},
    Unsupported{"use_bdlora", "false"},
    Unsupported{"use_qalora", "false"},
    Unsupported{"velora_config", "null"},
};

constexpr int64_t kMostPissaIterations = 1000;

/// One object of the file; errors name file and key.
class Reader {
 public:
  Reader(const Json& object, std::string place) : object_(object), place_(std::move(place)) {}

  /// Null when the key is absent or null.
  const Json* find(const std::string& key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  [[noreturn]] void refuse(const std::string& key, const std::string& reason, const std::string& remedy = "") const {
    throw InputError(place_, key + " " + reason, remedy);
  }
  void read(const std::string& key, bool& value) const {
    if (const Json* found = find(key)) {
      if (!found->is_boolean()) refuse(key, "is neither true nor false");
      value = found->get<bool>();
    }
  }
  void read(const std::string& key, std::string& value) const {
    if (const Json* found = find(key)) value = text(key, *found);
  }
  void read(const std::string& key, int64_t& value) const {
    if (const Json* found = find(key)) value = integer(key, *found);
  }
  void read(const std::string& key, double& value) const {
    if (const Json* found = find(key)) value = number(key, *found);
  }
  std::vector<std::string> names(const std::string& key) const {
    std::vector<std::string> result;
    if (const Json* found = find(key)) {
      if (!found->is_array()) refuse(key, "is no list of names");
      for (const Json& entry : *found) result.push_back(text(key, entry));
    }
    return result;
  }
  ModuleSelector modules(const std::string& key) const {
    ModuleSelector result;
    const Json* found = find(key);
    if (found && found->is_string()) {
      result.pattern = found->get<std::string>();
    } else {
      result.names = names(key);
    }
    return result;
  }

  std::string text(const std::string& key, const Json& value) const {
    if (!value.is_string()) refuse(key, "is no text where text belongs");
    return value.get<std::string>();
  }
  int64_t integer(const std::string& key, const Json& value) const {
    const double number = value.is_number() ? value.get<double>() : NAN;
    if (!(std::abs(number) < 1e15) || number != std::floor(number)) refuse(key, "is no whole number");
    return static_cast<int64_t>(number);
  }
  double number(const std::string& key, const Json& value) const {
    if (!value.is_number() || !std::isfinite(value.get<double>())) refuse(key, "is no number");
    return value.get<double>();
  }

 private:
  const Json& object_;
  std::string place_;
};

/// "pissa_niter_16" -> 16.
int64_t pissa_iterations(const Reader& reader, const std::string& name) {
  constexpr std::string_view kNiter = "pissa_niter_";
  int64_t rounds = 0;
  const char *begin = name.data() + kNiter.size(), *end = name.data() + name.size();
  const auto [last, error] = std::from_chars(begin, end, rounds);
  if (error != std::errc() || last != end || rounds < 1 || rounds > kMostPissaIterations) {
    reader.refuse("init_lora_weights", "is \"" + name + "\"", "write pissa_niter_16");
  }
  return rounds;
}

void read_init(const Reader& reader, AdapterOptions& options) {
  LoraInit& init = options.init_lora_weights;
  const Json* value = reader.find("init_lora_weights");
  if (!value) return;
  if (value->is_boolean()) {
    init = value->get<bool>() ? LoraInit::standard : LoraInit::random;
    return;
  }
  const std::string name = reader.text("init_lora_weights", *value);
  if (name == "gaussian") init = LoraInit::gaussian;
  if (name == "loftq") init = LoraInit::loftq;
  if (name == "olora" || name == "OLoRA") init = LoraInit::olora;
  if (name.starts_with("pissa")) init = LoraInit::pissa;
  if (name.starts_with("pissa_niter_")) options.pissa_iterations = pissa_iterations(reader, name);
  const bool on_plain_base = name == "eva" || name == "orthogonal";  // saved ones stand on the unchanged base
  if (init == LoraInit::standard && !on_plain_base) {
    reader.refuse("init_lora_weights", "is \"" + name + "\", which changes the base weights or how they are trained",
                  "save the adapter converted to plain LoRA (PEFT: path_initial_model_for_weight_conversion)");
  }
}

std::vector<int64_t> read_token_list(const Reader& reader, const Json& list) {
  const std::string key = "trainable_token_indices";
  if (!list.is_array()) reader.refuse(key, "is no list of token ids, or object of such lists");
  std::vector<int64_t> ids;
  for (const Json& id : list) ids.push_back(reader.integer(key, id));
  return ids;
}

void read_tokens(const Reader& reader, AdapterOptions& options) {
  const Json* value = reader.find("trainable_token_indices");
  if (!value) return;
  if (!value->is_object()) {
    options.trainable_token_indices.emplace_back("", read_token_list(reader, *value));
    return;
  }
  for (const auto& [table, list] : value->items()) {
    options.trainable_token_indices.emplace_back(table, read_token_list(reader, list));
  }
}

BiasTraining read_bias(const Reader& reader) {
  std::string bias = "none";
  reader.read("bias", bias);
  if (bias == "none") return BiasTraining::none;
  if (bias == "lora_only") return BiasTraining::lora_only;
  if (bias == "all") return BiasTraining::all;
  reader.refuse("bias", "is \"" + bias + "\"", "known are none, lora_only, all");
}

void read_layers(const Reader& reader, AdapterOptions& options) {
  if (const Json* layers = reader.find("layers_to_transform")) {
    options.layers_to_transform.emplace();
    if (layers->is_array()) {
      for (const Json& layer : *layers) {
        options.layers_to_transform->push_back(reader.integer("layers_to_transform", layer));
      }
    } else {
      options.layers_to_transform->push_back(reader.integer("layers_to_transform", *layers));
    }
  }
  if (const Json* pattern = reader.find("layers_pattern")) {
    if (pattern->is_string()) {
      if (!pattern->get<std::string>().empty()) options.layers_pattern = {pattern->get<std::string>()};
    } else {
      options.layers_pattern = reader.names("layers_pattern");
    }
  }
}

void read_patterns(const Reader& reader, AdapterOptions& options) {
  for (const char* key : {"rank_pattern", "alpha_pattern"}) {
    const Json* patterns = reader.find(key);
    if (!patterns) continue;
    if (!patterns->is_object()) reader.refuse(key, "is no object of patterns and numbers");
    for (const auto& [pattern, value] : patterns->items()) {
      if (key == std::string("rank_pattern")) {
        options.rank_pattern.emplace_back(pattern, reader.integer(key, value));
      } else {
        options.alpha_pattern.emplace_back(pattern, reader.number(key, value));
      }
    }
  }
}

void refuse_unsupported(const Reader& reader) {
  std::string type = "LORA";
  reader.read("peft_type", type);
  if (type != "LORA") reader.refuse("peft_type", "is \"" + type + "\"", "only LoRA adapters are supported");
  for (const Unsupported& option : kUnsupported) {
    const Json* value = reader.find(option.key);
    if (value && *value != Json::parse(option.off)) {
      reader.refuse(option.key, "is set, which is not supported", "use an adapter without it");
    }
  }
}

/// 16, not 16.0, for a whole number, as PEFT writes it.
Json plain_number(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) return static_cast<int64_t>(value);
  return value;
}

template <typename List>
Json list_or_null(const List& list) {
  return list.empty() ? Json() : Json(list);
}

Json selector_json(const ModuleSelector& selector) {
  return selector.pattern.empty() ? list_or_null(selector.names) : Json(selector.pattern);
}

template <typename Value>
Json patterns_json(const std::vector<std::pair<std::string, Value>>& patterns) {
  Json result = Json::object();
  for (const auto& [key, value] : patterns) result[key] = plain_number(static_cast<double>(value));
  return result;
}

Json init_json(const AdapterOptions& options) {
  switch (options.init_lora_weights) {
    case LoraInit::gaussian:
      return "gaussian";
    case LoraInit::random:
      return false;
    case LoraInit::olora:
      return "olora";
    case LoraInit::pissa:
      return options.pissa_iterations > 0 ? "pissa_niter_" + std::to_string(options.pissa_iterations) : "pissa";
    // PEFT would make a new start over the trained tensors if it were told how they started
    case LoraInit::loftq:
    case LoraInit::standard:
      break;
  }
  return true;
}

Json tokens_json(const AdapterOptions& options) {
  const auto& tables = options.trainable_token_indices;
  if (tables.empty()) return nullptr;
  if (tables.size() == 1 && tables.front().first.empty()) return tables.front().second;
  Json result = Json::object();
  for (const auto& [table, ids] : tables) result[table] = ids;
  return result;
}

}  // namespace

AdapterOptions parse_peft_config(std::string_view json, const std::string& place) {
  JsonLimits limits;
  limits.max_bytes = size_t{16} << 20;
  limits.max_depth = 16;
  parse_json(json, place, limits);  // for the limits and errors with line and column
  const Json object = Json::parse(json);
  if (!object.is_object()) throw InputError(place, "is no JSON object", "give the directory of a PEFT adapter");
  const Reader reader(object, place);
  refuse_unsupported(reader);

  AdapterOptions options;
  reader.read("r", options.r);
  reader.read("lora_alpha", options.lora_alpha);
  reader.read("lora_dropout", options.lora_dropout);
  options.target_modules = reader.modules("target_modules");
  options.exclude_modules = reader.modules("exclude_modules");
  reader.read("use_rslora", options.use_rslora);
  reader.read("use_dora", options.use_dora);
  reader.read("lora_bias", options.lora_bias);
  reader.read("fan_in_fan_out", options.fan_in_fan_out);
  read_init(reader, options);
  read_tokens(reader, options);
  options.bias = read_bias(reader);
  read_patterns(reader, options);
  read_layers(reader, options);
  options.modules_to_save = reader.names("modules_to_save");
  options.target_parameters = reader.names("target_parameters");
  reader.read("base_model_name_or_path", options.base_model);
  reader.read("task_type", options.task);
  try {
    check_options(options, "");
  } catch (const UsageError& error) {
    throw InputError(place, error.what());
  }
  return options;
}

std::string peft_config_text(const AdapterOptions& options) {
  constexpr std::array kBiasNames{"none", "lora_only", "all"};
  Json result = Json::object();
  result["alora_invocation_tokens"] = nullptr;
  result["alpha_pattern"] = patterns_json(options.alpha_pattern);
  result["arrow_config"] = nullptr;
  result["auto_mapping"] = nullptr;
  result["base_model_name_or_path"] = options.base_model.empty() ? Json() : Json(options.base_model);
  result["bias"] = kBiasNames.at(static_cast<size_t>(options.bias));
  result["corda_config"] = nullptr;
  result["ensure_weight_tying"] = false;
  result["eva_config"] = nullptr;
  result["exclude_modules"] = selector_json(options.exclude_modules);
  result["fan_in_fan_out"] = options.fan_in_fan_out;
  result["inference_mode"] = true;
  result["init_lora_weights"] = init_json(options);
  result["kasa_config"] = nullptr;
  result["layer_replication"] = nullptr;
  result["layers_pattern"] = list_or_null(options.layers_pattern);
  result["layers_to_transform"] = options.layers_to_transform ? Json(*options.layers_to_transform) : Json();
  result["loftq_config"] = Json::object();
  result["lora_alpha"] = plain_number(options.lora_alpha);
  result["lora_bias"] = options.lora_bias;
  result["lora_dropout"] = options.lora_dropout;
  result["lora_ga_config"] = nullptr;
  result["megatron_config"] = nullptr;
  result["megatron_core"] = "megatron.core";
  result["modules_to_save"] = list_or_null(options.modules_to_save);
  result["monteclora_config"] = nullptr;
  result["peft_type"] = "LORA";
  result["qalora_group_size"] = 16;
  result["r"] = options.r;
  result["rank_pattern"] = patterns_json(options.rank_pattern);
  result["revision"] = nullptr;
  const bool tensors_alone = options.target_modules.empty() && !options.target_parameters.empty();
  // null is the default of the model's type to PEFT, where it has one
  result["target_modules"] = tensors_alone ? Json::array() : selector_json(options.target_modules);
  result["target_parameters"] = list_or_null(options.target_parameters);
  result["task_type"] = options.task.empty() ? Json() : Json(options.task);
  result["trainable_token_indices"] = tokens_json(options);
  result["use_bdlora"] = nullptr;
  result["use_dora"] = options.use_dora;
  result["use_qalora"] = false;
  result["use_rslora"] = options.use_rslora;
  result["velora_config"] = nullptr;
  return result.dump(2) + "\n";
}

}  // namespace nibble
