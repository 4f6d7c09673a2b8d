#pragma once
#include "nibble/core/ops/cpu/gemm/gemm_packed.h"
#include "nibble/core/ops/cpu/gemm/gemm_plan.h"
#include "nibble/core/ops/cpu/gemm/weight_panels.h"

namespace nibble::ops::cpu {

/// Fills one panel, depths `k` and columns `n` of B, as strips.
class PanelPacker {
 public:
  PanelPacker(const PackedProduct& product, const WeightPanels& w, const GemmKernel& kernel, std::byte* panel,
              std::byte* scratch)
      : w_(w),
        transposed_(product.w_transposed),
        input_(product.a.dtype()),
        kernel_(kernel),
        panel_(panel),
        scratch_(scratch),
        size_(static_cast<int64_t>(dtype_size(kernel.compute))),
        in_place_size_(size_),
        pack_transposed_(kernel.pack_transposed),
        pack_rows_(kernel.pack_rows) {
    if (input_ == kernel.compute) in_place_ = w_.in_place(kernel.compute);
    const std::byte* narrow = w_.in_place(DType::bf16);
    if (kernel.pack_rows_bf16 == nullptr || narrow == nullptr) return;
    in_place_ = narrow;
    in_place_size_ = static_cast<int64_t>(sizeof(bf16));
    pack_transposed_ = kernel.pack_transposed_bf16;
    pack_rows_ = kernel.pack_rows_bf16;
  }

  int64_t strip_bytes(int64_t depth) const { return round_up(depth, kernel_.depth_step) * kernel_.width * size_; }

  /// What pack(k, n) will read of W, asked for in `turns` turns.
  FetchAhead ahead(Range k, Range n, int64_t turns) const {
    return transposed_ ? FetchAhead(w_.stored(), n.begin, n.end, k.begin, k.end, turns)
                       : FetchAhead(w_.stored(), k.begin, k.end, n.begin, n.end, turns);
  }

  void pack(Range k, Range n) const { transposed_ ? pack_transposed(k, n) : pack_rows(k, n); }

 private:
  // W [N, K]: rows of W become columns of strips, a register's worth at a time.
  void pack_transposed(Range k, Range n) const;
  // W [K, N]: rows of W are depths.
  void pack_rows(Range k, Range n) const;
  struct Piece {
    const std::byte* data;
    int64_t stride;
  };
  // A piece of W for pack_transposed_ and pack_rows_: in place, or expanded into scratch in the compute type.
  Piece fetch(Range rows, Range cols) const;

  const WeightPanels& w_;
  bool transposed_;
  DType input_;
  const GemmKernel& kernel_;
  std::byte* panel_;
  std::byte* scratch_;
  int64_t size_, in_place_size_;
  const std::byte* in_place_ = nullptr;
  decltype(GemmKernel::pack_rows) pack_transposed_, pack_rows_;
};

}  // namespace nibble::ops::cpu
