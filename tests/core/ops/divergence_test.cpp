// ops::divergence against its scalar twin in f64, and that against finite differences.

#include <cmath>

#include "nibble/core/ops/cross_entropy.h"
#include "nibble/core/ops/ref/cross_entropy.h"
#include "nibble/tests/core/ops/op_test.h"

namespace nibble {
namespace {

using namespace test;

class DivergenceTest : public EverySimd {};
NIBBLE_EVERY_SIMD(DivergenceTest);

TEST(DivergenceReference, GradientMatchesFiniteDifferences) {
  const int64_t rows = 2, vocabulary = 9;
  const Values logits = random_values(rows * vocabulary, 1, 3), teacher = random_values(rows * vocabulary, 2, 3);
  for (const double beta : {0.0, 0.3, 0.5, 1.0}) {
    for (const double softcap : {0.0, 5.0}) {
      Values losses(rows), entropies(rows), dlogits(logits.size());
      const auto run = [&](const Values& x, double scale, double* gradient) {
        ops::ref::divergence(x.data(), teacher.data(), rows, vocabulary, softcap, 1.7, beta, scale, losses.data(),
                             entropies.data(), gradient);
      };
      run(logits, 0.5, dlogits.data());
      const auto loss = [&](const Values& x) {
        run(x, 1, nullptr);
        return 0.5 * (losses[0] + losses[1]);
      };
      expect_gradient(loss, logits, dlogits, "dlogits");
    }
  }
}

TEST(DivergenceReference, IsZeroWhereStudentAndTeacherAgreeAndSymmetricInTheMiddle) {
  const int64_t vocabulary = 9;
  const Values p = random_values(vocabulary, 1, 3), q = random_values(vocabulary, 2, 3);
  const auto loss = [&](const Values& student, const Values& teacher, double beta) {
    double divergence = 0, entropy = 0;
    ops::ref::divergence(student.data(), teacher.data(), 1, vocabulary, 0.0, 1.0, beta, 1.0, &divergence, &entropy,
                         static_cast<double*>(nullptr));
    return divergence;
  };
  for (const double beta : {0.0, 0.5, 1.0}) EXPECT_NEAR(loss(p, p, beta), 0, 1e-12);
  EXPECT_NEAR(loss(p, q, 0.5), loss(q, p, 0.5), 1e-12);
  EXPECT_NEAR(loss(p, q, 0), loss(q, p, 1), 1e-12) << "one is the other with student and teacher exchanged";
}

TEST_P(DivergenceTest, LossAndGradientMatchReference) {
  for (const int64_t vocabulary : {1, 7, 64, 1000, 5003}) {
    for (const float beta : {0.0f, 0.25f, 1.0f}) {
      for (const float softcap : {0.0f, 30.0f}) {
        const int64_t rows = 3;
        const Tensor logits = random_tensor({rows, vocabulary}, DType::f32, 1, 8);
        const Tensor teacher = random_tensor({rows, vocabulary}, DType::f32, 2, 8);
        Tensor losses = Tensor::empty(pool(), {rows}, DType::f32), dlogits = logits.clone(pool());
        Tensor entropies = Tensor::empty(pool(), {rows}, DType::f32);
        ops::divergence(dlogits, teacher, softcap, 2.0f, beta, 0.25f, losses, entropies, dlogits);  // in place
        Values expected(rows), expected_entropies(rows), expected_dlogits(static_cast<size_t>(logits.numel()));
        ops::ref::divergence(values_of(logits).data(), values_of(teacher).data(), rows, vocabulary,
                             static_cast<double>(softcap), 2.0, static_cast<double>(beta), 0.25, expected.data(),
                             expected_entropies.data(), expected_dlogits.data());
        expect_close(losses, expected, 1e-5, 1e-5, "loss");
        expect_close(entropies, expected_entropies, 1e-5, 1e-5, "entropy");
        expect_close(dlogits, expected_dlogits, 1e-4, 1e-7, "dlogits");
      }
    }
  }
}

TEST_P(DivergenceTest, TokensWithoutAnyProbabilityCountForNothing) {
  const Tensor logits = tensor_of({0, 1, -500, 2}, {1, 4}, DType::f32);
  const Tensor teacher = tensor_of({1, -600, -500, 2}, {1, 4}, DType::f32);
  for (const float beta : {0.0f, 0.5f, 1.0f}) {
    Tensor losses = Tensor::empty(pool(), {1}, DType::f32), dlogits = Tensor::empty(pool(), {1, 4}, DType::f32);
    Tensor entropies = Tensor::empty(pool(), {1}, DType::f32);
    ops::divergence(logits, teacher, 0, 1, beta, 1, losses, entropies, dlogits);
    EXPECT_TRUE(std::isfinite(entropies.data<const float>()[0])) << beta;
    EXPECT_TRUE(std::isfinite(losses.data<const float>()[0])) << beta;
    for (const float value : dlogits.span<const float>()) EXPECT_TRUE(std::isfinite(value)) << beta;
    EXPECT_EQ(dlogits.data<const float>()[2], 0) << beta;
  }
}

}  // namespace
}  // namespace nibble
