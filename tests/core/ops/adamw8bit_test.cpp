#include "nibble/core/io/safetensors/safetensors.h"
#include "nibble/core/ops/dynamic_map.h"
#include "nibble/core/ops/optimizer.h"
#include "nibble/core/ops/ref/optimizer.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/core/ops/op_test.h"

namespace nibble {
namespace {

using namespace test;
using ops::EightBitState;

class AdamW8BitTest : public EverySimd {};
NIBBLE_EVERY_SIMD(AdamW8BitTest);

EightBitState zero_state(int64_t count) {
  const int64_t blocks = (count + ops::kEightBitBlock - 1) / ops::kEightBitBlock;
  return {Tensor::zeros(pool(), {count}, DType::u8), Tensor::zeros(pool(), {blocks}, DType::f32)};
}

/// How many codes are not those of the file; none may be off by more than one.
int64_t codes_off(const Tensor& codes, const Tensor& golden) {
  int64_t off = 0;
  for (int64_t i = 0; i < codes.numel(); ++i) {
    const int difference = codes.data<const uint8_t>()[i] - golden.data<const uint8_t>()[i];
    EXPECT_LE(std::abs(difference), 1) << "code " << i;
    off += difference != 0;
  }
  return off;
}

// Codes may differ where a value lies on a border within rounding: then that element's state is off by one step of the
// map from there on, and its weight by less than the learning rate.
TEST_P(AdamW8BitTest, FollowsBitsandbytes) {
  const SafetensorsFile golden(std::string(kSourceDir) + "/tests/data/goldens/adamw8bit.safetensors");
  Tensor w = golden.at("w.0").clone(pool());
  EightBitState m = zero_state(w.numel()), v = zero_state(w.numel());
  for (int step = 1; step <= 5; ++step) {
    const std::string at = "." + std::to_string(step);
    ops::adamw8bit(w, golden.at("gradient" + at).clone(pool()), m, v,
                   {.lr = 1e-3, .beta2 = 0.95, .weight_decay = 0.1, .step = step, .gradient_scale = 0.5f});
    EXPECT_LE(codes_off(m.codes, golden.at("m" + at)), 2) << "step " << step;
    EXPECT_LE(codes_off(v.codes, golden.at("v" + at)), 2) << "step " << step;
    expect_close(m.absmax, values_of(golden.at("m_absmax" + at).clone(pool())), 1e-6, 0, "absmax of m");
    expect_close(v.absmax, values_of(golden.at("v_absmax" + at).clone(pool())), 1e-6, 0, "absmax of v");
    const Values expected = values_of(golden.at("w" + at).clone(pool())), actual = values_of(w);
    int64_t far = 0;
    for (size_t i = 0; i < expected.size(); ++i)
      far += std::abs(actual[i] - expected[i]) > 1e-6 * (std::abs(expected[i]) + 1e-3);
    EXPECT_LE(far, 4) << "step " << step;
  }
}

TEST_P(AdamW8BitTest, OneStepFromAnyStateMatchesTheReference) {
  const int64_t count = 1000;
  const Tensor g1 = random_tensor({count}, DType::f32, 5), g2 = random_tensor({count}, DType::f32, 6);
  Tensor w = random_tensor({count}, DType::f32, 1);
  EightBitState m = zero_state(count), v = zero_state(count);
  Values ws = values_of(w), ms(count), vs(count);
  ops::AdamWParams params = {.lr = 1e-2, .beta2 = 0.9};
  for (const Tensor& g : {g1, g2}) {
    ops::adamw8bit(w, g, m, v, params);
    ops::ref::adamw(ws.data(), values_of(g).data(), ms.data(), vs.data(), count, params);
    ops::ref::round_to_8bit(ms.data(), count, dynamic_map());
    ops::ref::round_to_8bit(vs.data(), count, unsigned_dynamic_map());
    ++params.step;
  }
  expect_close(w, ws, 1e-5, 1e-5, "w");
}

TEST_P(AdamW8BitTest, BitsDoNotDependOnThreads) {
  const Tensor g = random_tensor({100003}, DType::f32, 2);
  expect_same_bits_for_any_threads([&] {
    Tensor w = g.clone(pool());
    EightBitState m = zero_state(w.numel()), v = zero_state(w.numel());
    ops::adamw8bit(w, g, m, v, {.lr = 1e-3});
    return std::vector<Tensor>{w, m.codes, m.absmax, v.codes, v.absmax};
  });
}

TEST(DynamicCodes, FindTheNearestValueEverywhere) {
  const auto check = [](const std::array<float, 256>& map, const DynamicCodes& codes, float x) {
    const float distance = std::abs(map[codes.nearest(x)] - x);
    for (const float value : map) ASSERT_LE(distance, std::abs(value - x) * 1.000001f) << x;
  };
  const Tensor random = random_tensor({4000}, DType::f32, 3);
  for (const float x : random.span<const float>()) {
    const float bounded = std::clamp(x, -1.0f, 1.0f);
    for (const float scale : {1.0f, 1e-2f, 1e-5f, 1e-7f, 0.0f}) {
      check(dynamic_map(), dynamic_codes(), bounded * scale);
      check(unsigned_dynamic_map(), unsigned_dynamic_codes(), std::abs(bounded) * scale);
    }
  }
  for (size_t i = 0; i < 256; ++i) {
    EXPECT_EQ(dynamic_codes().nearest(dynamic_map()[i]), i);
    EXPECT_EQ(unsigned_dynamic_codes().nearest(unsigned_dynamic_map()[i]), i);
  }
}

TEST(DynamicMap, UnsignedIsThatOfBitsandbytes) {
  const SafetensorsFile golden(std::string(kSourceDir) + "/tests/data/goldens/adamw8bit.safetensors");
  const Tensor map = golden.at("unsigned_map").clone(pool());
  for (size_t i = 0; i < 256; ++i) EXPECT_EQ(unsigned_dynamic_map()[i], map.data<const float>()[i]) << i;
}

}  // namespace
}  // namespace nibble
