#include "nibble/quant/codec.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/cpu/four_bit/four_bit_encode.h"
#include "nibble/quant/tables.h"

namespace nibble {

using ops::cpu::BlockEncoder;

namespace {

constexpr int64_t kLargestBlock = 4096;
constexpr int64_t kNestedBlock = 256;
constexpr int64_t kElementsPerTask = int64_t{1} << 16;

// A block of tiny values (or zeros) must not be multiplied by infinity.
float reciprocal(float absmax) { return 1.0f / std::max(absmax, 1e-38f); }

[[noreturn]] void throw_not_finite(const std::string& name, int64_t index, int64_t columns) {
  throw NumericError(name,
                     "element [" + std::to_string(index / columns) + ", " + std::to_string(index % columns) +
                         "] is infinite or not a number",
                     "the checkpoint is damaged: download it again");
}

// Where a piece lies in the matrix it belongs to.
struct Place {
  const std::string& name;
  const Shape& shape;
  int64_t begin;  // elements before the piece
};

// Calls body(block, its elements as f32, their largest magnitude) for the blocks of a piece, on all threads. Of
// elements that are not finite the first is reported, whatever the threads do.
template <typename Body>
void for_blocks(const Tensor& rows, int64_t size, const Place& place, const Body& body) {
  const int64_t total = element_count(place.shape), count = rows.numel();
  NIBBLE_CHECK(is_float(rows.dtype()), "rows are no 16 or 32-bit floats");
  NIBBLE_CHECK(place.begin % size == 0 && count <= total - place.begin, "a piece does not begin where a block does");
  const std::byte* const source = rows.raw();
  const BlockEncoder& encoder = ops::cpu::block_encoder(isa());
  std::atomic<int64_t> bad{total};
  parallel_for((count + size - 1) / size, std::max(int64_t{1}, kElementsPerTask / size), [&](int64_t from, int64_t to) {
    std::array<float, kLargestBlock> values;
    for (int64_t block = from; block < to; ++block) {
      const int64_t begin = block * size, n = std::min(size, count - begin);
      const float largest = encoder.load(source, rows.dtype(), begin, n, values.data());
      if (std::isfinite(largest)) {
        body(block, std::span<const float>(values.data(), static_cast<size_t>(n)), largest);
        continue;
      }
      const auto* const first =
          std::find_if(values.data(), values.data() + n, [](float value) { return !std::isfinite(value); });
      const int64_t index = place.begin + begin + (first - values.data());
      int64_t seen = bad.load();
      while (index < seen && !bad.compare_exchange_weak(seen, index)) {
      }
      return;
    }
  });
  if (bad < total) throw_not_finite(place.name, bad, place.shape.back());
}

uint8_t nearest_in_map(float scaled, const std::array<float, 255>& midpoints) {
  return static_cast<uint8_t>(std::lower_bound(midpoints.begin(), midpoints.end(), scaled) - midpoints.begin());
}

// Replaces matrix.absmax by its 8-bit form.
void quantize_scales(QuantizedMatrix& matrix, MemoryPool& pool, const std::string& name) {
  const int64_t blocks = matrix.blocks();
  const std::span<float> absmax = matrix.absmax.span<float>();
  matrix.nested_block_size = kNestedBlock;
  matrix.nested_offset = torch_mean(absmax);
  matrix.nested_map = Tensor::from<float>(pool, {256}, dynamic_map());
  matrix.absmax_codes = Tensor::empty(pool, {blocks}, DType::u8, name + ".absmax");
  matrix.nested_absmax =
      Tensor::empty(pool, {(blocks + kNestedBlock - 1) / kNestedBlock}, DType::f32, name + ".nested_absmax");
  std::array<float, 255> midpoints;
  for (size_t i = 0; i < midpoints.size(); ++i) midpoints[i] = (dynamic_map()[i] + dynamic_map()[i + 1]) / 2;
  uint8_t* const codes = matrix.absmax_codes.data<uint8_t>();
  float* const nested = matrix.nested_absmax.data<float>();
  parallel_for(blocks, kNestedBlock, [&](int64_t begin, int64_t end) {
    std::array<float, kNestedBlock> centred;
    for (int64_t b = begin; b < end; ++b) {
      centred[static_cast<size_t>(b - begin)] = absmax[static_cast<size_t>(b)] - matrix.nested_offset;
    }
    float largest = 0;
    for (int64_t b = 0; b < end - begin; ++b) largest = std::max(largest, std::abs(centred[static_cast<size_t>(b)]));
    const float inverse = reciprocal(largest);
    nested[begin / kNestedBlock] = largest;
    for (int64_t b = begin; b < end; ++b) {
      codes[b] = nearest_in_map(centred[static_cast<size_t>(b - begin)] * inverse, midpoints);
    }
  });
  matrix.absmax = Tensor();
}

}  // namespace

void check_block_size(int64_t block_size) {
  if (block_size < 32 || block_size > kLargestBlock || !std::has_single_bit(static_cast<uint64_t>(block_size))) {
    throw UsageError("block size " + std::to_string(block_size) + " is not possible",
                     "use 32, 64, 128, 256, 512, 1024, 2048 or 4096");
  }
}

ScaleScan::ScaleScan(const Shape& shape, int64_t block_size, const std::string& name)
    : shape_(shape), block_size_(block_size), name_(name) {
  check_block_size(block_size);
  absmax_.resize(static_cast<size_t>((element_count(shape) + block_size - 1) / block_size));
}

void ScaleScan::append(const Tensor& rows) {
  float* const absmax = absmax_.data() + done_ / block_size_;
  for_blocks(rows, block_size_, {name_, shape_, done_},
             [&](int64_t block, std::span<const float>, float largest) { absmax[block] = largest; });
  done_ += rows.numel();
}

float ScaleScan::mean() const {
  NIBBLE_CHECK(done_ == element_count(shape_), "rows are missing");
  return torch_mean(absmax_);
}

QuantizedMatrix plan_quantized(const Shape& shape, DType dtype, const QuantizeOptions& options, float nested_offset) {
  check_block_size(options.block_size);
  NIBBLE_CHECK(shape.size() == 2 || shape.size() == 3, "a matrix has two dimensions");
  NIBBLE_CHECK(is_float(dtype), "dtype is no 16 or 32-bit float");
  QuantizedMatrix matrix;
  matrix.type = options.type;
  matrix.table = quant_table(options.type);
  matrix.block_size = options.block_size;
  matrix.matrices = shape.size() == 3 ? shape[0] : 0;
  matrix.shape = shape.size() == 3 ? Shape{shape[0] * shape[1], shape[2]} : shape;
  matrix.original_dtype = dtype;
  matrix.packed = Tensor::planned({(element_count(shape) + 1) / 2, 1}, DType::u8);
  if (!options.double_quant) {
    matrix.absmax = Tensor::planned({matrix.blocks()}, DType::f32);
    return matrix;
  }
  matrix.nested_block_size = kNestedBlock;
  matrix.nested_offset = nested_offset;
  matrix.absmax_codes = Tensor::planned({matrix.blocks()}, DType::u8);
  matrix.nested_absmax = Tensor::planned({(matrix.blocks() + kNestedBlock - 1) / kNestedBlock}, DType::f32);
  matrix.nested_map = Tensor::planned({256}, DType::f32);
  return matrix;
}

Quantizer::Quantizer(const Shape& shape, DType dtype, const QuantizeOptions& options, MemoryPool& pool,
                     const std::string& name)
    : matrix_(plan_quantized(shape, dtype, {options.type, false, options.block_size}, 0)),
      options_(options),
      pool_(pool),
      name_(name) {
  matrix_.packed = Tensor::empty(pool, matrix_.packed.shape(), DType::u8, name);
  matrix_.absmax = Tensor::empty(pool, matrix_.absmax.shape(), DType::f32, name + ".absmax");
}

void Quantizer::append(const Tensor& rows) {
  const ops::cpu::CodeRule& rule = code_rule(matrix_.type);
  const BlockEncoder& encoder = ops::cpu::block_encoder(isa());
  uint8_t* const packed = matrix_.packed.data<uint8_t>() + done_ / 2;
  float* const absmax = matrix_.absmax.data<float>() + done_ / matrix_.block_size;
  for_blocks(rows, matrix_.block_size, {name_, matrix_.shape, done_},
             [&](int64_t block, std::span<const float> values, float largest) {
               absmax[block] = largest;
               encoder.encode(values.data(), static_cast<int64_t>(values.size()), reciprocal(largest), rule,
                              packed + block * matrix_.block_size / 2);
             });
  done_ += rows.numel();
}

QuantizedMatrix Quantizer::finish() {
  NIBBLE_CHECK(done_ == element_count(matrix_.shape), "rows are missing");
  if (options_.double_quant) quantize_scales(matrix_, pool_, name_);
  return std::move(matrix_);
}

int64_t rows_of_piece(int64_t in, int64_t block_size) {
  constexpr int64_t kElements = int64_t{1} << 22;
  const int64_t unit = block_size / std::gcd(block_size, in);
  return std::max(int64_t{1}, kElements / in / unit) * unit;
}

QuantizedMatrix quantize(const Tensor& weight, const QuantizeOptions& options, MemoryPool& pool,
                         const std::string& name) {
  Quantizer quantizer(weight.shape(), weight.dtype(), options, pool, name);
  quantizer.append(weight);
  return quantizer.finish();
}

Tensor dequantize(const QuantizedMatrix& matrix, int64_t begin, int64_t end, MemoryPool& pool) {
  Tensor rows = Tensor::empty(pool, {end - begin, matrix.in_features()}, DType::f32, "dequantized rows");
  const ops::FourBitMatrix& stored = matrix;
  ops::dequantize(ops::WeightView(stored, "weight").slice_rows(begin, end), rows);
  return rows;
}

}  // namespace nibble
