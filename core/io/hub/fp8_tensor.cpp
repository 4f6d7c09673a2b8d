#include "nibble/core/io/hub/fp8_tensor.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "nibble/core/base/error.h"
#include "nibble/core/base/parallel.h"

namespace nibble {

namespace {

constexpr std::string_view kScales = "_scale_inv", kInputScale = "activation_scale";

// Code [sign, 4 bits of exponent, 3 of fraction]: exponents are off by 7, 0 has no leading one, and 15 with 7 is no
// number.
std::array<float, 256> make_values() {
  std::array<float, 256> values;
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code >> 3) & 15, fraction = code & 7;
    float value = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
    if (exponent == 15 && fraction == 7) value = std::nanf("");
    values[static_cast<size_t>(code)] = code < 128 ? value : -value;
  }
  return values;
}

template <typename Element>
std::vector<float> widened(const Tensor& tensor) {
  std::vector<Element> elements(static_cast<size_t>(tensor.numel()));
  std::memcpy(elements.data(), tensor.raw(), tensor.bytes());
  std::vector<float> values(elements.size());
  std::ranges::transform(elements, values.begin(), [](Element element) { return static_cast<float>(element); });
  return values;
}

// The scales of a weight: `down` x `across` of them for each of its matrices.
struct Grid {
  std::vector<float> scales;
  int64_t block_rows, block_columns, down, across;
};

Grid read_grid(const CheckpointDir& checkpoint, const std::string& name, const Tensor& codes) {
  const auto refuse = [&](const std::string& tensor, const std::string& reason) {
    throw InputError(checkpoint.file_of(tensor) + ": " + tensor, reason, "use the model in bf16");
  };
  const std::string scales_name = name + std::string(kScales);
  const Tensor stored = checkpoint.find(scales_name);
  if (codes.rank() < 2 || codes.numel() == 0) refuse(name, "is f8_e4m3 " + to_string(codes.shape()) + ", no matrix");
  if (!stored) refuse(name, "is f8_e4m3 without its scales, " + scales_name);
  const int64_t rows = codes.shape().end()[-2], columns = codes.shape().end()[-1];
  Grid grid = {{}, kFp8Block, kFp8Block, (rows + kFp8Block - 1) / kFp8Block, (columns + kFp8Block - 1) / kFp8Block};
  const bool whole = stored.numel() == codes.numel() / (rows * columns);  // one scale for each matrix
  if (whole) grid = {{}, rows, columns, 1, 1};
  Shape expected = codes.shape();
  expected.end()[-2] = grid.down;
  expected.end()[-1] = grid.across;
  const bool is_float = stored.dtype() == DType::f32 || stored.dtype() == DType::bf16;
  if (!is_float || (!whole && stored.shape() != expected)) {
    refuse(scales_name, "is " + std::string(dtype_name(stored.dtype())) + " " + to_string(stored.shape()) +
                            " for a weight " + to_string(codes.shape()) + " in blocks of 128 x 128");
  }
  grid.scales = stored.dtype() == DType::f32 ? widened<float>(stored) : widened<bf16>(stored);
  if (!std::ranges::all_of(grid.scales, [](float scale) { return std::isfinite(scale); })) {
    refuse(scales_name, "holds a value that is not finite");
  }
  return grid;
}

}  // namespace

bool is_fp8(const CheckpointDir& checkpoint, const std::string& name) {
  return checkpoint.contains(name) && checkpoint.find(name).dtype() == DType::f8_e4m3;
}

std::string fp8_weight_of(const CheckpointDir& checkpoint, const std::string& tensor) {
  for (const std::string_view end : {kScales, kInputScale}) {
    if (!tensor.ends_with(end)) continue;
    std::string weight = tensor.substr(0, tensor.size() - end.size());
    if (end == kInputScale && weight.ends_with(".")) weight += "weight";
    if (end == kInputScale && weight.ends_with("_")) weight.pop_back();  // experts.down_proj_activation_scale
    if (is_fp8(checkpoint, weight)) return weight;
  }
  return "";
}

Tensor read_fp8(const CheckpointDir& checkpoint, const std::string& name, int64_t begin, int64_t end,
                MemoryPool& pool) {
  static const std::array<float, 256> kValues = make_values();
  const Tensor codes = checkpoint.at(name);
  const Grid grid = read_grid(checkpoint, name, codes);
  const int64_t rows = codes.shape().end()[-2], columns = codes.shape().end()[-1];
  Shape shape = codes.shape();
  shape[0] = end - begin;
  Tensor result = Tensor::empty(pool, shape, DType::bf16, name);
  const int64_t first = begin * (codes.numel() / codes.dim(0) / columns);  // of all rows of all matrices
  const auto* from = reinterpret_cast<const uint8_t*>(codes.raw()) + first * columns;
  auto* to = result.data<bf16>();
  parallel_for(result.numel() / columns, 64, [&](int64_t from_row, int64_t to_row) {
    for (int64_t r = from_row; r < to_row; ++r) {
      const int64_t matrix = (first + r) / rows, down = (first + r) % rows / grid.block_rows;
      const float* scales = grid.scales.data() + (matrix * grid.down + down) * grid.across;
      for (int64_t c = 0; c < columns; ++c) {
        to[r * columns + c] = bf16(kValues[from[r * columns + c]] * scales[c / grid.block_columns]);
      }
    }
  });
  release_pages(codes.rows(begin, end));
  return result;
}

Tensor read_plain(const CheckpointDir& checkpoint, const std::string& name, MemoryPool& pool) {
  const Tensor stored = checkpoint.at(name);
  return stored.dtype() == DType::f8_e4m3 ? read_fp8(checkpoint, name, 0, stored.rank() == 0 ? 0 : stored.dim(0), pool)
                                          : stored;
}

TensorSpec plain_spec(const CheckpointDir& checkpoint, const std::string& name) {
  const Tensor stored = checkpoint.at(name);
  return {name, stored.shape(), stored.dtype() == DType::f8_e4m3 ? DType::bf16 : stored.dtype()};
}

}  // namespace nibble
