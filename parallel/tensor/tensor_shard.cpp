#include "nibble/parallel/tensor/tensor_shard.h"

#include <algorithm>

#include "nibble/core/base/error.h"

namespace nibble {

namespace {

Range share(int64_t count, const TensorShard& shard) {
  return {count * shard.tp_rank / shard.tp_size, count * (shard.tp_rank + 1) / shard.tp_size};
}

Range times(const Range& range, int64_t factor) { return {range.begin * factor, range.end * factor}; }
Range moved(const Range& range, int64_t by) { return {range.begin + by, range.end + by}; }

void require(int64_t have, const TensorShard& shard, const std::string& what) {
  if (have >= shard.tp_size) return;
  throw UsageError("the model has " + std::to_string(have) + " " + what + ", fewer than the " +
                       std::to_string(shard.tp_size) + " ranks of parallel.tensor",
                   "use at most " + std::to_string(have) + ", and parallel.shard or parallel.pipeline for the rest",
                   "parallel.tensor");
}

// Groups of heads that stay together.
int64_t head_units(const DecoderConfig& config) {
  const bool grouped = !config.names.block.attention.qkv.empty() && config.qkv_groups > 1;
  return grouped ? config.qkv_groups : config.kv_heads;
}

// A single key and value head, which all ranks have: each computes the term of its gradient that its queries give.
bool shares_one_head(const DecoderConfig& config) {
  return config.kv_heads == 1 && config.names.block.attention.qkv.empty();
}

// Rows of a fused projection: query, key and value heads of all groups, or of each group in turn.
std::vector<Range> fused_rows(const DecoderConfig& config, const TensorShard& shard) {
  const int64_t size = config.head_size, keys = config.kv_heads, queries = config.heads;
  if (config.qkv_groups > 1) {
    const int64_t heads = (queries + 2 * keys) * size;
    return {times(shard.kv_heads, heads / keys)};
  }
  const Range own = times(shard.kv_heads, size);
  return {times(shard.heads, size), moved(own, queries * size), moved(own, (queries + keys) * size)};
}

ShardSpec rows_of(int64_t out, int64_t in, std::vector<Range> rows) { return {{out, in}, std::move(rows), all_of(in)}; }
ShardSpec columns_of(int64_t out, int64_t in, const Range& columns) { return {{out, in}, all_of(out), {columns}}; }

// "self_attn.q_proj" of "model.layers.3.self_attn.q_proj"; empty outside the layers.
std::string in_layer(const DecoderConfig& config, const std::string& module) {
  const std::string& layers = config.names.layers;
  if (!module.starts_with(layers)) return "";
  const size_t dot = module.find('.', layers.size());
  return dot == std::string::npos ? "" : module.substr(dot + 1);
}

}  // namespace

TensorShard tensor_shard(const DecoderConfig& config, int tp_rank, int tp_size) {
  if (tp_size == 1) return {};
  TensorShard shard{.tp_rank = tp_rank, .tp_size = tp_size, .kv_heads = {}, .heads = {}, .mlp = {}, .vocabulary = {}};
  const int64_t units = shares_one_head(config) ? config.heads : head_units(config);
  const bool grouped = units != config.kv_heads && units == config.qkv_groups;
  require(units, shard, grouped ? "groups of heads in its fused projection" : "heads to share");
  require(config.vocab_size, shard, "tokens");
  if (config.qk_norm && config.qk_norm->kind != HeadNormKind::head) {
    throw UsageError("the norms of queries and keys of " + config.model_type + " cannot be sharded",
                     "use parallel.shard or parallel.pipeline", "parallel.tensor");
  }
  if (config.attention_sinks || config.attention_gate != OutputGate::none || config.sublayer_norms || config.xielu ||
      config.scaled_layers) {
    throw UsageError("the attention or the MLP of " + config.model_type + " cannot be sharded", "use parallel.shard",
                     "parallel.tensor");
  }
  const auto of_its_own = [](const LayerConfig& layer) {
    return layer.mixer || layer.feed_forward || layer.heads + layer.kv_heads + layer.head_size + layer.mlp_width > 0;
  };
  if (std::ranges::any_of(config.layer, of_its_own)) {
    throw UsageError(
        "layers of several kinds or sizes cannot be sharded",
        config.layers_share_activations() ? "use parallel.shard" : "use parallel.shard or parallel.pipeline",
        "parallel.tensor");
  }
  int64_t grain = 64;
  while (grain > 1 && (config.mlp_width % grain != 0 || config.mlp_width / grain < tp_size)) grain /= 2;
  require(config.mlp_width / grain, shard, "columns in its MLP");
  if (shares_one_head(config)) {
    shard.kv_heads = {0, 1};
    shard.heads = share(units, shard);
  } else {
    shard.kv_heads = times(share(units, shard), config.kv_heads / units);
    shard.heads = times(shard.kv_heads, config.heads / config.kv_heads);
  }
  shard.mlp = times(share(config.mlp_width / grain, shard), grain);
  shard.vocabulary = share(config.vocab_size, shard);
  return shard;
}

ShardSpec module_shard(const DecoderConfig& config, const TensorShard& shard, const std::string& module) {
  if (shard.tp_size == 1) return {};
  const int64_t width = config.width, hidden = config.mlp_width;
  const int64_t queries = config.heads * config.head_size, keys = config.kv_heads * config.head_size;
  if (module == config.names.embedding || module == config.names.head) {
    return rows_of(config.vocab_size, config.embedding_width, {shard.vocabulary});
  }
  const std::string own = in_layer(config, module);
  if (own.empty()) return {};
  const AttentionNames& attention = config.names.block.attention;
  const MlpNames& mlp = config.names.block.mlp;
  const Range heads = times(shard.heads, config.head_size), kv_heads = times(shard.kv_heads, config.head_size);
  if (own == attention.output) return columns_of(width, queries, heads);
  if (!attention.qkv.empty()) {
    if (own == attention.qkv) return rows_of(queries + 2 * keys, width, fused_rows(config, shard));
  } else if (own == attention.q) {
    return rows_of(queries, width, {heads});
  } else if (own == attention.k || own == attention.v) {
    return rows_of(keys, width, {kv_heads});
  }
  if (own == mlp.down) return columns_of(width, hidden, shard.mlp);
  if (!mlp.gate_up.empty()) {
    if (own == mlp.gate_up) return rows_of(2 * hidden, width, {shard.mlp, moved(shard.mlp, hidden)});
  } else if (own == mlp.up || (config.gated_mlp && own == mlp.gate)) {
    return rows_of(hidden, width, {shard.mlp});
  }
  return {};
}

ParameterShard parameter_shard(const DecoderConfig& config, const TensorShard& shard, const std::string& name) {
  const size_t dot = name.rfind('.');
  const std::string module = name.substr(0, dot), own = in_layer(config, module);
  const AttentionNames& attention = config.names.block.attention;
  const bool norm_of_heads = config.qk_norm && (own == attention.q_norm || own == attention.k_norm);
  const ShardSpec weight = module_shard(config, shard, module);
  if (!name.ends_with(".bias")) {
    const bool transposed = config.transposed_linears && !own.empty();
    return {transposed ? weight.transposed() : weight, norm_of_heads, true};
  }
  // The bias of a projection back into the stream is added once.
  if (!weight.slices_rows())
    return {{}, norm_of_heads || (weight && !weight.slices_columns()), !(weight.slices_columns() && shard.tp_rank > 0)};
  return {{{weight.global[0]}, weight.rows, {}}, norm_of_heads, true};
}

}  // namespace nibble
