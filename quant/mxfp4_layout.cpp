#include "nibble/quant/mxfp4_layout.h"

#include "nibble/core/base/error.h"
#include "nibble/quant/tables.h"

namespace nibble {

namespace {

constexpr std::string_view kBlocks = "_blocks", kScales = "_scales";
constexpr int64_t kBlock = 32;  // elements that share an exponent

QuantizedMatrix matrix_of(const Shape& shape) {
  QuantizedMatrix matrix;
  matrix.type = QuantType::mxfp4;
  matrix.table = quant_table(QuantType::mxfp4);
  matrix.block_size = kBlock;
  matrix.low_first = true;
  matrix.matrices = shape.at(0);
  matrix.shape = {shape.at(0) * shape.at(1), shape.at(2)};
  return matrix;
}

}  // namespace

std::string mxfp4_blocks_name(const std::string& name) { return name + std::string(kBlocks); }
std::string mxfp4_scales_name(const std::string& name) { return name + std::string(kScales); }

bool is_mxfp4(const CheckpointDir& checkpoint, const std::string& name) {
  return checkpoint.contains(mxfp4_blocks_name(name));
}

std::string mxfp4_tensor_of(const std::string& part) {
  for (const std::string_view end : {kBlocks, kScales}) {
    if (part.ends_with(end)) return part.substr(0, part.size() - end.size());
  }
  return "";
}

QuantizedMatrix read_mxfp4(const CheckpointDir& checkpoint, const std::string& name) {
  const std::string blocks_name = mxfp4_blocks_name(name), scales_name = mxfp4_scales_name(name);
  const auto refuse = [&](const std::string& tensor, const std::string& reason) {
    throw InputError(checkpoint.file_of(tensor) + ": " + tensor, reason,
                     "the checkpoint is damaged or of another kind: get it again");
  };
  const Tensor blocks = checkpoint.at(blocks_name), scales = checkpoint.find(scales_name);
  if (!scales) refuse(blocks_name, "lacks its part " + scales_name);
  const bool are_blocks =
      blocks.dtype() == DType::u8 && blocks.rank() == 4 && blocks.numel() > 0 && blocks.dim(3) == kBlock / 2;
  if (!are_blocks) {
    refuse(blocks_name, "is " + std::string(dtype_name(blocks.dtype())) + " " + to_string(blocks.shape()) +
                            ", not u8 [experts, outputs, inputs / 32, 16]");
  }
  const Shape groups = {blocks.dim(0), blocks.dim(1), blocks.dim(2)};
  if (scales.dtype() != DType::u8 || scales.shape() != groups) {
    refuse(scales_name, "is " + std::string(dtype_name(scales.dtype())) + " " + to_string(scales.shape()) +
                            ", not u8 " + to_string(groups) + " as its blocks need");
  }
  QuantizedMatrix matrix = matrix_of({groups[0], groups[1], groups[2] * kBlock});
  matrix.packed = blocks;
  matrix.exponents = scales;
  return matrix;
}

QuantizedMatrix plan_mxfp4(const Shape& shape, const std::string& name) {
  if (shape.at(2) % kBlock != 0) {
    throw InputError(name, "has " + std::to_string(shape[2]) + " inputs, which are no whole blocks of 32",
                     "check that config.json belongs to these weights");
  }
  QuantizedMatrix matrix = matrix_of(shape);
  const int64_t groups = shape[2] / kBlock;
  matrix.packed = Tensor::planned({shape[0], shape[1], groups, kBlock / 2}, DType::u8);
  matrix.exponents = Tensor::planned({shape[0], shape[1], groups}, DType::u8);
  return matrix;
}

}  // namespace nibble
