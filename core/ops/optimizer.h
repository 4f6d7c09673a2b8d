#pragma once
#include "nibble/core/tensor/tensor.h"

namespace nibble::ops {

struct AdamWParams {
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  int64_t step = 1;          ///< 1 for the first update
  float gradient_scale = 1;  ///< multiplies the gradient before use (clipping)
};

/// AdamW with decoupled decay (Loshchilov and Hutter 2019), the arithmetic of torch.optim.AdamW (not amsgrad):
/// w -= lr wd w; m, v updated; w -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps). All f32, same shape;
/// scalars are computed in f64 and rounded once.
void adamw(Tensor& w, const Tensor& gradient, Tensor& m, Tensor& v, const AdamWParams& params);

/// Elements of one block of an 8-bit state, and of the smallest tensor whose state is kept in 8 bits.
inline constexpr int64_t kEightBitBlock = 256, kEightBitMinimum = 4096;
/// Blocks of `count` elements, the last of which may be smaller.
inline constexpr int64_t eight_bit_blocks(int64_t count) { return (count + kEightBitBlock - 1) / kEightBitBlock; }

/// An optimizer's state in 8 bits: codes [n] u8 of a dynamic map (core/ops/dynamic_map.h), scaled by the largest
/// magnitude of each block, absmax [eight_bit_blocks(n)] f32.
struct EightBitState {
  Tensor codes, absmax;
};

/// adamw with m (signed map) and v (unsigned map) kept in 8 bits by blocks (Dettmers et al. 2022, "8-bit Optimizers via
/// Block-wise Quantization"; AdamW8bit of bitsandbytes): the state is expanded, updated as adamw does, used, and
/// rounded to the nearest codes. w and gradient f32.
void adamw8bit(Tensor& w, const Tensor& gradient, EightBitState& m, EightBitState& v, const AdamWParams& params);

/// w -= lr (gradient_scale * gradient + weight_decay w)
void sgd(Tensor& w, const Tensor& gradient, float lr, float weight_decay, float gradient_scale);

}  // namespace nibble::ops
