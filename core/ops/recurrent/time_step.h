#pragma once
// How long a token's step is in a state space, and how much of the state it leaves (Mamba-2, gated delta net).

#include <limits>

#include "nibble/core/tensor/tensor.h"

namespace nibble::ops {

/// Steps outside [low, high] are clamped.
struct TimeStepLimits {
  float low = 0, high = 0;
  float least_decay = 0;  ///< below 0: log_decay is this times sigmoid(exp(a_log) (x + bias)), and there is no step
};
/// No limits.
inline constexpr TimeStepLimits kAnyStep = {.low = 0, .high = std::numeric_limits<float>::infinity()};

/// step = clamp(softplus(x + bias)), log_decay = -exp(a_log) step.  x [T, H] f32 or bf16, bias [H] f32, a_log [n] f32,
/// n = H or a divisor of it: one for H / n consecutive columns; step and log_decay [T, H] f32 (out).
void time_step_forward(const Tensor& x, const Tensor& bias, const Tensor& a_log, const TimeStepLimits& limits,
                       Tensor& step, Tensor& log_decay);
/// dx [T, H] in the dtype of x, overwritten, from dlog_decay and, unless it is undefined, dstep; dbias [H] and
/// da_log [n] f32 += unless undefined.
void time_step_backward(const Tensor& dstep, const Tensor& dlog_decay, const Tensor& x, const Tensor& bias,
                        const Tensor& a_log, const TimeStepLimits& limits, Tensor& dx, Tensor& dbias, Tensor& da_log);

}  // namespace nibble::ops
