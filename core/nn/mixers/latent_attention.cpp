#include "nibble/core/nn/mixers/latent_attention.h"

#include <algorithm>
#include <utility>

#include "nibble/core/nn/mixers/head_gate.h"
#include "nibble/core/nn/mixers/slab_cache.h"
#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/rope.h"

namespace nibble {

namespace {

constexpr int64_t kRowsAtOnce = 512;  // of products with all of kv_b for one head each
constexpr int64_t kMinRows = 5;       // products of more than 4 rows do not depend on how many there are

}  // namespace

LatentAttentionNames LatentAttentionNames::below(const std::string& module) {
  LatentAttentionNames names;
  for (std::string* name : {&names.q, &names.q_a, &names.q_norm, &names.q_b, &names.kv_a, &names.kv_norm, &names.kv_b,
                            &names.output, &names.gate}) {
    *name = module + name->substr(name->find('.'));
  }
  return names;
}

struct LatentAttention::Saved final : SavedMembers<Saved> {
  LinearSaved q_proj, q_a_proj, q_b_proj, kv_a_proj, kv_b_proj, gate_proj, output;
  NormSaved q_norm, kv_norm;
  Tensor q, k, v, out, log_sum_exp;  // as the attention saw and made them
  Tensor gate;                       // [T, H] f32 before its sigmoid; undefined without one

  void each(const auto& use) {
    use(q_proj, q_a_proj, q_b_proj, kv_a_proj, kv_b_proj, gate_proj, output, q_norm, kv_norm, q, k, v, out, log_sum_exp,
        gate);
  }
  void inputs(const auto& use) { use(q_proj.x, q_a_proj.x, kv_a_proj.x, gate_proj.x); }
};

struct LatentAttention::Cache final : SlabCache {
  using SlabCache::SlabCache;
};

LatentAttention::LatentAttention(const std::string& prefix, const LatentAttentionNames& names,
                                 const LatentAttentionConfig& config, const Makers& makers)
    : config_(config),
      params_{.heads = config.heads,
              .kv_heads = config.heads,
              .head_size = config.plain + config.rotated,
              .scale = config.scale,
              .alibi_slopes = {}} {
  NIBBLE_CHECK(config.value <= head_size(), "values wider than keys");
  const int64_t width = config.width, query_rows = config.heads * head_size();
  const auto make = [&](const std::string& name, int64_t out, int64_t in, bool bias) {
    return makers.make_linear(prefix + name, out, in, bias);
  };
  if (config.query_rank > 0) {
    q_a_ = make(names.q_a, config.query_rank, width, config.bias);
    q_norm_.emplace(prefix + names.q_norm, config.query_rank, config.norm, makers.parameter);
    q_b_ = make(names.q_b, query_rows, config.query_rank, false);
  } else {
    q_ = make(names.q, query_rows, width, false);
  }
  kv_a_ = make(names.kv_a, config.rank + config.rotated, width, config.bias);
  kv_norm_.emplace(prefix + names.kv_norm, config.rank, config.norm, makers.parameter);
  kv_b_ = make(names.kv_b, config.heads * (config.plain + config.value), config.rank, false);
  if (config.gate) gate_ = make(names.gate, config.heads, width, false);
  output_ = make(names.output, width, config.heads * config.value, config.bias);
}

void LatentAttention::rotate(Tensor& x, int64_t heads, int64_t begin, const LayerContext& context, bool inverse) const {
  if (config_.rotary < 0) return;
  const RotaryView& view = context.rotary.at(static_cast<size_t>(config_.rotary));
  ops::rope(x, heads, view.rows, view.cos, view.sin, inverse, view.pairs, begin);
}

Tensor LatentAttention::queries(const Tensor& x, const LayerContext& context, const StepContext& step, Saved* saved) {
  const int64_t tokens = x.dim(0);
  Tensor q = Tensor::empty(step.pool(), {tokens, config_.heads * head_size()}, step.compute_dtype, "attention heads");
  if (q_) {
    q_->forward(x, q, step, saved ? &saved->q_proj : nullptr);
  } else {
    const Shape shape = {tokens, config_.query_rank};
    Tensor raw = Tensor::empty(step.pool(), shape, DType::f32, "latents");
    Tensor normed = Tensor::empty(step.pool(), shape, step.compute_dtype, "latents");
    q_a_->forward(x, raw, step, saved ? &saved->q_a_proj : nullptr);
    q_norm_->forward(raw, normed, step, saved ? &saved->q_norm : nullptr);
    q_b_->forward(normed, q, step, saved ? &saved->q_b_proj : nullptr);
  }
  rotate(q, config_.heads, config_.plain, context, false);
  if (config_.scaled_queries) ops::scale_rows(q, context.query_scales, q);
  return q;
}

void LatentAttention::queries_backward(Tensor& dq, const LayerContext& context, const StepContext& step, Saved& saved,
                                       Tensor* dx) {
  if (config_.scaled_queries) ops::scale_rows(dq, context.query_scales, dq);
  rotate(dq, config_.heads, config_.plain, context, true);
  if (q_) return q_->backward(dq, step, std::move(saved.q_proj), dx, false);
  const Shape shape = {dq.dim(0), config_.query_rank};
  Tensor dnormed = Tensor::empty(step.pool(), shape, step.compute_dtype, "latent gradient");
  q_b_->backward(dq, step, std::move(saved.q_b_proj), &dnormed, false);
  Tensor draw = Tensor::zeros(step.pool(), shape, DType::f32, "latent gradient");
  q_norm_->backward(dnormed, step, std::move(saved.q_norm), draw);
  q_a_->backward(in_compute_dtype(draw, step), step, std::move(saved.q_a_proj), dx, false);
}

LatentAttention::Latents LatentAttention::latents(const Tensor& x, const LayerContext& context, const StepContext& step,
                                                  Saved* saved) {
  Tensor both = Tensor::empty(step.pool(), {x.dim(0), kv_a_->out_features()}, DType::f32, "latents");
  kv_a_->forward(x, both, step, saved ? &saved->kv_a_proj : nullptr);
  const Tensor raw = columns_of(both, 0, config_.rank, step);
  Tensor latent = Tensor::empty(step.pool(), raw.shape(), step.compute_dtype, "latents");
  kv_norm_->forward(raw, latent, step, saved ? &saved->kv_norm : nullptr);
  Tensor turned = in_compute_dtype(columns_of(both, config_.rank, config_.rotated, step), step);
  rotate(turned, 1, 0, context, false);
  return {latent, turned};
}

void LatentAttention::expand(const Latents& of, const StepContext& step, Tensor& k, Tensor& v, LinearSaved* saved) {
  const int64_t tokens = of.latent.dim(0), size = head_size();
  Tensor both = Tensor::empty(step.pool(), {tokens, kv_b_->out_features()}, step.compute_dtype, "keys and values");
  kv_b_->forward(of.latent, both, step, saved);
  both = both.reshape({tokens * config_.heads, config_.plain + config_.value});
  k = Tensor::empty(step.pool(), {both.dim(0), size}, step.compute_dtype, "attention heads");
  ops::copy_columns_in(columns_of(both, 0, config_.plain, step), 0, k);
  v = Tensor::zeros(step.pool(), {both.dim(0), size}, step.compute_dtype, "attention heads");
  ops::copy_columns_in(columns_of(both, config_.plain, config_.value, step), 0, v);
  k = k.reshape({tokens, config_.heads * size});
  v = v.reshape(k.shape());
  for (int64_t h = 0; h < config_.heads; ++h) ops::copy_columns_in(of.turned, h * size + config_.plain, k);
}

void LatentAttention::keys_backward(const Tensor& dk, const Tensor& dv, const LayerContext& context,
                                    const StepContext& step, Saved& saved, Tensor* dx) {
  const int64_t tokens = dk.dim(0), size = head_size();
  Tensor dturned = Tensor::zeros(step.pool(), {tokens, config_.rotated}, DType::f32, "latent gradient");
  for (int64_t h = 0; h < config_.heads; ++h) {
    ops::add(columns_of(dk, h * size + config_.plain, config_.rotated, step), dturned);
  }
  rotate(dturned, 1, 0, context, true);

  const Shape by_head = {tokens * config_.heads, size};
  Tensor both = Tensor::empty(step.pool(), {by_head[0], config_.plain + config_.value}, step.compute_dtype,
                              "gradient of keys and values");
  ops::copy_columns_in(columns_of(dk.reshape(by_head), 0, config_.plain, step), 0, both);
  ops::copy_columns_in(columns_of(dv.reshape(by_head), 0, config_.value, step), config_.plain, both);
  Tensor dlatent = Tensor::empty(step.pool(), {tokens, config_.rank}, step.compute_dtype, "latent gradient");
  kv_b_->backward(both.reshape({tokens, kv_b_->out_features()}), step, std::move(saved.kv_b_proj), &dlatent, false);
  Tensor draw = Tensor::zeros(step.pool(), dlatent.shape(), DType::f32, "latent gradient");
  kv_norm_->backward(dlatent, step, std::move(saved.kv_norm), draw);

  Tensor joined = Tensor::empty(step.pool(), {tokens, kv_a_->out_features()}, DType::f32, "latent gradient");
  ops::copy_columns_in(draw, 0, joined);
  ops::copy_columns_in(dturned, config_.rank, joined);
  kv_a_->backward(in_compute_dtype(joined, step), step, std::move(saved.kv_a_proj), dx, true);
}

Tensor LatentAttention::attend(const Tensor& q, const Tensor& k, const Tensor& v,
                               std::span<const ops::AttentionSpan> spans, const StepContext& step, Saved* saved) const {
  const int64_t tokens = q.dim(0);
  Tensor out = Tensor::empty(step.pool(), q.shape(), q.dtype(), "attention heads");
  Tensor log_sum_exp = Tensor::empty(step.pool(), {config_.heads, tokens}, DType::f32, "attention sums");
  ops::attention_forward(q, k, v, spans, params_, out, log_sum_exp);
  if (saved) {
    saved->q = q;
    saved->k = k;
    saved->v = v;
    saved->out = out;
    saved->log_sum_exp = log_sum_exp;
  }
  return values_of(out, step);
}

Tensor LatentAttention::values_of(const Tensor& out, const StepContext& step) const {
  const int64_t tokens = out.dim(0);
  return columns_of(out.reshape({tokens * config_.heads, head_size()}), 0, config_.value, step)
      .reshape({tokens, config_.heads * config_.value});
}

Tensor LatentAttention::gated(const Tensor& values, const Tensor& x, const StepContext& step, Saved* saved) {
  if (!gate_) return values;
  Tensor gate = Tensor::empty(step.pool(), {x.dim(0), config_.heads}, DType::f32, "gates of heads");
  gate_->forward(x, gate, step, saved ? &saved->gate_proj : nullptr);
  if (saved) saved->gate = gate;
  return gate_heads(values, gate, step);
}

void LatentAttention::forward(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                              std::unique_ptr<SublayerSaved>* saved) {
  Saved* kept = new_saved<Saved>(saved);
  const Tensor q = queries(x, context, step, kept);
  Tensor k, v;
  expand(latents(x, context, step, kept), step, k, v, kept ? &kept->kv_b_proj : nullptr);
  const Tensor values = gated(attend(q, k, v, context.spans, step, kept), x, step, kept);
  output_->forward(values, y, step, kept ? &kept->output : nullptr);
}

std::unique_ptr<MixerCache> LatentAttention::make_cache(int64_t sequences, DType dtype, MemoryPool& pool) const {
  return std::make_unique<Cache>(sequences, std::vector{config_.rank + config_.rotated}, dtype, pool, false);
}

void LatentAttention::forward_cached(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                                     MixerCache& of) {
  auto& cache = dynamic_cast<Cache&>(of);
  const Latents computed = latents(x, context, step, nullptr);
  Tensor rows = Tensor::empty(step.pool(), {x.dim(0), config_.rank + config_.rotated}, step.compute_dtype, "latents");
  ops::copy_columns_in(computed.latent, 0, rows);
  ops::copy_columns_in(computed.turned, config_.rank, rows);
  std::vector<ops::AttentionSpan> several, single;  // which of the two depends on nothing but the span itself
  for (const ops::AttentionSpan& span : cache.spans(context)) {
    SlabCache::append(rows, span, cache.rows[0]);
    (span.q_end - span.q_begin > 1 ? several : single).push_back(span);
  }
  const Tensor q = queries(x, context, step, nullptr);
  Tensor values = several.empty() ? Tensor::empty(step.pool(), {x.dim(0), output_->in_features()}, step.compute_dtype,
                                                  "attention heads")
                                  : attend_expanded(q, cache.rows[0], std::move(several), step);
  attend_latents(q, cache.rows[0], single, step, values);
  output_->forward(gated(values, x, step, nullptr), y, step, nullptr);
}

Tensor LatentAttention::attend_expanded(const Tensor& q, const Tensor& held, std::vector<ops::AttentionSpan> spans,
                                        const StepContext& step) {
  int64_t total = 0;
  for (const ops::AttentionSpan& span : spans) total += span.k_end - span.k_begin;
  Tensor rows = Tensor::zeros(step.pool(), {std::max(total, kMinRows), held.dim(1)}, step.compute_dtype, "latents");
  int64_t at = 0;
  for (ops::AttentionSpan& span : spans) {
    const int64_t end = at + span.k_end - span.k_begin;
    Tensor to = rows.rows(at, end);
    ops::cast(held.rows(span.k_begin, span.k_end), to);
    span.k_begin = at;
    span.k_end = at = end;
  }
  Tensor k, v;
  expand({columns_of(rows, 0, config_.rank, step), columns_of(rows, config_.rank, config_.rotated, step)}, step, k, v,
         nullptr);
  return attend(q, k, v, spans, step, nullptr);
}

void LatentAttention::attend_latents(const Tensor& q, const Tensor& held, std::span<const ops::AttentionSpan> spans,
                                     const StepContext& step, Tensor& values) {
  const int64_t heads = config_.heads, each = config_.plain + config_.value, columns = held.dim(1);
  const ops::AttentionParams params{
      .heads = heads, .kv_heads = 1, .head_size = columns, .scale = config_.scale, .alibi_slopes = {}};
  const auto make = [&](int64_t rows, int64_t width, bool zeros) {
    const Shape shape = {rows, width};
    return zeros ? Tensor::zeros(step.pool(), shape, step.compute_dtype, "attention heads")
                 : Tensor::empty(step.pool(), shape, step.compute_dtype, "attention heads");
  };
  // A head's row of a product with all of kv_b has its own columns only. Rows are at least as many as make a product
  // whose bits do not depend on how many there are.
  const int64_t at_once = std::max<int64_t>(1, kRowsAtOnce / heads);
  for (size_t begin = 0; begin < spans.size(); begin += static_cast<size_t>(at_once)) {
    const auto some = spans.subspan(begin, std::min(spans.size() - begin, static_cast<size_t>(at_once)));
    const int64_t count = std::max<int64_t>(static_cast<int64_t>(some.size()), (kMinRows + heads - 1) / heads);
    Tensor own = make(count, q.dim(1), true);
    std::vector<ops::AttentionSpan> rows(some.begin(), some.end());
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto row = static_cast<int64_t>(i);
      Tensor to = own.rows(row, row + 1);
      ops::cast(q.rows(rows[i].q_begin, rows[i].q_end), to);
      rows[i].q_begin = row;
      rows[i].q_end = row + 1;
    }
    Tensor by_head = make(count, heads * heads * each, true);
    for (int64_t h = 0; h < heads; ++h) {
      ops::copy_columns_in(columns_of(own, h * head_size(), config_.plain, step), h * (heads + 1) * each, by_head);
    }
    Tensor absorbed = make(count * heads, config_.rank, false), wide = make(count * heads, columns, false);
    kv_b_->transposed(by_head.reshape({count * heads, heads * each}), absorbed, step);
    ops::copy_columns_in(absorbed, 0, wide);
    const Tensor turned = columns_of(own.reshape({count * heads, head_size()}), config_.plain, config_.rotated, step);
    ops::copy_columns_in(turned, config_.rank, wide);

    Tensor out = make(count, heads * columns, false);
    Tensor log_sum_exp = Tensor::empty(step.pool(), {heads, count}, DType::f32, "attention sums");
    ops::attention_forward(wide.reshape(out.shape()), held, held, rows, params, out, log_sum_exp);
    by_head = by_head.reshape({count * heads, heads * each});
    kv_b_->forward(columns_of(out.reshape(wide.shape()), 0, config_.rank, step), by_head, step, nullptr);
    by_head = by_head.reshape({count, heads * heads * each});
    Tensor sums = make(count, values.dim(1), false);
    for (int64_t h = 0; h < heads; ++h) {
      ops::copy_columns_in(columns_of(by_head, h * (heads + 1) * each + config_.plain, config_.value, step),
                           h * config_.value, sums);
    }
    for (size_t i = 0; i < some.size(); ++i) {
      Tensor to = values.rows(some[i].q_begin, some[i].q_end);
      ops::cast(sums.rows(rows[i].q_begin, rows[i].q_end), to);
    }
  }
}

void LatentAttention::backward(const Tensor& dy, const LayerContext& context, const StepContext& step,
                               SublayerSaved& of, Tensor* dx) {
  auto& saved = dynamic_cast<Saved&>(of);
  if (!dx && !trains_beside(&*output_)) {
    return output_->backward(dy, step, std::move(saved.output), nullptr, false);
  }
  const int64_t tokens = dy.dim(0);
  Tensor dvalues =
      Tensor::empty(step.pool(), {tokens, output_->in_features()}, step.compute_dtype, "gradient of heads");
  output_->backward(dy, step, std::move(saved.output), &dvalues, false);
  if (gate_) dvalues = gate_heads_backward(dvalues, values_of(saved.out, step), saved.gate, step, saved.gate);
  Tensor dout =
      Tensor::zeros(step.pool(), {tokens * config_.heads, head_size()}, step.compute_dtype, "gradient of heads");
  ops::copy_columns_in(dvalues.reshape({dout.dim(0), config_.value}), 0, dout);
  const auto like = [&](const Tensor& t) {
    return Tensor::empty(step.pool(), t.shape(), t.dtype(), "attention gradient");
  };
  Tensor dq = like(saved.q), dk = like(saved.k), dv = like(saved.v);
  ops::attention_backward(dout.reshape(saved.q.shape()), saved.q, saved.k, saved.v, saved.out, saved.log_sum_exp,
                          context.spans, params_, dq, dk, dv);
  if (dx && !*dx) *dx = Tensor::empty(step.pool(), {tokens, config_.width}, DType::f32, "input gradient");
  queries_backward(dq, context, step, saved, dx);
  keys_backward(dk, dv, context, step, saved, dx);
  if (!gate_) return;
  gate_->backward(in_compute_dtype(saved.gate, step), step, std::move(saved.gate_proj), dx, true);
}

}  // namespace nibble
