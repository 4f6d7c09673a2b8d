#include "nibble/quant/dequantized_source.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "nibble/core/comm/local_rank.h"
#include "nibble/quant/load_quantized.h"
#include "nibble/quant/nf4_weight.h"
#include "nibble/quant/quantize_model.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/quant/golden.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using test::elements;

// bitsandbytes has them as [out, in], the family's plain tensors are [in, out].
TEST(DequantizedSource, Conv1DWeightsLieAsTheFamilyStoresThem) {
  LocalRank rank;
  MemoryPool& pool = rank.context().pool;
  const test::TemporaryDirectory directory;
  quantize_model(test::data_path("goldens/families/gpt2-0/model"), directory / "packed", {}, rank.context());
  const CheckpointDir packed(directory / "packed");
  const TensorSource source = dequantized_source(packed, pool);
  Decoder decoder = load_decoder(directory / "packed", rank.context(), load_quantized(rank.context()));
  int count = 0;
  decoder.visit_linears([&](Linear& linear) {
    if (dynamic_cast<const Nf4Weight*>(&linear.weight()) == nullptr) return;
    ++count;
    const std::string name = linear.name() + ".weight";
    const int64_t out = linear.out_features(), in = linear.in_features();
    const auto spec = std::ranges::find(source.tensors, name, &TensorSpec::name);
    ASSERT_NE(spec, source.tensors.end()) << name;
    EXPECT_EQ(spec->shape, (Shape{in, out})) << name;
    const std::vector<float> weight = elements<float>(linear.weight().dequantize(0, out, pool));
    for (int64_t i = 1; i + 3 <= in; i += 3) {  // any piece can be asked for
      const Tensor rows = source.rows(name, i, i + 3, pool);
      ASSERT_EQ(rows.shape(), (Shape{3, out})) << name;
      for (int64_t k = 0; k < 3 * out; ++k) {
        ASSERT_EQ(rows.data<const float>()[k], weight[static_cast<size_t>(k % out * in + i + k / out)]) << name;
      }
    }
  });
  EXPECT_EQ(count, 8);
}

}  // namespace
}  // namespace nibble
