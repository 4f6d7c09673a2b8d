#pragma once
// Adapter directories of Hugging Face PEFT: adapter_config.json, adapter_model.safetensors, README.md.

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nibble/adapters/options.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/tensor/tensor.h"

namespace nibble {

/// An adapter on disk; the tensors are views on the mapped file (f32, bf16 or f16, maybe unaligned).
struct PeftAdapter {
  std::filesystem::path directory;
  AdapterOptions options;
  /// By name without the prefix "base_model.model." and without an adapter name:
  /// "model.layers.0.self_attn.q_proj.lora_A.weight".
  std::map<std::string, Tensor> tensors;

  /// The tensor, or an undefined one.
  Tensor find(const std::string& name) const;
  /// "DIR/adapter_model.safetensors", for messages.
  std::string file() const { return (directory / "adapter_model.safetensors").string(); }
};

/// Reads and checks an adapter directory: each A [r, in] has its B [out, r], ranks fit, all values are finite floats.
/// Throws IoError or InputError naming file and tensor; an adapter that only has pickled weights (adapter_model.bin) is
/// refused.
PeftAdapter read_peft_directory(const std::filesystem::path& directory);

/// What lies beside an adapter's own files.
struct AdapterCompanions {
  std::filesystem::path tokenizer;           ///< the directory whose tokenizer and chat templates are copied, or ""
  std::optional<std::string> chat_template;  ///< Jinja text of chat_template.jinja, instead of that directory's
  int64_t rows = 0;                          ///< of the embedding, where they are more than the base's
  std::string base;                          ///< content of kBaseFile: what it was trained on, or ""
  std::string bits_and_bytes;  ///< Python: arguments of the BitsAndBytesConfig that gives that base, or ""
};

/// A tensor to be written, by its full name ("base_model.model....lora_A.weight"), f32.
struct PeftTensor {
  std::string name;
  Shape shape;
  std::vector<Tensor> pieces;  ///< whose bytes, one after another, are the tensor's
};

/// Writes a directory that PEFT loads: all files appear at once, after they were read back and compared. Throws
/// UsageError when `directory` exists and is not empty, unless it may be replaced.
void write_peft_directory(const std::filesystem::path& directory, const AdapterOptions& options,
                          const std::vector<PeftTensor>& tensors, Replace replace = Replace::nothing,
                          const AdapterCompanions& companions = {});
/// The same of tensors in one piece.
void write_peft_directory(const std::filesystem::path& directory, const AdapterOptions& options,
                          const std::vector<std::pair<std::string, Tensor>>& tensors,
                          Replace replace = Replace::nothing, const AdapterCompanions& companions = {});

/// In an adapter directory: which base it was trained on, JSON, see recipes/models/fingerprints.h. PEFT does not look
/// at it.
inline constexpr std::string_view kBaseFile = "nibble_base.json";

/// Prefix of every name in a PEFT file.
inline constexpr const char* kPeftPrefix = "base_model.model.";
/// What the name of a module's factor ends in, of a Linear and of an embedding.
inline constexpr std::string_view kLoraA = ".lora_A.weight", kLoraB = ".lora_B.weight";
inline constexpr std::string_view kLoraEmbeddingA = ".lora_embedding_A", kLoraEmbeddingB = ".lora_embedding_B";

}  // namespace nibble
