#pragma once
// Small random mixtures of experts of several families, in memory and as directories.

#include <string>

#include "nibble/core/io/safetensors/safetensors.h"
#include "nibble/core/models/families/families.h"
#include "nibble/core/models/load.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble::test {

/// How families lay out experts: a Linear each (qwen3_moe, mixtral), or tensors of all, [out, in] (granitemoe) or
/// [in, out] with gate and up interleaved (gpt_oss) or apart (llama4_text).
inline constexpr const char* kMixtures[] = {"qwen3_moe", "mixtral", "granitemoe", "gpt_oss", "llama4_text"};

/// more: further keys, each after a comma.
inline std::string mixture_config(const std::string& type, const std::string& more = "") {
  return R"({"model_type": ")" + type + R"(", "hidden_size": 32, "intermediate_size": 32, "intermediate_size_mlp": 32,
      "moe_intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
      "head_dim": 16, "vocab_size": 48, "num_local_experts": 4, "num_experts_per_tok": 2, "initializer_range": 0.2,
      "max_position_embeddings": 64, "tie_word_embeddings": false)" +
         more + "}";
}

/// The decoder as a directory that load_decoder reads.
inline void write_model(const std::filesystem::path& directory, Decoder& decoder, const std::string& config) {
  std::filesystem::create_directories(directory);
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const NamedTensor& tensor : state_dict(decoder)) tensors.emplace_back(tensor.name, tensor.value);
  write_safetensors(directory / "model.safetensors", tensors);
  write_bytes(directory / "config.json", config);
}

/// A random mixture in `directory`.
inline void write_mixture(const std::filesystem::path& directory, const std::string& type, RankContext& rank) {
  const std::string config = mixture_config(type);
  Decoder decoder = random_decoder(parse_decoder_config(config, "test"), 3, rank);
  write_model(directory, decoder, config);
}

}  // namespace nibble::test
