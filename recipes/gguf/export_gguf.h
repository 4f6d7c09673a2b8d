#pragma once
// Models and adapters as GGUF files, for llama.cpp.

#include <string>
#include <vector>

#include "nibble/core/base/rank_context.h"
#include "nibble/core/io/files/atomic_file.h"

namespace nibble {

struct GgufRequest {
  std::string model;          ///< Hugging Face directory, 16/32-bit or bitsandbytes 4-bit
  std::string adapter;        ///< PEFT directory, merged in; empty: none
  bool adapter_only = false;  ///< write the adapter by itself, beside an exported `model`
  std::string out;            ///< file to write
  std::string type = "bf16";  ///< of matrices, by the names of gguf_mix(); norms and biases are f32
  bool tokenizer = true;
  std::string modelfile;               ///< also write this file, for Ollama; empty: none
  Replace replace = Replace::nothing;  ///< own: a GGUF file that is there; anything: any file
};

/// Matrices whose rows do not fit the blocks asked for.
struct GgufFallbacks {
  int64_t f16 = 0;           ///< no multiple of 32: kept in f16
  int64_t small_blocks = 0;  ///< no multiple of 256: in blocks of 32 (Q5_0, Q5_1, Q8_0) instead of K-quants
};

struct GgufReport {
  std::string architecture;
  int64_t tensors = 0;
  uint64_t bytes = 0;
  GgufFallbacks fallbacks;
  /// What llama.cpp leaves out: steps of the tokenizer, so that it gives some texts other ids, and of rope; templates
  /// whose names are taken there
  std::vector<std::string> left_out;
  bool has_tokenizer = false;
};

/// Writes the file, tensor by tensor. A 4-bit base is dequantized (but MXFP4 is kept in all types except f32, unless an
/// adapter changes it), an adapter merged in f32, block of rows by block of rows. Throws UsageError for a type, a
/// family or a tokenizer that llama.cpp does not know, and for adapters with parts that its adapters cannot have;
/// InputError, IoError as the readers and writers.
GgufReport export_gguf(const GgufRequest& request, RankContext& rank);

}  // namespace nibble
