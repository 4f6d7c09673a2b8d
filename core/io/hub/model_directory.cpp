#include "nibble/core/io/hub/model_directory.h"

#include <nlohmann/json.hpp>

#include "nibble/core/formatting/readable.h"
#include "nibble/core/io/files/list_directory.h"
#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/io/json/json_file.h"

namespace nibble {

namespace {

constexpr const char* kTokenizerFiles[] = {
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json",     "merges.txt",      "chat_template.jinja",   "chat_template.json"};
constexpr const char* kTemplates = "additional_chat_templates";
constexpr const char* kCompanions[] = {"generation_config.json", "LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE",
                                       "USE_POLICY.md"};

uint64_t bytes_of(const TensorSpec& spec) {
  return static_cast<uint64_t>(element_count(spec.shape)) * dtype_size(spec.dtype);
}

// Tensors in order, a new shard where the next one would not fit.
std::vector<std::vector<TensorSpec>> split(const std::vector<TensorSpec>& specs, uint64_t shard_bytes) {
  std::vector<std::vector<TensorSpec>> shards(1);
  uint64_t filled = 0;
  for (const TensorSpec& spec : specs) {
    if (filled > 0 && filled + bytes_of(spec) > shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(spec);
    filled += bytes_of(spec);
  }
  return shards;
}

std::string shard_name(size_t index, size_t count) {
  if (count == 1) return "model.safetensors";
  return formatted("model-%05zu-of-%05zu.safetensors", index + 1, count);
}

}  // namespace

std::vector<std::filesystem::path> tokenizer_files(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> files;
  for (const char* file : kTokenizerFiles) {
    if (std::filesystem::is_regular_file(directory / file)) files.emplace_back(file);
  }
  if (!std::filesystem::is_directory(directory / kTemplates)) return files;
  for (const auto& entry : list_directory(directory / kTemplates)) {
    if (entry.path().extension() == ".jinja") files.push_back(kTemplates / entry.path().filename());
  }
  return files;
}

void drop_quantization_config(nlohmann::json& config) {
  config.erase("quantization_config");
  if (const auto text = config.find("text_config"); text != config.end() && text->is_object()) {
    text->erase("quantization_config");
  }
}

void copy_tokenizer_files(const std::filesystem::path& from, const std::filesystem::path& to) {
  const std::vector<std::filesystem::path> roots = link_roots(from);
  for (const std::filesystem::path& file : tokenizer_files(from)) {
    if (file.has_parent_path()) std::filesystem::create_directory(to / file.parent_path());
    copy_file_atomically(follow_links_within(from / file, roots), to / file);
  }
}

void copy_companions(const std::filesystem::path& model, const std::filesystem::path& to) {
  copy_tokenizer_files(model, to);
  const std::vector<std::filesystem::path> roots = link_roots(model);
  for (const char* file : kCompanions) {
    if (!std::filesystem::is_regular_file(model / file)) continue;
    copy_file_atomically(follow_links_within(model / file, roots), to / file);
  }
}

ModelDirectoryWriter::ModelDirectoryWriter(const std::filesystem::path& target, Replace replace,
                                           const std::vector<TensorSpec>& specs, uint64_t shard_bytes)
    : directory_(target, replace) {
  for (const TensorSpec& spec : specs) total_bytes_ += bytes_of(spec);
  require_free_bytes(directory_.path(), total_bytes_, "the model");
  const auto shards = split(specs, shard_bytes);
  for (size_t i = 0; i < shards.size(); ++i) {
    shard_names_.push_back(shard_name(i, shards.size()));
    shards_.push_back(std::make_unique<SafetensorsWriter>(directory_.path() / shard_names_.back(), shards[i]));
    for (const TensorSpec& spec : shards[i]) shard_of_.emplace(spec.name, i);
  }
}

ModelDirectoryWriter::~ModelDirectoryWriter() = default;

void ModelDirectoryWriter::write(const std::string& name, const Tensor& value) {
  shards_.at(shard_of_.at(name))->write(name, value);
}

void ModelDirectoryWriter::append(const std::string& name, const Tensor& rows) {
  shards_.at(shard_of_.at(name))->append(name, rows);
}

void ModelDirectoryWriter::write_text(const std::string& file, std::string_view text) {
  write_file_atomically(directory_.path() / file, text);
}

void ModelDirectoryWriter::finish() {
  for (auto& shard : shards_) shard->finish();
  if (shards_.size() > 1) {
    nlohmann::json index = {{"metadata", {{"total_size", total_bytes_}}}, {"weight_map", nlohmann::json::object()}};
    for (const auto& [name, shard] : shard_of_) index["weight_map"][name] = shard_names_.at(shard);
    write_json_file(directory_.path() / "model.safetensors.index.json", index);
  }
  directory_.list_files();
  directory_.commit();
}

}  // namespace nibble
