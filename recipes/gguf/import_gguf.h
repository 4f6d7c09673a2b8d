#pragma once
// GGUF files as model directories: what nibble trains from.

#include <string>

#include "nibble/core/base/rank_context.h"
#include "nibble/core/io/files/atomic_file.h"

namespace nibble {

struct ImportRequest {
  std::string file;  ///< .gguf
  std::string out;   ///< Hugging Face directory to write
  /// f32, f16, bf16; auto: as the embedding in the file, f16 where it is in small blocks, and f32 for vectors (norms,
  /// decays, corrections of routers) with values that this dtype does not have
  std::string dtype = "auto";
  Replace replace = Replace::nothing;
};

struct ImportReport {
  std::string model_type;  ///< "llama"; empty for a file with a tokenizer only
  int64_t tensors = 0;
  uint64_t bytes = 0;
  bool tokenizer = false;
};

/// Writes config.json, the weights and the tokenizer, tensor by tensor, of every architecture that is exported (Mistral
/// comes back as llama). A file without weights gives a directory with a tokenizer only. Throws InputError for another
/// architecture, naming it with the known ones, for tensors in types that are not read, missing or left
/// over, and for what cannot be said in config.json; UsageError when `out` exists.
ImportReport import_gguf(const ImportRequest& request, RankContext& rank);

}  // namespace nibble
