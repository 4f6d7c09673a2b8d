#pragma once
// What llama.cpp calls the type of a file: one type for most matrices, finer ones for those that suffer most from it.

#include <string>
#include <vector>

#include "nibble/core/io/gguf/gguf.h"
#include "nibble/core/models/decoder_config.h"

namespace nibble {

struct GgufMix {
  std::string_view name;  ///< "q4_k_m"
  GgufType type;          ///< of most matrices
  uint32_t file_type;     ///< llama.cpp's LLAMA_FTYPE, for general.file_type
};

/// f32, f16, bf16, q8_0, q4_0, q6_k, q5_k_m, q4_k_m. Throws UsageError for another name.
const GgufMix& gguf_mix(const std::string& name);
/// Their names.
std::vector<std::string> gguf_mix_names();

/// The type of matrix `name` (as llama.cpp calls it) with rows of `width`. The K-quants follow llama.cpp's own choice
/// (llama-quant.cpp, b11549) for models without experts; with q4_0 the head, or the table it is tied to, is q8_0. Rows
/// that are no multiple of the type's block take what llama.cpp falls back to, f16 where they are none of 32.
GgufType gguf_matrix_type(const GgufMix& mix, const DecoderConfig& config, const std::string& name, int64_t width);

}  // namespace nibble
