#include "nibble/recipes/recompute_policy.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace nibble {

namespace {

// What the system says is free, in bytes, within the control group's limit.
int64_t available_memory() {
  std::ifstream meminfo("/proc/meminfo");
  int64_t available = INT64_MAX, kib = 0;
  for (std::string word; meminfo >> word;) {
    if (word == "MemAvailable:" && meminfo >> kib) available = kib * 1024;
  }
  int64_t limit = 0, used = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit && std::ifstream("/sys/fs/cgroup/memory.current") >> used) {
    available = std::min(available, limit - used);
  }
  return available;
}

}  // namespace

int64_t activation_bytes(const DecoderConfig& config, int64_t tokens, DType compute_dtype) {
  const int64_t element = static_cast<int64_t>(dtype_size(compute_dtype));
  const int64_t residual = 2 * 4 * config.width;  // input of both norms, f32; their outputs are computed again
  const int64_t attention = element * (2 * config.heads + 2 * config.kv_heads) * config.head_size + 4 * config.heads;
  const int64_t mlp = element * (config.gated_mlp ? 2 : 1) * config.mlp_width;
  return tokens * config.layers * (residual + attention + mlp);
}

Recompute recompute_policy(const Recipe& recipe, const DecoderConfig& config) {
  if (recipe.train.gradient_checkpointing) return *recipe.train.gradient_checkpointing;
  const int64_t tokens = recipe.train.microbatch_size * recipe.data.max_length;
  const bool fits = activation_bytes(config, tokens, *recipe.model.compute_dtype) <= available_memory() / 2;
  return fits ? Recompute::none : Recompute::block;
}

}  // namespace nibble
