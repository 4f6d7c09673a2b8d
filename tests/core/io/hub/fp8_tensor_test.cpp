// Weights in 8-bit floats beside the values that PyTorch gives them: tests/oracles/fp8_golden.py.

#include "nibble/core/io/hub/fp8_tensor.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "nibble/core/base/error.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using test::error_of;
using test::TemporaryDirectory;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::filesystem::path kGolden = std::string(kSourceDir) + "/tests/data/goldens/fp8";

std::vector<bf16> elements(const Tensor& tensor) {
  std::vector<bf16> values(static_cast<size_t>(tensor.numel()));
  std::memcpy(values.data(), tensor.raw(), tensor.bytes());
  return values;
}

void expect_same(const Tensor& got, const Tensor& wanted, const std::string& name) {
  ASSERT_EQ(got.dtype(), DType::bf16) << name;
  ASSERT_EQ(got.shape(), wanted.shape()) << name;
  const std::vector<bf16> a = elements(got), b = elements(wanted);
  for (size_t i = 0; i < a.size(); ++i) {
    const bool no_numbers = std::isnan(static_cast<float>(a[i])) && std::isnan(static_cast<float>(b[i]));
    ASSERT_TRUE(no_numbers || a[i].bits == b[i].bits) << name << " " << i;
  }
}

TEST(Fp8Tensor, ItsValuesAreThoseOfPyTorch) {
  MemoryPool pool;
  const CheckpointDir checkpoint(kGolden);
  for (const std::string name : {"codes.weight", "tall.weight", "wide.weight", "experts.down_proj"}) {
    const Tensor wanted = checkpoint.at("expected." + name);
    expect_same(read_plain(checkpoint, name, pool), wanted, name);
    for (int64_t i = 0; i < wanted.dim(0); ++i) {
      expect_same(read_fp8(checkpoint, name, i, i + 1, pool), wanted.rows(i, i + 1), name);
    }
    EXPECT_EQ(plain_spec(checkpoint, name).dtype, DType::bf16);
    EXPECT_EQ(fp8_weight_of(checkpoint, name + "_scale_inv"), name);
  }
  EXPECT_EQ(fp8_weight_of(checkpoint, "codes.activation_scale"), "codes.weight");
  EXPECT_EQ(fp8_weight_of(checkpoint, "experts.down_proj_activation_scale"), "experts.down_proj");
  EXPECT_EQ(fp8_weight_of(checkpoint, "expected.codes.weight_scale_inv"), "");
  EXPECT_EQ(fp8_weight_of(checkpoint, "codes.weight"), "");
  EXPECT_EQ(plain_spec(checkpoint, "codes.weight_scale_inv").dtype, DType::bf16);
  EXPECT_FALSE(read_plain(checkpoint, "tall.weight_scale_inv", pool).writable());  // mapped, as it is
}

TEST(Fp8Tensor, AFileOfItIsWrittenAsTheSafetensorsLibraryDoes) {
  const SafetensorsFile file((kGolden / "model.safetensors").string());
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const std::string& name : file.names()) tensors.emplace_back(name, file.at(name));
  TemporaryDirectory directory;
  write_safetensors(directory / "again.safetensors", tensors, {});
  EXPECT_TRUE(test::read_bytes(kGolden / "model.safetensors") == test::read_bytes(directory / "again.safetensors"));
}

TEST(Fp8Tensor, ScalesThatDoNotFitAreRefused) {
  MemoryPool pool;
  TemporaryDirectory directory;
  const auto refusal = [&](const Shape& shape, const std::string& scales, const Tensor& values) {
    Tensor codes = Tensor::empty(pool, shape, DType::f8_e4m3, "codes");
    std::memset(codes.mutable_raw(), 0x38, codes.bytes());
    write_safetensors(directory / "model.safetensors", {{"a.weight", codes}, {scales, values}});
    const CheckpointDir checkpoint(directory.path());
    return error_of<InputError>([&] { read_plain(checkpoint, "a.weight", pool); });
  };
  const auto numbers = [&](const Shape& shape, float value) {
    return Tensor::from<float>(pool, shape, std::vector<float>(static_cast<size_t>(element_count(shape)), value));
  };
  const std::string scales = "a.weight_scale_inv";
  EXPECT_THAT(refusal({130, 4}, "a.weight_scale", numbers({2, 1}, 1)),
              AllOf(HasSubstr("model.safetensors: a.weight"), HasSubstr("without its scales, a.weight_scale_inv"),
                    HasSubstr("bf16")));
  EXPECT_THAT(refusal({130, 4}, scales, numbers({3, 1}, 1)),
              HasSubstr("a.weight_scale_inv: is f32 [3, 1] for a weight [130, 4] in blocks of 128 x 128"));
  EXPECT_THAT(refusal({130, 4}, scales, Tensor::zeros(pool, {2, 1}, DType::u8)), HasSubstr("is u8 [2, 1]"));
  EXPECT_THAT(refusal({130, 4}, scales, numbers({2, 1}, std::numeric_limits<float>::infinity())),
              HasSubstr("holds a value that is not finite"));
  EXPECT_THAT(refusal({130}, scales, numbers({1}, 1)), HasSubstr("no matrix"));
}

}  // namespace
}  // namespace nibble
