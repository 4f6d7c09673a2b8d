// LoRAs of tensors of all experts, merged into whatever the files hold.

#include <gmock/gmock.h>

#include "nibble/adapters/attach.h"
#include "nibble/adapters/merging/combine.h"
#include "nibble/adapters/merging/merge.h"
#include "nibble/core/base/error.h"
#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/tests/core/models/golden.h"
#include "nibble/tests/core/models/mixtures.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using namespace nibble::test;
using ::testing::HasSubstr;

Batch some_tokens(MemoryPool& pool) {
  const Sample sample{.ids = {1, 5, 9, 20, 33, 2, 7, 40, 11, 3}, .labels = {}};
  return make_batch({&sample, 1}, pool);
}

class ExpertMerge : public ::testing::TestWithParam<const char*> {
 protected:
  ExpertMerge() { write_mixture(directory / "base", GetParam(), rank.context()); }

  std::vector<float> logits(const std::string& model, const PeftAdapter* adapter = nullptr) {
    Decoder decoder = load_decoder(directory / model, rank.context());
    if (adapter) load_adapter(decoder, *adapter, false, rank.context());
    return all_logits(decoder, some_tokens(rank.context().pool), rank.step());
  }

  // With B that is not zero.
  PeftAdapter write_adapter(AdapterOptions options) {
    options.r = 3;
    options.lora_alpha = 9;
    options.init_lora_weights = LoraInit::random;
    Decoder decoder = load_decoder(directory / "base", rank.context());
    const AttachedAdapter attached = attach_adapter(decoder, options, rank.context());
    save_adapter(decoder, attached, directory / "adapter", Replace::anything);
    return read_peft_directory(directory / "adapter");
  }

  void expect_same_logits(const PeftAdapter& adapter) {
    const CheckpointDir base(directory / "base");
    const MergeReport report = merge_adapter(plain_source(base), adapter, directory / "merged",
                                             {.dtype = DType::f32, .replace = Replace::anything}, rank.context().pool);
    EXPECT_GT(report.max_change, 1e-3);
    const std::vector<float> wanted = logits("base", &adapter), before = logits("base");
    EXPECT_GT(largest_difference(before, wanted), 1e-2);
    EXPECT_LT(largest_difference(logits("merged"), wanted), 1e-4);
    EXPECT_EQ(CheckpointDir(directory / "merged").names(), base.names());
  }

  Rank rank;
  TemporaryDirectory directory;
};

TEST_P(ExpertMerge, GivesTheLogitsOfTheAdapter) {
  const ExpertNames names = read_decoder_config(directory / "base").names.block.experts;
  AdapterOptions options;
  options.target_modules.names = {"q_proj"};
  options.target_parameters = {names.peft_gate_up, names.peft_down};
  expect_same_logits(write_adapter(options));
  options.target_parameters = {names.peft_down};  // alone it lies one level higher
  expect_same_logits(write_adapter(options));
  options.target_parameters = {names.peft_gate_up, names.peft_router + ".weight"};
  expect_same_logits(write_adapter(options));
  options.target_modules.names.clear();  // experts alone
  options.target_parameters = {names.peft_gate_up, names.peft_down};
  expect_same_logits(write_adapter(options));
}

TEST_P(ExpertMerge, AnAdapterOfOtherExpertsIsRefused) {
  const ExpertNames names = read_decoder_config(directory / "base").names.block.experts;
  AdapterOptions options;
  options.target_parameters = {names.peft_down};
  PeftAdapter adapter = write_adapter(options);
  MemoryPool& pool = rank.context().pool;
  for (auto& [name, tensor] : adapter.tensors) {
    if (name.ends_with("lora_B.weight")) tensor = Tensor::zeros(pool, {30, tensor.dim(1)}, DType::f32);
  }
  const CheckpointDir base(directory / "base");
  try {
    merge_adapter(plain_source(base), adapter, directory / "merged", {.dtype = DType::f32}, pool);
    ADD_FAILURE() << "merged";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("do not fit the weight"));
  }
  EXPECT_FALSE(std::filesystem::exists(directory / "merged"));
}

// PEFT cannot combine them either.
TEST_P(ExpertMerge, SeveralAdaptersOfExpertsAreNotCombined) {
  const ExpertNames names = read_decoder_config(directory / "base").names.block.experts;
  AdapterOptions options;
  options.target_parameters = {names.peft_down};
  const PeftAdapter adapter = write_adapter(options);
  try {
    combine_adapters({{&adapter, 1.0}, {&adapter, 1.0}}, {}, rank.context().pool);
    ADD_FAILURE() << "combined";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("target_parameters"));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ExpertMerge, ::testing::ValuesIn(kMixtures),
                         [](const auto& result) { return std::string(result.param); });

// Transformers 4 had a Linear for each, and so have its adapters: the same names as in the files.
class EarlierExpertLora : public ExpertMerge {};

TEST_P(EarlierExpertLora, IsReadAndMerged) {
  const DecoderConfig config = read_decoder_config(directory / "base");
  const ExpertNames& names = config.names.block.experts;
  MemoryPool& pool = rank.context().pool;
  PeftAdapter adapter;
  adapter.options.r = 2;
  adapter.options.lora_alpha = 6;
  adapter.options.target_modules.names = {names.gate, names.up, names.down, "gate"};
  uint64_t number = 0;
  const auto put = [&](const std::string& module, int64_t out, int64_t in) {
    Tensor a = Tensor::empty(pool, {2, in}, DType::f32), b = Tensor::empty(pool, {out, 2}, DType::f32);
    ops::fill_normal(a, 0.3f, 7, ++number);
    ops::fill_normal(b, 0.3f, 7, ++number);
    adapter.tensors[module + ".lora_A.weight"] = a;
    adapter.tensors[module + ".lora_B.weight"] = b;
  };
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    for (int64_t e = 0; e < 4; ++e) {
      const std::string expert = layer + names.experts + "." + std::to_string(e) + ".";
      put(expert + names.gate, 32, 32);
      put(expert + names.up, 32, 32);
      put(expert + names.down, 32, 32);
    }
    put(layer + names.router, 4, 32);
  }
  Decoder decoder = load_decoder(directory / "base", rank.context());
  const AttachedAdapter attached = load_adapter(decoder, adapter, true, rank.context());
  EXPECT_EQ(attached.modules.size(), 2u * (4 * 3 + 1));
  EXPECT_THAT(attached.notes, ::testing::ElementsAre("24 Linears of single experts get an adapter (rank 2), 3,072 "
                                                     "parameters in all; routers get an adapter: gate (rank 2) of 2 "
                                                     "layers, 144 parameters in all"));
  expect_same_logits(adapter);
  // What is saved again is read again.
  save_adapter(decoder, attached, directory / "again");
  const PeftAdapter again = read_peft_directory(directory / "again");
  EXPECT_EQ(logits("base", &again), logits("base", &adapter));
}

INSTANTIATE_TEST_SUITE_P(Families, EarlierExpertLora, ::testing::Values("qwen3_moe", "mixtral"),
                         [](const auto& result) { return std::string(result.param); });

}  // namespace
}  // namespace nibble
