#include "nibble/core/ops/ref/attention.h"
#include "nibble/tests/core/ops/op_test.h"

namespace nibble {
namespace {

using namespace test;

struct Sizes {
  int64_t queries = 33, heads = 3, width = 10;
};

TEST(AttentionSinks, MatchTheirReferenceForwardAndBackward) {
  const Sizes s;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor sinks = random_tensor({s.heads}, DType::f32, 1), dout = random_tensor({s.queries, 30}, dtype, 2);
    Tensor out = random_tensor({s.queries, s.heads * s.width}, dtype, 3);
    Tensor sums = random_tensor({s.heads, s.queries}, DType::f32, 4), dsinks = random_tensor({s.heads}, DType::f32, 5);
    Values expected = values_of(out), lse = values_of(sums), gradient = values_of(dsinks);
    ops::ref::attention_sinks_forward(values_of(sinks).data(), s.queries, s.heads, s.width, expected.data(),
                                      lse.data());
    ops::attention_sinks_forward(sinks, out, sums);
    expect_close(out, expected, rounding(dtype, 1e-6), 1e-6, "out");
    expect_close(sums, lse, 1e-6, 1e-6, "sums");
    ops::ref::attention_sinks_backward(values_of(dout).data(), values_of(out).data(), values_of(sinks).data(),
                                       lse.data(), s.queries, s.heads, s.width, gradient.data());
    ops::attention_sinks_backward(dout, out, sinks, sums, dsinks);
    expect_close(dsinks, gradient, 1e-5, 1e-5, "gradient of the sinks");
  }
}

// Of attention with the sinks, by the queries and by the sinks.
TEST(AttentionSinks, GradientsOfAttentionAreThoseOfItsReference) {
  const ops::AttentionParams params = {.heads = 2, .kv_heads = 1, .head_size = 4, .scale = 0.5f, .alibi_slopes = {}};
  const std::vector<ops::AttentionSpan> spans = {{0, 5, 0, 5}};
  const Values k = values_of(random_tensor({5, 4}, DType::f32, 1)), v = values_of(random_tensor({5, 4}, DType::f32, 2));
  const Values weights = values_of(random_tensor({5, 8}, DType::f32, 3));
  struct Result {
    Values out = Values(40), sums = Values(10);
  };
  const auto attend = [&](const Values& q, const Values& sinks) {
    Result result;
    ops::ref::attention_forward(q.data(), k.data(), v.data(), 5, spans, params, result.out.data(), result.sums.data());
    ops::ref::attention_sinks_forward(sinks.data(), 5, 2, 4, result.out.data(), result.sums.data());
    return result;
  };
  const Values q = values_of(random_tensor({5, 8}, DType::f32, 4)), sinks = {0.3, -0.8};
  const Result at = attend(q, sinks);
  Values dq(40), dk(20), dv(20), dsinks(2);
  ops::ref::attention_backward(weights.data(), q.data(), k.data(), v.data(), at.out.data(), at.sums.data(), 5, spans,
                               params, dq.data(), dk.data(), dv.data());
  ops::ref::attention_sinks_backward(weights.data(), at.out.data(), sinks.data(), at.sums.data(), 5, 2, 4,
                                     dsinks.data());
  expect_gradient([&](const Values& x) { return dot(attend(x, sinks).out, weights); }, q, dq, "queries");
  expect_gradient([&](const Values& x) { return dot(attend(q, x).out, weights); }, sinks, dsinks, "sinks");
}

}  // namespace
}  // namespace nibble
