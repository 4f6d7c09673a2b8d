#include "nibble/quant/dequantized_source.h"

#include <algorithm>
#include <map>
#include <memory>

#include "nibble/core/io/hub/fp8_tensor.h"
#include "nibble/core/ops/columns.h"
#include "nibble/quant/bnb_layout.h"
#include "nibble/quant/codec.h"
#include "nibble/quant/mxfp4_layout.h"
#include "nibble/quant/quantization_config.h"

namespace nibble {

namespace {

// MXFP4 has the matrices of gpt-oss, and bitsandbytes the Conv1D weights of GPT-2, as [out, in]; the plain tensors are
// [in, out], so they are the transposes.
struct PackedTensor {
  QuantizedMatrix matrix;
  bool transposed;

  Shape plain_shape() const {
    Shape shape = matrix.original_shape();
    if (transposed) std::swap(shape.end()[-1], shape.end()[-2]);
    return shape;
  }
};

// Columns [begin, end) of a matrix [out, in], as [end - begin, out].
Tensor columns(const QuantizedMatrix& matrix, int64_t begin, int64_t end, MemoryPool& pool) {
  const int64_t out = matrix.out_features(), step = rows_of_piece(matrix.in_features(), matrix.block_size);
  Tensor result = Tensor::empty(pool, {end - begin, out}, DType::f32, "dequantized columns");
  for (int64_t row = 0; row < out; row += step) {
    const int64_t count = std::min(step, out - row);
    Tensor part = Tensor::empty(pool, {count, end - begin}, DType::f32, "dequantized columns"),
           turned = Tensor::empty(pool, {end - begin, count}, DType::f32, "dequantized columns");
    ops::copy_columns_out(dequantize(matrix, row, row + count, pool), begin, part);
    ops::transpose(part, turned);
    ops::copy_columns_in(turned, row, result);
  }
  return result;
}

Tensor plain_rows(const PackedTensor& packed, int64_t begin, int64_t end, MemoryPool& pool) {
  const QuantizedMatrix& matrix = packed.matrix;
  if (matrix.matrices == 0) return (packed.transposed ? columns : dequantize)(matrix, begin, end, pool);
  const Shape shape = packed.plain_shape();
  const int64_t rows = matrix.out_features() / matrix.matrices;
  const Tensor stored = dequantize(matrix, begin * rows, end * rows, pool);
  if (!packed.transposed) return stored.reshape({end - begin, shape[1], shape[2]});
  Tensor result = Tensor::empty(pool, {end - begin, shape[1], shape[2]}, DType::f32, "dequantized experts");
  for (int64_t i = 0; i < end - begin; ++i) {
    Tensor turned = result.rows(i, i + 1).reshape({shape[1], shape[2]});
    ops::transpose(stored.rows(i * rows, (i + 1) * rows), turned);
  }
  return result;
}

// The 4-bit tensors of a checkpoint by their names.
std::map<std::string, PackedTensor> packed_tensors(const CheckpointDir& checkpoint, MemoryPool& pool) {
  std::map<std::string, PackedTensor> packed;
  for (const std::string& name : checkpoint.names()) {
    if (is_quantized(checkpoint, name)) packed[name] = {read_quantized(checkpoint, name, pool), false};
    const std::string whole = mxfp4_tensor_of(name);
    if (!whole.empty() && is_mxfp4(checkpoint, whole)) packed[whole] = {read_mxfp4(checkpoint, whole), true};
  }
  if (packed.empty()) return packed;
  const DecoderConfig config = read_decoder_config(checkpoint.path());
  for (auto& [name, tensor] : packed) {
    if (tensor.matrix.matrices > 0) continue;  // those of bitsandbytes lie as the file had them
    tensor.transposed = config.transposed_linears && module_of_weight(name) != config.names.head;
  }
  return packed;
}

}  // namespace

TensorSource dequantized_source(const CheckpointDir& checkpoint, MemoryPool& pool) {
  const auto packed = std::make_shared<const std::map<std::string, PackedTensor>>(packed_tensors(checkpoint, pool));
  if (packed->empty()) return plain_source(checkpoint);

  TensorSource source;
  source.directory = checkpoint.path();
  source.config = checkpoint.config_text();
  for (const auto& [name, tensor] : *packed) source.tensors.push_back({name, tensor.plain_shape(), DType::f32});
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
