// From a mixture in 4 bits to one without adapter: quantized, adapted, merged, as the commands do it.

#include <gtest/gtest.h>

#include <cmath>

#include "nibble/adapters/attach.h"
#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/quant/bnb_layout.h"
#include "nibble/quant/dequantized_source.h"
#include "nibble/quant/load_quantized.h"
#include "nibble/quant/quantize_model.h"
#include "nibble/recipes/models/merge_model.h"
#include "nibble/tests/core/models/golden.h"
#include "nibble/tests/core/models/mixtures.h"

namespace nibble {
namespace {

using namespace nibble::test;

class MergeMixture : public testing::TestWithParam<const char*> {
 protected:
  MergeMixture() {
    write_mixture(directory_ / "base", GetParam(), rank_.context());
    quantize_model(directory_ / "base", directory_ / "quantized", {}, rank_.context());
  }

  Decoder open(const std::string& model) {
    return load_decoder(directory_ / model, rank_.context(), load_quantized(rank_.context()));
  }
  std::vector<float> logits(Decoder decoder) {
    const Sample sample{.ids = {1, 5, 9, 20, 33, 2, 7, 40, 11, 3}, .labels = {}};
    return all_logits(decoder, make_batch({&sample, 1}, rank_.context().pool), rank_.step());
  }
  MergeReport merge(const std::string& out, const std::string& dtype) {
    return merge_model({.adapter = (directory_ / "adapter").string(),
                        .model = (directory_ / "quantized").string(),
                        .out = (directory_ / out).string(),
                        .base = "",
                        .dtype = dtype},
                       rank_.context());
  }

  Rank rank_;
  TemporaryDirectory directory_;
};

TEST_P(MergeMixture, OfABaseIn4BitsGivesTheLogitsOfTheAdapterOnIt) {
  const ExpertNames names = read_decoder_config(directory_ / "base").names.block.experts;
  Decoder decoder = open("quantized");
  AdapterOptions options;
  options.r = 3;
  options.lora_alpha = 9;
  options.init_lora_weights = LoraInit::random;  // B is not zero
  options.target_modules.names = {"q_proj"};
  options.target_parameters = {names.peft_gate_up, names.peft_down};
  save_adapter(decoder, attach_adapter(decoder, options, rank_.context()), directory_ / "adapter", Replace::nothing);
  const std::vector<float> wanted = logits(std::move(decoder)), before = logits(open("quantized"));
  EXPECT_GT(largest_difference(before, wanted), 1e-2);

  const MergeReport plain = merge("merged", "f32");
  EXPECT_GT(plain.max_change, 1e-3);
  EXPECT_EQ(plain.mean_rounding, 0);
  EXPECT_LT(largest_difference(logits(open("merged")), wanted), 1e-4);
  EXPECT_EQ(CheckpointDir(directory_ / "merged").names(), CheckpointDir(directory_ / "base").names());

  // In 4 bits again: what is merged in the dtype of the base, which no config.json says here, rounded as quantize does.
  merge("merged-bf16", "bf16");
  const MergeReport small = merge("merged-nf4", "nf4");
  quantize_model(directory_ / "merged-bf16", directory_ / "rounded", {}, rank_.context());
  EXPECT_EQ(logits(open("merged-nf4")), logits(open("rounded")));

  // What that rounding costs, in the tensors that the adapter is on.
  EXPECT_EQ(small.mean_change, plain.mean_change);
  MemoryPool& pool = rank_.context().pool;
  const CheckpointDir before_files(directory_ / "quantized"), exact_files(directory_ / "merged");
  const CheckpointDir after_files(directory_ / "merged-nf4");
  const TensorSource start = dequantized_source(before_files, pool), exact = plain_source(exact_files);
  const TensorSource after = dequantized_source(after_files, pool);
  double moved = 0, count = 0;
  for (const TensorSpec& spec : exact.tensors) {
    if (!is_quantized(after_files, spec.name)) continue;
    const auto rows = [&](const TensorSource& source) {
      const Tensor all = source.rows(spec.name, 0, spec.shape[0], pool);
      return std::vector<float>(all.span<const float>().begin(), all.span<const float>().end());
    };
    const std::vector<float> is = rows(after), merged = rows(exact);
    if (rows(start) == merged) continue;
    for (size_t i = 0; i < merged.size(); ++i) moved += std::abs(is[i] - merged[i]);
    count += static_cast<double>(merged.size());
  }
  EXPECT_NEAR(small.mean_rounding, moved / count, 1e-3 * small.mean_rounding);
  EXPECT_GT(small.mean_rounding, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Families, MergeMixture, testing::ValuesIn(kMixtures),
                         [](const auto& type) { return std::string(type.param); });

}  // namespace
}  // namespace nibble
