#include "nibble/adapters/peft/peft_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "nibble/adapters/peft/peft_config.h"
#include "nibble/adapters/target_modules.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/io/safetensors/safetensors.h"
#include "nibble/tests/assets.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Runs `body` and returns the line of the Error it throws.
std::vector<std::string> names_of(const PeftAdapter& adapter) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : adapter.tensors) names.push_back(name);
  return names;
}

template <typename E>
std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

class PeftDirectoryTest : public ::testing::Test {
 public:
  ~PeftDirectoryTest() override { fs::remove_all(root); }

 protected:
  PeftDirectoryTest() {
    root = fs::temp_directory_path() / ("nibble-peft-" + std::to_string(::getpid()) + "-" +
                                        ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root);
    fs::create_directories(root);
  }

  Tensor matrix(Shape shape, float first = 1) {
    Tensor result = Tensor::empty(pool, shape, DType::f32);
    for (int64_t i = 0; i < result.numel(); ++i) result.data<float>()[i] = first + static_cast<float>(i);
    return result;
  }
  fs::path make(const std::string& name, const std::vector<std::pair<std::string, Tensor>>& tensors,
                const std::string& config = R"({"peft_type": "LORA", "r": 2, "target_modules": ["q_proj"]})") {
    fs::path directory = root / name;
    fs::create_directories(directory);
    std::ofstream(directory / "adapter_config.json") << config;
    if (!tensors.empty()) write_safetensors(directory / "adapter_model.safetensors", tensors);
    return directory;
  }
  std::vector<std::pair<std::string, Tensor>> one_pair() {
    return {{"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", matrix({2, 6})},
            {"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", matrix({4, 2}, 50)}};
  }

  MemoryPool pool;
  fs::path root;
};

TEST_F(PeftDirectoryTest, WhatIsWrittenReadsBackEqual) {
  AdapterOptions options;
  options.r = 2;
  options.lora_alpha = 3.5;
  options.lora_dropout = 0.05;
  options.target_modules.names = {"q_proj", "v_proj"};
  options.exclude_modules.pattern = ".*9.*";
  options.use_rslora = true;
  options.lora_bias = true;
  options.init_lora_weights = LoraInit::random;
  options.rank_pattern = {{"z", 2}, {"a", 3}};
  options.alpha_pattern = {{"q_proj", 0.5}};
  options.layers_to_transform = {{0, 2}};
  options.layers_pattern = {"layers"};
  options.modules_to_save = {"lm_head"};
  options.bias = BiasTraining::lora_only;
  options.base_model = "meta/some-model";
  write_peft_directory(root / "adapter", options, one_pair());

  const PeftAdapter read = read_peft_directory(root / "adapter");
  EXPECT_THAT(names_of(read), ElementsAre("model.layers.0.self_attn.q_proj.lora_A.weight",
                                          "model.layers.0.self_attn.q_proj.lora_B.weight"));
  EXPECT_EQ(read.find("model.layers.0.self_attn.q_proj.lora_B.weight").data<const float>()[0], 50);
  EXPECT_EQ(peft_config_text(read.options), peft_config_text(options));
  EXPECT_THAT(read.options.rank_pattern,
              ElementsAre(std::pair<std::string, int64_t>{"z", 2}, std::pair<std::string, int64_t>{"a", 3}))
      << "the order decides which pattern counts";
  EXPECT_EQ(read.options.layers_to_transform, options.layers_to_transform);
  EXPECT_THAT(read_text_file(root / "adapter/README.md"), HasSubstr(", alpha 3.5.\n"));
  EXPECT_THAT(error_of<UsageError>([&] { write_peft_directory(root / "adapter", options, one_pair()); }),
              HasSubstr("adapter"));
  write_peft_directory(root / "adapter", options, one_pair(), Replace::own);
}

// Bytes of files that are in this process's memory.
int64_t mapped_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key;) {
    int64_t kib = 0;
    if (key == "RssFile:" && status >> kib) return kib << 10;
  }
  return -1;
}

// Trained tables are as large as the rest of a run together.
TEST_F(PeftDirectoryTest, TensorsThatAreCheckedDoNotStayInMemory) {
  const Tensor table = Tensor::zeros(pool, {int64_t{1} << 12, int64_t{1} << 11}, DType::f32);
  const fs::path directory = make("a", {{"base_model.model.model.embed_tokens.weight", table}});
  const int64_t before = mapped_bytes();
  ASSERT_GE(before, 0);
  const PeftAdapter adapter = read_peft_directory(directory);
  EXPECT_LT(mapped_bytes() - before, static_cast<int64_t>(table.bytes()) / 2);
  EXPECT_EQ(adapter.find("model.embed_tokens.weight").span<const float>().back(), 0);
}

TEST_F(PeftDirectoryTest, ACardLoadsTheBaseAsTheRunHeldIt) {
  AdapterOptions options;
  options.base_model = "meta/some-model";
  const auto card = [&](const AdapterCompanions& companions) {
    write_peft_directory(root / "adapter", options, one_pair(), Replace::own, companions);
    return read_text_file(root / "adapter/README.md");
  };
  EXPECT_THAT(card({}), HasSubstr("from transformers import AutoModelForCausalLM\n\n"
                                  "model = AutoModelForCausalLM.from_pretrained(\"meta/some-model\")\n"
                                  "model = PeftModel"));
  EXPECT_THAT(card({.rows = 7, .bits_and_bytes = "load_in_4bit=True"}),
              HasSubstr("import torch\nfrom peft import PeftModel\n"
                        "from transformers import AutoModelForCausalLM, BitsAndBytesConfig\n\n"
                        "quantization = BitsAndBytesConfig(load_in_4bit=True)\n"
                        "model = AutoModelForCausalLM.from_pretrained(\"meta/some-model\", "
                        "quantization_config=quantization)\n"
                        "model.resize_token_embeddings(7)"));
  options.base_model = R"(/my "new" \base)";
  EXPECT_THAT(card({}), HasSubstr(R"(from_pretrained("/my \"new\" \\base"))"));
}

TEST_F(PeftDirectoryTest, TheConfigHasTheKeysThatPeftWrites) {
  const std::filesystem::path assets = test::data_path("peft");
  nlohmann::json theirs = read_json_file(assets / "all-linear-rslora/init/adapter_config.json");
  const AdapterOptions options = parse_peft_config(theirs.dump(), "theirs");
  nlohmann::json ours = nlohmann::json::parse(peft_config_text(options));
  theirs.erase("peft_version");  // PEFT fills it in; we are not PEFT
  EXPECT_EQ(ours, theirs);
}

// Of null PEFT makes the default of the model's type, and adapters on it that have no tensors.
TEST_F(PeftDirectoryTest, AnAdapterOnTensorsAloneSaysThatItHasNoModules) {
  AdapterOptions options;
  EXPECT_TRUE(nlohmann::json::parse(peft_config_text(options))["target_modules"].is_null());
  options.target_parameters = {"experts.down_proj"};
  const std::string text = peft_config_text(options);
  EXPECT_EQ(nlohmann::json::parse(text)["target_modules"], nlohmann::json::array());
  EXPECT_EQ(peft_config_text(parse_peft_config(text, "ours")), text);
}

TEST_F(PeftDirectoryTest, AbsentKeysHavePeftsDefaults) {
  const AdapterOptions options = parse_peft_config("{}", "config");
  EXPECT_EQ(options.r, 8);
  EXPECT_EQ(options.lora_alpha, 8);
  EXPECT_EQ(options.lora_dropout, 0);
  EXPECT_TRUE(options.target_modules.empty());
  EXPECT_FALSE(options.use_rslora);
  EXPECT_EQ(options.bias, BiasTraining::none);
  EXPECT_EQ(options.init_lora_weights, LoraInit::standard);
  EXPECT_EQ(parse_peft_config(R"({"made_up_key": {"x": [1]}, "lora_alpha": 8.0})", "config").lora_alpha, 8);
}

TEST_F(PeftDirectoryTest, RealConfigsOfOtherToolsAreRead) {
  const std::filesystem::path assets = test::data_path("peft-configs");
  const auto read = [&](const std::string& name) {
    const fs::path path = assets / name / "adapter_config.json";
    return parse_peft_config(read_text_file(path), path.string());
  };
  const AdapterOptions mlp = read("target-mlp");
  EXPECT_EQ(mlp.r, 10);
  EXPECT_EQ(mlp.lora_alpha, 20);
  EXPECT_THAT(mlp.target_modules.names, ElementsAre("gate_proj", "up_proj", "down_proj"));
  EXPECT_TRUE(read("default-targets").target_modules.empty());
  EXPECT_TRUE(read("dora").use_dora);
}

TEST_F(PeftDirectoryTest, AFileWithAdapterNamesInItsKeysIsRead) {
  const PeftAdapter adapter = read_peft_directory(test::data_path("peft-configs/named-keys"));
  EXPECT_THAT(names_of(adapter), ElementsAre("proj.lora_A.weight", "proj.lora_B.weight"));
  EXPECT_EQ(adapter.find("proj.lora_A.weight").shape(), (Shape{2, 5}));
  EXPECT_EQ(lora_scaling(adapter.options, "proj", 2), 4);
}

TEST_F(PeftDirectoryTest, NamesOfRawStateDictsAreUnderstood) {
  const PeftAdapter adapter =
      read_peft_directory(make("raw", {{"model.q_proj.lora_A.my.run.weight", matrix({2, 6})},
                                       {"model.q_proj.lora_B.my.run.weight", matrix({4, 2})},
                                       {"lm_head.modules_to_save.default.weight", matrix({3, 2})}}));
  EXPECT_THAT(names_of(adapter),
              ElementsAre("lm_head.weight", "model.q_proj.lora_A.weight", "model.q_proj.lora_B.weight"));
}

// As with save_embedding_layers.
TEST_F(PeftDirectoryTest, WhatPeftWrapsOfATrainedTableIsLeftOut) {
  const PeftAdapter adapter =
      read_peft_directory(make("wrapped", {{"base_model.model.wte.modules_to_save.weight", matrix({3, 2})},
                                           {"base_model.model.wte.original_module.weight", matrix({3, 2})},
                                           {"base_model.model.wte.weight", matrix({3, 2})}}));
  EXPECT_THAT(names_of(adapter), ElementsAre("wte.weight"));
  const PeftAdapter biases =  // as with bias "all"
      read_peft_directory(make("biases", {{"base_model.model.mlp.modules_to_save.fc.bias", matrix({3, 2})},
                                          {"base_model.model.mlp.original_module.fc.bias", matrix({3, 2})},
                                          {"base_model.model.mlp.fc.bias", matrix({3, 2})}}));
  EXPECT_THAT(names_of(biases), ElementsAre("mlp.fc.bias"));
}

TEST_F(PeftDirectoryTest, DamageIsRefusedWithFileAndTensor) {
  const auto refusal = [&](const fs::path& directory) {
    return error_of<Error>([&] { read_peft_directory(directory); });
  };
  EXPECT_THAT(refusal(root / "nowhere"), HasSubstr("is not a directory"));
  EXPECT_THAT(refusal(root), HasSubstr("has no adapter_config.json"));
  EXPECT_THAT(refusal(make("empty", {})), HasSubstr("has no adapter_model.safetensors"));
  std::ofstream(root / "empty/adapter_model.bin") << "pickle";
  EXPECT_THAT(refusal(root / "empty"), HasSubstr("save it again"));

  auto tensors = one_pair();
  tensors.pop_back();
  EXPECT_THAT(refusal(make("half", tensors)), HasSubstr("q_proj has lora_A but no lora_B"));
  tensors = one_pair();
  tensors[1].second = matrix({4, 3});
  EXPECT_THAT(refusal(make("ranks", tensors)), HasSubstr("lora_A [2, 6] and lora_B [4, 3] do not fit"));
  tensors = one_pair();
  tensors[0].second.data<float>()[7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(refusal(make("nan", tensors)),
              HasSubstr("q_proj.lora_A.weight has a value that is not finite at element 7"));
  const std::vector<int64_t> whole(12);
  tensors[0].second = Tensor::from<int64_t>(pool, {2, 6}, whole);
  EXPECT_THAT(refusal(make("integers", tensors)), HasSubstr("element type i64"));
}

TEST_F(PeftDirectoryTest, ConfigsThatCannotBeHonoredAreRefused) {
  const auto refusal = [&](const std::string& json) {
    return error_of<InputError>([&] { parse_peft_config(json, "the config"); });
  };
  EXPECT_THAT(refusal("{"), HasSubstr("the config:1:"));
  EXPECT_THAT(refusal("[]"), HasSubstr("no JSON object"));
  EXPECT_THAT(refusal(R"({"peft_type": "IA3"})"), HasSubstr("peft_type is \"IA3\""));
  EXPECT_THAT(refusal(R"({"init_lora_weights": "corda"})"), HasSubstr("changes the base weights"));
  EXPECT_THAT(refusal(R"({"init_lora_weights": "pissa_niter_x"})"), HasSubstr("write pissa_niter_16"));
  EXPECT_THAT(refusal(R"({"trainable_token_indices": ["a"]})"), HasSubstr("trainable_token_indices"));
  EXPECT_THAT(refusal(R"({"ensure_weight_tying": true})"), HasSubstr("ensure_weight_tying"));
  EXPECT_THAT(refusal(R"({"layer_replication": [[0, 4]]})"), HasSubstr("layer_replication"));
  EXPECT_THAT(refusal(R"({"r": "8"})"), HasSubstr("r is no whole number"));
  EXPECT_THAT(refusal(R"({"r": 0})"), HasSubstr("r is 0"));
  EXPECT_THAT(refusal(R"({"r": 1e300})"), HasSubstr("r is no whole number"));
  EXPECT_THAT(refusal(R"({"lora_alpha": true})"), HasSubstr("lora_alpha is no number"));
  EXPECT_THAT(refusal(R"({"bias": "some"})"), HasSubstr("bias is \"some\""));
  EXPECT_THAT(refusal(R"({"target_modules": [1]})"), HasSubstr("target_modules"));
  EXPECT_THAT(refusal(R"({"rank_pattern": {"(": 2}})"), HasSubstr("no regular expression"));
  EXPECT_THAT(refusal(R"({"target_parameters": []})"), HasSubstr("no error")) << "off is no option";
}

}  // namespace
}  // namespace nibble
