#include "nibble/quant/dequantized_source.h"

#include <map>
#include <memory>

#include "nibble/core/ops/elementwise.h"
#include "nibble/quant/bnb_layout.h"
#include "nibble/quant/codec.h"

namespace nibble {

TensorSource dequantized_source(const CheckpointDir& checkpoint, MemoryPool& pool) {
  auto packed = std::make_shared<std::map<std::string, QuantizedMatrix>>();
  for (const std::string& name : checkpoint.names()) {
    if (is_quantized(checkpoint, name)) packed->emplace(name, read_quantized(checkpoint, name, pool));
  }
  if (packed->empty()) return plain_source(checkpoint);

  TensorSource source;
  source.directory = checkpoint.path();
  source.config = checkpoint.config_text();
  for (const std::string& name : checkpoint.names()) {
    if (const auto found = packed->find(name); found != packed->end()) {
      source.tensors.push_back({name, found->second.shape, DType::f32});
    } else if (!is_quantization_part(name)) {
      const Tensor tensor = checkpoint.at(name);
      source.tensors.push_back({name, tensor.shape(), tensor.dtype()});
    }
  }
  source.rows = [packed, &checkpoint](const std::string& name, int64_t begin, int64_t end, MemoryPool& rows_pool) {
    if (const auto found = packed->find(name); found != packed->end()) {
      return dequantize(found->second, begin, end, rows_pool);
    }
    const Tensor stored = checkpoint.at(name).rows(begin, end);
    Tensor rows = Tensor::empty(rows_pool, stored.shape(), DType::f32, name);
    ops::cast(stored, rows);
    return rows;
  };
  return source;
}

}  // namespace nibble
