#include "nibble/core/ops/recurrent/linear_attention.h"

#include "nibble/core/ops/ref/linear_attention.h"
#include "nibble/tests/core/ops/op_test.h"

namespace nibble {
namespace {

using namespace test;

class LinearAttentionTest : public EverySimd {};
NIBBLE_EVERY_SIMD(LinearAttentionTest);

// Documents that end within, at and beyond chunks of 64 tokens.
const std::vector<ops::AttentionSpan> kDocuments = {{0, 1, 0, 1}, {1, 65, 0, 64}, {65, 100, 0, 35}, {100, 249, 0, 149}};
constexpr int64_t kTokens = 249;

struct Inputs {
  ops::LinearAttentionParams p;
  Tensor q, k, v, log_decay, beta, skip;

  /// Columns of log_decay that one head has.
  int64_t decays() const { return p.channel_decay && !p.log_rates ? p.key_size : 1; }
};

Inputs random_inputs(const ops::LinearAttentionParams& p) {
  Inputs in{p, {}, {}, {}, {}, {}, {}};
  const double spread = 1 / std::sqrt(static_cast<double>(p.key_size));
  in.q = random_tensor({kTokens, p.key_heads * p.key_size}, DType::f32, 1, spread);
  in.k = random_tensor(in.q.shape(), DType::f32, 2, spread);
  in.v = random_tensor({kTokens, p.heads * p.value_size}, DType::f32, 3);
  Values decay = random_values(kTokens * p.heads * in.decays(), 4), beta = random_values(kTokens * p.heads, 5);
  for (double& value : decay) value = -value * value / 4;
  for (double& value : beta) value = 1 / (1 + std::exp(-value));
  in.log_decay = tensor_of(decay, {kTokens, p.heads * in.decays()}, DType::f32);
  in.beta = tensor_of(beta, {kTokens, p.heads}, DType::f32);
  if (!p.delta) in.skip = random_tensor({p.heads}, DType::f32, 6);
  return in;
}

std::vector<ops::LinearAttentionParams> forms() {
  std::vector<ops::LinearAttentionParams> result;
  for (const bool delta : {false, true}) {
    result.push_back({.heads = 4, .key_heads = 2, .key_size = 8, .value_size = 5, .scale = 0.5f, .delta = delta});
    result.push_back({.heads = 12, .key_heads = 1, .key_size = 33, .value_size = 16, .scale = 1, .delta = delta});
    result.push_back(
        {.heads = 4, .key_heads = 2, .key_size = 9, .value_size = 5, .channel_decay = true, .delta = delta});
  }
  result.push_back({.heads = 11, .key_heads = 1, .key_size = 6, .value_size = 1, .channel_decay = true});
  result.back().log_rates = random_tensor({11, 6}, DType::f32, 8, 0.5);
  return result;
}

/// One head of one document in f64, and where its elements lie in the tensors.
struct Head {
  Values q, k, v, decay, beta, dout, rates;
  ops::ref::LinearAttentionHead<double> view;
};

Values take(const Tensor& x, const ops::AttentionSpan& span, int64_t begin, int64_t columns) {
  const Values all = values_of(x);
  Values result;
  for (int64_t t = span.q_begin; t < span.q_end; ++t) {
    const auto row = all.begin() + t * x.dim(1) + begin;
    result.insert(result.end(), row, row + columns);
  }
  return result;
}

void put(const double* values, const ops::AttentionSpan& span, int64_t begin, int64_t columns, int64_t width,
         Values& to) {
  for (int64_t t = span.q_begin; t < span.q_end; ++t) {
    for (int64_t j = 0; j < columns; ++j) to[static_cast<size_t>(t * width + begin + j)] += *values++;
  }
}

Head head_of(const Inputs& in, const Tensor& dout, const ops::AttentionSpan& span, int64_t h) {
  const ops::LinearAttentionParams& p = in.p;
  const int64_t g = h / (p.heads / p.key_heads);
  Head head{take(in.q, span, g * p.key_size, p.key_size),
            take(in.k, span, g * p.key_size, p.key_size),
            take(in.v, span, h * p.value_size, p.value_size),
            take(in.log_decay, span, h * in.decays(), in.decays()),
            take(in.beta, span, h, 1),
            dout ? take(dout, span, h * p.value_size, p.value_size) : Values(),
            {},
            {}};
  if (p.log_rates) head.rates = values_of(p.log_rates.rows(h, h + 1));
  head.view = {.tokens = span.q_end - span.q_begin,
               .key_size = p.key_size,
               .value_size = p.value_size,
               .scale = static_cast<double>(p.scale),
               .skip = in.skip ? values_of(in.skip)[static_cast<size_t>(h)] : 0,
               .delta = p.delta,
               .channel_decay = p.channel_decay};
  return head;
}

void point(Head& head) {
  head.view.q = head.q.data();
  head.view.k = head.k.data();
  head.view.v = head.v.data();
  head.view.log_decay = head.decay.data();
  head.view.beta = head.beta.data();
  if (!head.rates.empty()) head.view.log_rates = head.rates.data();
}

Tensor forward(const Inputs& in, std::span<const ops::AttentionSpan> spans, ops::RecurrentState* state = nullptr) {
  Tensor out = Tensor::empty(pool(), in.v.shape(), DType::f32);
  ops::linear_attention_forward(in.q, in.k, in.v, in.log_decay, in.beta, in.skip, spans, in.p, state, out);
  return out;
}

/// dq, dk, dv, dlog_decay, dbeta, and dskip and dlog_rates where there are some.
std::vector<Tensor> backward(const Inputs& in, const Tensor& dout, std::span<const ops::AttentionSpan> spans) {
  std::vector<Tensor> result;
  for (const Tensor* like : {&in.q, &in.k, &in.v, &in.log_decay, &in.beta}) {
    result.push_back(random_tensor(like->shape(), DType::f32, 9));  // overwritten
  }
  Tensor dskip = in.skip ? Tensor::zeros(pool(), in.skip.shape(), DType::f32) : Tensor();
  ops::LinearAttentionParams p = in.p;
  if (p.log_rates) p.dlog_rates = Tensor::zeros(pool(), p.log_rates.shape(), DType::f32);
  ops::linear_attention_backward(dout, in.q, in.k, in.v, in.log_decay, in.beta, in.skip, spans, p, result[0], result[1],
                                 result[2], result[3], result[4], dskip);
  if (dskip) result.push_back(dskip);
  if (p.dlog_rates) result.push_back(p.dlog_rates);
  return result;
}

TEST(LinearAttentionReference, GradientsAreFiniteDifferences) {
  for (const bool delta : {false, true}) {
    const int64_t n = 7, K = 3, V = 2;
    Values x = random_values(n * (2 * K + V) + 2 * n + 1, 1);  // q, k, v, decay, beta, skip
    const Values weights = random_values(n * V, 2);
    const auto view = [&](const Values& at) {
      const double* q = at.data();
      return ops::ref::LinearAttentionHead<double>{.tokens = n,
                                                   .key_size = K,
                                                   .value_size = V,
                                                   .scale = 0.7,
                                                   .skip = at.back(),
                                                   .delta = delta,
                                                   .q = q,
                                                   .k = q + n * K,
                                                   .v = q + 2 * n * K,
                                                   .log_decay = q + n * (2 * K + V),
                                                   .beta = q + n * (2 * K + V) + n};
    };
    const auto loss = [&](const Values& at) {
      Values state(static_cast<size_t>(K * V), 0.0), out(static_cast<size_t>(n * V));
      ops::ref::linear_attention_forward(view(at), state.data(), out.data());
      return dot(out, weights);
    };
    for (int64_t t = 0; t < n; ++t) {
      double& decay = x[static_cast<size_t>(n * (2 * K + V) + t)];
      decay = -std::abs(decay);
    }
    Values gradient(x.size());
    double* to = gradient.data();
    gradient.back() = ops::ref::linear_attention_backward(view(x), weights.data(), to, to + n * K, to + 2 * n * K,
                                                          to + n * (2 * K + V), to + n * (2 * K + V) + n);
    expect_gradient(loss, x, gradient, delta ? "delta" : "state space");
  }
}

TEST(LinearAttentionReference, GradientsOfDecaysByChannelAreFiniteDifferences) {
  const int64_t n = 6, K = 3, V = 2, decays = n * K;
  for (const bool with_rates : {false, true}) {
    Values x = random_values(n * (2 * K + V) + decays + n + K, 1);  // q, k, v, decay, beta, rates
    const Values weights = random_values(n * V, 2);
    for (int64_t i = 0; i < decays; ++i) {
      double& decay = x[static_cast<size_t>(n * (2 * K + V) + i)];
      decay = -std::abs(decay);
    }
    const auto view = [&](const Values& at) {
      const double* q = at.data();
      return ops::ref::LinearAttentionHead<double>{.tokens = n,
                                                   .key_size = K,
                                                   .value_size = V,
                                                   .scale = 0.7,
                                                   .delta = true,
                                                   .channel_decay = true,
                                                   .q = q,
                                                   .k = q + n * K,
                                                   .v = q + 2 * n * K,
                                                   .log_decay = q + n * (2 * K + V),
                                                   .beta = q + n * (2 * K + V) + decays,
                                                   .log_rates = with_rates ? q + at.size() - K : nullptr};
    };
    const auto loss = [&](const Values& at) {
      Values state(static_cast<size_t>(K * V), 0.0), out(static_cast<size_t>(n * V));
      ops::ref::linear_attention_forward(view(at), state.data(), out.data());
      return dot(out, weights);
    };
    Values gradient(x.size(), 0.0);
    double* to = gradient.data();
    ops::ref::linear_attention_backward(view(x), weights.data(), to, to + n * K, to + 2 * n * K, to + n * (2 * K + V),
                                        to + n * (2 * K + V) + decays, with_rates ? to + x.size() - K : nullptr);
    expect_gradient(loss, x, gradient, "decays by channel");
  }
}

TEST_P(LinearAttentionTest, IsTheRecurrence) {
  for (const ops::LinearAttentionParams& p : forms()) {
    const Inputs in = random_inputs(p);
    Values expected(static_cast<size_t>(in.v.numel()));
    for (const ops::AttentionSpan& span : kDocuments) {
      for (int64_t h = 0; h < p.heads; ++h) {
        Head head = head_of(in, {}, span, h);
        point(head);
        Values state(static_cast<size_t>(p.key_size * p.value_size), 0.0), out(head.v.size());
        ops::ref::linear_attention_forward(head.view, state.data(), out.data());
        put(out.data(), span, h * p.value_size, p.value_size, in.v.dim(1), expected);
      }
    }
    expect_close(forward(in, kDocuments), expected, 1e-5, 1e-5, "out");
  }
}

TEST_P(LinearAttentionTest, ItsGradientsAreThoseOfTheRecurrence) {
  for (const ops::LinearAttentionParams& p : forms()) {
    const Inputs in = random_inputs(p);
    const Tensor dout = random_tensor(in.v.shape(), DType::f32, 7);
    std::vector<Values> expected;
    for (const Tensor* like : {&in.q, &in.k, &in.v, &in.log_decay, &in.beta}) {
      expected.emplace_back(static_cast<size_t>(like->numel()), 0.0);
    }
    Values dskip(static_cast<size_t>(p.heads), 0.0), drates(static_cast<size_t>(p.heads * p.key_size), 0.0);
    for (const ops::AttentionSpan& span : kDocuments) {
      for (int64_t h = 0; h < p.heads; ++h) {
        Head head = head_of(in, dout, span, h);
        point(head);
        const int64_t g = h / (p.heads / p.key_heads);
        Values dq(head.q.size()), dk = dq, dv(head.v.size()), ddecay(head.decay.size()), dbeta(head.beta.size());
        dskip[static_cast<size_t>(h)] += ops::ref::linear_attention_backward(
            head.view, head.dout.data(), dq.data(), dk.data(), dv.data(), ddecay.data(), dbeta.data(),
            p.log_rates ? drates.data() + h * p.key_size : nullptr);
        put(dq.data(), span, g * p.key_size, p.key_size, in.q.dim(1), expected[0]);
        put(dk.data(), span, g * p.key_size, p.key_size, in.q.dim(1), expected[1]);
        put(dv.data(), span, h * p.value_size, p.value_size, in.v.dim(1), expected[2]);
        put(ddecay.data(), span, h * in.decays(), in.decays(), in.log_decay.dim(1), expected[3]);
        put(dbeta.data(), span, h, 1, p.heads, expected[4]);
      }
    }
    if (in.skip) expected.push_back(dskip);
    if (p.log_rates) expected.push_back(drates);
    const std::vector<Tensor> result = backward(in, dout, kDocuments);
    ASSERT_EQ(result.size(), expected.size());
    const char* names[] = {"dq", "dk", "dv", "ddecay", "dbeta", "dskip", "drates"};
    for (size_t i = 0; i < result.size(); ++i) expect_close(result[i], expected[i], 2e-5, 1e-4, names[i]);
  }
}

TEST_P(LinearAttentionTest, StatesGoOnWhereTheyWereLeft) {
  for (const ops::LinearAttentionParams& p : forms()) {
    const Inputs in = random_inputs(p);
    const ops::AttentionSpan whole{0, kTokens, 0, kTokens};
    const Values expected = values_of(forward(in, {&whole, 1}));
    Tensor states = Tensor::zeros(pool(), {3, p.heads * p.key_size * p.value_size}, DType::f32);
    const std::vector<int64_t> rows = {2};
    for (int64_t begin = 0, count = 1; begin < kTokens; begin += count, count = count == 1 ? 70 : 1) {
      const int64_t end = std::min(kTokens, begin + count);
      const Inputs piece{p,
                         in.q.rows(begin, end),
                         in.k.rows(begin, end),
                         in.v.rows(begin, end),
                         in.log_decay.rows(begin, end),
                         in.beta.rows(begin, end),
                         in.skip};
      ops::RecurrentState state{states, rows};
      const ops::AttentionSpan span{0, end - begin, 0, end - begin};
      const Values part(expected.begin() + begin * in.v.dim(1), expected.begin() + end * in.v.dim(1));
      expect_close(forward(piece, {&span, 1}, &state), part, 1e-5, 1e-5, "piece");
    }
    for (const double value : values_of(states.rows(0, 2))) ASSERT_EQ(value, 0);
  }
}

TEST_P(LinearAttentionTest, PackedDocumentsAreThoseAlone) {
  for (const size_t form : {4, 5}) {
    const Inputs in = random_inputs(forms()[form]);
    const Tensor dout = random_tensor(in.v.shape(), DType::f32, 7);
    const Tensor packed = forward(in, kDocuments);
    const std::vector<Tensor> gradients = backward(in, dout, kDocuments);
    for (const ops::AttentionSpan& span : kDocuments) {
      const auto rows = [&](const Tensor& x) { return x.rows(span.q_begin, span.q_end); };
      const Inputs alone{in.p, rows(in.q), rows(in.k), rows(in.v), rows(in.log_decay), rows(in.beta), in.skip};
      const ops::AttentionSpan only{0, span.q_end - span.q_begin, 0, span.q_end - span.q_begin};
      EXPECT_EQ(values_of(forward(alone, {&only, 1})), values_of(rows(packed)));
      const std::vector<Tensor> own = backward(alone, rows(dout), {&only, 1});
      for (size_t i = 0; i < own.size(); ++i) EXPECT_EQ(values_of(own[i]), values_of(rows(gradients[i]))) << i;
    }
  }
}

TEST_P(LinearAttentionTest, BitsDoNotDependOnThreads) {
  for (const ops::LinearAttentionParams& p : forms()) {
    const Inputs in = random_inputs(p);
    expect_same_bits_for_any_threads([&] {
      const Tensor out = forward(in, kDocuments);
      std::vector<Tensor> result = backward(in, out, kDocuments);
      result.push_back(out);
      return result;
    });
  }
}

}  // namespace
}  // namespace nibble
