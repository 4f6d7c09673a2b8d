#include "nibble/parallel/tensor/tensor_parallel.h"

#include <algorithm>

#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/cross_entropy.h"
#include "nibble/core/ops/embedding.h"
#include "nibble/parallel/data/tree_sum.h"

namespace nibble {

namespace {

// Places in `ids` of those in `vocabulary`, and those ids counted from its first.
struct OwnIds {
  Tensor places, ids;  // [n] i32
};

OwnIds own_ids(const Tensor& ids, const Range& vocabulary, MemoryPool& pool) {
  std::vector<int32_t> places, own;
  const std::span<const int32_t> all = ids.span<const int32_t>();
  for (size_t t = 0; t < all.size(); ++t) {
    if (all[t] < vocabulary.begin || all[t] >= vocabulary.end) continue;
    places.push_back(static_cast<int32_t>(t));
    own.push_back(static_cast<int32_t>(all[t] - vocabulary.begin));
  }
  const Shape shape = {static_cast<int64_t>(own.size())};
  return {Tensor::from<int32_t>(pool.host(), shape, places), Tensor::from<int32_t>(pool.host(), shape, own)};
}

// targets counted from the first row of `vocabulary`; those outside it are -1.
Tensor own_targets(const Tensor& targets, const Range& vocabulary, MemoryPool& pool) {
  Tensor own = Tensor::empty(pool.host(), targets.shape(), DType::i32, "labels");
  const std::span<const int32_t> from = targets.span<const int32_t>();
  std::transform(from.begin(), from.end(), own.data<int32_t>(), [&](int32_t id) {
    return id < vocabulary.begin || id >= vocabulary.end ? -1 : static_cast<int32_t>(id - vocabulary.begin);
  });
  return own;
}

bool has_everything(const ShardSpec& spec) { return spec && !spec.slices_rows() && !spec.slices_columns(); }

class TensorParallel final : public LayerSharding {
 public:
  TensorParallel(const DecoderConfig& config, Communicator& ranks, MemoryPool& pool, Trace* trace)
      : config_(config),
        shard_(tensor_shard(config, ranks.rank(), ranks.size())),
        ranks_(ranks),
        pool_(pool),
        trace_(trace) {}

  ShardSpec shard(const std::string& module) const override { return module_shard(config_, shard_, module); }

  AttentionConfig attention(AttentionConfig global) const override {
    if (global.qkv_groups > 1) global.qkv_groups = global.qkv_groups * shard_.kv_heads.size() / global.kv_heads;
    global.heads = shard_.heads.size();
    global.kv_heads = shard_.kv_heads.size();
    if (!global.alibi_slopes.empty()) {
      const auto first = global.alibi_slopes.begin();
      global.alibi_slopes = std::vector<float>(first + shard_.heads.begin, first + shard_.heads.end);
    }
    return global;
  }
  MlpConfig mlp(MlpConfig global) const override {
    global.hidden = shard_.mlp.size();
    return global;
  }

  Makers makers(const Makers& unsharded, MemoryPool& pool) const override {
    Makers makers;
    makers.linear = [this, unsharded, &pool](const std::string& module, const Shape& shape) {
      const ShardSpec spec = shard(module);
      std::unique_ptr<LinearWeight> result = unsharded.linear(module, spec ? spec.global : shape);
      if (has_everything(spec) && result->parameter()) result->parameter()->partial_gradient = true;
      if (!spec || has_everything(spec)) return result;
      std::unique_ptr<LinearWeight> own = result->shard(spec, pool);
      for (const Tensor* tensor : result->storage()) {
        if (tensor->has_bytes() && !tensor->writable()) release_pages(*tensor);
      }
      return own;
    };
    makers.parameter = [this, unsharded, &pool](const std::string& name, const Shape& shape) {
      const ParameterShard own = parameter_shard(config_, shard_, name);
      std::shared_ptr<Parameter> result = unsharded.parameter(name, own.spec ? own.spec.global : shape);
      if (!own.here) return std::shared_ptr<Parameter>();
      result->partial_gradient = own.partial_gradient;
      if (!own.spec) return result;
      const Tensor value = slice_shard(result->value, own.spec, pool);
      // What is not mapped shall not keep the global tensor alive.
      result->value = value.writable() && value.storage() == result->value.storage() ? value.clone(pool) : value;
      result->shard = own.spec;
      return result;
    };
    return makers;
  }

  void all_reduce(std::string_view what, Tensor& values) const override {
    const TraceSpan span(trace_, Phase::communication, what);
    const std::vector<bool> all(static_cast<size_t>(ranks_.size()), true);
    all_reduce_tree(ranks_, what, values, all, {}, pool_);
  }

  void embed(const Embedding& table, const Tensor& ids, float scale, Tensor& x,
             const StepContext& step) const override {
    const OwnIds own = own_ids(ids, shard_.vocabulary, step.pool());
    Tensor rows = Tensor::empty(step.pool(), {own.ids.numel(), x.dim(1)}, DType::f32, "embeddings");
    table.forward(own.ids, 0, scale, rows, step);
    x.zero();
    ops::scatter_add_rows(rows, own.places, x);
    rows = {};
    all_reduce("sum embeddings", x);
  }

  void embed_backward(Embedding& table, const Tensor& ids, float scale, const Tensor& gradient,
                      const StepContext& step) const override {
    const OwnIds own = own_ids(ids, shard_.vocabulary, step.pool());
    Tensor rows = Tensor::empty(step.pool(), {own.ids.numel(), gradient.dim(1)}, DType::f32, "gradient of embeddings");
    ops::gather_rows(gradient, own.places, rows);
    table.backward(own.ids, 0, scale, rows, step);
  }

  // Each rank fills its own columns, the sum is all of them.
  Tensor gather_logits(const Tensor& logits, const StepContext& step) const override {
    Tensor all = Tensor::zeros(step.pool(), {logits.dim(0), config_.vocab_size}, DType::f32, "logits");
    ops::copy_columns_in(logits, shard_.vocabulary.begin, all);
    all_reduce("gather logits", all);
    return all;
  }

  Tensor cross_entropy(const Tensor& logits, const Tensor& targets, float softcap, Tensor& row_max, Tensor& row_sumexp,
                       Tensor& losses, Tensor& token_statistics, const StepContext& step) const override {
    Tensor own = own_targets(targets, shard_.vocabulary, step.pool());
    // Each rank fills the rows of its own columns, the sum is all of them.
    const int64_t width = token_statistics ? 7 : 3;
    Tensor statistics =
        Tensor::zeros(step.pool(), {width * shard_.tp_size, logits.dim(0)}, DType::f32, "statistics of logits");
    Tensor mine = statistics.rows(width * shard_.tp_rank, width * shard_.tp_rank + width);
    ops::cross_entropy_statistics(logits, own, softcap, mine);
    all_reduce("sum logits", statistics);
    ops::cross_entropy_merge(statistics, row_max, row_sumexp, losses, token_statistics);
    return own;
  }

 private:
  DecoderConfig config_;
  TensorShard shard_;
  Communicator& ranks_;
  MemoryPool& pool_;
  Trace* trace_;
};

}  // namespace

std::unique_ptr<LayerSharding> tensor_parallel(const DecoderConfig& config, Communicator& ranks, MemoryPool& pool,
                                               Trace* trace) {
  return ranks.size() > 1 ? std::make_unique<TensorParallel>(config, ranks, pool, trace) : nullptr;
}

}  // namespace nibble
