#include <oneapi/dnnl/dnnl.hpp>

#include "nibble/core/ops/cpu/gemm_libraries.h"

namespace nibble::ops::cpu {

namespace {

using Memory = dnnl::memory;

Memory::desc description(const Tensor& x, bool transposed) {
  const auto type = x.dtype() == DType::f32 ? Memory::data_type::f32 : Memory::data_type::bf16;
  Memory::dims dims = {x.dim(0), x.dim(1)};
  if (transposed) std::swap(dims[0], dims[1]);
  return {dims, type, transposed ? Memory::format_tag::ba : Memory::format_tag::ab};
}

}  // namespace

bool gemm_onednn(const PackedProduct& p) {
  const Tensor& w = p.w.dense;  // undefined where it is not dense
  const DType dtype = p.a.dtype();
  if (!w || w.dtype() != dtype || (p.c.dtype() != dtype && p.c.dtype() != DType::f32)) return false;
  if (dtype != DType::f32 && (dtype != DType::bf16 || isa() < Isa::avx512_bf16)) return false;

  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  thread_local dnnl::stream stream(engine);
  dnnl::primitive_attr attributes;
  if (p.alpha != 1.0f) attributes.set_output_scales(0, {p.alpha});
  if (p.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const Memory::desc a = description(p.a, p.a_transposed), b = description(w, p.w_transposed),
                     c = description(p.c, false);
  // oneDNN keeps the compiled kernels of such descriptions in a cache of its own.
  const dnnl::matmul multiply(dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, c), attributes, engine));
  const auto memory = [](const Memory::desc& about, const Tensor& x) {
    return Memory(about, engine, const_cast<std::byte*>(x.raw()));
  };
  multiply.execute(stream,
                   {{DNNL_ARG_SRC, memory(a, p.a)}, {DNNL_ARG_WEIGHTS, memory(b, w)}, {DNNL_ARG_DST, memory(c, p.c)}});
  stream.wait();
  return true;
}

}  // namespace nibble::ops::cpu
