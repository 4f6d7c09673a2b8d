#include "nibble/core/models/decoder_part.h"

#include <algorithm>

#include "nibble/core/base/error.h"
#include "nibble/core/io/checkpoint_dir.h"

namespace nibble {

namespace {

Range share(int64_t count, const DecoderPart& part) {
  return {count * part.index / part.count, count * (part.index + 1) / part.count};
}

Range times(const Range& range, int64_t factor) { return {range.begin * factor, range.end * factor}; }
Range moved(const Range& range, int64_t by) { return {range.begin + by, range.end + by}; }

void require(int64_t have, const DecoderPart& part, const std::string& what) {
  if (have >= part.count) return;
  throw UsageError("the model has " + std::to_string(have) + " " + what + ", fewer than the " +
                       std::to_string(part.count) + " ranks of parallel.tensor",
                   "use at most " + std::to_string(have) + ", and parallel.shard or parallel.pipeline for the rest",
                   "parallel.tensor");
}

// Groups of heads that stay together.
int64_t head_units(const DecoderConfig& config) {
  const bool grouped = !config.names.block.attention.qkv.empty() && config.qkv_groups > 1;
  return grouped ? config.qkv_groups : config.kv_heads;
}

// A single key and value head, which all ranks have: each computes the part of its gradient that its queries give.
bool shares_one_head(const DecoderConfig& config) {
  return config.kv_heads == 1 && config.names.block.attention.qkv.empty();
}

// Every rank has all of it, but not all of its gradient.
bool only_gradient_is_cut(const Cut& cut) { return cut && !cut.cuts_rows() && !cut.cuts_columns(); }

// Rows of a fused projection: query, key and value heads of all groups, or of each group in turn.
std::vector<Range> fused_rows(const DecoderConfig& config, const DecoderPart& part) {
  const int64_t size = config.head_size, keys = config.kv_heads, queries = config.heads;
  if (config.qkv_groups > 1) {
    const int64_t heads = (queries + 2 * keys) * size;
    return {times(part.kv_heads, heads / keys)};
  }
  const Range own = times(part.kv_heads, size);
  return {times(part.heads, size), moved(own, queries * size), moved(own, (queries + keys) * size)};
}

Cut rows_of(int64_t out, int64_t in, std::vector<Range> rows) { return {{out, in}, std::move(rows), all_of(in)}; }
Cut columns_of(int64_t out, int64_t in, const Range& columns) { return {{out, in}, all_of(out), {columns}}; }

// "self_attn.q_proj" of "model.layers.3.self_attn.q_proj"; empty outside the layers.
std::string in_layer(const DecoderConfig& config, const std::string& module) {
  const std::string& layers = config.names.layers;
  if (!module.starts_with(layers)) return "";
  const size_t dot = module.find('.', layers.size());
  return dot == std::string::npos ? "" : module.substr(dot + 1);
}

}  // namespace

DecoderPart decoder_part(const DecoderConfig& config, int index, int count) {
  if (count == 1) return {};
  DecoderPart part{.index = index, .count = count, .kv_heads = {}, .heads = {}, .mlp = {}, .vocabulary = {}};
  const int64_t units = shares_one_head(config) ? config.heads : head_units(config);
  const bool grouped = units != config.kv_heads && units == config.qkv_groups;
  require(units, part, grouped ? "groups of heads in its fused projection" : "heads to share");
  require(config.vocab_size, part, "tokens");
  if (count > 1 && config.qk_norm && config.qk_norm->kind != HeadNormKind::head) {
    throw UsageError("the norms of queries and keys of " + config.model_type + " cannot be cut",
                     "use parallel.shard or parallel.pipeline", "parallel.tensor");
  }
  const auto of_its_own = [](const LayerConfig& layer) {
    return layer.mixer || layer.feed_forward || layer.heads + layer.kv_heads + layer.head_size + layer.mlp_width > 0;
  };
  if (std::ranges::any_of(config.layer, of_its_own)) {
    throw UsageError("layers of several kinds or sizes cannot be cut", "use parallel.shard or parallel.pipeline",
                     "parallel.tensor");
  }
  int64_t grain = 64;
  while (grain > 1 && (config.mlp_width % grain != 0 || config.mlp_width / grain < count)) grain /= 2;
  require(config.mlp_width / grain, part, "columns in its MLP");
  if (shares_one_head(config)) {
    part.kv_heads = {0, 1};
    part.heads = share(units, part);
  } else {
    part.kv_heads = times(share(units, part), config.kv_heads / units);
    part.heads = times(part.kv_heads, config.heads / config.kv_heads);
  }
  part.mlp = times(share(config.mlp_width / grain, part), grain);
  part.vocabulary = share(config.vocab_size, part);
  return part;
}

AttentionConfig part_of(AttentionConfig whole, const DecoderPart& part) {
  if (!part.cut()) return whole;
  if (whole.qkv_groups > 1) whole.qkv_groups = whole.qkv_groups * part.kv_heads.size() / whole.kv_heads;
  whole.heads = part.heads.size();
  whole.kv_heads = part.kv_heads.size();
  if (!whole.alibi_slopes.empty()) {
    const auto first = whole.alibi_slopes.begin();
    whole.alibi_slopes = std::vector<float>(first + part.heads.begin, first + part.heads.end);
  }
  return whole;
}

MlpConfig part_of(MlpConfig whole, const DecoderPart& part) {
  if (part.cut()) whole.hidden = part.mlp.size();
  return whole;
}

Cut module_cut(const DecoderConfig& config, const DecoderPart& part, const std::string& module) {
  if (!part.cut()) return {};
  const int64_t width = config.width, hidden = config.mlp_width;
  const int64_t queries = config.heads * config.head_size, keys = config.kv_heads * config.head_size;
  if (module == config.names.embedding || module == config.names.head) {
    return rows_of(config.vocab_size, config.embedding_width, {part.vocabulary});
  }
  const std::string own = in_layer(config, module);
  if (own.empty()) return {};
  const AttentionNames& attention = config.names.block.attention;
  const MlpNames& mlp = config.names.block.mlp;
  const Range heads = times(part.heads, config.head_size), kv_heads = times(part.kv_heads, config.head_size);
  if (own == attention.output) return columns_of(width, queries, heads);
  if (!attention.qkv.empty()) {
    if (own == attention.qkv) return rows_of(queries + 2 * keys, width, fused_rows(config, part));
  } else if (own == attention.q) {
    return rows_of(queries, width, {heads});
  } else if (own == attention.k || own == attention.v) {
    return rows_of(keys, width, {kv_heads});
  }
  if (own == mlp.down) return columns_of(width, hidden, part.mlp);
  if (!mlp.gate_up.empty()) {
    if (own == mlp.gate_up) return rows_of(2 * hidden, width, {part.mlp, moved(part.mlp, hidden)});
  } else if (own == mlp.up || (config.gated_mlp && own == mlp.gate)) {
    return rows_of(hidden, width, {part.mlp});
  }
  return {};
}

namespace {

// How the parameter of a module is cut, as the family stores it.
Cut parameter_cut(const DecoderConfig& config, const DecoderPart& part, const std::string& name) {
  const size_t dot = name.rfind('.');
  const std::string module = name.substr(0, dot), kind = dot == std::string::npos ? "" : name.substr(dot + 1);
  const Cut cut = module_cut(config, part, module);
  if (kind == "bias") return cut.cuts_rows() ? Cut{{cut.whole[0]}, cut.rows, {}} : Cut();
  const bool transposed = config.transposed_linears && !in_layer(config, module).empty();
  return transposed ? cut.transposed() : cut;
}

// The cut of the matrix whose bias this is.
Cut bias_of(const DecoderConfig& config, const DecoderPart& part, const std::string& name) {
  return name.ends_with(".bias") ? module_cut(config, part, name.substr(0, name.rfind('.'))) : Cut();
}

// The bias of a projection back into the stream, which is added once.
bool first_has_it(const DecoderConfig& config, const DecoderPart& part, const std::string& name) {
  return bias_of(config, part, name).cuts_columns();
}

bool norm_of_heads(const DecoderConfig& config, const std::string& name) {
  const std::string own = in_layer(config, name.substr(0, name.rfind('.')));
  const AttentionNames& attention = config.names.block.attention;
  return config.qk_norm && (own == attention.q_norm || own == attention.k_norm);
}

}  // namespace

Makers part_makers(const DecoderConfig& config, const DecoderPart& part, const Makers& whole, MemoryPool& pool) {
  Makers makers;
  makers.linear = [&config, part, whole, &pool](const std::string& module, const Shape& shape) {
    const Cut cut = module_cut(config, part, module);
    std::unique_ptr<LinearWeight> made = whole.linear(module, cut ? cut.whole : shape);
    if (only_gradient_is_cut(cut) && made->parameter()) made->parameter()->partial_gradient = true;
    if (!cut || only_gradient_is_cut(cut)) return made;
    std::unique_ptr<LinearWeight> own = made->part(cut, pool);
    for (const Tensor* tensor : made->storage()) {
      if (tensor->has_bytes() && !tensor->writable()) release_pages(*tensor);
    }
    return own;
  };
  makers.parameter = [&config, part, whole, &pool](const std::string& name, const Shape& shape) {
    const Cut cut = parameter_cut(config, part, name);
    const std::shared_ptr<Parameter> made = whole.parameter(name, cut ? cut.whole : shape);
    if (part.index > 0 && first_has_it(config, part, name)) return std::shared_ptr<Parameter>();
    made->partial_gradient = norm_of_heads(config, name) || only_gradient_is_cut(bias_of(config, part, name));
    if (!cut) return made;
    Tensor value = cut_out(made->value, cut, pool);
    // What is not mapped shall not keep the whole alive.
    made->value = value.writable() && value.storage() == made->value.storage() ? value.clone(pool) : value;
    made->cut = cut;
    return made;
  };
  return makers;
}

}  // namespace nibble
