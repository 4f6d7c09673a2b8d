#pragma once
#include <cstdint>
#include <string>

#include "nibble/core/io/files/atomic_file.h"

namespace nibble {

struct InitRequest {
  std::string config;  ///< config.json
  std::string out;     ///< directory to write
  uint64_t seed = 0;
  /// bf16, f32, nf4 (double-quantized; embeddings, norms and head bf16), or mxfp4 (experts; the others bf16)
  std::string dtype = "bf16";
  Replace replace = Replace::nothing;
};

struct InitReport {
  int64_t weights = 0;
  uint64_t bytes = 0;
};

/// Writes a model of random weights, one tensor at a time: the numbers of random_decoder(config, seed), rounded to the
/// dtype. Throws InputError for a config that cannot be (mxfp4: one whose experts are not in tensors of all of them),
/// UsageError when `out` may not be replaced or contains the config.
InitReport init_model(const InitRequest& request);

}  // namespace nibble
