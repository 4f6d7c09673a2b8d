#include "nibble/quant/nf4_weight.h"

#include <cmath>
#include <fstream>

#include "nibble/core/base/parallel.h"
#include "nibble/core/io/npy.h"
#include "nibble/quant/tables.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/core/ops/four_bit_matrix.h"

namespace nibble {
namespace {

using test::expanded;
using test::random;
using test::random_matrix;
using test::same_bytes;

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

// Shards that end where groups of scales end, where blocks end, and inside blocks.
TEST(Nf4Weight, SomeMatricesAreThoseOfTheWhole) {
  MemoryPool pool;
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{128, 128}, {12, 64}, {10, 24}}) {
    for (const bool exponents : {false, true}) {
      for (const bool doubled : {false, true}) {
        if (exponents && doubled) continue;
        const Nf4Weight whole("w",
                              exponents ? test::random_mxfp4(pool, 5 * rows, columns)
                                        : random_matrix(pool, 5 * rows, columns, 64, doubled),
                              {}, 5);
        for (const Range which : {Range{0, 2}, Range{1, 4}, Range{3, 5}}) {
          const std::unique_ptr<LinearWeight> some = whole.matrices(which, pool);
          for (int64_t i = 0; i < which.size(); ++i) {
            const Tensor wanted = whole.matrix(which.begin + i)->dequantize(0, rows, pool);
            const Tensor got = some->matrix(i)->dequantize(0, rows, pool);
            EXPECT_EQ(std::memcmp(got.raw(), wanted.raw(), wanted.bytes()), 0) << rows << " x " << columns << ", " << i;
          }
          EXPECT_THROW(some->matrix(which.size()), std::logic_error);
          int64_t bytes = 0, all = 0;
          for (const Tensor* part : some->storage()) bytes += static_cast<int64_t>(part->bytes());
          auto copy = whole.matrix(0);
          for (const Tensor* part : copy->storage()) all += static_cast<int64_t>(part->bytes());
          EXPECT_TRUE(rows != 128 || bytes * 5 == all * which.size()) << bytes;
        }
      }
    }
  }
}

TEST(Nf4Weight, AddsForwardAndInputGradientLikeTheExpandedMatrix) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    MemoryPool pool;
    const ops::FourBitMatrix m = random_matrix(pool, 200, 320, 64, true);
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

TEST(Nf4Weight, ProductsOfOneRowAreTheSameBitsOnAnyNumberOfThreads) {
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

TEST(Nf4Weight, ProductsThatRoundTheTableLoseLittleOfNf4AndNothingOfFp4) {
  const auto lost = [](QuantType type) {
    MemoryPool pool;
    ops::FourBitMatrix m = random_matrix(pool, 4, 64, 64, true);
    m.table = quant_table(type);
    const float factor = ops::WeightView(m, "w").table_factor;
    double error = 0, all = 0;
    for (float value : m.table) {
      error += std::pow(static_cast<double>(static_cast<float>(bf16(value * factor))) / factor - value, 2);
      all += std::pow(value, 2);
    }
    return std::sqrt(error / all);
  };
  EXPECT_LT(lost(QuantType::nf4), 0.0008);
  EXPECT_LT(lost(QuantType::fp4), 1e-6);
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

/// A golden case without its double quantization.
QuantizedMatrix golden(const std::filesystem::path& folder, const std::string& name, Shape shape, bool nested) {
  QuantizedMatrix m;
  m.table = quant_table(QuantType::nf4);
  m.shape = std::move(shape);
  m.packed = read_npy(folder / (name + ".packed_u8.npy"));
  if (nested) {
    m.absmax_codes = read_npy(folder / (name + ".absmax_code_u8.npy"));
    m.nested_absmax = read_npy(folder / (name + ".nested_absmax_f32.npy"));
    m.nested_map = read_npy(folder / "dynamic_map_256.npy");
    const Tensor offset = read_npy(folder / (name + ".nested_offset_f32.npy"));
    std::memcpy(&m.nested_offset, offset.raw(), 4);
  } else {
    m.absmax = read_npy(folder / (name + ".absmax_f32.npy"));
  }
  return m;
}

TEST(Nf4Weight, DequantizesGoldenVectorsBitForBit) {
  const std::filesystem::path folder = test::data_path("nf4-golden");
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

TEST(Nf4Weight, AShardHasTheNumbersOfTheWhole) {
  MemoryPool pool;
  struct Case {
    int64_t block;
    ShardSpec spec;
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
      const Tensor wanted = slice_shard(weight.dequantize(0, whole[0], pool), one.spec, pool);
      const std::unique_ptr<LinearWeight> shard = weight.shard(one.spec, pool);
      ASSERT_EQ((Shape{shard->out_features(), shard->in_features()}), one.spec.shape());
      const Tensor got = shard->dequantize(0, shard->out_features(), pool);
      EXPECT_EQ(std::memcmp(got.raw(), wanted.raw(), wanted.bytes()), 0);
      EXPECT_EQ(shard->storage().size(), doubled && one.keeps_codes ? 3u : 2u);
    }
  }
  const Nf4Weight weight("w", random_matrix(pool, 8, 128, 64, true));
  EXPECT_THROW(weight.shard({{8, 128}, all_of(8), {{0, 40}}}, pool), UsageError);
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
  ops::FourBitMatrix m = random_matrix(pool, 5, 64, 64, true);
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
