#include "nibble/quant/int8_layout.h"

#include <cmath>

#include "nibble/core/base/parallel.h"

namespace nibble {

namespace {

constexpr std::string_view kWeight = "weight", kScales = "SCB", kFormat = "weight_format";

std::string beside(const std::string& weight, std::string_view part) {
  return weight.substr(0, weight.size() - kWeight.size()) + std::string(part);
}

}  // namespace

bool is_int8(const CheckpointDir& checkpoint, const std::string& weight) {
  return checkpoint.contains(weight) && checkpoint.find(weight).dtype() == DType::i8;
}

std::string int8_weight_of(const std::string& tensor) {
  for (const std::string_view part : {kScales, kFormat}) {
    if (tensor.ends_with("." + std::string(part))) {
      return tensor.substr(0, tensor.size() - part.size()) + std::string(kWeight);
    }
  }
  return "";
}

Tensor read_int8(const CheckpointDir& checkpoint, const std::string& weight, MemoryPool& pool) {
  const auto refuse = [&](const std::string& name, const std::string& reason) {
    throw InputError(checkpoint.file_of(name) + ": " + name, reason, "use the 16-bit model");
  };
  const Tensor codes = checkpoint.at(weight);
  const std::string scales_name = beside(weight, kScales), format_name = beside(weight, kFormat);
  const Tensor scales = checkpoint.at(scales_name), format = checkpoint.find(format_name);
  if (codes.rank() != 2) refuse(weight, "is no matrix but " + to_string(codes.shape()));
  if (scales.dtype() != DType::f32 || scales.shape() != Shape{codes.dim(0)}) {
    refuse(scales_name, "is " + std::string(dtype_name(scales.dtype())) + " " + to_string(scales.shape()) +
                            " for a weight " + to_string(codes.shape()));
  }
  if (format && (format.dtype() != DType::u8 || format.numel() != 1 || format.data<const uint8_t>()[0] != 0)) {
    refuse(format_name, "says that the codes are not in the order of rows");
  }
  const Tensor row_scales = scales.aligned() ? scales : scales.clone(pool);
  for (const float scale : row_scales.span<const float>()) {
    if (!std::isfinite(scale)) refuse(scales_name, "holds a value that is no number");
  }
  Tensor result = Tensor::empty(pool, codes.shape(), DType::f32, weight);
  const int64_t in = codes.dim(1);
  const auto* from = codes.data<const int8_t>();
  parallel_for(codes.dim(0), 64, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float step = row_scales.data<const float>()[row] / 127.0f;
      for (int64_t i = row * in; i < (row + 1) * in; ++i) result.data<float>()[i] = static_cast<float>(from[i]) * step;
    }
  });
  release_pages(codes);
  return result;
}

}  // namespace nibble
