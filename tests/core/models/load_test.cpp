#include "nibble/core/models/load.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <string>

#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/tests/core/models/golden.h"
#include "nibble/tests/core/models/mixtures.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using namespace nibble::test;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string config_text(bool tied) {
  return std::string(R"({"model_type": "qwen2", "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
      "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 11, "initializer_range": 0.5,
      "tie_word_embeddings": )") +
         (tied ? "true}" : "false}");
}

class Load : public ::testing::Test {
 protected:
  explicit Load(bool tied = false) {
    write_bytes(directory_ / "config.json", config_text(tied));
    Decoder decoder = random_decoder(parse_decoder_config(config_text(tied), "test"), 5, rank_.context());
    for (const NamedTensor& tensor : state_dict(decoder)) tensors_.emplace_back(tensor.name, tensor.value);
    golden_ = all_logits(decoder, batch(), rank_.step());
  }

  Batch batch() {
    const Sample sample{.ids = {3, 1, 4, 1, 5}, .labels = {}};
    return make_batch({&sample, 1}, rank_.context().pool);
  }
  Decoder load() {
    write_safetensors(directory_ / "model.safetensors", tensors_);
    return load_decoder(directory_.path(), rank_.context());
  }
  std::string error() {
    return error_of<InputError>([&] { load(); });
  }
  Tensor& tensor(const std::string& name) {
    return std::find_if(tensors_.begin(), tensors_.end(), [&](const auto& entry) { return entry.first == name; })
        ->second;
  }
  void erase(const std::string& name) {
    std::erase_if(tensors_, [&](const auto& entry) { return entry.first == name; });
  }

  Rank rank_;
  TemporaryDirectory directory_;
  std::vector<std::pair<std::string, Tensor>> tensors_;
  std::vector<float> golden_;
};

class LoadTied : public Load {
 protected:
  LoadTied() : Load(true) {}
};

TEST_F(Load, WhatStateDictGivesIsTheSameModelAgain) {
  Decoder decoder = load();
  EXPECT_EQ(all_logits(decoder, batch(), rank_.step()), golden_);
  const std::vector<NamedTensor> again = state_dict(decoder);
  ASSERT_EQ(again.size(), tensors_.size());
  for (size_t i = 0; i < again.size(); ++i) EXPECT_EQ(again[i].name, tensors_[i].first);
}

TEST_F(Load, NamesWithoutTheModelsPrefixAreFound) {
  for (auto& [name, value] : tensors_) {
    if (name.starts_with("model.")) name = name.substr(6);
  }
  Decoder decoder = load();
  EXPECT_EQ(all_logits(decoder, batch(), rank_.step()), golden_);
}

TEST_F(Load, KnownBuffersAreIgnored) {
  tensors_.emplace_back("model.layers.0.self_attn.rotary_emb.inv_freq",
                        Tensor::zeros(rank_.context().pool, {2}, DType::f32));
  EXPECT_NO_THROW(load());
}

TEST(LoadBesideAVisionTower, TheLanguageModelIsFoundUnderTheNamesOfPublishedFiles) {
  const std::string text = R"({"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
      "eos_token_id": [1, 6], "text_config": {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
      "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 11, "sliding_window": 3,
      "model_type": "gemma3_text"}, "vision_config": {"hidden_size": 4}})";
  const DecoderConfig config = parse_decoder_config(text, "test");
  EXPECT_EQ(config.layers, 2);
  EXPECT_EQ(config.eos_ids, (std::vector<int32_t>{1, 6}));
  EXPECT_EQ(parse_decoder_config(R"({"model_type": "gemma3", "text_config": {}})", "test").vocab_size, 262208);

  Rank rank;
  Decoder decoder = random_decoder(config, 5, rank.context());
  std::vector<std::pair<std::string, Tensor>> tensors;
  const std::string inner = "model.language_model.";
  for (const NamedTensor& tensor : state_dict(decoder)) {
    ASSERT_TRUE(tensor.name.starts_with(inner)) << tensor.name;
    tensors.emplace_back("language_model.model." + tensor.name.substr(inner.size()), tensor.value);
  }
  const std::vector<std::string> tower = {"vision_tower.head.probe", "vision_tower.encoder.layers.0.norm.weight"};
  for (const std::string& name : tower) {
    tensors.emplace_back(name, Tensor::zeros(rank.context().pool, {1, 4}, DType::f32));
  }
  const TemporaryDirectory directory;
  write_bytes(directory / "config.json", text);
  write_safetensors(directory / "model.safetensors", tensors);
  Decoder loaded = load_decoder(directory.path(), rank.context());
  const Sample sample{.ids = {3, 1, 4, 1, 5}, .labels = {}};
  const Batch batch = make_batch({&sample, 1}, rank.context().pool);
  EXPECT_EQ(all_logits(loaded, batch, rank.step()), all_logits(decoder, batch, rank.step()));
  const CheckpointDir checkpoint(directory.path());
  for (const std::string& name : tower) EXPECT_TRUE(checkpoint.contains("model." + name)) << name;
  EXPECT_THAT(error_of<InputError>([] { parse_decoder_config(R"({"model_type": "gemma3"})", "test"); }),
              HasSubstr("text_config"));
}

// As published, and as Transformers 5.23 saves it.
TEST(LoadBesideAVisionTower, KimiK25IsFoundUnderBothItsNames) {
  const std::string text = R"({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "hidden_size": 16,
      "intermediate_size": 24, "moe_intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
      "vocab_size": 11, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
      "first_k_dense_replace": 1, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4,
      "v_head_dim": 4, "initializer_range": 0.2})";
  Rank rank;
  Decoder decoder = random_decoder(parse_decoder_config(text, "test"), 5, rank.context());
  const Sample sample{.ids = {3, 1, 4, 1, 5}, .labels = {}};
  const Batch batch = make_batch({&sample, 1}, rank.context().pool);
  const TemporaryDirectory directory;
  write_bytes(directory / "config.json", R"({"model_type": "kimi_k25", "architectures":
      ["KimiK25ForConditionalGeneration"], "tie_word_embeddings": false, "text_config": )" +
                                             text + "}");
  for (const std::string layers : {"layers.", "blocks."}) {
    std::vector<std::pair<std::string, Tensor>> tensors;
    for (const NamedTensor& tensor : state_dict(decoder)) {
      std::string name = tensor.name;
      if (const size_t at = name.find("layers."); at != std::string::npos) name.replace(at, 7, layers);
      tensors.emplace_back("language_model." + name, tensor.value);
    }
    const std::vector<std::string> tower = {"vision_tower.encoder.blocks.0.norm0.weight",
                                            "vision_tower.patch_embed.pos_emb.weight", "mm_projector.proj.0.weight",
                                            "model.mm_projector.pre_norm.weight"};
    for (const std::string& name : tower) {
      tensors.emplace_back(name, Tensor::zeros(rank.context().pool, {4}, DType::f32));
    }
    write_safetensors(directory / "model.safetensors", tensors);
    Decoder loaded = load_decoder(directory.path(), rank.context());
    EXPECT_EQ(all_logits(loaded, batch, rank.step()), all_logits(decoder, batch, rank.step())) << layers;
    const CheckpointDir checkpoint(directory.path());
    for (const std::string& name : tower) EXPECT_TRUE(checkpoint.contains(name)) << name;
  }
}

TEST(LoadBesideAVisionTower, Qwen25VlIsFoundAsPublished) {
  const std::string text = R"("hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 11,
      "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "rope_theta": 1e6,
      "initializer_range": 0.2)";
  Rank rank;
  Decoder decoder =
      random_decoder(parse_decoder_config(R"({"model_type": "qwen2", )" + text + "}", "test"), 5, rank.context());
  const TemporaryDirectory directory;
  write_bytes(directory / "config.json", R"({"model_type": "qwen2_5_vl", "vision_config": {"hidden_size": 7},
      "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}, )" +
                                             text + "}");
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const NamedTensor& tensor : state_dict(decoder)) tensors.emplace_back(tensor.name, tensor.value);
  tensors.emplace_back("visual.merger.ln_q.weight", Tensor::zeros(rank.context().pool, {4}, DType::f32));
  write_safetensors(directory / "model.safetensors", tensors);
  const Sample sample{.ids = {3, 1, 4, 1, 5}, .labels = {}};
  const Batch batch = make_batch({&sample, 1}, rank.context().pool);
  Decoder loaded = load_decoder(directory.path(), rank.context());
  EXPECT_EQ(all_logits(loaded, batch, rank.step()), all_logits(decoder, batch, rank.step()));
  EXPECT_EQ(loaded.config().adapter_prefix, "model.language_model.");
  EXPECT_TRUE(CheckpointDir(directory.path()).contains("model.visual.merger.ln_q.weight"));
}

// As Transformers 5 saves them, and with every matrix transposed, as published.
TEST(LoadBesideAVisionTower, ExpertsOfQwen3VlLieEitherWay) {
  const std::string config = R"({"model_type": "qwen3_vl_moe", "text_config": {"hidden_size": 16, "vocab_size": 11,
      "intermediate_size": 24, "moe_intermediate_size": 6, "num_hidden_layers": 2, "num_attention_heads": 2,
      "num_key_value_heads": 1, "num_experts": 3, "num_experts_per_tok": 2, "initializer_range": 0.2}})";
  Rank rank;
  Decoder decoder = random_decoder(parse_decoder_config(config, "test"), 5, rank.context());
  const Sample sample{.ids = {3, 1, 4, 1, 5}, .labels = {}};
  const Batch batch = make_batch({&sample, 1}, rank.context().pool);
  const TemporaryDirectory directory;
  write_bytes(directory / "config.json", config);
  for (const bool published : {false, true}) {
    std::vector<std::pair<std::string, Tensor>> tensors;
    for (const NamedTensor& tensor : state_dict(decoder)) {
      Tensor value = tensor.value;
      if (published && value.rank() == 3) {
        const int64_t experts = value.dim(0), out = value.dim(1), in = value.dim(2);
        value = Tensor::empty(rank.context().pool, {experts, in, out}, DType::f32);
        for (int64_t i = 0; i < value.numel(); ++i) {
          const int64_t e = i / (out * in), row = i / out % in, column = i % out;
          value.data<float>()[i] = tensor.value.data<const float>()[(e * out + column) * in + row];
        }
      }
      tensors.emplace_back(tensor.name, value);
    }
    write_safetensors(directory / "model.safetensors", tensors);
    Decoder loaded = load_decoder(directory.path(), rank.context());
    EXPECT_EQ(loaded.config().experts.value().transposed, published);
    EXPECT_LE(largest_difference(all_logits(loaded, batch, rank.step()), all_logits(decoder, batch, rank.step())),
              1e-5);
  }
}

// "model.layers.0.block_sparse_moe.experts.1.w3.weight" of Mixtral is in "model.layers.0.mlp.experts.gate_up_proj".
TEST(LoadExperts, LieAsInFilesOrAsInTransformersModules) {
  Rank rank;
  MemoryPool& pool = rank.context().pool;
  TemporaryDirectory directory;
  const std::string config = mixture_config("mixtral");
  Decoder decoder = random_decoder(parse_decoder_config(config, "test"), 3, rank.context());
  const std::string file = "block_sparse_moe.", module = "mlp.";
  std::vector<std::pair<std::string, Tensor>> tensors;
  std::map<std::string, std::vector<float>> fused;
  for (const NamedTensor& tensor : state_dict(decoder)) {
    const size_t at = tensor.name.find(file);
    if (at == std::string::npos) {
      tensors.emplace_back(tensor.name, tensor.value);
      continue;
    }
    const std::string layer = tensor.name.substr(0, at), rest = tensor.name.substr(at + file.size());
    if (rest == "gate.weight") {
      tensors.emplace_back(layer + module + rest, tensor.value);
      continue;
    }
    // experts.N.w1, w2, w3
    const std::string part = rest.substr(10, 2);
    fused[layer + rest.substr(8, 1) + part].assign(tensor.value.data<const float>(),
                                                   tensor.value.data<const float>() + tensor.value.numel());
  }
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    std::vector<float> gate_up, down;
    for (const char expert : {'0', '1', '2', '3'}) {
      for (const char* part : {"w1", "w3", "w2"}) {
        const std::vector<float>& own = fused.at(layer + expert + part);
        std::vector<float>& into = part == std::string("w2") ? down : gate_up;
        into.insert(into.end(), own.begin(), own.end());
      }
    }
    tensors.emplace_back(layer + "mlp.experts.gate_up_proj", Tensor::from<float>(pool, {4, 64, 32}, gate_up));
    tensors.emplace_back(layer + "mlp.experts.down_proj", Tensor::from<float>(pool, {4, 32, 32}, down));
  }
  std::filesystem::create_directories(directory / "model");
  write_safetensors(directory / "model/model.safetensors", tensors);
  write_bytes(directory / "model/config.json", config);

  Decoder fused_decoder = load_decoder(directory / "model", rank.context());
  const Sample sample{.ids = {1, 5, 9, 20, 33, 2, 7}, .labels = {}};
  const Batch batch = make_batch({&sample, 1}, pool);
  EXPECT_LE(largest_difference(all_logits(fused_decoder, batch, rank.step()), all_logits(decoder, batch, rank.step())),
            1e-5);
}

TEST_F(Load, AMissingTensorIsNamed) {
  erase("model.layers.1.mlp.up_proj.weight");
  EXPECT_THAT(error(), HasSubstr("model.layers.1.mlp.up_proj.weight"));
}

TEST_F(Load, AMissingHeadSaysWhatTiedMeans) {
  erase("lm_head.weight");
  EXPECT_THAT(error(), AllOf(HasSubstr("lm_head.weight"), HasSubstr("tie_word_embeddings")));
}

TEST_F(Load, AWrongShapeIsNamedWithBothShapes) {
  tensor("model.layers.0.self_attn.k_proj.weight") = Tensor::zeros(rank_.context().pool, {8, 4}, DType::f32);
  EXPECT_THAT(error(), AllOf(HasSubstr("model.safetensors"), HasSubstr("model.layers.0.self_attn.k_proj.weight"),
                             HasSubstr("[8, 4]"), HasSubstr("[4, 8]")));
}

TEST_F(Load, ADtypeThatIsNoFloatIsRefused) {
  tensor("model.layers.0.mlp.down_proj.weight") = Tensor::zeros(rank_.context().pool, {8, 12}, DType::u8);
  EXPECT_THAT(error(), AllOf(HasSubstr("model.layers.0.mlp.down_proj.weight"), HasSubstr("u8")));
}

TEST_F(Load, UnexpectedTensorsAreListedUpToFive) {
  for (int i = 2; i < 9; ++i) {
    tensors_.emplace_back("model.layers." + std::to_string(i) + ".mlp.up_proj.weight",
                          Tensor::zeros(rank_.context().pool, {12, 8}, DType::f32));
  }
  EXPECT_THAT(error(), AllOf(HasSubstr("model.layers.2.mlp.up_proj.weight"), HasSubstr("layers.6"),
                             HasSubstr("and 2 more"), ::testing::Not(HasSubstr("layers.7"))));
}

TEST_F(Load, AMakerThatReadsPackedWeightsSaysWhichTensorsItKnows) {
  tensors_.emplace_back("model.layers.0.mlp.up_proj.weight.absmax",
                        Tensor::zeros(rank_.context().pool, {2}, DType::f32));
  write_safetensors(directory_ / "model.safetensors", tensors_);
  int result = 0;
  LoadOptions options;
  options.wrap_linear = [&](const CheckpointDir& checkpoint, LinearWeightMaker dense) -> LinearWeightMaker {
    EXPECT_TRUE(checkpoint.contains("model.layers.0.mlp.up_proj.weight.absmax"));
    return [&result, dense](const std::string& module, const Shape& shape) {
      ++result;
      return dense(module, shape);
    };
  };
  EXPECT_THROW(load_decoder(directory_.path(), rank_.context(), options), InputError);
  result = 0;
  options.expects = [](const std::string& name) { return name.ends_with(".absmax"); };
  load_decoder(directory_.path(), rank_.context(), options);
  EXPECT_EQ(result, 2 * 7 + 1);
}

TEST_F(LoadTied, TheHeadIsTheEmbedding) {
  Decoder decoder = load();
  EXPECT_EQ(all_logits(decoder, batch(), rank_.step()), golden_);
}

TEST_F(LoadTied, AHeadBesideATiedFlagMustBeTheEmbedding) {
  tensors_.emplace_back("lm_head.weight", tensor("model.embed_tokens.weight"));
  Decoder decoder = load();
  EXPECT_EQ(all_logits(decoder, batch(), rank_.step()), golden_);
  Tensor other = tensor("model.embed_tokens.weight").clone(rank_.context().pool);
  other.data<float>()[3] += 1;
  tensor("lm_head.weight") = other;
  EXPECT_THAT(error(), AllOf(HasSubstr("lm_head.weight"), HasSubstr("differs"), HasSubstr("tie_word_embeddings")));
}

TEST_F(LoadTied, SixteenBitWeightsAreTrainedInF32) {
  for (auto& [name, value] : tensors_) {
    Tensor narrow = Tensor::empty(rank_.context().pool, value.shape(), DType::bf16);
    ops::cast(value, narrow);
    value = narrow;
  }
  Decoder decoder = load();
  make_trainable(decoder, rank_.context());
  decoder.visit([](Parameter& parameter) {
    EXPECT_EQ(parameter.value.dtype(), DType::f32);
    EXPECT_EQ(parameter.gradient.shape(), parameter.value.shape());
  });
  EXPECT_LE(largest_difference(all_logits(decoder, batch(), rank_.step()), golden_), 0.05);
}

TEST(RandomDecoder, NumbersDependOnSeedAndNameOnly) {
  Rank rank;
  const auto weights = [&](uint64_t seed, int64_t layers) {
    nlohmann::json config = nlohmann::json::parse(config_text(false));
    config["num_hidden_layers"] = layers;
    Decoder decoder = random_decoder(parse_decoder_config(config.dump(), "test"), seed, rank.context());
    std::map<std::string, std::vector<float>> result;
    decoder.visit([&](Parameter& parameter) {
      const std::span<const float> values = parameter.value.span<const float>();
      result[parameter.name] = {values.begin(), values.end()};
    });
    return result;
  };
  const auto two = weights(1, 2), three = weights(1, 3), other = weights(2, 2);
  for (const auto& [name, values] : two) EXPECT_EQ(three.at(name), values) << name;
  EXPECT_NE(two.at("lm_head.weight"), other.at("lm_head.weight"));
  EXPECT_NE(two.at("lm_head.weight"), two.at("model.embed_tokens.weight"));
  EXPECT_THAT(two.at("model.norm.weight"), ::testing::Each(1.0f));
  EXPECT_THAT(two.at("model.layers.0.self_attn.q_proj.bias"), ::testing::Each(0.0f));
  EXPECT_NEAR(norm(two.at("lm_head.weight")) / std::sqrt(88.0), 0.5, 0.1);
}

/// Whole pages of a tensor's bytes that this process has mapped; nothing where the system does not say.
std::optional<int64_t> mapped_pages(const Tensor& tensor) {
  const auto size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), begin = reinterpret_cast<uintptr_t>(tensor.raw());
  const uintptr_t first = (begin + size - 1) / size, end = (begin + tensor.bytes()) / size;
  std::vector<uint64_t> entries(end - first);
  const int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  const ssize_t got = pread(file, entries.data(), entries.size() * 8, static_cast<off_t>(first * 8));
  if (file >= 0) close(file);
  if (got != static_cast<ssize_t>(entries.size() * 8)) return std::nullopt;
  int64_t mapped = 0;
  for (const uint64_t entry : entries) mapped += static_cast<int64_t>(entry >> 63);
  return mapped;
}

// 4 layers of 1.7 MB, tables of 1 MB.
Decoder load_mapped(const TemporaryDirectory& directory, Rank& rank) {
  nlohmann::json config = nlohmann::json::parse(config_text(false));
  for (const auto& [key, value] : {std::pair{"hidden_size", 128}, {"intermediate_size", 1024}, {"vocab_size", 2000}}) {
    config[key] = value;
  }
  config["num_hidden_layers"] = 4;
  write_bytes(directory / "config.json", config.dump());
  std::vector<std::pair<std::string, Tensor>> tensors;
  Decoder result = random_decoder(parse_decoder_config(config.dump(), "test"), 5, rank.context());
  for (const NamedTensor& tensor : state_dict(result)) tensors.emplace_back(tensor.name, tensor.value);
  write_safetensors(directory / "model.safetensors", tensors);
  return load_decoder(directory.path(), rank.context());
}

// Norms are read, and with each the kernel maps what lies around it in the file.
TEST(MappedWeights, AreNotMappedBeforeTheyAreUsed) {
  Rank rank;
  const TemporaryDirectory directory;
  Decoder decoder = load_mapped(directory, rank);
  int64_t matrices = 0;
  decoder.visit([&](Parameter& parameter) {
    if (parameter.value.rank() != 2) return;
    const std::optional<int64_t> pages = mapped_pages(parameter.value);
    if (!pages) return;
    EXPECT_EQ(*pages, 0) << parameter.name;
    ++matrices;
  });
  if (matrices == 0) GTEST_SKIP() << "/proc/self/pagemap cannot be read";
}

TEST(MappedWeights, AreLeftBetweenPassesOfRecomputedLayers) {
  Rank rank;
  const TemporaryDirectory directory;
  Decoder decoder = load_mapped(directory, rank);
  Parameter* norm = nullptr;
  std::vector<const Tensor*> matrices;
  decoder.visit([&](Parameter& parameter) {
    if (parameter.name == "model.layers.0.input_layernorm.weight") norm = &parameter;
    if (parameter.value.rank() == 2) matrices.push_back(&parameter.value);
  });
  ASSERT_NE(norm, nullptr);
  norm->make_trainable(rank.context().pool);
  const auto mapped_after_step = [&](Recompute recompute, size_t tokens) {
    Sample sample;
    for (size_t t = 0; t < tokens; ++t) sample.ids.push_back(static_cast<int32_t>(t * 7 % 2000));
    sample.labels = sample.ids;
    decoder.set_recompute(recompute);
    norm->gradient.zero();
    decoder.loss_sum_and_gradients(make_batch({&sample, 1}, rank.context().pool), rank.step(), 0.01f);
    std::optional<int64_t> sum = 0;
    for (const Tensor* matrix : matrices) {
      const std::optional<int64_t> pages = mapped_pages(*matrix);
      sum = pages && sum ? std::optional(*sum + *pages) : std::nullopt;
    }
    return sum;
  };
  const std::optional<int64_t> all = mapped_after_step(Recompute::none, 300);
  if (!all) GTEST_SKIP() << "/proc/self/pagemap cannot be read";
  const std::map<std::string, std::vector<float>> gradients = gradients_of(decoder);
  EXPECT_GT(*all, 2000);
  // What the kernel mapped around a neighbour's last page may stay.
  EXPECT_LT(*mapped_after_step(Recompute::block, 300), *all / 2);
  EXPECT_EQ(gradients_of(decoder), gradients);
  EXPECT_GT(*mapped_after_step(Recompute::block, 200), *all / 2);
}

// How many ranges of addresses a process has is limited, and a mixture has more tensors than that.
TEST(LoadPages, WeightsSideBySideAreOneRangeOfAddresses) {
  Rank rank;
  const Decoder decoder = load_decoder(data_path("stories-llama"), rank.context());
  std::ifstream maps("/proc/self/maps");
  int ranges = 0;
  for (std::string line; std::getline(maps, line);) ranges += line.find("stories-llama") != std::string::npos;
  EXPECT_GE(ranges, 1);
  EXPECT_LE(ranges, 8);  // of 47 tensors
}

}  // namespace
}  // namespace nibble
