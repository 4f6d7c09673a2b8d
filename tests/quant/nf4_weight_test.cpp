#include "nibble/quant/nf4_weight.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <fstream>

#include "nibble/core/base/parallel.h"
#include "nibble/core/base/philox.h"
#include "nibble/core/io/npy.h"
#include "nibble/core/ops/cpu/gemm_packed.h"
#include "nibble/core/ops/dense_panels.h"
#include "nibble/core/ops/cpu/four_bit_dots.h"
#include "nibble/quant/tables.h"
#include "nibble/tests/assets.h"

namespace nibble {
namespace {

constexpr std::array<float, 16> kNf4 = {-1.0f,
                                        -0.6961928009986877f,
                                        -0.5250730514526367f,
                                        -0.39491748809814453f,
                                        -0.28444138169288635f,
                                        -0.18477343022823334f,
                                        -0.09105003625154495f,
                                        0.0f,
                                        0.07958029955625534f,
                                        0.16093020141124725f,
                                        0.24611230194568634f,
                                        0.33791524171829224f,
                                        0.44070982933044434f,
                                        0.5626170039176941f,
                                        0.7229568362236023f,
                                        1.0f};

/// `bytes` at an address that is one past a multiple of 16, as a checkpoint may have them.
Tensor unaligned(MemoryPool& pool, const void* bytes, Shape shape, DType dtype) {
  const size_t size = static_cast<size_t>(element_count(shape)) * dtype_size(dtype);
  auto storage = Storage::owned(pool, size + 1, "unaligned");
  std::memcpy(storage->data() + 1, bytes, size);
  return Tensor::view(storage, 1, std::move(shape), dtype);
}

/// A matrix with random codes and scales, all tensors unaligned.
QuantizedMatrix random_matrix(MemoryPool& pool, int64_t out, int64_t in, int64_t block_size, bool double_quantized) {
  PhiloxStream stream(3, 2, static_cast<uint64_t>(out * in));
  QuantizedMatrix m;
  m.table = kNf4;
  m.shape = {out, in};
  m.block_size = block_size;
  std::vector<uint8_t> packed(static_cast<size_t>((out * in + 1) / 2)), codes(static_cast<size_t>(m.blocks()));
  for (uint8_t& byte : packed) byte = static_cast<uint8_t>(stream.next_u32());
  for (uint8_t& code : codes) code = static_cast<uint8_t>(stream.next_u32());
  std::vector<float> absmax(codes.size()), nested((codes.size() + 255) / 256), map(256);
  for (float& value : absmax) value = stream.next_uniform() * 0.1f;
  for (float& value : nested) value = stream.next_uniform() * 0.02f;
  for (float& value : map) value = stream.next_uniform() * 2 - 1;
  m.packed = unaligned(pool, packed.data(), {static_cast<int64_t>(packed.size()), 1}, DType::u8);
  const auto blocks = static_cast<int64_t>(codes.size());
  if (double_quantized) {
    m.absmax_codes = unaligned(pool, codes.data(), {blocks}, DType::u8);
    m.nested_absmax = unaligned(pool, nested.data(), {static_cast<int64_t>(nested.size())}, DType::f32);
    m.nested_map = unaligned(pool, map.data(), {256}, DType::f32);
    m.nested_offset = 0.05f;
  } else {
    m.absmax = unaligned(pool, absmax.data(), {blocks}, DType::f32);
  }
  return m;
}

/// The format's own words, element by element.
float element(const QuantizedMatrix& m, int64_t i) {
  const auto byte = static_cast<uint8_t>(m.packed.raw()[i / 2]);
  const int code = i % 2 == 0 ? byte >> 4 : byte & 15;
  const int64_t block = i / m.block_size;
  const auto read = [](const Tensor& tensor, int64_t index) {
    float value;
    std::memcpy(&value, tensor.raw() + index * 4, 4);
    return value;
  };
  float absmax;
  if (m.double_quantized()) {
    absmax = read(m.nested_map, static_cast<int64_t>(m.absmax_codes.raw()[block])) *
             read(m.nested_absmax, block / m.nested_block_size);
    absmax += m.nested_offset;
  } else {
    absmax = read(m.absmax, block);
  }
  return m.table[static_cast<size_t>(code)] * absmax;
}

/// W in f32, or rounded once to bf16.
Tensor expanded(MemoryPool& pool, const QuantizedMatrix& m, DType dtype) {
  Tensor made = Tensor::empty(pool, m.shape, dtype);
  for (int64_t i = 0; i < made.numel(); ++i) {
    if (dtype == DType::f32) {
      made.data<float>()[i] = element(m, i);
    } else {
      made.data<bf16>()[i] = bf16(element(m, i));
    }
  }
  return made;
}

Tensor random(MemoryPool& pool, Shape shape, DType dtype) {
  PhiloxStream stream(5, 2, 1);
  Tensor made = Tensor::empty(pool, std::move(shape), dtype);
  for (int64_t i = 0; i < made.numel(); ++i) {
    const float value = stream.next_uniform() * 2 - 1;
    if (dtype == DType::f32) {
      made.data<float>()[i] = value;
    } else {
      made.data<bf16>()[i] = bf16(value);
    }
  }
  return made;
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

struct MatrixCase {
  int64_t out, in, block_size;
  bool double_quantized;
};
constexpr MatrixCase kMatrices[] = {{64, 172, 64, true},  {5, 33, 64, false},  {7, 1, 32, false},
                                    {130, 65, 128, true}, {40, 600, 64, true}, {3, 2100, 4096, false},
                                    {96, 256, 32, true}};

class Nf4AtLevel : public testing::TestWithParam<Isa> {};

TEST_P(Nf4AtLevel, AnyPieceIsTheFormatsNumbersBitForBit) {
  if (GetParam() > isa()) GTEST_SKIP() << "this CPU has no " << isa_name(GetParam());
  for (const MatrixCase& k : kMatrices) {
    MemoryPool pool;
    const QuantizedMatrix m = random_matrix(pool, k.out, k.in, k.block_size, k.double_quantized);
    const Nf4Panels panels(m, "test", GetParam());
    const int64_t rows[][2] = {{0, k.out}, {k.out / 2, k.out}}, cols[][2] = {{0, k.in}, {k.in / 3, k.in - k.in / 4}};
    for (const auto& row : rows) {
      for (const auto& col : cols) {
        const int64_t width = col[1] - col[0], stride = width + 3;
        std::vector<float> floats(static_cast<size_t>((row[1] - row[0]) * stride), -7.0f);
        std::vector<bf16> halves(floats.size(), bf16(-7.0f));
        panels.fill(row[0], row[1], col[0], col[1], floats.data(), stride);
        panels.fill(row[0], row[1], col[0], col[1], halves.data(), stride);
        for (size_t i = 0; i < floats.size(); ++i) {
          const int64_t r = static_cast<int64_t>(i) / stride, c = static_cast<int64_t>(i) % stride;
          const float expected = c < width ? element(m, (row[0] + r) * k.in + col[0] + c) : -7.0f;
          ASSERT_EQ(std::bit_cast<uint32_t>(floats[i]), std::bit_cast<uint32_t>(expected)) << k.in << " element " << i;
          ASSERT_EQ(halves[i].bits, bf16(expected).bits) << k.in << " element " << i;
        }
      }
    }
  }
}

TEST_P(Nf4AtLevel, AProductIsThatOfTheExpandedMatrixBitForBit) {
  if (GetParam() > isa()) GTEST_SKIP() << "this CPU has no " << isa_name(GetParam());
  for (const MatrixCase& k : kMatrices) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      MemoryPool pool;
      const QuantizedMatrix m = random_matrix(pool, k.out, k.in, k.block_size, k.double_quantized);
      const Nf4Panels packed(m, "test", GetParam());
      const ops::DensePanels dense(expanded(pool, m, dtype));
      for (int64_t tokens : {1, 2, 9, 50}) {
        for (bool forward : {true, false}) {
          const Tensor x = random(pool, {tokens, forward ? k.in : k.out}, dtype);
          Tensor y = Tensor::zeros(pool, {tokens, forward ? k.out : k.in}, dtype), expected = y.clone(pool);
          ops::cpu::gemm_packed({.a = x, .w = packed, .w_transposed = forward, .c = y}, GetParam());
          ops::cpu::gemm_packed({.a = x, .w = dense, .w_transposed = forward, .c = expected}, GetParam());
          ASSERT_TRUE(same_bytes(y, expected)) << k.out << " " << k.in << " " << dtype_name(dtype) << " " << tokens;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, Nf4AtLevel, testing::Values(Isa::baseline, Isa::avx2, Isa::avx512, Isa::avx512_bf16),
                         [](const auto& level) { return std::string(isa_name(level.param)); });

void expect_near(const Tensor& got, const Tensor& expected) {
  for (int64_t i = 0; i < got.numel(); ++i) {
    ASSERT_NEAR(got.data<const float>()[i], expected.data<const float>()[i], 2e-5) << "element " << i;
  }
}

// Of one token the products may round the table's values instead of every weight: each of both by 2^-9 at most.
void expect_near_where_weights_are_rounded(const Tensor& got, const Tensor& expected, const Tensor& x,
                                           const Tensor& w) {
  for (int64_t row = 0; row < got.numel(); ++row) {
    float sum = 0;
    for (int64_t i = 0; i < x.numel(); ++i) {
      sum += std::abs(static_cast<float>(x.data<const bf16>()[i]) *
                      static_cast<float>(w.data<const bf16>()[row * x.numel() + i]));
    }
    ASSERT_NEAR(got.data<const float>()[row], expected.data<const float>()[row], 0x1p-8 * sum) << "row " << row;
  }
}

TEST(Nf4Weight, AddsForwardAndInputGradientLikeTheExpandedMatrix) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    MemoryPool pool;
    const QuantizedMatrix m = random_matrix(pool, 200, 320, 64, true);
    const Nf4Weight weight("w", m);
    auto parameter = std::make_shared<Parameter>();
    parameter->value = expanded(pool, m, dtype);
    const DenseWeight dense(parameter);
    for (int64_t tokens : {1, 3, 40}) {
      const Tensor x = random(pool, {tokens, 320}, dtype), dy = random(pool, {tokens, 200}, dtype);
      Tensor y = random(pool, {tokens, 200}, DType::f32), dx = random(pool, {tokens, 320}, DType::f32);
      Tensor expected_y = y.clone(pool), expected_dx = dx.clone(pool);
      weight.forward(x, y, true);
      weight.backward_input(dy, dx, true);
      dense.forward(x, expected_y, true);
      dense.backward_input(dy, expected_dx, true);
      expect_near(dx, expected_dx);
      if (tokens == 1 && dtype == DType::bf16) {
        expect_near_where_weights_are_rounded(y, expected_y, x, parameter->value);
      } else {
        expect_near(y, expected_y);
      }
    }
  }
}

double value_of_dots(const Nf4DotsTable& table, int code) {
  return static_cast<double>(static_cast<float>(table.values[static_cast<size_t>(code)])) * table.inverse;
}

TEST(Nf4Dots, TableLosesLittleOfNf4AndNothingOfFp4) {
  const auto lost = [](const std::array<float, 16>& values) {
    const Nf4DotsTable table = nf4_dots_table(values);
    double error = 0, all = 0;
    for (size_t code = 0; code < 16; ++code) {
      EXPECT_EQ(static_cast<float>(table.values[code]), static_cast<float>(table.values[code + 16]));
      error += std::pow(value_of_dots(table, static_cast<int>(code)) - values[code], 2);
      all += std::pow(values[code], 2);
    }
    return std::sqrt(error / all);
  };
  EXPECT_LT(lost(quant_table(QuantType::nf4)), 0.0008);
  EXPECT_LT(lost(quant_table(QuantType::fp4)), 1e-6);
}

TEST(Nf4Panels, DotsOfOneRowMultiplyTheTablesValuesByTheScales) {
  if (isa() < Isa::avx512_bf16) GTEST_SKIP() << "this CPU has no avx512_bf16";
  for (const MatrixCase& k : {MatrixCase{5, 64, 64, true}, MatrixCase{3, 192, 64, false}, MatrixCase{3, 192, 128, true},
                              MatrixCase{2, 4096 + 64, 64, true}, MatrixCase{9, 9024, 4096, true},
                              MatrixCase{6, kNf4DotsDepth + 320, 64, true}}) {
    MemoryPool pool;
    const QuantizedMatrix m = random_matrix(pool, k.out, k.in, k.block_size, k.double_quantized);
    const Tensor x = random(pool, {1, k.in}, DType::bf16);
    const Nf4Panels panels(m, "test");
    const Nf4DotsTable table = nf4_dots_table(m.table);
    std::vector<float> y(static_cast<size_t>(k.out) - 1), scales(static_cast<size_t>(m.blocks()));
    panels.scales(0, m.blocks(), scales.data());
    ASSERT_TRUE(panels.dots(1, k.out, x.data<const bf16>(), y.data()));
    for (int64_t row = 1; row < k.out; ++row) {
      double expected = 0;
      for (int64_t i = row * k.in; i < (row + 1) * k.in; ++i) {
        const uint8_t byte = m.packed.data<const uint8_t>()[i / 2];
        expected += static_cast<double>(static_cast<float>(x.data<const bf16>()[i - row * k.in])) *
                    value_of_dots(table, i % 2 == 0 ? byte >> 4 : byte & 15) *
                    static_cast<double>(scales[static_cast<size_t>(i / m.block_size)]);
      }
      EXPECT_NEAR(y[static_cast<size_t>(row - 1)], expected, 1e-5) << k.in << " row " << row;
    }
  }
  MemoryPool pool;
  float y[4];
  const bf16 x[96] = {};
  EXPECT_FALSE(Nf4Panels(random_matrix(pool, 4, 96, 64, true), "test").dots(0, 4, x, y));
  EXPECT_FALSE(Nf4Panels(random_matrix(pool, 4, 64, 32, true), "test").dots(0, 4, x, y));
}

TEST(Nf4Panels, DotsOfOneRowAreCloserToTheMatrixThanItsWeightsInBf16) {
  if (isa() < Isa::avx512_bf16) GTEST_SKIP() << "this CPU has no avx512_bf16";
  MemoryPool pool;
  constexpr int64_t kOut = 256, kIn = 1024;
  const QuantizedMatrix m = random_matrix(pool, kOut, kIn, 64, true);
  const Tensor x = random(pool, {1, kIn}, DType::bf16);
  const Tensor exact = expanded(pool, m, DType::f32), rounded = expanded(pool, m, DType::bf16);
  std::vector<float> y(kOut);
  ASSERT_TRUE(Nf4Panels(m, "test").dots(0, kOut, x.data<const bf16>(), y.data()));
  double of_dots = 0, of_rounded = 0;
  for (int64_t row = 0; row < kOut; ++row) {
    double wanted = 0, by_rounded = 0;
    for (int64_t i = 0; i < kIn; ++i) {
      const double of_x = static_cast<double>(static_cast<float>(x.data<const bf16>()[i]));
      wanted += of_x * static_cast<double>(exact.data<const float>()[row * kIn + i]);
      by_rounded += of_x * static_cast<double>(static_cast<float>(rounded.data<const bf16>()[row * kIn + i]));
    }
    of_dots += std::pow(static_cast<double>(y[static_cast<size_t>(row)]) - wanted, 2);
    of_rounded += std::pow(by_rounded - wanted, 2);
  }
  EXPECT_LT(of_dots, 0.5 * of_rounded);
}

TEST(Nf4Panels, DotsOfOneRowAreTheSameBitsOnAnyNumberOfThreads) {
  MemoryPool pool;
  const Nf4Weight weight("w", random_matrix(pool, 1001, 1216, 64, true));
  const Tensor x = random(pool, {1, 1216}, DType::bf16);
  const int before = threads();
  Tensor first;
  for (int round = 0; round < 20; ++round) {
    set_threads(1 + round % 4);
    Tensor y = Tensor::empty(pool, {1, 1001}, DType::f32);
    weight.forward(x, y, false);
    if (round == 0) first = y;
    EXPECT_TRUE(same_bytes(first, y)) << threads() << " threads";
  }
  set_threads(before);
}

TEST(Nf4Weight, GivesTheSameBitsOnOneTwoAndThreeThreads) {
  MemoryPool pool;
  const Nf4Weight weight("w", random_matrix(pool, 700, 1100, 64, true));
  const int before = threads();
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (int64_t tokens : {1, 3, 70}) {
      const Tensor x = random(pool, {tokens, 1100}, dtype), dy = random(pool, {tokens, 700}, dtype);
      std::vector<Tensor> y, dx;
      for (int count : {1, 2, 3}) {
        set_threads(count);
        y.push_back(Tensor::empty(pool, {tokens, 700}, dtype));
        dx.push_back(Tensor::empty(pool, {tokens, 1100}, dtype));
        weight.forward(x, y.back(), false);
        weight.backward_input(dy, dx.back(), false);
        EXPECT_TRUE(same_bytes(y[0], y.back())) << count << " threads";
        EXPECT_TRUE(same_bytes(dx[0], dx.back())) << count << " threads";
      }
    }
  }
  set_threads(before);
}

/// Notes the largest piece that was asked for.
class Watched final : public ops::PanelSource {
 public:
  explicit Watched(const ops::PanelSource& source) : source_(source) {}
  int64_t rows() const override { return source_.rows(); }
  int64_t cols() const override { return source_.cols(); }
  void fill(int64_t r0, int64_t r1, int64_t c0, int64_t c1, float* out, int64_t stride) const override {
    note((r1 - r0) * (c1 - c0));
    source_.fill(r0, r1, c0, c1, out, stride);
  }
  void fill(int64_t r0, int64_t r1, int64_t c0, int64_t c1, bf16* out, int64_t stride) const override {
    note((r1 - r0) * (c1 - c0));
    source_.fill(r0, r1, c0, c1, out, stride);
  }
  int64_t largest() const { return largest_; }

 private:
  void note(int64_t size) const {
    int64_t known = largest_;
    while (size > known && !largest_.compare_exchange_weak(known, size)) {
    }
  }
  const ops::PanelSource& source_;
  mutable std::atomic<int64_t> largest_ = 0;
};

TEST(Nf4Weight, NoProductExpandsMoreThanASmallPieceAtOnce) {
  MemoryPool pool;
  const QuantizedMatrix m = random_matrix(pool, 700, 2000, 64, true);
  const Nf4Panels panels(m, "test");
  const Watched watched(panels);
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (int64_t tokens : {1, 100}) {
      Tensor y = Tensor::empty(pool, {tokens, 700}, DType::f32), dx = Tensor::empty(pool, {tokens, 2000}, DType::f32);
      const size_t held = pool.in_use();
      pool.reset_peak();
      ops::matmul_nt(random(pool, {tokens, 2000}, dtype), watched, y);
      ops::matmul_nn(random(pool, {tokens, 700}, dtype), watched, dx);
      EXPECT_LT(pool.peak() - held, size_t{100} * 2000 * 4 * 2);
    }
  }
  EXPECT_GT(watched.largest(), 0);
  EXPECT_LE(watched.largest(), 32 * 1024);
}

/// A golden case without its double quantization.
QuantizedMatrix golden(const std::filesystem::path& folder, const std::string& name, Shape shape, bool nested) {
  QuantizedMatrix m;
  m.table = kNf4;
  m.shape = std::move(shape);
  m.packed = read_npy(folder / (name + ".packed_u8.npy"));
  if (nested) {
    m.absmax_codes = read_npy(folder / (name + ".absmax_code_u8.npy"));
    m.nested_absmax = read_npy(folder / (name + ".nested_absmax_f32.npy"));
    m.nested_map = read_npy(folder / "dynamic_map_256_real.npy");
    const Tensor offset = read_npy(folder / (name + ".nested_offset_f32.npy"));
    std::memcpy(&m.nested_offset, offset.raw(), 4);
  } else {
    m.absmax = read_npy(folder / (name + ".absmax_f32.npy"));
  }
  return m;
}

TEST(Nf4Weight, DequantizesGoldenVectorsBitForBit) {
  NIBBLE_ASSET_OR_SKIP(folder, "nf4-golden");
  const std::pair<std::string, Shape> cases[] = {
      {"normal64x256_fp32", {64, 256}}, {"normal64x256_bf16", {64, 256}}, {"edges8x64_fp32", {8, 64}}};
  for (const auto& [name, shape] : cases) {
    for (bool nested : {false, true}) {
      MemoryPool pool;
      const Nf4Weight weight("w", golden(folder, name, shape, nested));
      const Tensor expected = read_npy(folder / (name + (nested ? ".dequant_dq_f32.npy" : ".dequant_plain_f32.npy")));
      EXPECT_TRUE(same_bytes(weight.dequantize(0, shape[0], pool), expected)) << name << " nested " << nested;
    }
  }
}

TEST(Nf4Weight, APartHasTheNumbersOfTheWhole) {
  MemoryPool pool;
  struct Case {
    int64_t block;
    Cut cut;
    bool keeps_codes;
  };
  const Shape whole = {512, 128};
  const std::vector<Case> cases = {
      {64, {whole, {{128, 384}}, all_of(128)}, true},           // whole groups of scales
      {64, {whole, {{3, 200}}, all_of(128)}, false},            // rows anywhere
      {64, {whole, {{0, 5}, {300, 512}}, all_of(128)}, false},  // several ranges
      {64, {whole, all_of(512), {{64, 128}}}, false},           // columns
      {64, {whole, all_of(512), {{32, 128}}}, false},           // through blocks
      {256, {whole, {{128, 384}}, all_of(128)}, false},         // blocks over two rows
  };
  for (const bool doubled : {false, true}) {
    for (const Case& one : cases) {
      const Nf4Weight weight("w", random_matrix(pool, whole[0], whole[1], one.block, doubled));
      const Tensor wanted = cut_out(weight.dequantize(0, whole[0], pool), one.cut, pool);
      const std::unique_ptr<LinearWeight> part = weight.part(one.cut, pool);
      ASSERT_EQ((Shape{part->out_features(), part->in_features()}), one.cut.part());
      const Tensor got = part->dequantize(0, part->out_features(), pool);
      EXPECT_EQ(std::memcmp(got.raw(), wanted.raw(), wanted.bytes()), 0);
      EXPECT_EQ(part->storage().size(), doubled && one.keeps_codes ? 3u : 2u);
    }
  }
  const Nf4Weight weight("w", random_matrix(pool, 8, 128, 64, true));
  EXPECT_THROW(weight.part({{8, 128}, all_of(8), {{0, 40}}}, pool), UsageError);
}

TEST(Nf4Weight, SaysWhichTensorsStandForIt) {
  MemoryPool pool;
  const Nf4Weight plain("m.weight", random_matrix(pool, 4, 64, 64, false));
  ASSERT_EQ(plain.parts().size(), 2u);
  EXPECT_EQ(plain.parts()[0].name, "m.weight");
  EXPECT_EQ(plain.parts()[1].name, "m.weight.absmax");
  EXPECT_EQ(plain.parts()[1].value.dtype(), DType::f32);
  const Nf4Weight nested("m.weight", random_matrix(pool, 4, 64, 64, true), {{"m.weight.quant_map", Tensor()}});
  ASSERT_EQ(nested.parts().size(), 5u);
  EXPECT_EQ(nested.parts()[1].value.dtype(), DType::u8);
  EXPECT_EQ(nested.parts()[2].name, "m.weight.nested_absmax");
  EXPECT_EQ(nested.parts()[3].name, "m.weight.nested_quant_map");
  EXPECT_EQ(nested.parts()[4].name, "m.weight.quant_map");
}

TEST(Nf4Weight, RefusesTensorsThatDoNotFitTheShape) {
  MemoryPool pool;
  QuantizedMatrix m = random_matrix(pool, 5, 64, 64, true);
  m.shape = {6, 64};
  EXPECT_THROW(Nf4Weight("w", m), InputError);
  m = random_matrix(pool, 5, 64, 64, true);
  m.block_size = 48;
  EXPECT_THROW(Nf4Weight("w", m), InputError);
  m = random_matrix(pool, 5, 64, 64, true);
  m.nested_map = m.nested_map.rows(0, 255);
  EXPECT_THROW(Nf4Weight("w", m), InputError);
}

}  // namespace
}  // namespace nibble
