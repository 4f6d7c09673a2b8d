// Every op has three bodies: a plain twin that tests compare with, the CPU's, and one that counts. An op without a twin
// does not compile here.

#include <gtest/gtest.h>

#include "nibble/core/ops/meta/meta_device.h"
#include "nibble/core/ops/ref/activation.h"
#include "nibble/core/ops/ref/attention.h"
#include "nibble/core/ops/ref/causal_conv.h"
#include "nibble/core/ops/ref/clip.h"
#include "nibble/core/ops/ref/cross_entropy.h"
#include "nibble/core/ops/ref/dropout.h"
#include "nibble/core/ops/ref/elementwise.h"
#include "nibble/core/ops/ref/embedding.h"
#include "nibble/core/ops/ref/experts.h"
#include "nibble/core/ops/ref/gated_norm.h"
#include "nibble/core/ops/ref/gemm.h"
#include "nibble/core/ops/ref/grouped.h"
#include "nibble/core/ops/ref/int8_error.h"
#include "nibble/core/ops/ref/int8_product.h"
#include "nibble/core/ops/ref/linear_attention.h"
#include "nibble/core/ops/ref/norm.h"
#include "nibble/core/ops/ref/optimizer.h"
#include "nibble/core/ops/ref/pick.h"
#include "nibble/core/ops/ref/rope.h"
#include "nibble/core/ops/ref/streams.h"
#include "nibble/core/ops/ref/time_step.h"
#include "nibble/core/ops/ref/weight_norm.h"
#include "nibble/core/ops/ref/weight_view.h"

namespace nibble::ops {
namespace {

namespace twin {

using namespace ref;  // NOLINT: by the names of the ops
// Twins of one element or four.
constexpr auto& activation_forward = ref::activation<double>;
constexpr auto& activation_backward = ref::activation_derivative<double>;
constexpr auto& adamw8bit = ref::round_to_8bit;
constexpr auto& block_scales = ref::block_scale;
constexpr float (&dequantize)(const FourBitMatrix&, int64_t, int64_t) = ref::element;
constexpr auto& int8_error = ref::int8_error<float>;
constexpr auto& int8_round = ref::int8_round<float>;
constexpr auto& int8_matmul_nt = ref::int8_matmul;
constexpr auto& int8_matmul_nn = ref::int8_matmul;
constexpr auto& fill_normal = ref::normal_quad;
constexpr auto& fill_uniform = ref::uniform_quad;
// One for all ways to store the factors, and one for the whole of a loss.
constexpr auto& matmul_nt = ref::matmul<double>;
constexpr auto& matmul_nn = ref::matmul<double>;
constexpr auto& matmul_tn = ref::matmul<double>;
constexpr auto& cross_entropy_statistics = ref::cross_entropy<double>;
constexpr auto& cross_entropy_merge = ref::cross_entropy<double>;
constexpr auto& cross_entropy_backward = ref::cross_entropy<double>;
// One of a token, and the recurrence, whose gradients are differences of it.
constexpr auto& route = ref::router_weights<double>;
constexpr auto& route_backward = ref::router_gradient<double>;
constexpr auto& linear_attention_backward = ref::linear_attention_forward<double>;

}  // namespace twin

namespace of_every_op {
#define NIBBLE_TWIN(op) using twin::op;
NIBBLE_OPERATIONS(NIBBLE_TWIN)
#undef NIBBLE_TWIN
}  // namespace of_every_op

TEST(Bodies, EveryOpComputesOnTheCpuAndCountsOnMeta) {
  const MetaDevice device;
  const Backend &cpu = cpu_device().backend(), &meta = device.backend();
#define NIBBLE_EXPECT(op)                 \
  EXPECT_TRUE(cpu.op != nullptr) << #op;  \
  EXPECT_TRUE(meta.op != nullptr) << #op; \
  EXPECT_TRUE(meta.op != cpu.op) << #op;
  NIBBLE_OPERATIONS(NIBBLE_EXPECT)
#undef NIBBLE_EXPECT
}

}  // namespace
}  // namespace nibble::ops
