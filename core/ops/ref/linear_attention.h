#pragma once
// Plain reference of ops/linear_attention.h: the recurrence, token by token, for one document and one head.

#include <cmath>
#include <cstdint>
#include <vector>

namespace nibble::ops::ref {

/// What one head of one document reads; q and k [n, K], v [n, V], log_decay and beta [n], one row after another.
template <typename Real>
struct LinearAttentionHead {
  int64_t tokens = 0, key_size = 0, value_size = 0;
  Real scale = 1, skip = 0;
  bool delta = false, channel_decay = false;  ///< channel_decay: log_decay [n, K]
  const Real *q = nullptr, *k = nullptr, *v = nullptr, *log_decay = nullptr, *beta = nullptr;

  const Real* log_rates = nullptr;  ///< [K]; log_decay is [n] then

  /// Where the decay of row i of the state is among those of all tokens, and what it is.
  int64_t decay_at(int64_t t, int64_t i) const { return channel_decay && log_rates == nullptr ? t * key_size + i : t; }
  Real rate(int64_t i) const { return log_rates == nullptr ? 1 : std::exp(log_rates[i]); }
  Real decay(int64_t t, int64_t i) const { return std::exp(log_decay[decay_at(t, i)] * rate(i)); }
};

/// out [n, V]; state [K, V] becomes that after the last token; states, unless null, gets those before every token.
template <typename Real>
void linear_attention_forward(const LinearAttentionHead<Real>& in, Real* state, Real* out,
                              std::vector<Real>* states = nullptr) {
  const int64_t K = in.key_size, V = in.value_size;
  for (int64_t t = 0; t < in.tokens; ++t) {
    const Real *q = in.q + t * K, *k = in.k + t * K, *v = in.v + t * V;
    if (states != nullptr) states->insert(states->end(), state, state + K * V);
    for (int64_t i = 0; i < K * V; ++i) state[i] *= in.decay(t, i / V);
    for (int64_t j = 0; j < V; ++j) {
      Real answer = 0, sum = 0;
      for (int64_t i = 0; in.delta && i < K; ++i) answer += state[i * V + j] * k[i];
      const Real u = in.beta[t] * (v[j] - answer);
      for (int64_t i = 0; i < K; ++i) {
        state[i * V + j] += k[i] * u;
        sum += state[i * V + j] * q[i];
      }
      out[t * V + j] = in.scale * sum + in.skip * v[j];
    }
  }
}

/// Gradients of the inputs, overwritten; returns that of skip. The document begins from zeros. dlog_rates [K] +=, may
/// be null.
template <typename Real>
Real linear_attention_backward(const LinearAttentionHead<Real>& in, const Real* dout, Real* dq, Real* dk, Real* dv,
                               Real* dlog_decay, Real* dbeta, Real* dlog_rates = nullptr) {
  const int64_t K = in.key_size, V = in.value_size;
  const auto size = static_cast<size_t>(K * V);
  std::vector<Real> state(size, 0), out(static_cast<size_t>(in.tokens * V)), states;
  linear_attention_forward(in, state.data(), out.data(), &states);
  std::vector<Real> buffers(2 * size + 3 * static_cast<size_t>(V), 0);
  Real *dstate = buffers.data(), *decayed = dstate + size, *u = decayed + size, *error = u + V, *du = error + V;
  Real dskip = 0;
  for (int64_t t = in.tokens - 1; t >= 0; --t) {
    const Real *q = in.q + t * K, *k = in.k + t * K, *v = in.v + t * V, *g = dout + t * V;
    const Real* before = states.data() + t * K * V;
    const auto a = [&](int64_t i) { return in.decay(t, i); };
    for (int64_t i = 0; i < K * V; ++i) decayed[i] = a(i / V) * before[i];
    for (int64_t i = 0; i < K; ++i) dlog_decay[in.decay_at(t, i)] = 0;
    dbeta[t] = 0;
    for (int64_t j = 0; j < V; ++j) {
      Real answer = 0;
      for (int64_t i = 0; in.delta && i < K; ++i) answer += decayed[i * V + j] * k[i];
      error[j] = v[j] - answer;
      u[j] = in.beta[t] * error[j];
      dskip += g[j] * v[j];
    }
    for (int64_t i = 0; i < K; ++i) {
      dq[t * K + i] = dk[t * K + i] = 0;
      for (int64_t j = 0; j < V; ++j) {
        dq[t * K + i] += in.scale * (decayed[i * V + j] + k[i] * u[j]) * g[j];
        dstate[i * V + j] += in.scale * q[i] * g[j];
        dk[t * K + i] += dstate[i * V + j] * u[j];
      }
    }
    for (int64_t j = 0; j < V; ++j) {
      du[j] = 0;
      for (int64_t i = 0; i < K; ++i) du[j] += dstate[i * V + j] * k[i];
      dbeta[t] += du[j] * error[j];
      dv[t * V + j] = in.beta[t] * du[j] + in.skip * g[j];
    }
    for (int64_t i = 0; i < K; ++i) {
      for (int64_t j = 0; j < V; ++j) {
        if (in.delta) {
          dk[t * K + i] -= decayed[i * V + j] * in.beta[t] * du[j];
          dstate[i * V + j] -= k[i] * in.beta[t] * du[j];
        }
        const Real grad = dstate[i * V + j] * decayed[i * V + j];
        dlog_decay[in.decay_at(t, i)] += grad * in.rate(i);
        if (dlog_rates != nullptr) dlog_rates[i] += grad * in.log_decay[t] * in.rate(i);
        dstate[i * V + j] *= a(i);
      }
    }
  }
  return dskip;
}

}  // namespace nibble::ops::ref
