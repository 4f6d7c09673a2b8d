#include "nibble/adapters/attach.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nibble/adapters/tuners/lora.h"
#include "nibble/core/base/parallel.h"
#include "nibble/core/models/load.h"
#include "nibble/quant/codec.h"
#include "nibble/quant/load_quantized.h"
#include "nibble/quant/nf4_weight.h"
#include "nibble/tests/adapters/golden.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class AttachTest : public ::testing::Test {
 protected:
  AttachTest() { set_threads(1); }  // the model is tiny: waiting for each other would take longer than the work

  MemoryPool pool;
  SelfComm comm;
  RankContext rank{comm, pool, 1, 11};
  StepContext step{rank};

  std::vector<std::string> trainable(Decoder& decoder) {
    std::vector<std::string> names;
    decoder.visit([&](Parameter& parameter) {
      if (parameter.trainable) names.push_back(parameter.name);
      EXPECT_EQ(parameter.trainable, parameter.gradient.defined()) << parameter.name;
    });
    return names;
  }
  Tensor value(Decoder& decoder, const std::string& name) {
    Tensor found;
    decoder.visit([&](Parameter& parameter) {
      if (parameter.name == name) found = parameter.value;
    });
    EXPECT_TRUE(found.defined()) << name;
    return found;
  }
  StepContext training() {
    StepContext result = step;
    result.training = true;
    return result;
  }
};

/// The run of lora-golden over one form of the base.
struct GoldenBase {
  const char* model;
  const char* run;
};

class GoldenRun : public AttachTest, public ::testing::WithParamInterface<GoldenBase> {};

TEST_P(GoldenRun, HasTheGoldenLossGradientsAndTwentySteps) {
  const std::filesystem::path golden = test::data_path("lora-golden");
  const std::filesystem::path model = test::data_path(GetParam().model);
  const std::string run = GetParam().run;
  const nlohmann::json all = read_json_file(golden / "report.json"), report = all[run];
  Decoder decoder = load_decoder(model, rank, load_quantized(rank));
  const Batch batch = make_batch(test::read_samples(golden / "input_ids.npy", golden / "labels.npy"), pool);
  ASSERT_EQ(batch.label_tokens, all["tokens_scored"]);
  EXPECT_NEAR(decoder.loss_sum(batch, step) / static_cast<double>(batch.label_tokens), report["loss_without_adapter"],
              1e-4);

  const AttachedAdapter attached = load_adapter(decoder, read_peft_directory(golden / "adapter-init"), true, rank);
  EXPECT_THAT(attached.notes, IsEmpty());
  EXPECT_EQ(attached.modules.size(), 10u);
  EXPECT_EQ(trainable(decoder).size(), 20u);

  const double first = test::mean_loss(decoder, batch, training());
  EXPECT_NEAR(first, report["loss_with_init_adapter"], 1e-4);
  const auto gradients = test::read_npz(golden / (run + ".grads.npz"));
  ASSERT_EQ(gradients.size(), 20u);
  size_t compared = 0;
  decoder.visit([&](Parameter& parameter) {
    if (!parameter.trainable) return;
    std::string key = parameter.name;  // base_model.model.model.layers.0.X.weight -> L0.X
    key = "L" + key.substr(std::string("base_model.model.model.layers.").size());
    const std::vector<double>& wanted = gradients.at(key.substr(0, key.size() - std::string(".weight").size()));
    double distance = 0, size = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const double difference = parameter.gradient.data<const float>()[i] - wanted[i];
      distance += difference * difference;
      size += wanted[i] * wanted[i];
    }
    EXPECT_LT(std::sqrt(distance / size), 1e-3) << parameter.name;
    ++compared;
  });
  EXPECT_EQ(compared, 20u);

  test::AdamW optimizer(decoder, pool);
  const auto losses = report["losses"].get<std::vector<double>>();
  ASSERT_EQ(losses.size(), 21u);
  for (size_t k = 0; k < losses.size(); ++k) {
    EXPECT_NEAR(test::mean_loss(decoder, batch, training()), losses[k], 1e-3 * losses[k]) << "after " << k << " steps";
    optimizer.step(5e-3f, 0.01f);
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, GoldenRun,
                         ::testing::Values(GoldenBase{"stories-llama", "lora_fp32"},
                                           GoldenBase{"stories-llama-nf4-dq", "qlora_nf4_dq"}),
                         [](const auto& result) { return std::string(result.param.run); });

/// Cases of tests/oracles/peft_options.py: PEFT's own numbers.
class OracleCase : public AttachTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(OracleCase, HasPeftsLossesAndLogits) {
  const fs::path path = test::data_path("peft") / GetParam();
  const nlohmann::json record = read_json_file(path / "case.json");
  const fs::path base = path / record["nibble"]["variants"][0]["model"]["path"].get<std::string>();
  const LoadOptions loading = load_quantized(rank);
  const Batch ids = make_batch(test::read_samples(path / "ids.npy"), pool);
  for (const auto& [adapter, logits] : {std::pair{"init", "logits_before.npy"}, {"after8", "logits_after.npy"}}) {
    Decoder decoder = load_decoder(base, rank, loading);
    const AttachedAdapter attached = load_adapter(decoder, read_peft_directory(path / adapter), false, rank);
    EXPECT_THAT(attached.notes, IsEmpty());
    EXPECT_THAT(trainable(decoder), IsEmpty());
    EXPECT_LT(test::largest_difference(test::all_logits(decoder, ids, step), path / logits), 1e-3) << adapter;
  }

  Decoder decoder = load_decoder(base, rank, loading);
  const AttachedAdapter attached = load_adapter(decoder, read_peft_directory(path / "init"), true, rank);
  EXPECT_EQ(trainable(decoder).size(), record["trainable_tensors"]);
  test::AdamW optimizer(decoder, pool);
  std::ifstream lines(path / "data.jsonl");
  for (const double wanted : record["losses"].get<std::vector<double>>()) {
    std::vector<Sample> samples;
    for (std::string line; samples.size() < 2 && std::getline(lines, line);) {
      const nlohmann::json sample = nlohmann::json::parse(line);
      samples.push_back({sample["input_ids"], sample["labels"], samples.size()});
    }
    EXPECT_NEAR(test::mean_loss(decoder, make_batch(samples, pool), training()), wanted, 1e-3 * wanted);
    optimizer.step(5e-3f, 0.01f);
  }
  const PeftAdapter start = read_peft_directory(path / "init"), end = read_peft_directory(path / "after8");
  size_t compared = 0;
  for (const auto& [name, tensor] : adapter_tensors(decoder)) {
    const std::string plain = name.substr(std::string(kPeftPrefix).size());
    const Tensor wanted = end.find(plain), before = start.find(plain);
    ASSERT_TRUE(wanted.defined()) << name;
    double distance = 0, moved = 0;
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      const double w = wanted.data<const float>()[i];
      distance += std::pow(tensor.data<const float>()[i] - w, 2);
      moved += std::pow(before.data<const float>()[i] - w, 2);
    }
    EXPECT_LE(std::sqrt(distance), 1e-2 * std::sqrt(moved)) << name;
    ++compared;
  }
  EXPECT_EQ(compared, end.tensors.size());
}

INSTANTIATE_TEST_SUITE_P(Peft, OracleCase,
                         ::testing::Values("lora-default-targets", "all-linear-rslora", "layers-to-transform",
                                           "rank-and-alpha-pattern", "modules-to-save", "bias-lora_only", "dora",
                                           "qlora-nf4-dq", "padding-embed", "padding-dora", "padding-tokens"),
                         [](const auto& result) {
                           std::string name = result.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_F(AttachTest, ANewAdapterChangesNothingUntilItIsTrained) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const std::filesystem::path golden = test::data_path("lora-golden");
  const Batch batch = make_batch(test::read_samples(golden / "input_ids.npy", golden / "labels.npy"), pool);
  Decoder decoder = load_decoder(model, rank);
  const double before = decoder.loss_sum(batch, step);
  AdapterOptions options;
  options.target_modules.pattern = "all-linear";
  options.r = 4;
  const AttachedAdapter attached = attach_adapter(decoder, options, rank);
  EXPECT_EQ(attached.modules.size(), 35u);
  EXPECT_THAT(attached.options.target_modules.names,
              ElementsAre("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"));
  EXPECT_EQ(trainable(decoder).size(), 70u);
  EXPECT_EQ(decoder.loss_sum(batch, step), before);
  EXPECT_NEAR(test::mean_loss(decoder, batch, training()), before / static_cast<double>(batch.label_tokens), 1e-6);
}

TEST_F(AttachTest, StartsAreFunctionsOfSeedAndModuleOnly) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const std::string name = "base_model.model.model.layers.2.self_attn.v_proj.lora_A.weight";
  const auto start = [&](const std::vector<std::string>& targets, uint64_t seed, LoraInit init) {
    RankContext other{comm, pool, 1, seed};
    Decoder decoder = load_decoder(model, other);
    AdapterOptions options;
    options.target_modules.names = targets;
    options.r = 16;
    options.init_lora_weights = init;
    attach_adapter(decoder, options, other);
    const Tensor a = value(decoder, name);
    return std::vector<float>(a.span<const float>().begin(), a.span<const float>().end());
  };
  const std::vector<float> a = start({"v_proj"}, 1, LoraInit::standard);
  EXPECT_EQ(a, start({"q_proj", "v_proj", "up_proj"}, 1, LoraInit::standard));
  EXPECT_NE(a, start({"v_proj"}, 2, LoraInit::standard));
  const float bound = 1 / std::sqrt(64.0f), largest = *std::max_element(a.begin(), a.end());
  EXPECT_LE(largest, bound);
  EXPECT_GT(largest, 0.95f * bound);
  EXPECT_GE(*std::min_element(a.begin(), a.end()), -bound);
  double squares = 0;
  const std::vector<float> normal = start({"v_proj"}, 1, LoraInit::gaussian);
  for (const float x : normal) squares += double{x} * x;
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(normal.size())), 1.0 / 16, 0.1 / 16);
}

/// A random model without assets.
Decoder small_decoder(RankContext& rank, bool quantized) {
  const DecoderConfig config = parse_decoder_config(
      R"({"model_type": "qwen2", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 50,
          "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2, "tie_word_embeddings": true})",
      "test");
  Decoder decoder = random_decoder(config, 3, rank);
  decoder.visit_linears([&](Linear& linear) {
    if (!quantized || linear.name() == config.names.head) return;
    const Tensor weight = linear.weight().dequantize(0, linear.out_features(), rank.pool);
    linear.set_weight(std::make_unique<Nf4Weight>(linear.name() + ".weight", quantize(weight, {}, rank.pool, "w")));
  });
  return decoder;
}

Batch small_batch(MemoryPool& pool) {
  std::vector<Sample> samples;
  for (const int32_t length : {9, 1, 20}) {
    Sample sample{.ids = {}, .labels = {}, .index = samples.size()};
    for (int32_t t = 0; t < length; ++t) sample.ids.push_back((t * t + length) % 50);
    sample.labels = sample.ids;
    samples.push_back(sample);
  }
  return make_batch(samples, pool);
}

std::vector<AdapterOptions> kinds_of_adapters() {
  AdapterOptions plain;
  plain.target_modules.names = {"q_proj", "up_proj", "down_proj"};
  plain.r = 4;
  plain.init_lora_weights = LoraInit::random;
  AdapterOptions dropping = plain, scaled = plain, of_tables = plain, of_tokens = plain, with_bias = plain;
  dropping.lora_dropout = 0.3;
  scaled.use_dora = true;
  scaled.lora_dropout = 0.3;
  of_tables.target_modules.names.emplace_back("embed_tokens");
  of_tokens.trainable_token_indices = {{"embed_tokens", {3, 7}}};  // and the tied head's
  with_bias.lora_bias = true;
  return {plain, dropping, scaled, of_tables, of_tokens, with_bias};
}

std::map<std::string, std::vector<float>> gradients_of(Decoder& decoder) {
  std::map<std::string, std::vector<float>> found;
  decoder.visit([&](Parameter& parameter) {
    if (!parameter.trainable) return;
    const std::span<const float> values = parameter.gradient.span<const float>();
    found[parameter.name] = {values.begin(), values.end()};
  });
  return found;
}

TEST_F(AttachTest, APassWithAdaptersOffHasTheBitsOfTheBaseAndLeavesTheNextStepAsItIs) {
  const Batch batch = small_batch(pool);
  const std::vector<AdapterOptions> kinds = kinds_of_adapters();
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    for (const bool quantized : {false, true}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        SCOPED_TRACE(std::to_string(kind) + (quantized ? " quantized " : " ") + std::string(dtype_name(dtype)));
        Decoder base = small_decoder(rank, quantized), decoder = small_decoder(rank, quantized);
        EXPECT_FALSE(attach_adapter(decoder, kinds[kind], rank).base_changed);
        // Rows of tokens start as what the table has: one step makes them others.
        test::AdamW optimizer(decoder, pool);
        StepContext on = training(), plain = step;
        on.compute_dtype = plain.compute_dtype = dtype;
        test::mean_loss(decoder, batch, on);
        optimizer.step(1e-2f, 0);
        StepContext off = plain;
        off.adapters_enabled = false;

        const double loss = test::mean_loss(decoder, batch, on);
        const auto gradients = gradients_of(decoder);
        const std::vector<float> wanted = test::all_logits(base, batch, plain);
        EXPECT_EQ(test::all_logits(decoder, batch, off), wanted);
        EXPECT_NE(test::all_logits(decoder, batch, plain), wanted);
        EXPECT_EQ(decoder.loss_sum(batch, off), base.loss_sum(batch, plain));
        EXPECT_EQ(gradients_of(decoder), gradients);
        EXPECT_EQ(test::mean_loss(decoder, batch, on), loss);
        EXPECT_EQ(gradients_of(decoder), gradients);
      }
    }
  }
}

TEST_F(AttachTest, SaysWhichAdaptersReplaceWeightsOfTheBase) {
  AdapterOptions whole, biases, start;
  for (AdapterOptions* options : {&whole, &biases, &start}) options->target_modules.names = {"q_proj"};
  whole.modules_to_save = {"model.norm"};
  biases.bias = BiasTraining::lora_only;
  start.init_lora_weights = LoraInit::olora;
  for (const AdapterOptions& options : {whole, biases, start}) {
    Decoder decoder = small_decoder(rank, false);
    EXPECT_TRUE(attach_adapter(decoder, options, rank).base_changed);
  }
}

TEST_F(AttachTest, ASavedAdapterLoadsToTheSameLogits) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const std::filesystem::path golden = test::data_path("lora-golden");
  const Batch batch = make_batch(test::read_samples(golden / "input_ids.npy", golden / "labels.npy"), pool);
  const fs::path directory = fs::temp_directory_path() / ("nibble-attach-" + std::to_string(::getpid()));
  Decoder decoder = load_decoder(model, rank);
  AdapterOptions options;
  options.target_modules.names = {"q_proj", "down_proj"};
  options.init_lora_weights = LoraInit::random;
  options.lora_bias = true;
  options.modules_to_save = {"lm_head", "model.norm"};
  options.rank_pattern = {{"down_proj", 3}};
  options.use_rslora = true;
  const AttachedAdapter attached = attach_adapter(decoder, options, rank);
  test::AdamW optimizer(decoder, pool);
  test::mean_loss(decoder, batch, training());
  optimizer.step(1e-2f, 0);
  save_adapter(decoder, attached, directory);
  const std::vector<float> logits = test::all_logits(decoder, batch, step);

  Decoder again = load_decoder(model, rank);
  const AttachedAdapter loaded = load_adapter(again, read_peft_directory(directory), false, rank);
  EXPECT_THAT(loaded.notes, IsEmpty());
  EXPECT_EQ(test::all_logits(again, batch, step), logits);
  fs::remove_all(directory);
}

TEST_F(AttachTest, ATiedHeadThatIsTrainedLeavesTheEmbeddingAlone) {
  const std::filesystem::path model = test::data_path("stories-llama");
  Decoder decoder = load_decoder(model, rank);
  AdapterOptions options;
  options.modules_to_save = {"lm_head"};
  attach_adapter(decoder, options, rank);
  EXPECT_THAT(trainable(decoder), Contains("base_model.model.lm_head.weight"));
  const Tensor head = value(decoder, "base_model.model.lm_head.weight");
  const Tensor embedding = value(decoder, "model.embed_tokens.weight");
  EXPECT_NE(head.raw(), embedding.raw());
  EXPECT_THAT(head.span<const float>(), ::testing::Pointwise(::testing::Eq(), embedding.span<const float>()));

  Decoder other = load_decoder(model, rank);
  options.modules_to_save = {"embed_tokens"};
  attach_adapter(other, options, rank);
  EXPECT_THAT(trainable(other), Contains("base_model.model.model.embed_tokens.weight"));
  EXPECT_NE(value(other, "lm_head.weight").raw(), value(other, "base_model.model.model.embed_tokens.weight").raw());
}

TEST_F(AttachTest, WhatDoesNotFitIsReportedOrRefused) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const std::filesystem::path golden = test::data_path("lora-golden");
  const auto refusal = [&](const PeftAdapter& adapter) -> std::string {
    Decoder decoder = load_decoder(model, rank);
    try {
      load_adapter(decoder, adapter, false, rank);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const PeftAdapter good = read_peft_directory(golden / "adapter-init");
  PeftAdapter adapter = good;
  const std::string q = "model.layers.0.self_attn.q_proj.lora_A.weight";
  adapter.tensors[q] = Tensor::zeros(pool, {4, 63}, DType::f32);
  EXPECT_THAT(refusal(adapter), HasSubstr(q + " has shape [4, 63], the model needs [4, 64]"));

  adapter = good;
  adapter.tensors.clear();
  adapter.tensors["transformer.h.0.attn.c_attn.lora_A.weight"] = Tensor::zeros(pool, {4, 64}, DType::f32);
  EXPECT_THAT(refusal(adapter), HasSubstr("no tensor fits the model"));

  adapter = good;
  adapter.tensors["model.embed_tokens.lora_embedding_A"] = Tensor::zeros(pool, {4, 512}, DType::f32);
  EXPECT_THAT(refusal(adapter), HasSubstr("lora_embedding_B has shape [], the model needs [64, 4]"));
  adapter = good;
  adapter.tensors["model.embed_tokens.token_adapter.trainable_tokens_delta"] = Tensor::zeros(pool, {1, 64}, DType::f32);
  EXPECT_THAT(refusal(adapter), HasSubstr("missing or not named"));
  adapter = good;
  adapter.options.r = 7;
  EXPECT_THAT(refusal(adapter), HasSubstr("q_proj has rank 4, adapter_config.json says 7"));
  adapter.options.rank_pattern = {{"layers.*", 3},
                                  {"[qv]_proj", 4}};  // PEFT sorts them, so any that matches may be meant
  EXPECT_EQ(refusal(adapter), "no error");

  adapter = good;
  adapter.options.modules_to_save = {"norm"};
  EXPECT_THAT(refusal(adapter), HasSubstr("has no model.layers.0.input_layernorm.weight, which modules_to_save in "
                                          "adapter_config.json names; the file is incomplete"));
  adapter.options.modules_to_save.clear();
  adapter.options.trainable_token_indices = {{"", {5}}};
  EXPECT_THAT(refusal(adapter), HasSubstr("has no model.embed_tokens.token_adapter.trainable_tokens_delta, which "
                                          "trainable_token_indices in adapter_config.json names"));

  adapter = good;
  adapter.tensors["model.norm.weight"] = Tensor::zeros(pool, {64}, DType::f32);
  EXPECT_THAT(refusal(adapter), HasSubstr("modules_to_save"));

  adapter = good;
  adapter.tensors["score.weight"] = Tensor::zeros(pool, {2, 64}, DType::f32);
  adapter.tensors.erase(q);
  adapter.tensors.erase("model.layers.0.self_attn.q_proj.lora_B.weight");
  Decoder decoder = load_decoder(model, rank);
  EXPECT_THAT(load_adapter(decoder, adapter, false, rank).notes,
              ElementsAre(HasSubstr("score.weight"), HasSubstr("model.layers.0.self_attn.q_proj")));
  EXPECT_THROW(load_adapter(decoder, good, false, rank), UsageError) << "one adapter at a time";

  Decoder fresh = load_decoder(model, rank);
  AdapterOptions options;
  options.modules_to_save = {"score"};
  EXPECT_THROW(attach_adapter(fresh, options, rank), UsageError);
}

}  // namespace
}  // namespace nibble
