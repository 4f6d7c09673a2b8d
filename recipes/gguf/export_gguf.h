#pragma once
// Models and adapters as GGUF files, for llama.cpp.

#include <string>
#include <vector>

#include "nibble/core/base/rank_context.h"
#include "nibble/core/io/gguf/gguf.h"

namespace nibble {

struct GgufRequest {
  std::string model;               ///< Hugging Face directory, 16/32-bit or bitsandbytes 4-bit
  std::string adapter;             ///< PEFT directory, merged in; empty: none
  bool adapter_only = false;       ///< write the adapter by itself, beside an exported `model`
  std::string out;                 ///< file to write
  GgufType type = GgufType::bf16;  ///< of matrices; norms and biases are f32
  bool tokenizer = true;
  Replace replace = Replace::nothing;  ///< own: a GGUF file that is there; anything: any file
};

struct GgufReport {
  std::string architecture;
  int64_t tensors = 0;
  uint64_t bytes = 0;
  int64_t fallbacks = 0;  ///< matrices whose rows are no multiple of 32, kept in f16
  /// Steps of the tokenizer that llama.cpp leaves out, so that it gives some texts other ids
  std::vector<std::string> left_out;
};

/// Writes the file, tensor by tensor. A 4-bit base is dequantized; an adapter is merged in f32 first, by way of a
/// directory beside `out`. With q4_0 the head, or the table it is tied to, is q8_0. Throws UsageError for a family or a
/// tokenizer that llama.cpp does not know, and for adapters with parts that its adapters cannot have; InputError,
/// IoError as the readers and writers.
GgufReport export_gguf(const GgufRequest& request, RankContext& rank);

/// f32, f16, bf16, q8_0, q4_0. Throws UsageError for another name.
GgufType gguf_type_of(const std::string& name);

}  // namespace nibble
