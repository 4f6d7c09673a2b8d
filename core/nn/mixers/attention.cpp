#include "nibble/core/nn/mixers/attention.h"

#include <algorithm>
#include <utility>

#include "nibble/core/nn/mixers/head_gate.h"
#include "nibble/core/nn/mixers/slab_cache.h"
#include "nibble/core/ops/activation.h"
#include "nibble/core/ops/clip.h"
#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/rope.h"

namespace nibble {

namespace {

Tensor like(const Tensor& t, const StepContext& step) {
  return Tensor::empty(step.pool(), t.shape(), t.dtype(), "attention gradient");
}

}  // namespace

struct Attention::PartSaved {
  LinearSaved projection;
  LayerAdaptersSaved adapters;
  HeadNormSaved norm;
  Tensor inside;  // where it was not clipped, u8; undefined unless AttentionConfig says to clip

  void visit(const TensorVisitor& visitor) {
    projection.visit(visitor);
    adapters.visit(visitor);
    for (NormSaved& head : norm) head.visit(visitor);
    if (inside) visitor(inside);
  }
};

struct Attention::Saved final : SavedMembers<Saved> {
  PartSaved q_part, k_part, v_part;
  LinearSaved qkv_proj, gate_proj, output;
  Tensor q, k, v;      // as the attention saw them
  Tensor out;          // [T, H * K]
  Tensor log_sum_exp;  // [H, T] f32
  Tensor gate;         // [T, H * K] before its sigmoid; undefined without one
  NormSaved output_norm;

  void each(const auto& use) {
    use(qkv_proj, gate_proj, output, q_part, k_part, v_part, output_norm, q, k, v, out, log_sum_exp, gate);
  }
  void inputs(const auto& use) {
    use(qkv_proj.x, gate_proj.x, q_part.projection.x, k_part.projection.x, v_part.projection.x, q_part.adapters.down.x,
        k_part.adapters.down.x, v_part.adapters.down.x);
  }
};

// Keys (rotated) and values; none where another layer's are read.
struct Attention::Cache final : SlabCache {
  using SlabCache::SlabCache;
  Tensor& k() { return rows.at(0); }
  Tensor& v() { return rows.at(1); }
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
              .alibi_rounded_scale = config.alibi_rounded_scale},
      q_{.heads = config.heads, .turned = config.rotary >= 0, .scaled = config.scaled_queries},
      k_{.heads = config.kv_heads, .turned = config.rotary >= 0},
      v_{.heads = config.kv_heads} {
  const int64_t q_rows = config.heads * config.head_size, kv_rows = config.kv_heads * config.head_size;
  const bool own_keys = config.keys_from < 0;
  NIBBLE_CHECK(names.qkv.empty() || (own_keys && config.gate != OutputGate::in_query && !config.values_are_keys),
               "a fused projection of something else");
  NIBBLE_CHECK(config.value_size == 0 || (names.qkv.empty() && !config.v_norm && !config.values_are_keys &&
                                          config.qkv_clip == 0 && config.gate == OutputGate::none),
               "short values are plain");
  NIBBLE_CHECK(!config.adapters || (names.qkv.empty() && own_keys && !config.values_are_keys &&
                                    config.value_size == 0 && config.gate == OutputGate::none),
               "adapters of something else");
  NIBBLE_CHECK(!config.values_are_keys || (config.qk_norm && config.v_norm && !config.qk_norm_after_rope),
               "keys that are values have norms of their own");
  const auto project = [&](const std::string& name, int64_t rows) {
    return makers.make_linear(prefix + name, rows, config.width, config.qkv_bias);
  };
  const auto norm = [&](Part& part, const std::string& name, const std::optional<HeadNormConfig>& of) {
    if (of) part.norm.emplace(prefix + name, *of, part.heads, config.head_size, makers.parameter);
  };
  if (!names.qkv.empty()) {
    qkv_ = project(names.qkv, q_rows + 2 * kv_rows);
  } else {
    q_.linear = project(names.q, config.gate == OutputGate::in_query ? 2 * q_rows : q_rows);
    if (own_keys) k_.linear = project(names.k, kv_rows);
    if (own_keys && !config.values_are_keys) v_.linear = project(names.v, config.kv_heads * value_size());
  }
  const bool gated = config.gate == OutputGate::own || by_head();
  if (gated) gate_ = makers.make_linear(prefix + names.gate, by_head() ? config.heads : q_rows, config.width, false);
  if (config.adapters) {
    q_.adapters.emplace(prefix + names.q_adapters, *config.adapters, q_rows, config.width, makers);
    k_.adapters.emplace(prefix + names.k_adapters, *config.adapters, kv_rows, config.width, makers);
    v_.adapters.emplace(prefix + names.v_adapters, *config.adapters, kv_rows, config.width, makers);
  }
  const int64_t out_width = config.out_width > 0 ? config.out_width : config.width;
  output_ = makers.make_linear(prefix + names.output, out_width, config.heads * value_size(), config.output_bias);
  norm(q_, names.q_norm, config.qk_norm);
  if (own_keys) norm(k_, names.k_norm, config.qk_norm);
  if (own_keys) norm(v_, names.v_norm, config.v_norm);
  if (config.output_norm) {
    output_norm_.emplace(prefix + names.output_norm, q_rows, *config.output_norm, makers.parameter);
  }
  if (config.sinks) sinks_ = makers.parameter(prefix + names.sinks, {config.heads});
}

std::array<Tensor*, 3> Attention::fused_order(Heads& heads) const {
  if (config_.value_before_key) return {&heads.q, &heads.v, &heads.k};
  return {&heads.q, &heads.k, &heads.v};
}

void Attention::project_fused(const Tensor& x, const StepContext& step, Heads& raw, Saved* saved) {
  const int64_t rows = x.dim(0) * config_.qkv_groups;
  Tensor all = Tensor::empty(step.pool(), {x.dim(0), qkv_->out_features()}, raw.v.dtype(), "projection");
  qkv_->forward(x, all, step, saved ? &saved->qkv_proj : nullptr);
  all = all.reshape({rows, all.numel() / rows});
  int64_t column = 0;
  for (Tensor* part : fused_order(raw)) {
    Tensor grouped = part->reshape({rows, part->numel() / rows});
    ops::copy_columns_out(all, column, grouped);
    column += grouped.dim(1);
  }
}

void Attention::project_gated(const Tensor& x, const StepContext& step, Heads& raw, Saved* saved) {
  const Shape by_head = {x.dim(0) * config_.heads, config_.head_size};
  Tensor both = Tensor::empty(step.pool(), {x.dim(0), q_.linear->out_features()}, raw.q.dtype(), "projection");
  q_.linear->forward(x, both, step, saved ? &saved->q_part.projection : nullptr);
  both = both.reshape({by_head[0], 2 * by_head[1]});
  Tensor q = raw.q.reshape(by_head), gate = Tensor::empty(step.pool(), by_head, both.dtype(), "attention gate");
  ops::copy_columns_out(both, 0, q);
  ops::copy_columns_out(both, config_.head_size, gate);
  raw.gate = in_compute_dtype(gate, step).reshape(raw.q.shape());
}

void Attention::project(Part& part, const Tensor& x, Tensor& raw, const StepContext& step, PartSaved* saved) {
  part.linear->forward(x, raw, step, saved ? &saved->projection : nullptr);
  if (part.adapters) part.adapters->forward(x, raw, step, saved ? &saved->adapters : nullptr);
}

void Attention::rotate(const Part& part, Tensor& values, const LayerContext& context, bool inverse) const {
  if (!part.turned) return;
  const RotaryView& view = context.rotary.at(static_cast<size_t>(config_.rotary));
  ops::rope(values, part.heads, view.rows, view.cos, view.sin, inverse, view.pairs, view.begin);
}

Tensor Attention::raw(const Part& part, const Tensor& out, const StepContext& step) {
  return part.norm ? Tensor::empty(step.pool(), out.shape(), DType::f32, "projection") : out;
}

void Attention::shape(const Part& part, Tensor& raw, const LayerContext& context, const StepContext& step, Tensor& out,
                      PartSaved* saved) const {
  const bool norm_last = part.norm && part.turned && config_.qk_norm_after_rope;
  const auto norm = [&] { part.norm->forward(raw, out, step, saved ? &saved->norm : nullptr); };
  if (part.norm && !norm_last) norm();
  if (config_.qkv_clip > 0) {
    Tensor inside = saved ? Tensor::empty(step.pool(), out.shape(), DType::u8, "what was clipped") : Tensor();
    ops::clip(out, config_.qkv_clip, inside);
    if (saved) saved->inside = inside;
  }
  rotate(part, norm_last ? raw : out, context, false);
  if (norm_last) norm();
  if (part.scaled) ops::scale_rows(out, context.query_scales, out);
}

Tensor Attention::shape_backward(Part& part, Tensor& gradient, const LayerContext& context, const StepContext& step,
                                 PartSaved& saved) const {
  const bool norm_last = part.norm && part.turned && config_.qk_norm_after_rope;
  Tensor wide;
  const auto norm = [&] {
    wide = Tensor::zeros(step.pool(), gradient.shape(), DType::f32, "projection gradient");
    part.norm->backward(gradient, step, std::move(saved.norm), wide);
  };
  if (part.scaled) ops::scale_rows(gradient, context.query_scales, gradient);
  if (norm_last) norm();
  rotate(part, norm_last ? wide : gradient, context, true);
  if (config_.qkv_clip > 0) ops::clip_backward(saved.inside, gradient);
  if (part.norm && !norm_last) norm();
  return part.norm ? wide : gradient;
}

void Attention::make_heads(const Tensor& x, const LayerContext& context, const StepContext& step, Heads& heads,
                           Saved* saved) {
  Saved none;
  Saved& kept = saved ? *saved : none;
  const auto keep = [&](auto& of) { return saved ? &of : nullptr; };
  const auto finish_part = [&](Part& part, Tensor& projected, Tensor& out, PartSaved& of) {
    shape(part, projected, context, step, out, keep(of));
    projected = {};
  };
  if (gate_) {
    heads.gate = Tensor::empty(step.pool(), {x.dim(0), gate_->out_features()},
                               by_head() ? DType::f32 : step.compute_dtype, "attention gate");
    gate_->forward(x, heads.gate, step, keep(kept.gate_proj));
  }
  if (qkv_) {
    Heads all{raw(q_, heads.q, step), raw(k_, heads.k, step), heads.v, {}};
    if (q_.norm) all.v = Tensor::empty(step.pool(), heads.v.shape(), DType::f32, "projection");
    project_fused(x, step, all, saved);
    if (q_.norm) ops::cast(all.v, heads.v);
    finish_part(q_, all.q, heads.q, kept.q_part);
    finish_part(k_, all.k, heads.k, kept.k_part);
    Tensor v = heads.v;
    return finish_part(v_, v, heads.v, kept.v_part);
  }
  Heads all{raw(q_, heads.q, step), {}, {}, {}};
  if (config_.gate == OutputGate::in_query) {
    project_gated(x, step, all, saved);
    heads.gate = all.gate;
  } else {
    project(q_, x, all.q, step, keep(kept.q_part));
  }
  finish_part(q_, all.q, heads.q, kept.q_part);
  if (!k_.linear) return;
  all.k = raw(k_, heads.k, step);
  project(k_, x, all.k, step, keep(kept.k_part));
  if (config_.values_are_keys) v_.norm->forward(all.k, heads.v, step, keep(kept.v_part.norm));
  finish_part(k_, all.k, heads.k, kept.k_part);
  if (!v_.linear) return;
  if (config_.value_size > 0) {
    const Shape by_head = {x.dim(0) * config_.kv_heads, config_.value_size};
    all.v = Tensor::empty(step.pool(), {x.dim(0), v_.linear->out_features()}, step.compute_dtype, "projection");
    v_.linear->forward(x, all.v, step, keep(kept.v_part.projection));
    heads.v.zero();
    Tensor padded = heads.v.reshape({by_head[0], config_.head_size});
    return ops::copy_columns_in(all.v.reshape(by_head), 0, padded);
  }
  all.v = raw(v_, heads.v, step);
  project(v_, x, all.v, step, keep(kept.v_part));
  finish_part(v_, all.v, heads.v, kept.v_part);
}

void Attention::heads_backward(Heads& gradients, const LayerContext& context, const StepContext& step, Saved& saved,
                               Tensor* dx) {
  bool first = true;
  const auto project = [&](Linear& linear, const Tensor& gradient, LinearSaved& of) {
    linear.backward(in_compute_dtype(gradient, step), step, std::move(of), dx, !std::exchange(first, false));
  };
  const auto shaped = [&](Part& part, Tensor& gradient, PartSaved& of) {
    Tensor result = shape_backward(part, gradient, context, step, of);
    gradient = {};
    return result;
  };
  const int64_t tokens = gradients.q.dim(0);
  if (gate_) project(*gate_, gradients.gate, saved.gate_proj);
  if (qkv_) {
    const int64_t rows = tokens * config_.qkv_groups;
    Heads of{in_compute_dtype(shaped(q_, gradients.q, saved.q_part), step),
             in_compute_dtype(shaped(k_, gradients.k, saved.k_part), step),
             in_compute_dtype(shaped(v_, gradients.v, saved.v_part), step),
             {}};
    Tensor all = Tensor::empty(step.pool(), {rows, tokens * qkv_->out_features() / rows}, step.compute_dtype,
                               "projection gradient");
    int64_t column = 0;
    for (const Tensor* part : fused_order(of)) {
      const Tensor grouped = part->reshape({rows, part->numel() / rows});
      ops::copy_columns_in(grouped, column, all);
      column += grouped.dim(1);
    }
    return project(*qkv_, all.reshape({tokens, qkv_->out_features()}), saved.qkv_proj);
  }
  Tensor dq = shaped(q_, gradients.q, saved.q_part);
  if (config_.gate == OutputGate::in_query) {
    const Shape by_head = {tokens * config_.heads, config_.head_size};
    Tensor both = Tensor::empty(step.pool(), {by_head[0], 2 * by_head[1]}, step.compute_dtype, "projection gradient");
    ops::copy_columns_in(in_compute_dtype(dq, step).reshape(by_head), 0, both);
    ops::copy_columns_in(gradients.gate.reshape(by_head), config_.head_size, both);
    dq = both.reshape({tokens, q_.linear->out_features()});
  }
  const auto project_part = [&](Part& part, const Tensor& gradient, PartSaved& of) {
    const Tensor narrow = in_compute_dtype(gradient, step);
    project(*part.linear, narrow, of.projection);
    if (part.adapters) part.adapters->backward(narrow, step, std::move(of.adapters), dx);
  };
  project_part(q_, dq, saved.q_part);
  dq = {};
  if (!k_.linear) return;
  Tensor dk = shaped(k_, gradients.k, saved.k_part);
  if (config_.values_are_keys) v_.norm->backward(gradients.v, step, std::move(saved.v_part.norm), dk);
  project_part(k_, dk, saved.k_part);
  dk = {};
  if (!v_.linear) return;
  Tensor dv = shaped(v_, gradients.v, saved.v_part);
  if (config_.value_size > 0) dv = without_padding(dv, tokens * config_.kv_heads, step);
  project_part(v_, dv, saved.v_part);
}

// [rows / n, n value_size] of x [rows / n, n K]
Tensor Attention::without_padding(const Tensor& x, int64_t rows, const StepContext& step) const {
  Tensor result = Tensor::empty(step.pool(), {rows, config_.value_size}, x.dtype(), "values");
  ops::copy_columns_out(x.reshape({rows, config_.head_size}), 0, result);
  return result.reshape({x.dim(0), result.numel() / x.dim(0)});
}

std::vector<ops::AttentionSpan> Attention::cut(std::span<const ops::AttentionSpan> spans) const {
  if (config_.chunk == 0) return {spans.begin(), spans.end()};
  std::vector<ops::AttentionSpan> pieces;
  for (const ops::AttentionSpan& span : spans) {
    const int64_t ahead = span.k_end - span.q_end;  // from a query to the key it sits at
    for (int64_t q = span.q_begin, end; q < span.q_end; q = end) {
      const int64_t begin = span.k_begin + (q + ahead - span.k_begin) / config_.chunk * config_.chunk;
      end = std::min(span.q_end, begin + config_.chunk - ahead);
      pieces.push_back({q, end, begin, end + ahead});
    }
  }
  return pieces;
}

SharedKeys Attention::keys(const Heads& heads, const LayerContext& context, Cache* cache) const {
  NIBBLE_CHECK(context.state || (config_.keys_from < 0 && config_.shared_as < 0), "layers that share keys need a pass");
  if (config_.keys_from >= 0) {
    SharedKeys shared = context.state->keys.at(config_.keys_from);
    return {shared.k, shared.v, shared.spans, {}, {}};
  }
  SharedKeys own{heads.k, heads.v, {context.spans.begin(), context.spans.end()}, {}, {}};
  if (cache) {
    own = {cache->k(), cache->v(), cache->spans(context), {}, {}};
    const bool in_place = own.spans.size() == 1;  // see attend
    for (const ops::AttentionSpan& span : own.spans) {
      if (in_place) break;
      SlabCache::append(heads.k, span, cache->k());
      SlabCache::append(heads.v, span, cache->v());
    }
  }
  own.spans = cut(own.spans);
  if (config_.shared_as >= 0) {
    SharedKeys& shared = context.state->keys[config_.shared_as];  // gradients stay when the layer runs again
    shared.k = own.k;
    shared.v = own.v;
    shared.spans = own.spans;
  }
  return own;
}

Tensor Attention::attend(const Tensor& x, const LayerContext& context, const StepContext& step, Saved* saved,
                         Cache* cache) {
  const int64_t tokens = x.dim(0), width = config_.heads * config_.head_size;
  const auto make = [&](int64_t columns) {
    return Tensor::empty(step.pool(), {tokens, columns}, step.compute_dtype, "attention heads");
  };
  Heads heads{.q = make(width), .k = {}, .v = {}, .gate = {}};
  if (config_.keys_from < 0) {
    const std::vector<ops::AttentionSpan> cached = cache ? cache->spans(context) : std::vector<ops::AttentionSpan>();
    if (cached.size() == 1) {  // one sequence's keys and values are written where they are kept
      heads.k = cache->k().rows(cached[0].k_end - tokens, cached[0].k_end);
      heads.v = cache->v().rows(cached[0].k_end - tokens, cached[0].k_end);
    } else {
      heads.k = make(config_.kv_heads * config_.head_size);
      heads.v = make(config_.kv_heads * config_.head_size);
    }
  }
  make_heads(x, context, step, heads, saved);
  const SharedKeys seen = keys(heads, context, cache);
  Tensor out = make(width);
  Tensor log_sum_exp = Tensor::empty(step.pool(), {config_.heads, tokens}, DType::f32, "attention sums");
  ops::attention_forward(heads.q, seen.k, seen.v, seen.spans, params_, out, log_sum_exp);
  if (sinks_) ops::attention_sinks_forward(sinks_->value, out, log_sum_exp);
  if (saved) {
    saved->q = heads.q;
    saved->k = seen.k;
    saved->v = seen.v;
    saved->out = out;
    saved->log_sum_exp = log_sum_exp;
    saved->gate = heads.gate;
  }
  return finish(out, heads.gate, step, saved);
}

Tensor Attention::finish(const Tensor& out, const Tensor& gate, const StepContext& step, Saved* saved) const {
  Tensor finished = out;
  if (config_.value_size > 0) {
    finished = without_padding(out, out.dim(0) * config_.heads, step);
    if (config_.value_scale != 1) ops::scale(finished, config_.value_scale);
  }
  if (by_head()) {
    finished = gate_heads(out, gate, step, softplus());
  } else if (gate) {
    finished = Tensor::empty(step.pool(), out.shape(), out.dtype(), "gated attention heads");
    ops::gated_forward(ops::Activation::sigmoid, gate, out, finished);
  }
  if (!output_norm_) return finished;
  Tensor normed = Tensor::empty(step.pool(), out.shape(), out.dtype(), "norm");
  output_norm_->forward(in_dtype(finished, DType::f32, step), normed, step, saved ? &saved->output_norm : nullptr);
  return normed;
}

Tensor Attention::finish_backward(const Tensor& gradient, const StepContext& step, Saved& saved) {
  Tensor dout = gradient;
  if (output_norm_) {
    Tensor wide = Tensor::zeros(step.pool(), gradient.shape(), DType::f32, "norm gradient");
    output_norm_->backward(gradient, step, std::move(saved.output_norm), wide);
    dout = in_dtype(wide, gradient.dtype(), step);
  }
  if (config_.value_size > 0) {
    const Shape by_head = {gradient.dim(0) * config_.heads, config_.value_size};
    if (config_.value_scale != 1) ops::scale(dout, config_.value_scale);
    Tensor padded = Tensor::zeros(step.pool(), {by_head[0], config_.head_size}, dout.dtype(), "attention gradient");
    ops::copy_columns_in(dout.reshape(by_head), 0, padded);
    dout = padded.reshape(saved.out.shape());
  }
  if (!saved.gate) return dout;
  if (by_head()) return gate_heads_backward(dout, saved.out, saved.gate, step, saved.gate, softplus());
  Tensor dheads = like(dout, step), none;
  ops::gated_backward(ops::Activation::sigmoid, dout, saved.gate, saved.out, saved.gate, dheads, none);
  return dheads;  // the gate's gradient took the gate's place
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
  const int64_t columns = config_.kv_heads * config_.head_size;
  const std::vector<int64_t> own = config_.keys_from < 0 ? std::vector{columns, columns} : std::vector<int64_t>();
  return std::make_unique<Cache>(sequences, own, dtype, pool, config_.chunk == 0);
}

void Attention::forward_cached(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                               MixerCache& cache) {
  output_->forward(attend(x, context, step, nullptr, &dynamic_cast<Cache&>(cache)), y, step, nullptr);
}

void Attention::backward(const Tensor& dy, const LayerContext& context, const StepContext& step, SublayerSaved& of,
                         Tensor* dx) {
  auto& saved = dynamic_cast<Saved&>(of);
  SharedKeys* shared = nullptr;
  if (const int64_t owner = std::max(config_.keys_from, config_.shared_as); owner >= 0) {
    shared = &context.state->keys.at(owner);
  }
  if (!dx && !trains_beside(&*output_) && config_.keys_from < 0) {
    return output_->backward(dy, step, std::move(saved.output), nullptr, false);
  }
  Tensor dfinished =
      Tensor::empty(step.pool(), {dy.dim(0), output_->in_features()}, saved.out.dtype(), "attention gradient");
  output_->backward(dy, step, std::move(saved.output), &dfinished, false);
  const Tensor dout = finish_backward(dfinished, step, saved);
  dfinished = {};
  if (sinks_ && sinks_->trainable) {
    ops::attention_sinks_backward(dout, saved.out, sinks_->value, saved.log_sum_exp, sinks_->gradient);
  }
  Heads gradients{like(saved.q, step), like(saved.k, step), like(saved.v, step), saved.gate};
  const std::vector<ops::AttentionSpan> spans = cut(context.spans);
  ops::attention_backward(dout, saved.q, saved.k, saved.v, saved.out, saved.log_sum_exp, spans, params_, gradients.q,
                          gradients.k, gradients.v);
  if (shared) {
    const auto join = [&](Tensor& own, Tensor& others) {
      if (config_.keys_from < 0 && !others) return;
      if (!others) others = Tensor::zeros(step.pool(), own.shape(), DType::f32, "gradient of shared keys");
      ops::add(own, others);
      if (config_.keys_from < 0) own = in_dtype(std::exchange(others, {}), own.dtype(), step);
    };
    join(gradients.k, shared->dk);
    join(gradients.v, shared->dv);
  }
  if (dx && !*dx) *dx = Tensor::empty(step.pool(), {dy.dim(0), config_.width}, DType::f32, "input gradient");
  heads_backward(gradients, context, step, saved, dx);
}

}  // namespace nibble
