// Experts that are trained on some ranks only: what all of them tell of the gradients is what one rank tells.

#include "nibble/parallel/experts/spread_experts.h"

#include <gtest/gtest.h>

#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/parallel/comm/thread_comm.h"
#include "nibble/parallel/data/ddp.h"
#include "nibble/parallel/experts/expert_parallel.h"

namespace nibble {
namespace {

constexpr int64_t kExperts = 5;

/// A gradient of numbers that do not sum exactly, the same ones on every rank that has them.
Tensor drawn(const Shape& shape, uint64_t purpose, MemoryPool& pool) {
  Tensor values = Tensor::empty(pool, shape, DType::f32);
  ops::fill_normal(values, 0.1f, 7, purpose);
  return values;
}

/// The parameters of a layer with experts of their own, and one with tensors of all experts, as the ranks that share
/// the experts hold them; with one rank all of them.
struct Layers {
  Layers(int rank, int ranks, MemoryPool& pool) {
    const Range here = experts_of_rank(kExperts, rank, ranks);
    uint64_t purpose = 0;
    const auto add = [&](const std::string& name, const Tensor& gradient, bool expert, const ShardSpec& shard = {}) {
      auto parameter = std::make_unique<Parameter>();
      parameter->name = name;
      parameter->value = Tensor::zeros(pool, gradient.shape(), DType::f32);
      parameter->make_trainable(pool);
      parameter->shard = shard;
      (expert ? experts : common).push_back(parameter.get());
      counted.push_back(parameter.get());
      gradients.push_back(gradient);
      all.push_back(std::move(parameter));
    };
    add("before", drawn({300}, ++purpose, pool), false);
    for (int64_t e = 0; e < kExperts; ++e) {
      for (const std::string linear : {"up", "down"}) {
        const Tensor gradient = drawn({20, 30}, ++purpose, pool);
        if (e >= here.begin && e < here.end) add("experts." + std::to_string(e) + "." + linear, gradient, true);
        // Adapters of all experts stand behind the Linears of the first that a rank has.
        if (e == here.begin) add("experts.lora_" + linear, drawn({5, 4}, linear.size(), pool), false);
      }
    }
    add("between", drawn({7}, ++purpose, pool), false);
    // Smaller than a piece of the squares, not many times one, and many times.
    for (const Shape& global : {Shape{kExperts, 8, 9}, {kExperts, 97, 500}, {kExperts, 128, 256}}) {
      const Tensor values = drawn(global, ++purpose, pool);
      add("tensor of " + to_string(global), values.rows(here.begin, here.end), true,
          {global, {here}, all_of(global[1])});
    }
    add("after", drawn({11}, ++purpose, pool), false);
  }

  std::vector<std::unique_ptr<Parameter>> all;
  std::vector<Parameter*> common, experts;
  std::vector<const Parameter*> counted;
  std::vector<Tensor> gradients;

  void set_gradients(float times) {
    for (size_t i = 0; i < all.size(); ++i) {
      all[i]->gradient.zero();
      ops::add(gradients[i], all[i]->gradient);
      ops::scale(all[i]->gradient, times);
    }
  }
};

TEST(SpreadExperts, TellTheSquaresOfOneRankInItsOrder) {
  MemoryPool pool;
  Layers one(0, 1, pool);
  one.set_gradients(1);
  std::vector<double> want;
  for (const Parameter* parameter : one.counted) want.push_back(ops::sum_of_squares(parameter->gradient));
  for (const int ranks : {2, 3, 4, 5}) {
    SCOPED_TRACE(ranks);
    run_on_threads(ranks, [&](Communicator& comm) {
      set_threads(1);
      MemoryPool own;
      const Mesh mesh({.replicate = ranks, .experts = ranks}, comm);
      Layers mine(comm.rank(), ranks, own);
      const auto common = replicate(mine.common, {}, mesh.data(), own);
      const auto trained = with_spread_experts(*common, mine.experts, kExperts, {}, mesh, own);
      mine.set_gradients(1);
      EXPECT_EQ(trained->gradient_squares(mine.counted), want);
    });
  }
}

// Of four ranks, two of which share the experts, the third has nothing to add.
TEST(SpreadExperts, SumTheGradientsOfThoseThatHaveTheSame) {
  run_on_threads(4, [](Communicator& comm) {
    set_threads(1);
    MemoryPool pool;
    const Mesh mesh({.replicate = 4, .experts = 2}, comm);
    Layers mine(comm.rank() % 2, 2, pool);
    const auto common = replicate(mine.common, {}, mesh.data(), pool);
    const auto trained = with_spread_experts(*common, mine.experts, kExperts, {}, mesh, pool);
    EXPECT_EQ(trained->parameters().size(), mine.all.size());
    mine.set_gradients(static_cast<float>(int64_t{1} << comm.rank()));
    trained->reduce_gradients({true, true, false, true});
    // Common ones: of ranks 0, 1 and 3; experts: of both of their copies.
    const float of_experts = comm.rank() % 2 == 0 ? 1 + 4 : 2 + 8;
    for (size_t i = 0; i < mine.all.size(); ++i) {
      const bool expert = std::find(mine.experts.begin(), mine.experts.end(), mine.all[i].get()) != mine.experts.end();
      const std::span<const float> one = mine.gradients[i].span<const float>();
      const std::span<const float> got = mine.all[i]->gradient.span<const float>();
      for (size_t k = 0; k < one.size(); ++k) {
        const float want = (expert ? of_experts : 1 + 2 + 8) * one[k];
        ASSERT_NEAR(got[k], want, 1e-5f * std::abs(want)) << mine.all[i]->name;
      }
      EXPECT_EQ(trained->is_first_copy(*mine.all[i]), comm.rank() < (expert ? 2 : 1)) << mine.all[i]->name;
    }
  });
}

}  // namespace
}  // namespace nibble
