#pragma once
// The op bodies of one device. To add an op: declare it in a header, list it here, write what its callers see in
// dispatch.cpp (shapes checked, then the body), its scalar twin in ref/ and a body in cpu/. The meta device needs one
// only where the work is more than the bytes that pass.

#include "nibble/core/ops/activation.h"
#include "nibble/core/ops/attention.h"
#include "nibble/core/ops/clip.h"
#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/cross_entropy.h"
#include "nibble/core/ops/dropout.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/embedding.h"
#include "nibble/core/ops/experts.h"
#include "nibble/core/ops/experts/grouped.h"
#include "nibble/core/ops/gemm.h"
#include "nibble/core/ops/int8/int8_error.h"
#include "nibble/core/ops/norm.h"
#include "nibble/core/ops/optimizer.h"
#include "nibble/core/ops/pick.h"
#include "nibble/core/ops/recurrent/causal_conv.h"
#include "nibble/core/ops/recurrent/gated_norm.h"
#include "nibble/core/ops/recurrent/linear_attention.h"
#include "nibble/core/ops/recurrent/time_step.h"
#include "nibble/core/ops/residual.h"
#include "nibble/core/ops/rope.h"
#include "nibble/core/ops/softcap.h"
#include "nibble/core/ops/weight_norm.h"

// SIMD: one whose body on the CPU is in versions for several instruction sets.
// clang-format off
#define NIBBLE_OPERATIONS_BY_BODY(OP, SIMD)                                                                           \
  SIMD(activation_forward) SIMD(activation_backward) SIMD(gated_forward) SIMD(gated_backward)                         \
  SIMD(clamped_gated_forward) SIMD(clamped_gated_backward) SIMD(xielu_forward) SIMD(xielu_backward)                   \
  SIMD(gaussian_topk_forward) SIMD(gaussian_topk_backward)                                                            \
  SIMD(attention_forward) SIMD(attention_backward) OP(attention_sinks_forward) OP(attention_sinks_backward)           \
  SIMD(causal_conv_forward) SIMD(causal_conv_backward)                                                                \
  OP(clip) OP(clip_backward)                                                                                          \
  OP(copy_columns_out) OP(copy_columns_in) OP(transpose)                                                              \
  SIMD(cross_entropy) SIMD(cross_entropy_statistics) OP(cross_entropy_merge) SIMD(cross_entropy_backward)             \
  SIMD(divergence) OP(dropout)                                                                                        \
  SIMD(cast) SIMD(scale) SIMD(add_bias) SIMD(bias_backward) OP(sum) SIMD(sum_of_squares) OP(first_nonfinite)          \
  SIMD(fill_normal) OP(fill_uniform)                                                                                  \
  SIMD(embedding_forward) SIMD(embedding_backward) SIMD(gather_rows) SIMD(scatter_add_rows)                           \
  OP(route) OP(route_backward) OP(router_balance) OP(router_balance_backward) SIMD(scale_rows) OP(scale_rows_backward)\
  SIMD(gated_norm_forward) SIMD(gated_norm_backward)                                                                  \
  SIMD(linear_attention_forward) SIMD(linear_attention_backward)                                                      \
  OP(matmul_nt) OP(matmul_nn) OP(matmul_tn) OP(dequantize) OP(block_scales)                                           \
  OP(grouped_matmul) OP(grouped_matmul_tn)                                                                            \
  SIMD(int8_round) OP(int8_matmul_nt) OP(int8_matmul_nn) OP(int8_error)                                               \
  SIMD(rms_norm_forward) SIMD(rms_norm_backward) SIMD(layer_norm_forward) SIMD(layer_norm_backward)                   \
  SIMD(adamw) SIMD(adamw8bit) SIMD(sgd)                                                                               \
  OP(take_columns) OP(put_columns) OP(put_rows) OP(gather_columns) OP(scatter_add_columns) OP(column_squares)         \
  SIMD(add_residual)                                                                                                  \
  SIMD(rope)                                                                                                          \
  OP(softcap)                                                                                                         \
  SIMD(mix_streams_forward) SIMD(mix_streams_backward) SIMD(match_rms_forward) SIMD(match_rms_backward)               \
  OP(time_step_forward) OP(time_step_backward)                                                                        \
  OP(row_squares) OP(low_rank_norms) OP(set_row_norms) OP(scale_columns) OP(scale_columns_backward)
// clang-format on
#define NIBBLE_OPERATIONS(OP) NIBBLE_OPERATIONS_BY_BODY(OP, OP)

namespace nibble::ops {

/// Everything that runs on a device: the ops, and what Tensor asks of it.
enum class Operation : uint8_t {
#define NIBBLE_NAME(op) op,
  NIBBLE_OPERATIONS(NIBBLE_NAME)
#undef NIBBLE_NAME
      zero,
  copy
};
inline constexpr size_t kOperations = static_cast<size_t>(Operation::copy) + 1;

/// Bodies are called with shapes checked. Tensors of indices (ids, targets, rows, columns, positions, keys) are the
/// host's on every device; all others are the device's.
struct Backend {
#define NIBBLE_MEMBER(op) decltype(&ops::op) op;
  NIBBLE_OPERATIONS(NIBBLE_MEMBER)
#undef NIBBLE_MEMBER
};

namespace cpu {
#define NIBBLE_BODY(op) decltype(ops::op) op;
#define NIBBLE_SIMD_BODY(op) extern decltype(&ops::op) const op;
#define NIBBLE_ELSEWHERE(op)
NIBBLE_OPERATIONS_BY_BODY(NIBBLE_BODY, NIBBLE_ELSEWHERE)
namespace simd {
NIBBLE_OPERATIONS_BY_BODY(NIBBLE_ELSEWHERE, NIBBLE_SIMD_BODY)
}
#undef NIBBLE_BODY
#undef NIBBLE_SIMD_BODY
#undef NIBBLE_ELSEWHERE
}  // namespace cpu

}  // namespace nibble::ops
