// nibble inspect: what a file or directory is.

#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "nibble/cli/commands.h"
#include "nibble/cli/printing/say.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/io/gguf/gguf.h"
#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/io/hub/hub_cache.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/io/json/mistaken_file.h"
#include "nibble/core/io/npy.h"
#include "nibble/core/models/decoder_config.h"
#include "nibble/core/train/checkpoint/checkpoint.h"

namespace nibble::cli {

namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

ordered_json tensor_row(const std::string& name, const Tensor& tensor) {
  return {{"name", name}, {"dtype", dtype_name(tensor.dtype())}, {"shape", tensor.shape()}, {"bytes", tensor.bytes()}};
}

template <typename Source>
ordered_json tensor_rows(const Source& source) {
  ordered_json rows = ordered_json::array();
  for (const std::string& name : source.names()) rows.push_back(tensor_row(name, source.at(name)));
  return rows;
}

ordered_json inspect_model(const fs::path& path) {
  const CheckpointDir checkpoint(path);
  const nlohmann::json config = parse_json(checkpoint.config_text(), (path / "config.json").string(), kModelConfigJson);
  const nlohmann::json text = config.value("text_config", nlohmann::json::object());  // beside a tower
  const auto said = [&](const char* key) -> ordered_json {
    if (config.contains(key)) return config[key];
    return text.is_object() ? text.value(key, nlohmann::json()) : nlohmann::json();
  };
  ordered_json output = {{"kind", "model"}, {"model_type", config.value("model_type", "")}};
  for (const char* key :
       {"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size"}) {
    if (const ordered_json value = said(key); !value.is_null()) output[key] = value;
  }
  output["quantization"] = said("quantization_config");
  output["bytes"] = checkpoint.total_bytes();
  output["tensors"] = tensor_rows(checkpoint);
  return output;
}

ordered_json inspect_adapter(const fs::path& path) {
  const SafetensorsFile file((path / "adapter_model.safetensors").string());
  return {
      {"kind", "adapter"}, {"config", read_json_file(path / "adapter_config.json")}, {"tensors", tensor_rows(file)}};
}

ordered_json inspect_checkpoint(const fs::path& path) {
  const TrainingState state = read_checkpoint_state(path);
  ordered_json output = {{"kind", "checkpoint"}, {"step", state.step}};
  if (state.best_loss) output["best"] = {{"step", state.best_step}, {"loss", *state.best_loss}};
  for (const auto& [name, value] : state.settings) output["settings"][name] = parse_json(value, name);
  return output;
}

ordered_json inspect_run(const fs::path& path) {
  ordered_json output = {{"kind", "run"}, {"recipe", read_json_file(path / "recipe.json")}};
  if (const auto newest = newest_checkpoint(path / "checkpoints", Observer{})) {
    output["checkpoint"] = newest->path.string();
    output["step"] = newest->state.step;
  }
  return output;
}

/// Long lists (tokens, scores) as their length and first elements.
template <typename List>
ordered_json shortened(const List& list) {
  constexpr size_t kShown = 8;
  if (list.size() <= kShown) return list;
  ordered_json shown = ordered_json::array();
  for (size_t i = 0; i < kShown; ++i) shown.push_back(list[i]);
  return {{"length", list.size()}, {"first", shown}};
}

ordered_json gguf_value(const GgufValue& value) {
  return std::visit(
      [](const auto& held) -> ordered_json {
        if constexpr (requires { held.size(); } && !std::is_same_v<std::decay_t<decltype(held)>, std::string>) {
          return shortened(held);
        } else {
          return held;
        }
      },
      value);
}

ordered_json inspect_gguf(const fs::path& path) {
  const GgufFile file(path.string());
  ordered_json output = {{"kind", "gguf"}, {"metadata", ordered_json::object()}, {"tensors", ordered_json::array()}};
  for (const auto& [key, value] : file.metadata()) output["metadata"][key] = gguf_value(value);
  for (const GgufTensor& tensor : file.tensors()) {
    output["tensors"].push_back({{"name", tensor.name},
                                 {"dtype", gguf_type_name(tensor.type)},
                                 {"shape", tensor.shape},
                                 {"bytes", tensor.bytes()}});
  }
  for (const auto& [name, type] : file.unreadable()) output["other_types"][name] = type;
  return output;
}

ordered_json inspect(const fs::path& path) {
  if (!fs::exists(path)) throw IoError(path.string(), "does not exist", missing_path_remedy(path.string(), ""));
  if (fs::is_directory(path)) {
    if (fs::exists(path / "manifest.json")) return inspect_checkpoint(path);
    if (fs::exists(path / "adapter_config.json")) return inspect_adapter(path);
    if (fs::exists(path / "recipe.json")) return inspect_run(path);
    if (fs::exists(path / "config.json")) return inspect_model(path);
    throw InputError(path.string(), "is no model, adapter, run or checkpoint");
  }
  if (path.extension() == ".safetensors") {
    const SafetensorsFile file(path.string());
    return {{"kind", "safetensors"}, {"metadata", file.metadata()}, {"tensors", tensor_rows(file)}};
  }
  if (path.extension() == ".gguf") return inspect_gguf(path);
  if (path.extension() == ".npy") return {{"kind", "npy"}, {"tensors", {tensor_row("", read_npy(path))}}};
  throw InputError(path.string(), "is of no kind that is known",
                   "give a .safetensors, .gguf or .npy file, or a directory");
}

/// A line each; of an object one for each member, named as keys of recipes are ("train.steps").
void print_members(const ordered_json& object, const std::string& prefix = "") {
  for (const auto& [key, value] : object.items()) {
    if (prefix.empty() && key == "tensors") continue;
    const bool counts =
        value.is_number_integer() && (!value.is_number_unsigned() || std::in_range<int64_t>(value.get<uint64_t>()));
    const std::string text = value.is_string() ? value.get<std::string>()
                             : counts          ? grouped_text(value.get<int64_t>())
                                               : value.dump();
    if (!value.is_object() || value.empty()) {
      say(stdout, "%-*s %s", prefix.empty() ? 20 : 36, (prefix + key).c_str(), text.c_str());
    } else if (prefix.empty()) {
      say(stdout, key);
      print_members(value, "  ");
    } else {
      print_members(value, prefix + key + ".");
    }
  }
}

void print(const ordered_json& output) {
  print_members(output);
  if (!output.contains("tensors")) return;
  uint64_t bytes = 0;
  for (const ordered_json& row : output["tensors"]) {
    say(stdout, "  %-5s %-16s %15s  %s", row["dtype"].get<std::string>().c_str(), row["shape"].dump().c_str(),
        grouped_text(row["bytes"].get<int64_t>()).c_str(), row["name"].get<std::string>().c_str());
    bytes += row["bytes"].get<uint64_t>();
  }
  std::printf("%s, %s\n", count_text(static_cast<int64_t>(output["tensors"].size()), "tensor").c_str(),
              bytes_text(static_cast<double>(bytes)).c_str());
}

}  // namespace

void add_inspect_command(Command& nibble) {
  auto path = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  Command command = nibble.subcommand("inspect", "What a file or directory is: shapes, dtypes, sizes, state");
  command
      .option(
          "path", *path,
          "Model, adapter, run or checkpoint directory, or ID in the Hugging Face cache; .safetensors, .gguf or .npy "
          "file")
      .required();
  command.flag("--json", *json, "One JSON object on stdout");
  command.footer("Example: nibble inspect runs/mine/checkpoints/step-100");
  command.run([path, json] {
    const ordered_json output = inspect(find_in_hub(*path, kHubModels));
    *json ? print_json(output) : print(output);
  });
}

}  // namespace nibble::cli
