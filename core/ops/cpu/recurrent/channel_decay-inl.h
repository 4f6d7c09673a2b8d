// Linear attention with a decay for every row of a head's state: the recurrence, token by token. Included once for
// every instruction set.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <hwy/highway.h>

#if defined(NIBBLE_CHANNEL_DECAY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_CHANNEL_DECAY_INL_H_
#undef NIBBLE_CHANNEL_DECAY_INL_H_
#else
#define NIBBLE_CHANNEL_DECAY_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace nibble::ops::HWY_NAMESPACE {

// One head of one document: what it reads, rows of which are so many elements apart.
struct ChannelHead {
  int64_t tokens, K, V;
  int64_t key_row, value_row, decay_row, beta_row;
  float scale, skip;
  bool delta;
  int64_t key_at, value_at, decay_at, beta_at;  // of the first token, in the tensors
  const float *q, *k, *v, *log_decay, *beta;
  const float* log_rates;  // [K] of one decay for each token, or null

  float rate(int64_t i) const { return std::exp(log_rates[i]); }
  float decay(int64_t t, int64_t i) const {
    return std::exp(log_rates != nullptr ? log_decay[t * decay_row] * rate(i) : log_decay[t * decay_row + i]);
  }
};

// Tokens [begin, end); S [K, V] becomes the state after them. states: null, or gets those before each of them; out: of
// token 0, or null.
inline void channel_forward(const ChannelHead& in, int64_t begin, int64_t end, float* S, float* states, float* out) {
  const int64_t K = in.K, V = in.V;
  std::vector<float> values(static_cast<size_t>(2 * V));
  float *u = values.data(), *sum = u + V;
  for (int64_t t = begin; t < end; ++t) {
    const float *q = in.q + t * in.key_row, *k = in.k + t * in.key_row, *v = in.v + t * in.value_row;
    if (states != nullptr) states = std::copy_n(S, K * V, states);
    std::fill_n(u, 2 * V, 0.0f);
    for (int64_t i = 0; i < K; ++i) {
      const float a = in.decay(t, i), key = in.delta ? k[i] : 0;
      float* row = S + i * V;
      for (int64_t j = 0; j < V; ++j) u[j] += key * (row[j] *= a);
    }
    for (int64_t j = 0; j < V; ++j) u[j] = in.beta[t * in.beta_row] * (v[j] - u[j]);
    for (int64_t i = 0; i < K; ++i) {
      float* row = S + i * V;
      for (int64_t j = 0; j < V; ++j) sum[j] += q[i] * (row[j] += k[i] * u[j]);
    }
    if (out == nullptr) continue;
    for (int64_t j = 0; j < V; ++j) out[t * in.value_row + j] = in.scale * sum[j] + in.skip * v[j];
  }
}

// One token, from the state S before it; dS: gradient of the state after it, becomes that before. dq and dk are added
// to.
inline float channel_token_backward(const ChannelHead& in, int64_t t, const float* S, float* dS, const float* dout,
                                    float* dq, float* dk, float* dv, float* dlog_decay, float* dbeta, float* dlog_rates,
                                    float* values) {
  const int64_t K = in.K, V = in.V;
  const float *q = in.q + t * in.key_row, *k = in.k + t * in.key_row, *v = in.v + t * in.value_row;
  const float beta = in.beta[t * in.beta_row];
  float *error = values, *du = values + V, *left = values + 2 * V;
  std::fill_n(values, 2 * V, 0.0f);
  for (int64_t i = 0; i < K; ++i) left[i] = in.decay(t, i);
  for (int64_t i = 0; in.delta && i < K; ++i) {
    for (int64_t j = 0; j < V; ++j) error[j] += k[i] * left[i] * S[i * V + j];
  }
  float dskip = 0, sum = 0;
  for (int64_t j = 0; j < V; ++j) {
    error[j] = v[j] - error[j];
    dskip += dout[j] * v[j];
  }
  for (int64_t i = 0; i < K; ++i) {
    const float* before = S + i * V;
    float *gradient = dS + i * V, key_sum = 0, query_sum = 0;
    for (int64_t j = 0; j < V; ++j) {
      const float u = beta * error[j];
      query_sum += (left[i] * before[j] + k[i] * u) * dout[j];
      gradient[j] += in.scale * q[i] * dout[j];
      key_sum += gradient[j] * u;
      du[j] += gradient[j] * k[i];
    }
    dq[i] += in.scale * query_sum;
    dk[i] += key_sum;
  }
  for (int64_t j = 0; j < V; ++j) {
    sum += du[j] * error[j];
    du[j] *= beta;
    dv[j] = du[j] + in.skip * dout[j];
  }
  *dbeta = sum;
  if (in.log_rates != nullptr) *dlog_decay = 0;
  for (int64_t i = 0; i < K; ++i) {
    const float *before = S + i * V, key = in.delta ? k[i] : 0;
    float *gradient = dS + i * V, key_sum = 0, decay_sum = 0;
    for (int64_t j = 0; j < V; ++j) {
      const float decayed = left[i] * before[j];
      key_sum += decayed * du[j];
      gradient[j] -= key * du[j];
      decay_sum += gradient[j] * decayed;
      gradient[j] *= left[i];
    }
    if (in.delta) dk[i] -= key_sum;
    if (in.log_rates == nullptr) {
      dlog_decay[i] = decay_sum;
      continue;
    }
    *dlog_decay += decay_sum * in.rate(i);
    if (dlog_rates != nullptr) dlog_rates[i] += decay_sum * in.log_decay[t * in.decay_row] * in.rate(i);
  }
  return dskip;
}

// The pointers are those of token 0. Returns the gradient of skip. States are kept before every kept-th token and made
// anew between them.
inline float channel_backward(const ChannelHead& in, const float* dout, float* dq, float* dk, float* dv,
                              float* dlog_decay, float* dbeta, float* dlog_rates) {
  constexpr int64_t kKept = 32;
  const int64_t size = in.K * in.V, pieces = (in.tokens + kKept - 1) / kKept;
  std::vector<float> begins(static_cast<size_t>(pieces * size), 0.0f), S(static_cast<size_t>(size), 0.0f);
  std::vector<float> states(static_cast<size_t>(kKept * size)), dS(static_cast<size_t>(size), 0.0f);
  std::vector<float> values(static_cast<size_t>(2 * in.V + in.K));
  for (int64_t c = 0; c < pieces; ++c) {
    std::copy_n(S.data(), size, begins.data() + c * size);
    if (c + 1 < pieces) channel_forward(in, c * kKept, (c + 1) * kKept, S.data(), nullptr, nullptr);
  }
  float dskip = 0;
  for (int64_t c = pieces - 1; c >= 0; --c) {
    const int64_t begin = c * kKept, end = std::min(in.tokens, begin + kKept);
    std::copy_n(begins.data() + c * size, size, S.data());
    channel_forward(in, begin, end, S.data(), states.data(), nullptr);
    for (int64_t t = end - 1; t >= begin; --t) {
      dskip +=
          channel_token_backward(in, t, states.data() + (t - begin) * size, dS.data(), dout + t * in.value_row,
                                 dq + t * in.key_row, dk + t * in.key_row, dv + t * in.value_row,
                                 dlog_decay + t * in.decay_row, dbeta + t * in.beta_row, dlog_rates, values.data());
    }
  }
  return dskip;
}

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
