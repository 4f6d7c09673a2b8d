#include "nibble/quant/dequantized_source.h"

#include <algorithm>
#include <map>
#include <memory>

#include "nibble/core/io/hub/fp8_tensor.h"
#include "nibble/core/ops/columns.h"
#include "nibble/quant/bnb_layout.h"
#include "nibble/quant/codec.h"
#include "nibble/quant/mxfp4_layout.h"

namespace nibble {

namespace {

// MXFP4 holds the matrices of gpt-oss as [out, in], its plain tensors as [in, out].
Shape plain_shape(const QuantizedMatrix& matrix) {
  Shape shape = matrix.original_shape();
  if (matrix.type == QuantType::mxfp4) std::swap(shape[1], shape[2]);
  return shape;
}

Tensor plain_rows(const QuantizedMatrix& matrix, int64_t begin, int64_t end, MemoryPool& pool) {
  if (matrix.matrices == 0) return dequantize(matrix, begin, end, pool);
  const Shape shape = plain_shape(matrix);
  const int64_t rows = matrix.out_features() / matrix.matrices;
  const Tensor stored = dequantize(matrix, begin * rows, end * rows, pool);
  if (matrix.type != QuantType::mxfp4) return stored.reshape({end - begin, shape[1], shape[2]});
  Tensor result = Tensor::empty(pool, {end - begin, shape[1], shape[2]}, DType::f32, "dequantized experts");
  for (int64_t i = 0; i < end - begin; ++i) {
    Tensor turned = result.rows(i, i + 1).reshape({shape[1], shape[2]});
    ops::transpose(stored.rows(i * rows, (i + 1) * rows), turned);
  }
  return result;
}

}  // namespace

TensorSource dequantized_source(const CheckpointDir& checkpoint, MemoryPool& pool) {
  auto packed = std::make_shared<std::map<std::string, QuantizedMatrix>>();
  for (const std::string& name : checkpoint.names()) {
    if (is_quantized(checkpoint, name)) packed->emplace(name, read_quantized(checkpoint, name, pool));
    const std::string whole = mxfp4_tensor_of(name);
    if (!whole.empty() && is_mxfp4(checkpoint, whole)) packed->try_emplace(whole, read_mxfp4(checkpoint, whole));
  }
  if (packed->empty()) return plain_source(checkpoint);

  TensorSource source;
  source.directory = checkpoint.path();
  source.config = checkpoint.config_text();
  for (const auto& [name, matrix] : *packed) source.tensors.push_back({name, plain_shape(matrix), DType::f32});
  for (const std::string& name : checkpoint.names()) {
    const bool is_part = packed->contains(name) || packed->contains(quantized_tensor_of(name)) ||
                         packed->contains(mxfp4_tensor_of(name)) || !fp8_weight_of(checkpoint, name).empty();
    if (!is_part) source.tensors.push_back(plain_spec(checkpoint, name));
  }
  std::ranges::sort(source.tensors, {}, &TensorSpec::name);
  source.rows = [packed, &checkpoint](const std::string& name, int64_t begin, int64_t end, MemoryPool& rows_pool) {
    if (const auto found = packed->find(name); found != packed->end()) {
      return plain_rows(found->second, begin, end, rows_pool);
    }
    return unpacked_rows(checkpoint, name, begin, end, rows_pool);
  };
  return source;
}

}  // namespace nibble
