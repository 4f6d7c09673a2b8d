#pragma once
// Writing a Hugging Face model directory: weights in one file or in shards with an index, and the files beside them.

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "nibble/core/io/safetensors/safetensors.h"

namespace nibble {

/// The files of a tokenizer and of its chat templates that `directory` has, as paths in it.
std::vector<std::filesystem::path> tokenizer_files(const std::filesystem::path& directory);

/// Copies them; InputError for a link out of the directory (see CheckpointDir).
void copy_tokenizer_files(const std::filesystem::path& from, const std::filesystem::path& to);

/// Copies what belongs to a model besides weights and config.json: tokenizer, chat template, generation_config.json,
/// licence. Files that are absent are passed over; InputError as above.
void copy_companions(const std::filesystem::path& model, const std::filesystem::path& to);

/// Takes out of a config.json how weights were packed (its text_config may say it too): for plain weights.
void drop_quantization_config(nlohmann::json& config);

/// A model directory that appears whole at finish(), or not at all. Weights go to model.safetensors, or, above
/// shard_bytes, to model-00001-of-0000N.safetensors and model.safetensors.index.json, filled in the order of `specs`.
class ModelDirectoryWriter {
 public:
  /// Throws UsageError when `target` exists and may not be replaced (see AtomicDirectory); IoError when it cannot be
  /// written or space is missing.
  ModelDirectoryWriter(const std::filesystem::path& target, Replace replace, const std::vector<TensorSpec>& specs,
                       uint64_t shard_bytes = 5'000'000'000);
  ~ModelDirectoryWriter();

  /// The whole tensor `name`, in the dtype of its spec.
  void write(const std::string& name, const Tensor& value);
  /// The next rows of tensor `name`.
  void append(const std::string& name, const Tensor& rows);
  /// A text file beside the weights: config.json.
  void write_text(const std::string& file, std::string_view text);
  /// Where the files are until finish().
  const std::filesystem::path& path() const { return directory_.path(); }
  void finish();

 private:
  AtomicDirectory directory_;
  std::vector<std::unique_ptr<SafetensorsWriter>> shards_;
  std::vector<std::string> shard_names_;
  std::unordered_map<std::string, size_t> shard_of_;
  uint64_t total_bytes_ = 0;
};

}  // namespace nibble
