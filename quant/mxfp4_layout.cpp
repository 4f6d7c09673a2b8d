#include "nibble/quant/mxfp4_layout.h"

#include <algorithm>
#include <cmath>

#include "nibble/core/base/error.h"
#include "nibble/core/base/parallel_each.h"
#include "nibble/quant/tables.h"

namespace nibble {

namespace {

constexpr std::string_view kBlocks = "_blocks", kBlockScales = "_scales";
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
std::string mxfp4_scales_name(const std::string& name) { return name + std::string(kBlockScales); }

bool is_mxfp4(const CheckpointDir& checkpoint, const std::string& name) {
  return checkpoint.contains(mxfp4_blocks_name(name));
}

std::string mxfp4_tensor_of(const std::string& part) {
  for (const std::string_view end : {kBlocks, kBlockScales}) {
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

namespace {

// Of 0, 0.5, 1, 1.5, 2, 3, 4, 6 the nearest to a magnitude.
uint8_t magnitude_code(float x) {
  return static_cast<uint8_t>((x > 0.25f) + (x > 0.75f) + (x > 1.25f) + (x > 1.75f) + (x > 2.5f) + (x > 3.5f) +
                              (x > 5));
}

uint8_t encode_block(const float* x, uint8_t* packed) {
  float largest = 0;
  for (int64_t i = 0; i < kBlock; ++i) largest = std::max(largest, std::abs(x[i]));
  const int power = largest > 0 ? std::clamp(std::ilogb(largest) - 2, -127, 127) : -127;
  for (int64_t i = 0; i < kBlock; i += 2) {
    const auto code = [&](float value) {
      const uint8_t sign = std::signbit(value) ? 8 : 0;
      return static_cast<uint8_t>(sign | magnitude_code(std::ldexp(std::abs(value), -power)));
    };
    packed[i / 2] = static_cast<uint8_t>(code(x[i]) | code(x[i + 1]) << 4);
  }
  return static_cast<uint8_t>(power + 127);
}

}  // namespace

void encode_mxfp4(const Tensor& rows, Tensor& packed, Tensor& exponents) {
  NIBBLE_CHECK(
      rows.numel() % kBlock == 0 && packed.numel() * 2 == rows.numel() && exponents.numel() * kBlock == rows.numel(),
      "MXFP4: shapes");
  const float* from = rows.data<const float>();
  auto *codes = packed.data<uint8_t>(), *scales = exponents.data<uint8_t>();
  parallel_each(exponents.numel(), 1024,
                [=](int64_t b) { scales[b] = encode_block(from + b * kBlock, codes + b * kBlock / 2); });
}

}  // namespace nibble
