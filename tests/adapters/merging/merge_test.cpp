#include "nibble/adapters/merging/merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "nibble/adapters/attach.h"
#include "nibble/core/base/parallel.h"
#include "nibble/core/io/hub/model_directory.h"
#include "nibble/core/models/load.h"
#include "nibble/tests/adapters/golden.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class MergeTest : public ::testing::Test {
 protected:
  MergeTest() {
    set_threads(1);
    root = fs::temp_directory_path() / ("nibble-merge-" + std::to_string(::getpid()));
    fs::remove_all(root);
    fs::create_directories(root);
  }
  ~MergeTest() override { fs::remove_all(root); }

  std::vector<float> logits(const fs::path& model, const std::optional<fs::path>& adapter, const Batch& batch) {
    Decoder decoder = load_decoder(model, rank);
    if (adapter) load_adapter(decoder, read_peft_directory(*adapter), false, rank);
    return test::all_logits(decoder, batch, StepContext{rank});
  }

  /// "merged" in `root` computes what the adapter beside its model does.
  void expect_merged_is_beside(const fs::path& model, const PeftAdapter& adapter) {
    const Batch batch = make_batch(test::read_samples(test::data_path("lora-golden") / "input_ids.npy"), pool);
    Decoder decoder = load_decoder(model, rank);
    load_adapter(decoder, adapter, false, rank);
    EXPECT_LT(test::largest_distance(logits(root / "merged", std::nullopt, batch),
                                     test::all_logits(decoder, batch, StepContext{rank})),
              1e-4);
  }

  MemoryPool pool;
  SelfComm comm;
  RankContext rank{comm, pool};
  fs::path root;
};

class MergeOracle : public MergeTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(MergeOracle, GivesTheLogitsOfPeftsMergedModel) {
  const fs::path path = test::data_path("peft") / GetParam();
  const nlohmann::json record = read_json_file(path / "case.json");
  const fs::path base = path / record["nibble"]["variants"][0]["model"]["path"].get<std::string>();
  const CheckpointDir checkpoint(base);
  const PeftAdapter adapter = read_peft_directory(path / "after8");
  const MergeReport report =
      merge_adapter(plain_source(checkpoint), adapter, root / "merged", {.dtype = DType::f32}, pool);
  EXPECT_EQ(report.modules, std::ranges::count_if(adapter.tensors, [](const auto& one) {
              return one.first.ends_with(".lora_A.weight");
            }));
  EXPECT_GT(report.max_change, report.mean_change);
  EXPECT_GT(report.mean_change, 0);
  EXPECT_EQ(report.untied, std::string(GetParam()) == "modules-to-save");
  const Batch ids = make_batch(test::read_samples(path / "ids.npy"), pool);
  EXPECT_LT(test::largest_difference(logits(root / "merged", std::nullopt, ids), path / "logits_merged.npy"), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Peft, MergeOracle,
                         ::testing::Values("lora-default-targets", "all-linear-rslora", "layers-to-transform",
                                           "rank-and-alpha-pattern", "modules-to-save", "bias-lora_only", "dora"),
                         [](const auto& result) {
                           std::string name = result.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_F(MergeTest, Bf16IsRoundedOnceAndFilesStandBesideIt) {
  const std::filesystem::path golden = test::data_path("lora-golden");
  const std::filesystem::path model = test::data_path("stories-llama");
  const CheckpointDir checkpoint(model);
  const PeftAdapter adapter = read_peft_directory(golden / "lora_fp32.adapter-after20");
  merge_adapter(plain_source(checkpoint), adapter, root / "f32", {.dtype = DType::f32}, pool);
  merge_adapter(plain_source(checkpoint), adapter, root / "bf16", {}, pool);
  const CheckpointDir wide(root / "f32"), narrow(root / "bf16");
  ASSERT_EQ(wide.names(), narrow.names());
  ASSERT_EQ(wide.names(), checkpoint.names());
  for (const std::string& name : wide.names()) {
    const Tensor a = wide.at(name), b = narrow.at(name);
    ASSERT_EQ(b.dtype(), DType::bf16);
    for (int64_t i = 0; i < a.numel(); ++i) {
      ASSERT_EQ(b.data<const bf16>()[i].bits, bf16(a.data<const float>()[i]).bits) << name << " " << i;
    }
  }
  EXPECT_EQ(nlohmann::json::parse(narrow.config_text()).value("torch_dtype", ""), "bfloat16");
  for (const char* file : {"generation_config.json", "tokenizer.model", "tokenizer_config.json"}) {
    EXPECT_EQ(fs::exists(model / file), fs::exists(root / "bf16" / file)) << file;
  }
}

// As TRL leaves it: whoever generates with the result reads these two files.
TEST_F(MergeTest, TheModelEndsWhereTheAdaptersTokenizerDoes) {
  const fs::path golden = test::data_path("lora-golden"), model = test::data_path("stories-llama");
  PeftAdapter adapter = read_peft_directory(golden / "lora_fp32.adapter-after20");
  adapter.directory = root / "tokenizer";
  fs::create_directory(adapter.directory);
  copy_tokenizer_files(model, adapter.directory);
  nlohmann::json settings = read_json_file(adapter.directory / "tokenizer_config.json");
  settings["eos_token"] = "<s>";
  write_json_file(adapter.directory / "tokenizer_config.json", settings);
  const CheckpointDir checkpoint(model);
  merge_adapter(plain_source(checkpoint), adapter, root / "merged", {}, pool);
  EXPECT_EQ(read_json_file(root / "merged/config.json")["eos_token_id"], 1);
  EXPECT_EQ(read_json_file(root / "merged/generation_config.json")["eos_token_id"], nlohmann::json({1, 2}));
}

TEST_F(MergeTest, ShardsAndUnpackedConfigAreWhatTransformersReads) {
  const std::filesystem::path golden = test::data_path("lora-golden");
  const std::filesystem::path model = test::data_path("stories-llama");
  const CheckpointDir checkpoint(model);
  TensorSource base = plain_source(checkpoint);
  nlohmann::json config = nlohmann::json::parse(base.config);
  config["quantization_config"] = {{"quant_method", "bitsandbytes"}};
  base.config = config.dump();
  const PeftAdapter adapter = read_peft_directory(golden / "lora_fp32.adapter-after20");
  merge_adapter(base, adapter, root / "merged", {.dtype = DType::f32, .shard_bytes = 300'000}, pool);
  EXPECT_TRUE(fs::exists(root / "merged/model.safetensors.index.json"));
  EXPECT_FALSE(nlohmann::json::parse(CheckpointDir(root / "merged").config_text()).contains("quantization_config"));
  const Batch batch = make_batch(test::read_samples(golden / "input_ids.npy"), pool);
  const std::vector<float> merged = logits(root / "merged", std::nullopt, batch);
  const std::vector<float> attached = logits(model, golden / "lora_fp32.adapter-after20", batch);
  double worst = 0;
  for (size_t i = 0; i < merged.size(); ++i) worst = std::max(worst, std::abs(double{merged[i]} - attached[i]));
  EXPECT_LT(worst, 1e-4);
}

TEST_F(MergeTest, AnExistingTargetIsKeptUnlessForced) {
  const std::filesystem::path golden = test::data_path("lora-golden");
  const std::filesystem::path model = test::data_path("stories-llama");
  const CheckpointDir checkpoint(model);
  const PeftAdapter adapter = read_peft_directory(golden / "adapter-init");
  fs::create_directories(root / "merged");
  std::ofstream(root / "merged/notes.txt") << "mine";
  EXPECT_THROW(merge_adapter(plain_source(checkpoint), adapter, root / "merged", {}, pool), UsageError);
  EXPECT_TRUE(fs::exists(root / "merged/notes.txt"));
  merge_adapter(plain_source(checkpoint), adapter, root / "merged", {.replace = Replace::anything}, pool);
  EXPECT_TRUE(fs::exists(root / "merged/model.safetensors"));
}

TEST_F(MergeTest, AnAdapterOfAnotherModelLeavesNothingBehind) {
  const std::filesystem::path golden = test::data_path("lora-golden");
  const std::filesystem::path model = test::data_path("stories-llama");
  const CheckpointDir checkpoint(model);
  const PeftAdapter good = read_peft_directory(golden / "adapter-init");
  const auto refusal = [&](const PeftAdapter& adapter, DType dtype = DType::bf16) -> std::string {
    try {
      merge_adapter(plain_source(checkpoint), adapter, root / "merged", {.dtype = dtype}, pool);
    } catch (const Error& error) {
      EXPECT_TRUE(fs::is_empty(root)) << "a part was left behind";
      return error.what();
    }
    return "no error";
  };
  PeftAdapter adapter = good;
  adapter.tensors["model.layers.77.q_proj.lora_A.weight"] = Tensor::zeros(pool, {4, 64}, DType::f32);
  EXPECT_THAT(refusal(adapter), HasSubstr("needs model.layers.77.q_proj.weight, which the base does not have"));
  adapter = good;
  adapter.tensors["score.weight"] = Tensor::zeros(pool, {1, 64}, DType::f32);
  EXPECT_THAT(refusal(adapter), HasSubstr("has a score head, for which the base, a model of next tokens, has no place; "
                                          "use the adapter beside its base (nibble score --adapter)"));
  adapter = good;
  adapter.tensors["model.layers.0.self_attn.q_proj.lora_B.weight"] = Tensor::zeros(pool, {60, 4}, DType::f32);
  EXPECT_THAT(refusal(adapter), HasSubstr("do not fit the weight [64, 64]"));
  adapter = good;
  adapter.tensors["model.norm.weight"] = Tensor::zeros(pool, {65}, DType::f32);
  EXPECT_THAT(refusal(adapter), HasSubstr("has shape [65], the base has [64]"));
  adapter = good;
  Tensor large = Tensor::zeros(pool, {64, 4}, DType::f32);
  large.data<float>()[0] = 1e9f;
  adapter.tensors["model.layers.0.self_attn.q_proj.lora_B.weight"] = large;
  EXPECT_THAT(refusal(adapter, DType::f16), HasSubstr("use bf16 or f32"));
}

TEST_F(MergeTest, WhatLoadingRefusesIsNotMerged) {
  const fs::path model = test::data_path("stories-llama");
  const CheckpointDir checkpoint(model);
  TensorSource base = plain_source(checkpoint);
  const PeftAdapter good = read_peft_directory(test::data_path("lora-golden") / "adapter-init");
  const auto refusal = [&](const PeftAdapter& adapter) {
    return test::error_of<Error>([&] { merge_adapter(base, adapter, root / "merged", {}, pool); });
  };
  PeftAdapter adapter = good;
  adapter.options.r = 7;
  EXPECT_THAT(refusal(adapter), HasSubstr("q_proj has rank 4, adapter_config.json says 7"));

  adapter = good;
  adapter.options.trainable_token_indices = {{"", {5}}};
  EXPECT_THAT(refusal(adapter), HasSubstr("has no model.embed_tokens.token_adapter.trainable_tokens_delta, which"));
  adapter.tensors["model.embed_tokens.token_adapter.trainable_tokens_delta"] = Tensor::zeros(pool, {1, 64}, DType::f32);
  adapter.tensors["lm_head.lora_A.weight"] = Tensor::zeros(pool, {4, 64}, DType::f32);
  adapter.tensors["lm_head.lora_B.weight"] = Tensor::zeros(pool, {512, 4}, DType::f32);
  EXPECT_THAT(refusal(adapter),
              HasSubstr("trains rows of model.embed_tokens, which the tied lm_head has too, and lm_head "
                        "has an adapter; leave lm_head out of target_modules"));

  adapter = good;
  adapter.options.modules_to_save = {"lm_head"};
  EXPECT_THAT(refusal(adapter), HasSubstr("has no lm_head.weight, which modules_to_save in adapter_config.json names"));
  adapter.options.modules_to_save = {"tower.norm"};  // not of the decoder, but in the base
  adapter.tensors["tower.norm.weight"] = Tensor::zeros(pool, {64}, DType::f32);
  base.tensors.push_back({"tower.norm.weight", {64}, DType::f32});
  EXPECT_NO_THROW(merge_adapter(base, adapter, root / "with_tower", {}, pool));
  base.tensors.pop_back();

  adapter = good;
  adapter.options.init_lora_weights = LoraInit::loftq;
  EXPECT_THAT(refusal(adapter), HasSubstr("the adapter stands beside 4-bit weights"));
  nlohmann::json config = nlohmann::json::parse(base.config);
  config["quantization_config"] = {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}};
  base.config = config.dump();
  EXPECT_NO_THROW(merge_adapter(base, adapter, root / "of_four_bits", {}, pool));
}

// PEFT saves both tables of a model whose vocabulary was resized, also where head and embedding are one.
TEST_F(MergeTest, ATiedTableOfMoreRowsStaysTied) {
  constexpr int64_t kRows = 520;
  const fs::path model = test::data_path("stories-llama");
  const CheckpointDir checkpoint(model);
  PeftAdapter adapter = read_peft_directory(test::data_path("lora-golden") / "lora_fp32.adapter-after20");
  Tensor table = Tensor::empty(pool, {kRows, 64}, DType::f32);
  ops::fill_normal(table, 0.1f, 1, 1);
  adapter.tensors["model.embed_tokens.weight"] = adapter.tensors["lm_head.weight"] = table;
  const MergeReport report =
      merge_adapter(plain_source(checkpoint), adapter, root / "merged", {.dtype = DType::f32}, pool);
  EXPECT_FALSE(report.untied);
  EXPECT_EQ(read_json_file(root / "merged/config.json")["vocab_size"], kRows);
  EXPECT_FALSE(CheckpointDir(root / "merged").contains("lm_head.weight"));
  expect_merged_is_beside(model, adapter);
}

TEST_F(MergeTest, ATableBelowALoraIsTheTiedHeadsToo) {
  constexpr int64_t kRows = 520;
  const fs::path model = test::data_path("stories-llama");
  const CheckpointDir checkpoint(model);
  PeftAdapter adapter = read_peft_directory(test::data_path("lora-golden") / "lora_fp32.adapter-after20");
  const auto normal = [&](Shape shape, uint64_t seed) {
    Tensor result = Tensor::empty(pool, std::move(shape), DType::f32);
    ops::fill_normal(result, 0.1f, seed, 1);
    return result;
  };
  adapter.tensors["model.embed_tokens.base_layer.weight"] = normal({kRows, 64}, 1);
  adapter.tensors["model.embed_tokens.lora_embedding_A"] = normal({4, kRows}, 2);
  adapter.tensors["model.embed_tokens.lora_embedding_B"] = normal({64, 4}, 3);
  merge_adapter(plain_source(checkpoint), adapter, root / "merged", {.dtype = DType::f32}, pool);
  expect_merged_is_beside(model, adapter);
}

// GPT-2's Conv1D keeps W as [in, out], square in attn.c_proj: only the family tells how it lies, whatever the adapter's
// fan_in_fan_out says.
TEST_F(MergeTest, AWeightStoredTheOtherWayRoundGetsTheTransposedChange) {
  const fs::path model = test::data_path("goldens/families/gpt2-0/model");
  const Batch batch = make_batch(test::read_samples(model.parent_path() / "input_ids.npy"), pool);
  const CheckpointDir checkpoint(model);
  for (const bool use_dora : {false, true}) {
    AdapterOptions options;
    options.target_modules.pattern = "all-linear";
    options.init_lora_weights = LoraInit::random;
    options.use_dora = use_dora;
    Decoder decoder = load_decoder(model, rank);
    const AttachedAdapter attached = attach_adapter(decoder, options, rank);
    EXPECT_TRUE(attached.options.fan_in_fan_out) << "as PEFT saves it";
    save_adapter(decoder, attached, root / "adapter", Replace::own);
    const std::vector<float> beside = logits(model, root / "adapter", batch);
    PeftAdapter adapter = read_peft_directory(root / "adapter");
    for (const bool flag : {true, false}) {
      adapter.options.fan_in_fan_out = flag;
      merge_adapter(plain_source(checkpoint), adapter, root / "merged", {.dtype = DType::f32, .replace = Replace::own},
                    pool);
      EXPECT_LT(test::largest_distance(logits(root / "merged", std::nullopt, batch), beside), 1e-4);
    }
  }
}

TEST_F(MergeTest, FanInFanOutOfAnAdapterTurnsNoWeightOfLlama) {
  const fs::path golden = test::data_path("lora-golden"), model = test::data_path("stories-llama");
  const CheckpointDir checkpoint(model);
  PeftAdapter adapter = read_peft_directory(golden / "lora_fp32.adapter-after20");
  adapter.options.fan_in_fan_out = true;
  merge_adapter(plain_source(checkpoint), adapter, root / "merged", {.dtype = DType::f32}, pool);
  const Batch batch = make_batch(test::read_samples(golden / "input_ids.npy"), pool);
  EXPECT_LT(test::largest_distance(logits(root / "merged", std::nullopt, batch),
                                   logits(model, golden / "lora_fp32.adapter-after20", batch)),
            1e-4);
}

TEST_F(MergeTest, NeedsMemoryForAboutOneBlock) {
  constexpr int64_t kRows = 40'000, kWidth = 512;  // 80 MB in f32
  const std::filesystem::path model = test::data_path("stories-llama");
  PeftAdapter adapter;
  adapter.tensors = {{"m.lora_A.weight", Tensor::zeros(pool, {4, kWidth}, DType::f32)},
                     {"m.lora_B.weight", Tensor::zeros(pool, {kRows, 4}, DType::f32)}};
  TensorSource base{model, CheckpointDir(model).config_text(), {{"m.weight", {kRows, kWidth}, DType::f32}}, {}};
  base.rows = [](const std::string&, int64_t begin, int64_t end, MemoryPool& from) {
    return Tensor::zeros(from, {end - begin, kWidth}, DType::f32);
  };
  pool.reset_peak();
  merge_adapter(base, adapter, root / "merged", {}, pool);
  EXPECT_LT(pool.peak(), size_t{52} << 20);
}

}  // namespace
}  // namespace nibble
