#include "nibble/core/io/hub/model_directory.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

class ModelDirectory : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(root_ / "source");
    write_file_atomically(root_ / "source/tokenizer.json", "{}");
    write_file_atomically(root_ / "source/model.safetensors", "not copied");
  }

  // Three tensors of 40 bytes each, shards of at most `shard_bytes`.
  void write(uint64_t shard_bytes, Replace replace = Replace::nothing) {
    std::vector<TensorSpec> specs;
    for (const char* name : {"c", "a", "b"}) specs.push_back({name, {10}, DType::f32});
    ModelDirectoryWriter writer(root_ / "made", replace, specs, shard_bytes);
    for (const TensorSpec& spec : specs) {
      const std::vector<float> values(10, static_cast<float>(spec.name[0]));
      writer.write(spec.name, Tensor::from<float>(pool_, {10}, values));
    }
    writer.write_text("config.json", "{}");
    copy_companions(root_ / "source", writer.path());
    writer.finish();
  }

  test::TemporaryDirectory root_;
  MemoryPool pool_;
};

TEST_F(ModelDirectory, SmallModelsAreOneFile) {
  write(1000);
  EXPECT_TRUE(fs::exists(root_ / "made/model.safetensors"));
  EXPECT_FALSE(fs::exists(root_ / "made/model.safetensors.index.json"));
  EXPECT_TRUE(fs::exists(root_ / "made/tokenizer.json"));
}

TEST_F(ModelDirectory, LargeOnesAreShardsThatReadBack) {
  write(80);
  EXPECT_TRUE(fs::exists(root_ / "made/model-00002-of-00002.safetensors"));
  const CheckpointDir checkpoint(root_ / "made");
  for (const char* name : {"a", "b", "c"}) EXPECT_EQ(checkpoint.at(name).data<const float>()[9], name[0]);
}

TEST_F(ModelDirectory, AnExistingTargetStaysUnlessForced) {
  write(1000);
  EXPECT_THROW(write(1000), UsageError);
  EXPECT_NO_THROW(write(80, Replace::own));
  EXPECT_FALSE(fs::exists(root_ / "made/model.safetensors"));
}

TEST_F(ModelDirectory, PlainWeightsHaveAConfigThatSaysNothingOfPackedOnes) {
  nlohmann::json config = {{"a", 1}, {"quantization_config", {{"quant_method", "fp8"}}}};
  config["text_config"] = {{"b", 2}, {"quantization_config", nullptr}};
  drop_quantization_config(config);
  EXPECT_EQ(config.dump(), R"({"a":1,"text_config":{"b":2}})");
}

}  // namespace
}  // namespace nibble
