#pragma once
#include <cstdint>
#include <string>

namespace nibble {

struct InitRequest {
  std::string config;  ///< config.json
  std::string out;     ///< directory to write
  uint64_t seed = 0;
  std::string dtype = "bf16";  ///< bf16, f32, or nf4 (double-quantized; embeddings, norms and head bf16)
  bool force = false;
};

struct InitReport {
  int64_t weights = 0;
  uint64_t bytes = 0;
};

/// Writes a model of random weights, one tensor at a time: the numbers of random_decoder(config, seed), rounded to the
/// dtype. Throws InputError for a config that cannot be, UsageError when `out` exists and not force.
InitReport init_model(const InitRequest& request);

}  // namespace nibble
