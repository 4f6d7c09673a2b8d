#include "nibble/core/io/hub/checkpoint_dir.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "nibble/core/base/error.h"
#include "nibble/core/io/files/system_error.h"
#include "nibble/core/io/hub/hub_cache.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/io/json/mistaken_file.h"

namespace nibble {
namespace fs = std::filesystem;

namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr size_t kLargestIndex = size_t{256} << 20;

bool is_inside(const fs::path& path, const fs::path& root) {
  return std::mismatch(root.begin(), root.end(), path.begin(), path.end()).first == root.end();
}

// The file names of an index are whatever its author wrote.
void check_shard_name(const std::string& name, const std::string& index) {
  const fs::path path(name);
  const bool escapes = std::any_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".."; });
  if (name.empty() || path.is_absolute() || escapes || name.find('\0') != std::string::npos) {
    throw InputError(index, "names a file outside its directory", "do not use files of unknown origin");
  }
}

// A snapshot of the Hugging Face Hub may lack files that nobody asked for yet.
std::string download_remedy(const fs::path& directory, const std::string& otherwise) {
  const std::string id = hub_id(directory);
  return id.empty() ? otherwise : "download it: hf download " + id;
}

// The path of the module in Transformers' model, which files with a vision tower do not follow. Kimi K2.5's tower keeps
// its names, which Transformers takes from such files alone; Transformers itself writes its layers as "blocks".
std::string module_name(const std::string& stored) {
  static constexpr std::pair<std::string_view, std::string_view> kRenamed[] = {
      {"language_model.model.blocks.", "model.language_model.layers."},
      {"language_model.model.", "model.language_model."},
      {"language_model.lm_head.", "lm_head."},
      {"vision_tower.encoder.blocks.", "vision_tower.encoder.blocks."},
      {"vision_tower.encoder.final_layernorm.", "vision_tower.encoder.final_layernorm."},
      {"vision_tower.patch_embed.", "vision_tower.patch_embed."},
      {"vision_tower.", "model.vision_tower."},
      {"vision_model.", "model.vision_model."},
      {"visual.", "model.visual."},
      {"multi_modal_projector.", "model.multi_modal_projector."}};
  for (const auto& [from, to] : kRenamed) {
    if (stored.starts_with(from)) return std::string(to) + stored.substr(from.size());
  }
  return stored;
}

}  // namespace

void release_pages(const Tensor& tensor) {
  if (!tensor.has_bytes() || tensor.writable()) return;
  tensor.device().release(tensor.address(), tensor.bytes());
}

void prefer_huge_pages(const Tensor& tensor) {
  if (!tensor.has_bytes() || tensor.writable()) return;
  tensor.device().prefer_huge_pages(tensor.address(), tensor.bytes());
}

std::vector<fs::path> link_roots(const fs::path& directory) {
  std::error_code error;
  const fs::path canonical = fs::canonical(directory, error);
  if (error.value() == ENOENT) {
    throw IoError(shown_path(directory).string(), "no such directory", missing_path_remedy(directory.string(), ""));
  }
  if (error) throw system_error(directory, "cannot be opened", error.value());
  if (canonical.extension() == ".gguf" && fs::is_regular_file(canonical, error)) {
    throw InputError(directory.string(), "is a GGUF file", kImportRemedy);
  }
  if (fs::is_regular_file(canonical, error)) {
    throw InputError(directory.string(), "is a file", "give the directory of the model that it is in");
  }
  std::vector<fs::path> roots = {canonical};
  const fs::path snapshots = canonical.parent_path();
  if (snapshots.filename() == "snapshots" && fs::is_directory(snapshots.parent_path() / "blobs", error)) {
    roots.push_back(snapshots.parent_path());
  }
  return roots;
}

fs::path follow_links_within(const fs::path& file, const std::vector<fs::path>& roots) {
  std::error_code error;
  fs::path canonical = fs::canonical(file, error);
  if (error) throw system_error(file, "cannot be opened", error.value());
  for (const fs::path& root : roots) {
    if (is_inside(canonical, root)) return canonical;
  }
  throw InputError(file.string(), "is a link that leads out of its directory, to " + canonical.string(),
                   "put the file itself there, or name the directory it is in");
}

bool holds_weights(const fs::path& directory) {
  return fs::exists(directory / kSingle) || fs::exists(directory / kIndex);
}

CheckpointDir::CheckpointDir(const fs::path& directory, std::vector<fs::path> roots)
    : directory_(directory), roots_(link_roots(directory)) {
  if (!fs::is_directory(directory)) {
    throw IoError(directory.string(), "is not a directory", "give the directory of a model");
  }
  for (const fs::path& root : roots) roots_.push_back(fs::canonical(root));
  if (fs::exists(directory / kSingle)) {
    open_shards({kSingle});
  } else if (fs::exists(directory / kIndex)) {
    open_index();
  } else if (fs::exists(directory / "pytorch_model.bin") || fs::exists(directory / "pytorch_model.bin.index.json")) {
    throw InputError(directory.string(), "has only pickled weights (pytorch_model.bin)",
                     "convert them with Transformers' save_pretrained to safetensors");
  } else {
    throw InputError(directory.string(), std::string("has neither ") + kSingle + " nor " + kIndex,
                     download_remedy(directory, "give the directory of a model in Hugging Face's layout"));
  }
  for (const auto& [name, place] : places_) total_bytes_ += find(name).bytes();
  list_names();
}

void CheckpointDir::list_names() {
  names_.clear();
  for (const auto& [name, place] : places_) names_.push_back(name);
  std::sort(names_.begin(), names_.end());
}

void CheckpointDir::split(const std::vector<FusedTensor>& fused) {
  for (const auto& [module, parts] : fused) {
    for (const std::string& name : names_) {
      const size_t at = name.rfind('.');
      if (at == std::string::npos || !name.substr(0, at).ends_with("." + module)) continue;
      const Place place = places_.at(name);
      const Tensor whole = find(name);
      int64_t rows = 0;
      for (const auto& [part, count] : parts) rows += count;
      if (whole.rank() == 0 || whole.dim(0) != rows) {
        throw InputError(
            file_of(name) + ": " + name,
            "has shape " + to_string(whole.shape()) + ", config.json makes it " + std::to_string(rows) + " rows",
            "check that config.json belongs to these weights");
      }
      places_.erase(name);
      int64_t begin = 0;
      for (const auto& [part, count] : parts) {
        const std::string path = name.substr(0, at - module.size()) + part + name.substr(at);
        if (!places_.emplace(path, Place{place.shard, place.stored, begin, begin + count}).second) {
          throw InputError(shards_[place.shard]->path(), "has " + name + " and " + path + ", which is a part of it",
                           "save the model again with one of the two");
        }
        begin += count;
      }
    }
    list_names();
  }
}

void CheckpointDir::open_shards(const std::vector<std::string>& files) {
  for (const std::string& name : files) {
    follow_links_within(directory_ / name, roots_);
    shards_.push_back(std::make_unique<SafetensorsFile>((directory_ / name).string()));
    for (const std::string& tensor : shards_.back()->names()) {
      const auto [other, is_new] = places_.emplace(module_name(tensor), Place{shards_.size() - 1, tensor});
      if (!is_new) {
        throw InputError(shards_.back()->path(),
                         "has tensor \"" + tensor + "\", which is also in " + shards_[other->second.shard]->path(),
                         "remove the shards of another model from the directory");
      }
    }
  }
}

void CheckpointDir::open_index() {
  const std::string index_path = (directory_ / kIndex).string();
  follow_links_within(directory_ / kIndex, roots_);
  JsonLimits limits;
  limits.max_bytes = kLargestIndex;
  limits.max_depth = 8;
  limits.unique_keys = true;
  const nlohmann::json index = read_json_file(index_path, limits);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object() || map->empty()) {
    throw InputError(index_path, "has no weight_map", "download it again");
  }
  std::map<std::string, std::string> file_of_tensor;
  std::set<std::string> files;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) throw InputError(index_path, "has no file name for tensor \"" + tensor + "\"");
    check_shard_name(file.get_ref<const std::string&>(), index_path);
    files.insert(file.get<std::string>());
    file_of_tensor[module_name(tensor)] = file.get<std::string>();
  }
  const std::vector<std::string> ordered(files.begin(), files.end());
  for (const std::string& file : ordered) {
    if (!fs::exists(directory_ / file)) {
      throw InputError((directory_ / file).string(), "is missing, though the index names it",
                       download_remedy(directory_, "download the shard"));
    }
  }
  open_shards(ordered);
  for (const auto& [tensor, file] : file_of_tensor) {
    const auto found = places_.find(tensor);
    if (found == places_.end() || ordered[found->second.shard] != file) {
      throw InputError((directory_ / file).string(), "lacks tensor \"" + tensor + "\", which the index says is in it",
                       "download index and shards again");
    }
  }
  for (const auto& [tensor, place] : places_) {
    if (!file_of_tensor.contains(tensor)) {
      throw InputError(shards_[place.shard]->path(), "has tensor \"" + tensor + "\", which the index does not list",
                       "download index and shards again");
    }
  }
}

Tensor CheckpointDir::find(const std::string& name) const {
  const auto found = places_.find(name);
  if (found == places_.end()) return {};
  const auto& [shard, stored, begin, end] = found->second;
  const Tensor tensor = shards_[shard]->find(stored);
  return end > 0 ? tensor.rows(begin, end) : tensor;
}

Tensor CheckpointDir::at(const std::string& name) const {
  Tensor found = find(name);
  if (!found) {
    throw InputError(directory_.string(), "has no tensor \"" + name + "\"",
                     "config.json and weights are of different models, or a part is missing");
  }
  return found;
}

std::string CheckpointDir::file_of(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? directory_.string() : shards_[found->second.shard]->path();
}

std::string CheckpointDir::config_text() const {
  if (!fs::exists(directory_ / "config.json")) {
    throw InputError(directory_.string(), "has no config.json", "give the directory of a model");
  }
  return read_text_file(file("config.json"));
}

fs::path CheckpointDir::file(const std::string& name) const {
  follow_links_within(directory_ / name, roots_);
  return directory_ / name;
}

}  // namespace nibble
