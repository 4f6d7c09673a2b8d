#include "nibble/recipes/fingerprints.h"

#include <filesystem>

#include "nibble/core/io/content_hash.h"
#include "nibble/core/io/files/list_directory.h"
#include "nibble/core/train/run/run_directory.h"
#include "nibble/recipes/models/open_model.h"
#include "nibble/recipes/models/tokenizers.h"

namespace nibble {

namespace fs = std::filesystem;

namespace {

std::string quoted(const std::string& text) { return "\"" + text + "\""; }

// config.json and all weights of a model directory, or the one file.
std::vector<fs::path> model_files(const fs::path& path) {
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> files;
  for (const auto& entry : list_directory(path)) {
    if (entry.path().extension() == ".safetensors" || entry.path().filename() == "config.json")
      files.push_back(entry.path());
  }
  return files;
}

}  // namespace

void add_fingerprints(RunOptions& options, const Recipe& recipe, const std::string& tokenizer,
                      const std::string& data_fingerprint) {
  const fs::path model = recipe.pretrains() ? recipe.model.init : recipe.model.path;
  options.settings["data.fingerprint"] = quoted(data_fingerprint);
  const auto add = [&](const std::string& section, const fs::path& file) {
    options.settings[section + detail::kFingerprint + file.filename().string()] = quoted(content_hash(file));
  };
  for (const fs::path& file : model_files(model)) add("model", file);
  if (recipe.adapter && !recipe.adapter->path.empty()) {
    for (const char* file : {"adapter_config.json", "adapter_model.safetensors"}) {
      if (const fs::path path = fs::path(recipe.adapter->path) / file; fs::exists(path)) add("adapter", path);
    }
  }
  for (const auto& [name, hash] : tokenizer_contents(tokenizer, recipe.data.chat_template)) {
    options.settings["tokenizer" + std::string(detail::kFingerprint) + name] = quoted(hash);
  }
  options.settings["model.fingerprint"] = quoted(base_fingerprint(model.string()));  // what older checkpoints have
}

}  // namespace nibble
