// Adapters of Zamba 2, whose layers share blocks: PEFT gives every layer its own.

#include <gmock/gmock.h>

#include "nibble/adapters/adapter_plan.h"
#include "nibble/adapters/attach.h"
#include "nibble/adapters/merging/merge.h"
#include "nibble/adapters/peft/adapter_names.h"
#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/core/models/golden.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using namespace nibble::test;
using ::testing::HasSubstr;

class SharedBlockAdapters : public ::testing::Test {
 protected:
  std::string refusal(const AdapterOptions& options) {
    return error_of<UsageError>([&] { plan_adapter(decoder_.config(), options, {}); });
  }

  Rank rank_;
  FamilyCase golden_{std::string(kSourceDir) + "/tests/data/goldens/families/zamba2-4"};
  Decoder decoder_ = load_decoder(golden_.model, rank_.context());
  PeftAdapter adapter_ = read_peft_directory((golden_.folder / "lora").string());
};

// One target is of an adapter that the layer does not use: its gradient is zero.
TEST_F(SharedBlockAdapters, GradientsAreThoseOfPeft) {
  EXPECT_TRUE(load_adapter(decoder_, adapter_, true, rank_.context()).notes.empty());
  const Batch both = make_batch(golden_.samples, rank_.context().pool);
  const double tokens = static_cast<double>(both.label_tokens);
  const double loss = decoder_.loss_sum_and_gradients(both, rank_.step(), static_cast<float>(1 / tokens)) / tokens;
  EXPECT_NEAR(loss, golden_.record["lora_loss"].get<double>(), 1e-5);
  std::map<std::string, std::vector<float>> result;
  for (const auto& [name, gradient] : gradients_of(decoder_)) result[peft_name(name, decoder_.config())] = gradient;
  expect_gradients(result, golden_.folder / "lora_grads.safetensors");
}

TEST_F(SharedBlockAdapters, WhatWouldChangeTheSharedWeightIsRefused) {
  AdapterOptions options;
  options.target_modules.names = {"q_proj"};
  options.init_lora_weights = LoraInit::pissa;
  EXPECT_THAT(refusal(options), HasSubstr("would change the weight of model.layers.0.shared_transformer"));
  options.target_modules.names = {"linear"};
  EXPECT_NO_THROW(plan_adapter(decoder_.config(), options, {}));
  options.init_lora_weights = LoraInit::standard;
  options.modules_to_save = {"down_proj"};
  EXPECT_THAT(refusal(options), HasSubstr("which several layers share and PEFT parts"));
  options.modules_to_save.clear();
  options.target_modules.names = {"layers.3.shared_transformer.feed_forward.down_proj"};
  options.bias = BiasTraining::lora_only;
  nlohmann::json config = nlohmann::json::parse(CheckpointDir(golden_.model).config_text());
  config["add_bias_linear"] = true;
  EXPECT_THAT(error_of<UsageError>([&] { plan_adapter(parse_decoder_config(config.dump(), "test"), options, {}); }),
              HasSubstr("down_proj.bias, which several layers share"));
}

TEST_F(SharedBlockAdapters, MergeOnlyWhereNoBlockIsShared) {
  const TemporaryDirectory directory;
  const auto merge = [&](const PeftAdapter& adapter) {
    const CheckpointDir checkpoint(golden_.model);
    merge_adapter(plain_source(checkpoint), adapter, directory / "merged", {}, rank_.context().pool);
  };
  EXPECT_THAT(error_of<InputError>([&] { merge(adapter_); }), HasSubstr("several layers share the weight"));
  std::erase_if(adapter_.tensors,
                [](const auto& tensor) { return tensor.first.find(".linear.") == std::string::npos; });
  EXPECT_NO_THROW(merge(adapter_));
  adapter_.options.modules_to_save = {"lm_head"};
  EXPECT_THAT(error_of<InputError>([&] { merge(adapter_); }), HasSubstr("does not share the blocks of layers either"));
}

}  // namespace
}  // namespace nibble
