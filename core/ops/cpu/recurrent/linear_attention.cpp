#include "nibble/core/ops/recurrent/linear_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nibble/core/ops/cpu/recurrent/linear_attention.cpp"
#include <hwy/foreach_target.h>
#include "nibble/core/ops/cpu/recurrent/channel_decay-inl.h"
#include "nibble/core/ops/cpu/small_product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::ops::HWY_NAMESPACE {

// Tokens that are computed together: products within a chunk grow with it, what is done with the state shrinks.
constexpr int64_t kChunk = 64;

// The tensors, and of which head and document a piece is.
struct Inputs {
  const float *q, *k, *v, *log_decay, *beta, *skip;
  LinearAttentionParams p;

  int64_t key_row() const { return p.key_heads * p.key_size; }
  int64_t value_row() const { return p.heads * p.value_size; }
  int64_t key_head(int64_t h) const { return h / (p.heads / p.key_heads); }
  int64_t state_size() const { return p.key_size * p.value_size; }
};

Inputs inputs_of(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay, const Tensor& beta,
                 const Tensor& skip, const LinearAttentionParams& p) {
  return {q.data<const float>(),
          k.data<const float>(),
          v.data<const float>(),
          log_decay.data<const float>(),
          beta.data<const float>(),
          skip ? skip.data<const float>() : nullptr,
          p};
}

// One chunk of one head: a matrix of scores [n, n] has rows kChunk apart, one of values [n, V] rows V apart.
class Chunk {
 public:
  explicit Chunk(const Inputs& in)
      : in_(in),
        K_(in.p.key_size),
        V_(in.p.value_size),
        key_columns_(size(K_ * kChunk)),
        scores_(size(kChunk * kChunk)),
        system_(size(kChunk * kChunk)),
        answers_(size(kChunk * V_)),
        scaled_values_(size(kChunk * V_)) {}

  /// Tokens [t, t + n) of head h.
  void set(int64_t h, int64_t t, int64_t n) {
    head_ = h;
    n_ = n;
    const int64_t at = t * in_.key_row() + in_.key_head(h) * K_;
    q_ = in_.q + at;
    k_ = in_.k + at;
    v_ = in_.v + t * in_.value_row() + h * V_;
    float sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      decay_[i] = sum += in_.log_decay[(t + i) * in_.p.heads + h];
      beta_[i] = in_.beta[(t + i) * in_.p.heads + h];
    }
    transpose_into(k_, in_.key_row(), n, K_, key_columns_.data(), kChunk);
  }

  /// u [n, V] = what the tokens write, where the state before them is S.
  void written(const float* S, float* u) {
    if (!in_.p.delta) {
      for (int64_t i = 0; i < n_; ++i) scaled(v_row(i), beta_[i], V_, false, u + i * V_);
      return;
    }
    solve_system(S);
    for (int64_t i = 0; i < n_; ++i) {
      scaled(v_row(i), beta_[i], V_, false, u + i * V_);
      scaled(answers_.data() + i * V_, -beta_[i] * std::exp(decay_[i]), V_, true, u + i * V_);
      if (i == 0) continue;
      // Row i of the system takes what the tokens before have written from what this one writes.
      scaled(system_.data() + i * kChunk, -1, i, false, negated_);
      product({negated_, 0}, u, V_, 1, V_, i, true, u + i * V_, V_);
    }
  }

  void answer(const float* S, const float* u, float* out) {
    score();
    weigh(scores_.data(), in_.p.scale);
    const int64_t row = in_.value_row();
    product(queries(), S, V_, n_, V_, K_, false, out, row);
    for (int64_t i = 0; i < n_; ++i) scaled(out + i * row, in_.p.scale * std::exp(decay_[i]), V_, false, out + i * row);
    product({scores_.data(), kChunk}, u, V_, n_, V_, n_, true, out, row);
    for (int64_t i = 0; in_.skip != nullptr && i < n_; ++i) scaled(v_row(i), in_.skip[head_], V_, true, out + i * row);
  }

  /// S becomes the state after the tokens.
  void write(const float* u, float* S) {
    scaled(S, std::exp(decay_[n_ - 1]), K_ * V_, false, S);
    for (int64_t i = 0; i < n_; ++i) {
      scaled(u + i * V_, std::exp(decay_[n_ - 1] - decay_[i]), V_, false, scaled_values_.data() + i * V_);
    }
    product(transposed(k_, in_.key_row()), scaled_values_.data(), V_, K_, V_, n_, true, S, V_);
  }

 protected:
  static size_t size(int64_t n) { return static_cast<size_t>(n); }
  Strided queries() const { return {q_, in_.key_row()}; }
  Strided keys() const { return {k_, in_.key_row()}; }
  const float* v_row(int64_t i) const { return v_ + i * in_.value_row(); }

  // scores_ [n, n] = q k^T
  void score() { product(queries(), key_columns_.data(), kChunk, n_, n_, K_, false, scores_.data(), kChunk); }

  // Element (i, j) times `factor` and what is left of j's part of the state at i; 0 where j is after i.
  void weigh(float* matrix, float factor) const {
    const V times = splat(factor);
    for (int64_t i = 0; i < n_; ++i) {
      float* row = matrix + i * kChunk;
      const V own = splat(decay_[i]);
      for_lanes(i + 1, [&](int64_t j, auto lanes) HWY_ATTR {
        const V left = exp(hn::Sub(own, load(decay_ + j, lanes)));
        store(hn::Mul(hn::Mul(load(row + j, lanes), left), times), row + j, lanes);
      });
      std::fill(row + i + 1, row + n_, 0.0f);
    }
  }

  // answers_ [n, V] = what S answers to the keys; system_ [n, n]: what token i would take from its value of what j < i
  // has written (I + system_ is the matrix that the written values solve: the WY form of the delta rule).
  void solve_system(const float* S) {
    product(keys(), S, V_, n_, V_, K_, false, answers_.data(), V_);
    product(keys(), key_columns_.data(), kChunk, n_, n_, K_, false, system_.data(), kChunk);
    weigh(system_.data(), 1);
    for (int64_t i = 0; i < n_; ++i) {
      float* row = system_.data() + i * kChunk;
      scaled(row, beta_[i], i, false, row);
      std::fill(row + i, row + n_, 0.0f);
    }
  }

  const Inputs& in_;
  const int64_t K_, V_;
  int64_t head_ = 0, n_ = 0;
  const float *q_ = nullptr, *k_ = nullptr, *v_ = nullptr;
  float decay_[kChunk];  // logarithm of what is left at token i of the state before the chunk
  float beta_[kChunk], negated_[kChunk];
  std::vector<float> key_columns_;  // [K, n], rows kChunk apart
  std::vector<float> scores_, system_, answers_, scaled_values_;
};

// Where the gradients of one head go; dq and dk are added to.
struct Gradients {
  const float* dout;
  float *dq, *dk, *dv, *dlog_decay, *dbeta;
};

class ChunkBackward : public Chunk {
 public:
  explicit ChunkBackward(const Inputs& in)
      : Chunk(in),
        written_columns_(size(V_ * kChunk)),
        state_columns_(size(V_ * K_)),
        dscores_(size(kChunk * kChunk)),
        dwritten_(size(kChunk * V_)),
        values_(size(kChunk * V_)),
        key_rows_(size(kChunk * K_)) {}

  /// S: the state before the tokens, u what they wrote; dS: gradient of the state after them, becomes that before.
  /// Returns the gradient of skip.
  float backward(const float* S, const float* u, float* dS, int64_t t, const Gradients& to) {
    const int64_t key_row = in_.key_row(), value_row = in_.value_row(), at = in_.key_head(head_) * K_;
    const float* dout = to.dout + t * value_row + head_ * V_;
    float *dq = to.dq + t * key_row + at, *dk = to.dk + t * key_row + at;
    std::fill_n(ddecay_, n_, 0.0f);
    transpose_into(u, V_, n_, V_, written_columns_.data(), kChunk);

    through_scores(dout, dq, dk);
    float last = std::exp(decay_[n_ - 1]) * dot(dS, S, K_ * V_);
    last += through_state_after(u, dS, dk);
    through_state_before(S, dout, dS, dq);
    if (in_.p.delta) {
      through_system(S, dS, dk);
    } else {
      for (int64_t i = 0; i < n_; ++i) dbeta_[i] = dot(dwritten_.data() + i * V_, v_row(i), V_);
    }

    float dskip = 0;
    for (int64_t i = 0; i < n_; ++i) {
      float* dv = to.dv + (t + i) * value_row + head_ * V_;
      scaled(dwritten_.data() + i * V_, beta_[i], V_, false, dv);
      if (in_.skip != nullptr) scaled(dout + i * value_row, in_.skip[head_], V_, true, dv);
      dskip += dot(dout + i * value_row, v_row(i), V_);
      to.dbeta[(t + i) * in_.p.heads + head_] = dbeta_[i];
    }
    float sum = last;
    for (int64_t i = n_ - 1; i >= 0; --i) to.dlog_decay[(t + i) * in_.p.heads + head_] = sum += ddecay_[i];
    return dskip;
  }

 private:
  // From products of two rows of keys or queries: gradients [n, n] of them, weighed, and the products themselves.
  void add_decay_gradients(const float* gradients, const float* products) {
    for (int64_t i = 0; i < n_; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        const float grad = gradients[i * kChunk + j] * products[i * kChunk + j];
        ddecay_[i] += grad;
        ddecay_[j] -= grad;
      }
    }
  }

  // The part of out that the tokens of the chunk wrote; begins dwritten_.
  void through_scores(const float* dout, float* dq, float* dk) {
    const int64_t key_row = in_.key_row(), value_row = in_.value_row();
    product({dout, value_row}, written_columns_.data(), kChunk, n_, n_, V_, false, dscores_.data(), kChunk);
    weigh(dscores_.data(), in_.p.scale);
    product({dscores_.data(), kChunk}, k_, key_row, n_, K_, n_, true, dq, key_row);
    product(transposed(dscores_.data(), kChunk), q_, key_row, n_, K_, n_, true, dk, key_row);
    score();
    add_decay_gradients(dscores_.data(), scores_.data());
    weigh(scores_.data(), in_.p.scale);
    product(transposed(scores_.data(), kChunk), dout, value_row, n_, V_, n_, false, dwritten_.data(), V_);
  }

  // The state after the chunk; returns the gradient of the last token's decay_.
  float through_state_after(const float* u, const float* dS, float* dk) {
    product(keys(), dS, V_, n_, V_, K_, false, values_.data(), V_);
    transpose_into(dS, V_, K_, V_, state_columns_.data(), K_);
    product({u, V_}, state_columns_.data(), K_, n_, K_, V_, false, key_rows_.data(), K_);
    float last = 0;
    for (int64_t i = 0; i < n_; ++i) {
      const float left = std::exp(decay_[n_ - 1] - decay_[i]);
      scaled(values_.data() + i * V_, left, V_, true, dwritten_.data() + i * V_);
      scaled(key_rows_.data() + i * K_, left, K_, true, dk + i * in_.key_row());
      const float grad = left * dot(key_rows_.data() + i * K_, k_ + i * in_.key_row(), K_);
      ddecay_[i] -= grad;
      last += grad;
    }
    return last;
  }

  // The part of out that the state before the chunk gave; leaves its columns in state_columns_.
  void through_state_before(const float* S, const float* dout, float* dS, float* dq) {
    const int64_t key_row = in_.key_row(), value_row = in_.value_row();
    transpose_into(S, V_, K_, V_, state_columns_.data(), K_);
    product({dout, value_row}, state_columns_.data(), K_, n_, K_, V_, false, key_rows_.data(), K_);
    for (int64_t i = 0; i < n_; ++i) {
      const float left = in_.p.scale * std::exp(decay_[i]);
      scaled(key_rows_.data() + i * K_, left, K_, true, dq + i * key_row);
      ddecay_[i] += left * dot(key_rows_.data() + i * K_, q_ + i * key_row, K_);
      scaled(dout + i * value_row, left, V_, false, values_.data() + i * V_);
    }
    scaled(dS, std::exp(decay_[n_ - 1]), K_ * V_, false, dS);
    product(transposed(q_, key_row), values_.data(), V_, K_, V_, n_, true, dS, V_);
  }

  // The delta rule: dwritten_ becomes the gradient of the system's right side, beta (v - what S answers).
  void through_system(const float* S, float* dS, float* dk) {
    const int64_t key_row = in_.key_row();
    solve_system(S);
    for (int64_t i = n_ - 2; i >= 0; --i) {
      for (int64_t j = i + 1; j < n_; ++j) negated_[j] = -system_[size(j * kChunk + i)];
      product({negated_ + i + 1, 0}, dwritten_.data() + (i + 1) * V_, V_, 1, V_, n_ - 1 - i, true,
              dwritten_.data() + i * V_, V_);
    }
    // Of the system itself: gradients of beta_i left_ij (k_i k_j), j < i.
    product({dwritten_.data(), V_}, written_columns_.data(), kChunk, n_, n_, V_, false, dscores_.data(), kChunk);
    product(keys(), key_columns_.data(), kChunk, n_, n_, K_, false, scores_.data(), kChunk);
    weigh(dscores_.data(), -1);
    for (int64_t i = 0; i < n_; ++i) {
      float *row = dscores_.data() + i * kChunk, *answer = answers_.data() + i * V_, *right = dwritten_.data() + i * V_;
      const float left = std::exp(decay_[i]), answered = left * dot(right, answer, V_);
      row[i] = 0;
      dbeta_[i] = dot(right, v_row(i), V_) - answered + dot(row, scores_.data() + i * kChunk, i);
      ddecay_[i] -= beta_[i] * answered;
      scaled(row, beta_[i], i, false, row);
      scaled(right, -beta_[i] * left, V_, false, values_.data() + i * V_);
    }
    add_decay_gradients(dscores_.data(), scores_.data());
    product({dscores_.data(), kChunk}, k_, key_row, n_, K_, n_, true, dk, key_row);
    product(transposed(dscores_.data(), kChunk), k_, key_row, n_, K_, n_, true, dk, key_row);
    product({values_.data(), V_}, state_columns_.data(), K_, n_, K_, V_, true, dk, key_row);
    product(transposed(k_, key_row), values_.data(), V_, K_, V_, n_, true, dS, V_);
  }

  float ddecay_[kChunk], dbeta_[kChunk];
  std::vector<float> written_columns_;  // [V, n], rows kChunk apart
  std::vector<float> state_columns_;    // [V, K]
  std::vector<float> dscores_, dwritten_, values_, key_rows_;
};

/// What of the tensors head h of one document reads, and where its gradients go.
ChannelHead channel_head(const Inputs& in, int64_t h, const AttentionSpan& span) {
  const LinearAttentionParams& p = in.p;
  const int64_t t = span.q_begin, key = t * in.key_row() + in.key_head(h) * p.key_size;
  const int64_t value = t * in.value_row() + h * p.value_size;
  const int64_t decays = p.log_rates ? 1 : p.key_size, decay = (t * p.heads + h) * decays;
  return {.tokens = span.q_end - t,
          .K = p.key_size,
          .V = p.value_size,
          .key_row = in.key_row(),
          .value_row = in.value_row(),
          .decay_row = p.heads * decays,
          .beta_row = p.heads,
          .scale = p.scale,
          .skip = in.skip != nullptr ? in.skip[h] : 0,
          .delta = p.delta,
          .key_at = key,
          .value_at = value,
          .decay_at = decay,
          .beta_at = t * p.heads + h,
          .q = in.q + key,
          .k = in.k + key,
          .v = in.v + value,
          .log_decay = in.log_decay + decay,
          .beta = in.beta + t * p.heads + h,
          .log_rates = p.log_rates ? p.log_rates.data<const float>() + h * p.key_size : nullptr};
}

void linear_attention_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay,
                              const Tensor& beta, const Tensor& skip, std::span<const AttentionSpan> spans,
                              const LinearAttentionParams& p, RecurrentState* state, Tensor& out) {
  const Inputs in = inputs_of(q, k, v, log_decay, beta, skip, p);
  float *to = out.data<float>(), *states = state ? state->values.data<float>() : nullptr;
  const auto documents = static_cast<int64_t>(spans.size());
  parallel_for(documents * p.heads, 1, [&](int64_t piece, int64_t) {
    const int64_t document = piece / p.heads, h = piece % p.heads;
    const AttentionSpan& span = spans[static_cast<size_t>(document)];
    std::vector<float> own(states ? 0 : static_cast<size_t>(in.state_size()), 0.0f);
    float* S = own.data();
    if (states) S = states + (state->rows[static_cast<size_t>(document)] * p.heads + h) * in.state_size();
    if (p.channel_decay) {
      const ChannelHead head = channel_head(in, h, span);
      return channel_forward(head, 0, head.tokens, S, nullptr, to + head.value_at);
    }
    std::vector<float> u(static_cast<size_t>(kChunk * p.value_size));
    Chunk chunk(in);
    for (int64_t t = span.q_begin; t < span.q_end; t += kChunk) {
      chunk.set(h, t, std::min(kChunk, span.q_end - t));
      chunk.written(S, u.data());
      chunk.answer(S, u.data(), to + t * in.value_row() + h * p.value_size);
      chunk.write(u.data(), S);
    }
  });
}

// The head h of one document; returns the gradient of skip.
float head_backward(const Inputs& in, int64_t h, const AttentionSpan& span, ChunkBackward& chunk,
                    std::vector<float>& states, std::vector<float>& u, const Gradients& to) {
  const int64_t size = in.state_size(), tokens = span.q_end - span.q_begin, width = in.p.value_size;
  const int64_t chunks = (tokens + kChunk - 1) / kChunk;
  states.assign(static_cast<size_t>((chunks + 1) * size), 0.0f);
  u.resize(static_cast<size_t>(tokens * width));
  const auto set = [&](int64_t c) {
    const int64_t t = span.q_begin + c * kChunk;
    chunk.set(h, t, std::min(kChunk, span.q_end - t));
    return t;
  };
  for (int64_t c = 0; c < chunks; ++c) {
    float *before = states.data() + c * size, *written = u.data() + c * kChunk * width;
    set(c);
    chunk.written(before, written);
    std::copy_n(before, size, before + size);
    chunk.write(written, before + size);
  }
  float* dS = states.data() + chunks * size;
  std::fill_n(dS, size, 0.0f);
  float dskip = 0;
  for (int64_t c = chunks - 1; c >= 0; --c) {
    const int64_t t = set(c);
    dskip += chunk.backward(states.data() + c * size, u.data() + c * kChunk * width, dS, t, to);
  }
  return dskip;
}

// Heads that share queries and keys add to the same gradients: they are done in so many blocks, each in order and with
// sums of its own.
int64_t blocks_of(const LinearAttentionParams& p) {
  return std::clamp<int64_t>(8 / p.key_heads, 1, p.heads / p.key_heads);
}

void linear_attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& log_decay, const Tensor& beta, const Tensor& skip,
                               std::span<const AttentionSpan> spans, const LinearAttentionParams& p, Tensor& dq,
                               Tensor& dk, Tensor& dv, Tensor& dlog_decay, Tensor& dbeta, Tensor& dskip) {
  const Inputs in = inputs_of(q, k, v, log_decay, beta, skip, p);
  const int64_t blocks = blocks_of(p), pieces = p.key_heads * blocks, together = p.heads / p.key_heads;
  const auto documents = static_cast<int64_t>(spans.size());
  dq.zero();
  dk.zero();
  std::vector<float> more(static_cast<size_t>(2 * (blocks - 1) * q.numel()), 0.0f);
  std::vector<float> dskips(static_cast<size_t>(documents * p.heads));
  std::vector<float> dlog_rates(p.dlog_rates ? static_cast<size_t>(documents * p.dlog_rates.numel()) : 0, 0.0f);
  parallel_for(documents * pieces, 1, [&](int64_t piece, int64_t) {
    const int64_t document = piece / pieces, group = piece % pieces / blocks, block = piece % blocks;
    float *own_dq = dq.data<float>(), *own_dk = dk.data<float>();
    if (block > 0) {
      own_dq = more.data() + 2 * (block - 1) * q.numel();
      own_dk = own_dq + q.numel();
    }
    const Gradients to{dout.data<const float>(), own_dq, own_dk, dv.data<float>(), dlog_decay.data<float>(),
                       dbeta.data<float>()};
    ChunkBackward chunk(in);
    std::vector<float> states, u;
    for (int64_t i = together * block / blocks; i < together * (block + 1) / blocks; ++i) {
      const int64_t h = group * together + i;
      const AttentionSpan& span = spans[static_cast<size_t>(document)];
      float& dskip_of_head = dskips[static_cast<size_t>(document * p.heads + h)];
      if (p.channel_decay) {
        const ChannelHead head = channel_head(in, h, span);
        dskip_of_head =
            channel_backward(head, to.dout + head.value_at, to.dq + head.key_at, to.dk + head.key_at,
                             to.dv + head.value_at, to.dlog_decay + head.decay_at, to.dbeta + head.beta_at,
                             dlog_rates.empty() ? nullptr : dlog_rates.data() + (document * p.heads + h) * p.key_size);
      } else {
        dskip_of_head = head_backward(in, h, span, chunk, states, u, to);
      }
    }
  });
  for (int64_t block = 1; block < blocks; ++block) {
    const float* from = more.data() + 2 * (block - 1) * q.numel();
    parallel_for(q.numel(), 1 << 14, [&](int64_t begin, int64_t end) {
      scaled(from + begin, 1, end - begin, true, dq.data<float>() + begin);
      scaled(from + q.numel() + begin, 1, end - begin, true, dk.data<float>() + begin);
    });
  }
  for (size_t i = 0; i < dlog_rates.size(); ++i) {
    Tensor to = p.dlog_rates;
    to.data<float>()[i % static_cast<size_t>(to.numel())] += dlog_rates[i];
  }
  for (size_t i = 0; dskip && i < dskips.size(); ++i) {
    dskip.data<float>()[i % static_cast<size_t>(p.heads)] += dskips[i];
  }
}

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::ops::cpu {

NIBBLE_SIMD_KERNEL(linear_attention_forward);
NIBBLE_SIMD_KERNEL(linear_attention_backward);

}  // namespace nibble::ops::cpu
#endif
