// What a plan sees of files that are mapped: weights are resident while they are used.

#include "nibble/core/ops/meta/meta_device.h"

#include <gtest/gtest.h>

#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/ops/embedding.h"
#include "nibble/core/ops/gemm.h"

namespace nibble {
namespace {

class MappedOnMeta : public testing::Test {
 protected:
  MappedOnMeta() {
    device_.on_mapped([this](int64_t more) { pool_.count_mapped(more); });
  }

  MetaDevice device_;
  MemoryPool pool_{0, device_};
};

TEST_F(MappedOnMeta, AWeightIsResidentFromItsFirstUseUntilItIsReleased) {
  const Tensor w = device_.mapped({4096, 1024}, DType::bf16);
  const auto bytes = static_cast<int64_t>(w.bytes());
  const Tensor x = Tensor::empty(pool_, {2, 1024}, DType::bf16);
  Tensor y = Tensor::empty(pool_, {2, 4096}, DType::f32);
  EXPECT_FALSE(w.writable());
  EXPECT_EQ(device_.resident_bytes(), 0);
  ops::matmul_nt(x, w, y);
  ops::matmul_nt(x, w, y);
  EXPECT_EQ(device_.resident_bytes(), bytes);
  const MemoryPool::Peak most = pool_.take_peak();
  EXPECT_EQ(most.mapped, bytes);
  EXPECT_EQ(most.split[MemoryUse::base], bytes);
  release_pages(w);
  EXPECT_EQ(device_.resident_bytes(), 0);
  EXPECT_EQ(device_.used_bytes(), bytes);
  device_.forget_use();
  EXPECT_EQ(device_.used_bytes(), 0);
}

TEST_F(MappedOnMeta, OfATableWhatLiesAroundItsRowsIsResident) {
  const Tensor table = device_.mapped({32000, 2048}, DType::bf16);
  const auto bytes = static_cast<int64_t>(table.bytes());
  const Tensor ids = Tensor::zeros(pool_.host(), {100}, DType::i32);
  Tensor x = Tensor::empty(pool_, {100, 2048}, DType::f32);
  ops::embedding_forward(ids, table, 1, x);
  const int64_t some = device_.resident_bytes();
  EXPECT_NEAR(static_cast<double>(some), 100 * 65536.0, 0.05 * 100 * 65536);
  ops::embedding_forward(ids, table, 1, x);
  EXPECT_GT(device_.resident_bytes(), some);
  device_.fill_tables();  // over many steps
  EXPECT_EQ(device_.resident_bytes(), bytes);
  release_pages(table);
  device_.fill_tables();
  EXPECT_EQ(device_.resident_bytes(), 0);
}

TEST_F(MappedOnMeta, RowsOfAMatrixBringWhatTheKernelMapsWithThem) {
  Tensor w = device_.mapped({4096, 1024}, DType::bf16);
  const Tensor x = Tensor::empty(pool_, {2, 1024}, DType::bf16);
  Tensor y = Tensor::empty(pool_, {2, 1024}, DType::f32);
  ops::matmul_nt(x, w.rows(1024, 2048), y);
  EXPECT_EQ(device_.resident_bytes(), (int64_t{2} << 20) + (int64_t{1} << 20));
  w = {};
  EXPECT_EQ(device_.resident_bytes(), 0);
}

TEST_F(MappedOnMeta, OfAPartOfATableOnlyThatPartIsResident) {
  const Tensor table = device_.mapped({32000, 2048}, DType::bf16);
  const Tensor half = table.rows(0, 16000);
  const auto bytes = static_cast<int64_t>(half.bytes());
  const Tensor ids = Tensor::zeros(pool_.host(), {100000}, DType::i32);
  Tensor x = Tensor::empty(pool_, {100000, 2048}, DType::f32);
  ops::embedding_forward(ids, half, 1, x);
  EXPECT_LE(device_.resident_bytes(), bytes);
  device_.fill_tables();
  EXPECT_LE(device_.resident_bytes(), bytes + (int64_t{1} << 20));
  EXPECT_EQ(device_.used_bytes(), bytes);
}

TEST_F(MappedOnMeta, WhatTheHostHoldsIsBookedToo) {
  const size_t before = pool_.in_use();
  {
    const Tensor ids = Tensor::zeros(pool_.host(), {1000}, DType::i32);
    EXPECT_EQ(ids.data<const int32_t>()[999], 0);
    EXPECT_EQ(pool_.in_use() - before, 4032u);
  }
  EXPECT_EQ(pool_.in_use(), before);
}

}  // namespace
}  // namespace nibble
