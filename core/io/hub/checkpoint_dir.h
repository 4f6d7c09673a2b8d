#pragma once
// A model as Hugging Face keeps it: a directory with config.json and safetensors files.

#include <filesystem>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "nibble/core/io/safetensors/safetensors.h"

namespace nibble {

/// Whether a directory has the files of which CheckpointDir needs one.
bool holds_weights(const std::filesystem::path& directory);

/// A tensor of files that is several modules' in Transformers: its rows are theirs, one after the other.
struct FusedTensor {
  std::string module;                                  ///< end of its path, "attention.query_key_value"
  std::vector<std::pair<std::string, int64_t>> parts;  ///< what stands in its place, and rows: "attention.q_proj", 64
};

/// The weights of a directory: `model.safetensors`, or the shards that `model.safetensors.index.json` lists. All
/// headers are read and checked when it is opened; weights are mapped, not read.
///
/// Links are followed as far as the directory itself, the Hugging Face cache it belongs to (snapshots/REVISION beside
/// blobs/) and `roots`; a link that leads elsewhere is refused.
///
/// Models with a vision tower are saved under older names than their modules have: "language_model.model.layers.0" is
/// "model.language_model.layers.0" here, "language_model.lm_head" is "lm_head", "vision_tower" and
/// "multi_modal_projector" are inside "model" (Transformers reads both), but for the tower of Kimi K2.5.
class CheckpointDir {
 public:
  /// Throws IoError when there is no such directory, InputError when it has no safetensors weights, an index names a
  /// file outside the directory or one that is missing, or index and shards disagree about a tensor.
  explicit CheckpointDir(const std::filesystem::path& directory, std::vector<std::filesystem::path> roots = {});

  /// Puts the parts in the place of such tensors. Throws InputError where they have other rows than one has.
  void split(const std::vector<FusedTensor>& fused);

  const std::filesystem::path& path() const { return directory_; }
  /// Names of all tensors, sorted.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(const std::string& name) const { return places_.contains(name); }
  /// A view on the mapped file (see SafetensorsFile); undefined when there is no such tensor.
  Tensor find(const std::string& name) const;
  /// The tensor; InputError naming directory and tensor when there is none.
  Tensor at(const std::string& name) const;
  /// The file a tensor is in, for error messages; the directory when there is no such tensor.
  std::string file_of(const std::string& name) const;
  /// Bytes of all tensors.
  uint64_t total_bytes() const { return total_bytes_; }

  /// Text of config.json; InputError when there is none.
  std::string config_text() const;
  /// Path of `name` in the directory, links checked as said above; IoError when there is no such file.
  std::filesystem::path file(const std::string& name) const;

 private:
  void open_shards(const std::vector<std::string>& files);
  void open_index();

  std::filesystem::path directory_;
  std::vector<std::filesystem::path> roots_;  // canonical
  std::vector<std::unique_ptr<SafetensorsFile>> shards_;
  struct Place {
    size_t shard;
    std::string stored;          // its name in the file
    int64_t begin = 0, end = 0;  // rows of that; 0 = all
  };
  void list_names();

  std::unordered_map<std::string, Place> places_;
  std::vector<std::string> names_;
  uint64_t total_bytes_ = 0;
};

/// Gives the pages of a mapped tensor back to the system: they stay in its cache, but no longer count as this
/// process's. For passes over models that are larger than memory. Nothing happens for tensors that are not mapped.
void release_pages(const Tensor& tensor);
/// Asks the system to map a mapped tensor in huge pages, for tensors that are read whole. Linux does so with what is
/// not in its cache yet, where the file system can (ext4 of Linux 6.18). Nothing happens for tensors that are not
/// mapped.
void prefer_huge_pages(const Tensor& tensor);

/// What to do with a GGUF file where a directory is wanted.
inline constexpr const char* kImportRemedy = "make a directory of it: nibble import --model FILE.gguf --out DIR";

/// The canonical directories that links in model directory `directory` may lead to: itself, and the root of the Hugging
/// Face cache when it is a snapshot in one.
std::vector<std::filesystem::path> link_roots(const std::filesystem::path& directory);

/// `file` with all links followed; InputError when that is not inside one of `roots`, IoError when there is no such
/// file.
std::filesystem::path follow_links_within(const std::filesystem::path& file,
                                          const std::vector<std::filesystem::path>& roots);

}  // namespace nibble
