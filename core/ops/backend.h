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

// clang-format off
#define NIBBLE_OPERATIONS(OP)                                                                                        \
  OP(activation_forward) OP(activation_backward) OP(gated_forward) OP(gated_backward)                                \
  OP(clamped_gated_forward) OP(clamped_gated_backward) OP(xielu_forward) OP(xielu_backward)                          \
  OP(gaussian_topk_forward) OP(gaussian_topk_backward)                                                               \
  OP(attention_forward) OP(attention_backward) OP(attention_sinks_forward) OP(attention_sinks_backward)              \
  OP(causal_conv_forward) OP(causal_conv_backward)                                                                   \
  OP(clip) OP(clip_backward)                                                                                         \
  OP(copy_columns_out) OP(copy_columns_in) OP(transpose)                                                                           \
  OP(cross_entropy) OP(cross_entropy_statistics) OP(cross_entropy_merge) OP(cross_entropy_backward)                  \
  OP(divergence) OP(dropout)                                                                                         \
  OP(cast) OP(scale) OP(add_bias) OP(bias_backward) OP(sum) OP(sum_of_squares) OP(first_nonfinite)                   \
  OP(fill_normal) OP(fill_uniform)                                                                                                   \
  OP(embedding_forward) OP(embedding_backward) OP(gather_rows) OP(scatter_add_rows)                                  \
  OP(route) OP(route_backward) OP(router_balance) OP(router_balance_backward) OP(scale_rows) OP(scale_rows_backward) \
  OP(gated_norm_forward) OP(gated_norm_backward)                                                                     \
  OP(linear_attention_forward) OP(linear_attention_backward)                                                         \
  OP(matmul_nt) OP(matmul_nn) OP(matmul_tn) OP(dequantize) OP(block_scales)                                          \
  OP(grouped_matmul) OP(grouped_matmul_tn)                                                                           \
  OP(int8_round) OP(int8_matmul_nt) OP(int8_matmul_nn) OP(int8_error)                                                \
  OP(rms_norm_forward) OP(rms_norm_backward) OP(layer_norm_forward) OP(layer_norm_backward)                          \
  OP(adamw) OP(adamw8bit) OP(sgd)                                                                                    \
  OP(take_columns) OP(put_columns) OP(put_rows) OP(gather_columns) OP(scatter_add_columns) OP(column_squares)        \
  OP(add_residual)                                                                                                   \
  OP(rope)                                                                                                           \
  OP(softcap)                                                                                                        \
  OP(mix_streams_forward) OP(mix_streams_backward) OP(match_rms_forward) OP(match_rms_backward)                      \
  OP(time_step_forward) OP(time_step_backward)                                                                       \
  OP(row_squares) OP(low_rank_norms) OP(set_row_norms) OP(scale_columns) OP(scale_columns_backward)
// clang-format on

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
NIBBLE_OPERATIONS(NIBBLE_BODY)
#undef NIBBLE_BODY
}  // namespace cpu

}  // namespace nibble::ops
