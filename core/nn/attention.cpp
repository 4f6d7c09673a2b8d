#include "nibble/core/nn/attention.h"

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

void Attention::project(const Tensor& x, const StepContext& step, Heads& heads, AttentionSaved* saved) {
  if (!qkv_) {
    AttentionSaved none;
    AttentionSaved& kept = saved ? *saved : none;
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

void Attention::project_backward(Heads& gradients, const StepContext& step, AttentionSaved& saved, Tensor* dx) {
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

void Attention::clip(Heads& heads, const StepContext& step, AttentionSaved* saved) const {
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

Tensor Attention::attend(const Tensor& x, const LayerContext& context, const StepContext& step, AttentionSaved* saved,
                         LayerCache* cache) {
  const int64_t tokens = x.dim(0), width = config_.heads * config_.head_size;
  const auto make = [&](int64_t columns) {
    return Tensor::empty(step.pool(), {tokens, columns}, step.compute_dtype, "attention heads");
  };
  Heads heads{.q = make(width), .k = {}, .v = {}};
  if (cache) {
    NIBBLE_CHECK(cache->length + tokens <= cache->k.dim(0), "no room in the cache");
    heads.k = cache->k.rows(cache->length, cache->length + tokens);
    heads.v = cache->v.rows(cache->length, cache->length + tokens);
  } else {
    heads.k = make(config_.kv_heads * config_.head_size);
    heads.v = make(config_.kv_heads * config_.head_size);
  }
  project(x, step, heads, saved);
  clip(heads, step, saved);
  rotate(heads, context, false);

  Tensor out = make(width);
  Tensor log_sum_exp = Tensor::empty(step.pool(), {config_.heads, tokens}, DType::f32, "attention sums");
  if (cache) {
    cache->length += tokens;
    const ops::AttentionSpan span{0, tokens, 0, cache->length};
    ops::attention_forward(heads.q, cache->k.rows(0, cache->length), cache->v.rows(0, cache->length), {&span, 1},
                           params_, out, log_sum_exp);
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
                        AttentionSaved* saved, LayerCache* cache) {
  output_->forward(attend(x, context, step, saved, cache), y, step, saved ? &saved->output : nullptr);
}

void Attention::keep(const Tensor& x, const LayerContext& context, DType dtype, const StepContext& step,
                     AttentionSaved& saved) {
  output_->keep(attend(x, context, step, &saved, nullptr), dtype, step, saved.output);
}

void Attention::backward(const Tensor& dy, const LayerContext& context, const StepContext& step, AttentionSaved&& saved,
                         Tensor* dx) {
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
