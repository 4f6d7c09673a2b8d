#include "nibble/core/ops/recurrent/time_step.h"

#include "nibble/core/ops/ref/time_step.h"
#include "nibble/tests/core/ops/op_test.h"

namespace nibble {
namespace {

using namespace test;

// One decay for so many columns, and the least logarithm of a decay.
constexpr std::pair<int64_t, double> kForms[] = {{1, 0}, {2, 0}, {2, -3}};

TEST(TimeStep, ReferenceGradientsAreFiniteDifferences) {
  for (const auto& [together, least] : kForms) {
    const int64_t tokens = 5, heads = 4, count = tokens * heads;
    const Values x = random_values(count + heads + heads / together, 1, 2), dstep = random_values(count, 2);
    const Values ddecay = random_values(count, 3);
    const double low = 0.2, high = 2;
    const auto loss = [&](const Values& at) {
      Values step(dstep.size()), decay(dstep.size());
      ops::ref::time_step_forward(at.data(), at.data() + count, at.data() + count + heads, tokens, heads, together, low,
                                  high, least, step.data(), decay.data());
      return dot(step, dstep) + dot(decay, ddecay);
    };
    Values gradient(x.size(), 0.0);
    double* to = gradient.data();
    ops::ref::time_step_backward(dstep.data(), ddecay.data(), x.data(), x.data() + count, x.data() + count + heads,
                                 tokens, heads, together, low, high, least, to, to + count, to + count + heads);
    expect_gradient(loss, x, gradient, "time step");
  }
}

TEST(TimeStep, MatchesReferenceForAnyThreads) {
  for (const auto& [together, least] : kForms) {
    const int64_t tokens = 150, heads = 8, count = tokens * heads;
    const ops::TimeStepLimits limits{.low = 0.25f, .high = 3, .least_decay = static_cast<float>(least)};
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Tensor x = random_tensor({tokens, heads}, dtype, 1, 3), bias = random_tensor({heads}, DType::f32, 2);
      const Tensor a_log = random_tensor({heads / together}, DType::f32, 3),
                   dstep = random_tensor(x.shape(), DType::f32, 4);
      const Tensor ddecay = random_tensor(x.shape(), DType::f32, 5);
      Values steps(static_cast<size_t>(count)), decays = steps, dxs = steps;
      Values dbiases(static_cast<size_t>(heads), 0.0), das(static_cast<size_t>(heads / together), 0.0);
      ops::ref::time_step_forward(values_of(x).data(), values_of(bias).data(), values_of(a_log).data(), tokens, heads,
                                  together, 0.25, 3.0, least, steps.data(), decays.data());
      ops::ref::time_step_backward(values_of(dstep).data(), values_of(ddecay).data(), values_of(x).data(),
                                   values_of(bias).data(), values_of(a_log).data(), tokens, heads, together, 0.25, 3.0,
                                   least, dxs.data(), dbiases.data(), das.data());
      expect_same_bits_for_any_threads([&] {
        Tensor step = Tensor::empty(pool(), x.shape(), DType::f32),
               decay = Tensor::empty(pool(), x.shape(), DType::f32);
        Tensor dx = Tensor::empty(pool(), x.shape(), dtype), dbias = Tensor::zeros(pool(), {heads}, DType::f32);
        Tensor da = Tensor::zeros(pool(), a_log.shape(), DType::f32);
        ops::time_step_forward(x, bias, a_log, limits, step, decay);
        ops::time_step_backward(dstep, ddecay, x, bias, a_log, limits, dx, dbias, da);
        expect_close(step, steps, 1e-6, 1e-6, "step");
        expect_close(decay, decays, 1e-6, 1e-6, "decay");
        expect_close(dx, dxs, rounding(dtype, 1e-5), 1e-5, "dx");
        expect_close(dbias, dbiases, 1e-5, 1e-4, "dbias");
        expect_close(da, das, 1e-5, 1e-3, "da_log");
        return std::vector<Tensor>{step, decay, dx, dbias, da};
      });
    }
  }
}

}  // namespace
}  // namespace nibble
