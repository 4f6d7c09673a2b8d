#include "nibble/core/ops/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/ref/cross_entropy.h"
#include "nibble/tests/core/ops/op_test.h"

namespace nibble {
namespace {

using namespace test;

class CrossEntropyTest : public EverySimd {};
NIBBLE_EVERY_SIMD(CrossEntropyTest);

std::vector<int32_t> some_targets(int64_t rows, int64_t vocabulary) {
  PhiloxStream stream(5, 0, 0);
  std::vector<int32_t> targets;
  for (int64_t n = 0; n < rows; ++n)
    targets.push_back(static_cast<int32_t>(stream.next_below(static_cast<uint64_t>(vocabulary))));
  targets.back() = static_cast<int32_t>(vocabulary - 1);
  return targets;
}

TEST(CrossEntropyReference, GradientMatchesFiniteDifferences) {
  const int64_t rows = 3, vocabulary = 11;
  const Values logits = random_values(rows * vocabulary, 1, 3);
  const std::vector<int32_t> targets = some_targets(rows, vocabulary);
  for (double softcap : {0.0, 5.0}) {
    Values losses(rows), dlogits(logits.size());
    ops::ref::cross_entropy(logits.data(), targets.data(), rows, vocabulary, softcap, 0.5, losses.data(),
                            dlogits.data());
    const auto loss = [&](const Values& x) {
      ops::ref::cross_entropy<double>(x.data(), targets.data(), rows, vocabulary, softcap, 1, losses.data(), nullptr);
      return 0.5 * (losses[0] + losses[1] + losses[2]);
    };
    expect_gradient(loss, logits, dlogits, "dlogits");
  }
}

// A sum of V exponentials, each good to 2e-7, and x - top rounded at 64: relative error of the sum below 4e-6, absolute
// in its log. With a cap of 30, tanh adds 30 * 2e-7 in the exponents.
TEST_P(CrossEntropyTest, LossAndGradientMatchReference) {
  for (int64_t vocabulary : {1, 7, 64, 1000, 5003}) {
    for (float softcap : {0.0f, 30.0f}) {
      for (DType dtype : {DType::f32, DType::bf16}) {
        const int64_t rows = 5;
        const Tensor logits = random_tensor({rows, vocabulary}, DType::f32, 1, 8);
        const std::vector<int32_t> ids = some_targets(rows, vocabulary);
        const Tensor targets = Tensor::from<int32_t>(pool(), {rows}, ids);
        const Tensor some = tensor_of({1, -0.5, 0, 2, 0.125}, {rows}, DType::f32);
        for (const Tensor& weights : {Tensor(), some}) {
          Tensor losses = Tensor::empty(pool(), {rows}, DType::f32);
          Tensor dlogits = Tensor::empty(pool(), logits.shape(), dtype);
          ops::cross_entropy(logits, targets, softcap, 0.25f, losses, dlogits, weights);
          Values expected(rows), expected_dlogits(static_cast<size_t>(logits.numel()));
          ops::ref::cross_entropy(values_of(logits).data(), ids.data(), rows, vocabulary, static_cast<double>(softcap),
                                  0.25, expected.data(), expected_dlogits.data(),
                                  weights ? values_of(weights).data() : nullptr);
          expect_close(losses, expected, 1e-6, 4e-6, "loss");
          expect_close(dlogits, expected_dlogits, rounding(dtype, 2e-5), 1e-7, "dlogits");
        }
      }
    }
  }
}

TEST_P(CrossEntropyTest, ColumnsInPartsGiveTheLossAndGradientOfAll) {
  const int64_t rows = 4, vocabulary = 1001;
  for (float softcap : {0.0f, 30.0f}) {
    const Tensor logits = random_tensor({rows, vocabulary}, DType::f32, 2, 8);
    const std::vector<int32_t> ids = some_targets(rows, vocabulary);
    const Tensor weights = tensor_of({1, -0.5, 0, 2}, {rows}, DType::f32);
    Values expected(rows), expected_dlogits(static_cast<size_t>(logits.numel()));
    ops::ref::cross_entropy(values_of(logits).data(), ids.data(), rows, vocabulary, static_cast<double>(softcap), 0.25,
                            expected.data(), expected_dlogits.data(), values_of(weights).data());
    const std::vector<int64_t> cuts = {0, 300, 1001};
    std::vector<Tensor> parts, targets;
    Tensor statistics = Tensor::empty(pool(), {6, rows}, DType::f32), none;
    for (size_t p = 0; p < 2; ++p) {
      parts.push_back(Tensor::empty(pool(), {rows, cuts[p + 1] - cuts[p]}, DType::f32));
      ops::copy_columns_out(logits, cuts[p], parts[p]);
      std::vector<int32_t> own;
      for (int32_t id : ids) own.push_back(id < cuts[p] || id >= cuts[p + 1] ? -1 : static_cast<int32_t>(id - cuts[p]));
      targets.push_back(Tensor::from<int32_t>(pool(), {rows}, own));
      Tensor mine = statistics.rows(static_cast<int64_t>(p) * 3, static_cast<int64_t>(p) * 3 + 3);
      ops::cross_entropy_statistics(parts[p], targets[p], softcap, mine);
    }
    Tensor row_max = Tensor::empty(pool(), {rows}, DType::f32), row_sumexp = Tensor::empty(pool(), {rows}, DType::f32);
    Tensor losses = Tensor::empty(pool(), {rows}, DType::f32);
    ops::cross_entropy_merge(statistics, row_max, row_sumexp, losses, none);
    Tensor dlogits = Tensor::empty(pool(), logits.shape(), DType::f32);
    for (size_t p = 0; p < 2; ++p) {
      Tensor own = Tensor::empty(pool(), parts[p].shape(), DType::f32);
      ops::cross_entropy_backward(parts[p], targets[p], row_max, row_sumexp, softcap, 0.25f, own, weights);
      ops::copy_columns_in(own, cuts[p], dlogits);
    }
    expect_close(losses, expected, 1e-6, 4e-6, "loss");
    expect_close(dlogits, expected_dlogits, 2e-5, 1e-7, "dlogits");
  }
}

TEST_P(CrossEntropyTest, ReportsAllProbabilitiesInTheSamePass) {
  const int64_t rows = 4;
  for (const int64_t vocabulary : {3, 67, 5003}) {
    for (const float softcap : {0.0f, 30.0f}) {
      Tensor logits = random_tensor({rows, vocabulary}, DType::f32, 2, 8);
      std::vector<int32_t> ids = some_targets(rows, vocabulary);
      float* values = logits.data<float>();
      values[ids[0]] = 60;  // the greatest; so in row 1, behind an equal one
      ids[1] = static_cast<int32_t>(vocabulary - 1);
      values[vocabulary] = values[2 * vocabulary - 1] = 60;
      Values expected(static_cast<size_t>(4 * rows));
      ops::ref::token_statistics(values_of(logits).data(), ids.data(), rows, vocabulary, static_cast<double>(softcap),
                                 expected.data());
      EXPECT_EQ(expected[12], 1);
      EXPECT_EQ(expected[13], 0);
      Tensor alone = Tensor::empty(pool(), {rows}, DType::f32), none;
      ops::cross_entropy(logits, Tensor::from<int32_t>(pool(), {rows}, ids), softcap, 1, alone, none);
      for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{0, vocabulary}, {0, 1, vocabulary}}) {
        const auto shards = static_cast<int64_t>(cuts.size()) - 1;
        Tensor statistics = Tensor::empty(pool(), {7 * shards, rows}, DType::f32);
        for (int64_t p = 0; p < shards; ++p) {
          const int64_t begin = cuts[static_cast<size_t>(p)], end = cuts[static_cast<size_t>(p) + 1];
          Tensor part = Tensor::empty(pool(), {rows, end - begin}, DType::f32);
          ops::copy_columns_out(logits, begin, part);
          std::vector<int32_t> own;
          for (int32_t id : ids) own.push_back(id < begin || id >= end ? -1 : static_cast<int32_t>(id - begin));
          Tensor mine = statistics.rows(7 * p, 7 * p + 7);
          ops::cross_entropy_statistics(part, Tensor::from<int32_t>(pool(), {rows}, own), softcap, mine);
        }
        Tensor row_max = Tensor::empty(pool(), {rows}, DType::f32),
               row_sumexp = Tensor::empty(pool(), {rows}, DType::f32);
        Tensor losses = Tensor::empty(pool(), {rows}, DType::f32),
               token_statistics = Tensor::empty(pool(), {4, rows}, DType::f32);
        ops::cross_entropy_merge(statistics, row_max, row_sumexp, losses, token_statistics);
        expect_close(token_statistics, expected, 2e-5, 1e-5, "statistics of tokens");
        if (shards > 1) continue;
        EXPECT_EQ(values_of(losses), values_of(alone)) << "the bits of the loss do not depend on the other statistics";
      }
    }
  }
}

TEST_P(CrossEntropyTest, GradientMayOverwriteTheLogits) {
  const Tensor logits = random_tensor({4, 1003}, DType::f32, 1, 4);
  const Tensor targets = Tensor::from<int32_t>(pool(), {4}, some_targets(4, 1003));
  Tensor losses = Tensor::empty(pool(), {4}, DType::f32), dlogits = Tensor::empty(pool(), logits.shape(), DType::f32);
  ops::cross_entropy(logits, targets, 0, 1, losses, dlogits);
  Tensor in_place = logits.clone(pool()), losses_in_place = Tensor::empty(pool(), {4}, DType::f32);
  ops::cross_entropy(in_place, targets, 0, 1, losses_in_place, in_place);
  EXPECT_EQ(std::memcmp(dlogits.raw(), in_place.raw(), in_place.bytes()), 0);
  EXPECT_EQ(std::memcmp(losses.raw(), losses_in_place.raw(), losses.bytes()), 0);
}

TEST_P(CrossEntropyTest, HugeLogitsStayFiniteAndNanIsSeen) {
  Tensor logits = tensor_of({1e30, -1e30, 3, 0, 1e4, -5, 7, NAN, 2}, {3, 3}, DType::f32);
  const Tensor targets = Tensor::from<int32_t>(pool(), {3}, std::vector<int32_t>{0, 1, 2});
  Tensor losses = Tensor::empty(pool(), {3}, DType::f32), none;
  ops::cross_entropy(logits, targets, 0, 1, losses, none);
  EXPECT_EQ(losses.data<float>()[0], 0);
  EXPECT_EQ(losses.data<float>()[1], 0);
  EXPECT_TRUE(std::isnan(losses.data<float>()[2]));
}

TEST_P(CrossEntropyTest, BitsDoNotDependOnThreads) {
  const Tensor logits = random_tensor({9, 5003}, DType::f32, 1, 4);
  const Tensor targets = Tensor::from<int32_t>(pool(), {9}, some_targets(9, 5003));
  expect_same_bits_for_any_threads([&] {
    Tensor losses = Tensor::empty(pool(), {9}, DType::f32),
           dlogits = Tensor::empty(pool(), logits.shape(), DType::bf16);
    ops::cross_entropy(logits, targets, 0, 1, losses, dlogits);
    return std::vector<Tensor>{losses, dlogits};
  });
}

TEST(CrossEntropy, TargetOutsideTheVocabularyIsRefused) {
  const Tensor logits = random_tensor({1, 8}, DType::f32, 1);
  const Tensor targets = Tensor::from<int32_t>(pool(), {1}, std::vector<int32_t>{-100});
  Tensor losses = Tensor::empty(pool(), {1}, DType::f32), none;
  EXPECT_THROW(ops::cross_entropy(logits, targets, 0, 1, losses, none), std::logic_error);
}

}  // namespace
}  // namespace nibble
