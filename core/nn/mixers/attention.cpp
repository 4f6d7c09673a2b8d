#include "nibble/core/nn/mixers/attention.h"

#include <algorithm>
#include <utility>

#include "nibble/core/ops/clip.h"
#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/rope.h"

namespace nibble {

namespace {

// Projects into `out`, through the norm of heads where the family has one.
void project_heads(Linear& linear, const std::optional<HeadNorm>& norm, const Tensor& x, const StepContext& step,
                   Tensor& out, LinearSaved* linear_saved, HeadNormSaved* norm_saved) {
  if (!norm) return linear.forward(x, out, step, linear_saved);
  Tensor raw = Tensor::empty(step.pool(), out.shape(), DType::f32, "projection");
  linear.forward(x, raw, step, linear_saved);
  norm->forward(raw, out, step, norm_saved);
}

void project_heads_backward(Linear& linear, std::optional<HeadNorm>& norm, const Tensor& gradient,
                            const StepContext& step, LinearSaved& linear_saved, HeadNormSaved& norm_saved, Tensor* dx,
                            bool accumulate) {
  if (!norm) return linear.backward(gradient, step, std::move(linear_saved), dx, accumulate);
  Tensor raw_gradient = Tensor::zeros(step.pool(), gradient.shape(), DType::f32, "projection gradient");
  norm->backward(gradient, step, std::move(norm_saved), raw_gradient);
  Tensor narrow = raw_gradient;
  if (gradient.dtype() != DType::f32) {
    narrow = Tensor::empty(step.pool(), gradient.shape(), gradient.dtype(), "projection gradient");
    ops::cast(raw_gradient, narrow);
  }
  linear.backward(narrow, step, std::move(linear_saved), dx, accumulate);
}

}  // namespace

struct Attention::Saved final : SublayerSaved {
  LinearSaved qkv_proj, q_proj, k_proj, v_proj, output;
  HeadNormSaved q_norm, k_norm;
  Tensor q, k, v;  // as the attention saw them
  // Where queries, keys and values were not clipped, u8; undefined unless AttentionConfig says to clip.
  Tensor q_inside, k_inside, v_inside;
  Tensor out;          // [T, H * K]
  Tensor log_sum_exp;  // [H, T] f32

  void visit(const TensorVisitor& visitor) override {
    for (HeadNormSaved* norms : {&q_norm, &k_norm}) {
      for (NormSaved& norm : *norms) norm.visit(visitor);
    }
    for (LinearSaved* linear : {&qkv_proj, &q_proj, &k_proj, &v_proj, &output}) linear->visit(visitor);
    for (Tensor* tensor : {&q, &k, &v, &q_inside, &k_inside, &v_inside, &out, &log_sum_exp}) {
      if (*tensor) visitor(*tensor);
    }
  }
  bool has_input() const override { return qkv_proj.x || q_proj.x || k_proj.x || v_proj.x; }
  void set_input(const Tensor& x) override { qkv_proj.x = q_proj.x = k_proj.x = v_proj.x = x; }
};

// Keys (rotated) and values [sequences * capacity, G * K] in the compute dtype: the slab of a sequence is `capacity`
// rows, of which those of its tokens are in use.
struct Attention::Cache final : MixerCache {
  Cache(int64_t count, int64_t columns, DType type, MemoryPool& memory)
      : sequences(count), row(columns), dtype(type), pool(memory) {}

  void reserve(int64_t length) override {
    if (length <= capacity) return;
    const int64_t before = std::exchange(capacity, std::max<int64_t>({length, 2 * capacity, 64}));
    for (Tensor* rows : {&k, &v}) {
      Tensor larger = Tensor::empty(pool, {sequences * capacity, row}, dtype, "key/value cache");
      for (int64_t s = 0; before > 0 && s < sequences; ++s) {
        Tensor slab = larger.rows(s * capacity, s * capacity + before);
        ops::cast(rows->rows(s * before, (s + 1) * before), slab);
      }
      *rows = larger;
    }
  }

  // What the spans' queries see once their tokens are in.
  std::vector<ops::AttentionSpan> spans(const LayerContext& context) const {
    std::vector<ops::AttentionSpan> seen;
    for (size_t i = 0; i < context.spans.size(); ++i) {
      const auto [sequence, length] = context.continued[i];
      const int64_t begin = context.spans[i].q_begin, end = context.spans[i].q_end;
      NIBBLE_CHECK(sequence < sequences && length + end - begin <= capacity, "no room in the cache");
      seen.push_back({begin, end, sequence * capacity, sequence * capacity + length + end - begin});
    }
    return seen;
  }

  int64_t sequences, row;
  DType dtype;
  MemoryPool& pool;
  int64_t capacity = 0;
  Tensor k, v;
};

Attention::Attention(const std::string& prefix, const AttentionNames& names, const AttentionConfig& config,
                     const Makers& makers)
    : config_(config),
      params_{.heads = config.heads,
              .kv_heads = config.kv_heads,
              .head_size = config.head_size,
              .scale = config.scale,
              .window = config.window,
              .softcap = config.softcap,
              .alibi_slopes = config.alibi_slopes,
              .alibi_rounded_scale = config.alibi_rounded_scale} {
  const int64_t q_rows = config.heads * config.head_size, kv_rows = config.kv_heads * config.head_size;
  if (!names.qkv.empty()) {
    NIBBLE_CHECK(!config.qk_norm, "a fused projection has no norm over heads");
    qkv_ = makers.make_linear(prefix + names.qkv, q_rows + 2 * kv_rows, config.width, config.qkv_bias);
  } else {
    q_ = makers.make_linear(prefix + names.q, q_rows, config.width, config.qkv_bias);
    k_ = makers.make_linear(prefix + names.k, kv_rows, config.width, config.qkv_bias);
    v_ = makers.make_linear(prefix + names.v, kv_rows, config.width, config.qkv_bias);
  }
  output_ = makers.make_linear(prefix + names.output, config.width, q_rows, config.output_bias);
  if (config.qk_norm) {
    q_norm_.emplace(prefix + names.q_norm, *config.qk_norm, config.heads, config.head_size, makers.parameter);
    k_norm_.emplace(prefix + names.k_norm, *config.qk_norm, config.kv_heads, config.head_size, makers.parameter);
  }
}

bool Attention::projections_have_trainable() const {
  if (qkv_) return qkv_->has_trainable();
  return q_->has_trainable() || k_->has_trainable() || v_->has_trainable() ||
         (q_norm_ && (q_norm_->has_trainable() || k_norm_->has_trainable()));
}

bool Attention::has_trainable() const { return projections_have_trainable() || output_->has_trainable(); }

std::array<Tensor*, 3> Attention::fused_order(Heads& heads) const {
  if (config_.value_before_key) return {&heads.q, &heads.v, &heads.k};
  return {&heads.q, &heads.k, &heads.v};
}

void Attention::project(const Tensor& x, const StepContext& step, Heads& heads, Saved* saved) {
  if (!qkv_) {
    Saved none;
    Saved& kept = saved ? *saved : none;
    const auto keep = [&](auto& part) { return saved ? &part : nullptr; };
    project_heads(*q_, q_norm_, x, step, heads.q, keep(kept.q_proj), keep(kept.q_norm));
    project_heads(*k_, k_norm_, x, step, heads.k, keep(kept.k_proj), keep(kept.k_norm));
    project_heads(*v_, std::nullopt, x, step, heads.v, keep(kept.v_proj), nullptr);
    return;
  }
  const int64_t rows = x.dim(0) * config_.qkv_groups;
  Tensor all = Tensor::empty(step.pool(), {x.dim(0), qkv_->out_features()}, step.compute_dtype, "projection");
  qkv_->forward(x, all, step, saved ? &saved->qkv_proj : nullptr);
  all = all.reshape({rows, all.numel() / rows});
  int64_t column = 0;
  for (Tensor* part : fused_order(heads)) {
    Tensor grouped = part->reshape({rows, part->numel() / rows});
    ops::copy_columns_out(all, column, grouped);
    column += grouped.dim(1);
  }
}

void Attention::project_backward(Heads& gradients, const StepContext& step, Saved& saved, Tensor* dx) {
  if (!qkv_) {
    HeadNormSaved no_norm;
    std::optional<HeadNorm> none;
    project_heads_backward(*q_, q_norm_, gradients.q, step, saved.q_proj, saved.q_norm, dx, false);
    project_heads_backward(*k_, k_norm_, gradients.k, step, saved.k_proj, saved.k_norm, dx, true);
    project_heads_backward(*v_, none, gradients.v, step, saved.v_proj, no_norm, dx, true);
    return;
  }
  const int64_t tokens = gradients.q.dim(0), rows = tokens * config_.qkv_groups;
  Tensor all = Tensor::empty(step.pool(), {rows, tokens * qkv_->out_features() / rows}, gradients.q.dtype(),
                             "projection gradient");
  int64_t column = 0;
  for (const Tensor* part : fused_order(gradients)) {
    const Tensor grouped = part->reshape({rows, part->numel() / rows});
    ops::copy_columns_in(grouped, column, all);
    column += grouped.dim(1);
  }
  qkv_->backward(all.reshape({tokens, qkv_->out_features()}), step, std::move(saved.qkv_proj), dx, false);
}

void Attention::clip(Heads& heads, const StepContext& step, Saved* saved) const {
  if (config_.qkv_clip == 0) return;
  const auto clipped = [&](Tensor& part, Tensor* inside) {
    Tensor seen;
    if (inside) *inside = seen = Tensor::empty(step.pool(), part.shape(), DType::u8, "what was clipped");
    ops::clip(part, config_.qkv_clip, seen);
  };
  clipped(heads.q, saved ? &saved->q_inside : nullptr);
  clipped(heads.k, saved ? &saved->k_inside : nullptr);
  clipped(heads.v, saved ? &saved->v_inside : nullptr);
}

void Attention::rotate(Heads& heads, const LayerContext& context, bool inverse) const {
  if (config_.rotary < 0) return;
  const RotaryView& view = context.rotary.at(static_cast<size_t>(config_.rotary));
  ops::rope(heads.q, config_.heads, view.rows, view.cos, view.sin, inverse, view.pairs);
  ops::rope(heads.k, config_.kv_heads, view.rows, view.cos, view.sin, inverse, view.pairs);
}

Tensor Attention::attend(const Tensor& x, const LayerContext& context, const StepContext& step, Saved* saved,
                         Cache* cache) {
  const int64_t tokens = x.dim(0), width = config_.heads * config_.head_size;
  const auto make = [&](int64_t columns) {
    return Tensor::empty(step.pool(), {tokens, columns}, step.compute_dtype, "attention heads");
  };
  Heads heads{.q = make(width), .k = {}, .v = {}};
  std::vector<ops::AttentionSpan> cached;
  if (cache) cached = cache->spans(context);
  const bool in_place = cached.size() == 1;  // one sequence's keys and values are written where they are kept
  if (in_place) {
    heads.k = cache->k.rows(cached[0].k_end - tokens, cached[0].k_end);
    heads.v = cache->v.rows(cached[0].k_end - tokens, cached[0].k_end);
  } else {
    heads.k = make(config_.kv_heads * config_.head_size);
    heads.v = make(config_.kv_heads * config_.head_size);
  }
  project(x, step, heads, saved);
  clip(heads, step, saved);
  rotate(heads, context, false);
  for (const ops::AttentionSpan& span : cached) {
    if (in_place) break;
    const auto append = [&](const Tensor& made, Tensor& slabs) {
      Tensor rows = slabs.rows(span.k_end - (span.q_end - span.q_begin), span.k_end);
      ops::cast(made.rows(span.q_begin, span.q_end), rows);
    };
    append(heads.k, cache->k);
    append(heads.v, cache->v);
  }

  Tensor out = make(width);
  Tensor log_sum_exp = Tensor::empty(step.pool(), {config_.heads, tokens}, DType::f32, "attention sums");
  if (cache) {
    ops::attention_forward(heads.q, cache->k, cache->v, cached, params_, out, log_sum_exp);
  } else {
    ops::attention_forward(heads.q, heads.k, heads.v, context.spans, params_, out, log_sum_exp);
  }
  if (saved) {
    saved->q = heads.q;
    saved->k = heads.k;
    saved->v = heads.v;
    saved->out = out;
    saved->log_sum_exp = log_sum_exp;
  }
  return out;
}

void Attention::forward(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                        std::unique_ptr<SublayerSaved>* saved) {
  Saved* kept = new_saved<Saved>(saved);
  output_->forward(attend(x, context, step, kept, nullptr), y, step, kept ? &kept->output : nullptr);
}

void Attention::forward_save_only(const Tensor& x, const LayerContext& context, DType dtype, const StepContext& step,
                                  std::unique_ptr<SublayerSaved>& saved) {
  Saved& kept = *new_saved<Saved>(&saved);
  output_->forward_save_only(attend(x, context, step, &kept, nullptr), dtype, step, kept.output);
}

std::unique_ptr<MixerCache> Attention::make_cache(int64_t sequences, DType dtype, MemoryPool& pool) const {
  return std::make_unique<Cache>(sequences, config_.kv_heads * config_.head_size, dtype, pool);
}

void Attention::forward_cached(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                               MixerCache& cache) {
  output_->forward(attend(x, context, step, nullptr, &dynamic_cast<Cache&>(cache)), y, step, nullptr);
}

void Attention::backward(const Tensor& dy, const LayerContext& context, const StepContext& step, SublayerSaved& of,
                         Tensor* dx) {
  auto& saved = dynamic_cast<Saved&>(of);
  if (!dx && !projections_have_trainable()) {
    return output_->backward(dy, step, std::move(saved.output), nullptr, false);
  }
  const auto like = [&](const Tensor& t) {
    return Tensor::empty(step.pool(), t.shape(), t.dtype(), "attention gradient");
  };
  Tensor dout = like(saved.out);
  output_->backward(dy, step, std::move(saved.output), &dout, false);
  Heads gradients{like(saved.q), like(saved.k), like(saved.v)};
  ops::attention_backward(dout, saved.q, saved.k, saved.v, saved.out, saved.log_sum_exp, context.spans, params_,
                          gradients.q, gradients.k, gradients.v);
  rotate(gradients, context, true);
  if (dx && !*dx) *dx = Tensor::empty(step.pool(), {dy.dim(0), config_.width}, DType::f32, "input gradient");
  if (config_.qkv_clip > 0) {
    ops::clip_backward(saved.q_inside, gradients.q);
    ops::clip_backward(saved.k_inside, gradients.k);
    ops::clip_backward(saved.v_inside, gradients.v);
  }
  project_backward(gradients, step, saved, dx);
}

void Attention::visit(const ParameterVisitor& visitor) {
  for (std::optional<Linear>* linear : {&qkv_, &q_, &k_, &v_, &output_}) {
    if (*linear) (*linear)->visit(visitor);
  }
  for (std::optional<HeadNorm>* norm : {&q_norm_, &k_norm_}) {
    if (*norm) (*norm)->visit(visitor);
  }
}

void Attention::visit_linears(const std::function<void(Linear&)>& visitor) {
  for (std::optional<Linear>* linear : {&qkv_, &q_, &k_, &v_, &output_}) {
    if (*linear) visitor(**linear);
  }
}

}  // namespace nibble
