// Experts and routers in modules_to_save as PEFT has them: tests/oracles/peft_saved_experts.py and its results.

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>

#include "nibble/adapters/adapter_plan.h"
#include "nibble/adapters/attach.h"
#include "nibble/adapters/merging/merge.h"
#include "nibble/adapters/peft/adapter_names.h"
#include "nibble/core/base/error.h"
#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/tests/core/models/golden.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using namespace nibble::test;
using nlohmann::json;
using ::testing::HasSubstr;

const std::filesystem::path kSaved = std::string(kSourceDir) + "/tests/data/goldens/peft_saved_experts";
using Shapes = std::map<std::string, Shape>;

// ---- names of all mixtures ----

json saved_names() { return read_json(kSaved / "names.json").at("types"); }

std::vector<std::string> mixtures_of_peft() {
  const json types = saved_names();
  std::vector<std::string> names;
  for (auto one = types.begin(); one != types.end(); ++one) names.push_back(one.key());
  return names;
}

class SavedNames : public testing::TestWithParam<std::string> {};

TEST_P(SavedNames, AreThoseOfPeft) {
  const json mixture = saved_names().at(GetParam());
  const json& saved = mixture["saved"];
  ASSERT_FALSE(saved.empty());
  for (auto one = saved.begin(); one != saved.end(); ++one) {
    const std::string entry = one.key();
    Rank rank;
    Decoder decoder = random_decoder(parse_decoder_config(mixture["config"].dump(), "test"), 1, rank.context());
    AdapterOptions options;
    options.r = 1;
    options.target_modules.names = {mixture["target"].get<std::string>()};
    options.modules_to_save = {entry};
    const AttachedAdapter attached = attach_adapter(decoder, options, rank.context());
    EXPECT_THAT(attached.notes, testing::Not(testing::Contains(HasSubstr("in modules_to_save"))));
    Shapes shapes;
    for (const PeftTensor& tensor : in_peft_names(adapter_tensors(decoder), decoder.config())) {
      if (tensor.name.find(".lora_") != std::string::npos) continue;
      shapes[tensor.name.substr(std::string(kPeftPrefix).size())] = tensor.shape;
    }
    EXPECT_EQ(shapes, one->get<Shapes>()) << entry;
    EXPECT_EQ(in_peft_names(attached.options, decoder.config()).modules_to_save, options.modules_to_save);
  }
}

std::string test_name(const testing::TestParamInfo<std::string>& of) {
  std::string name = of.param;
  std::ranges::replace(name, '+', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(OfMixtures, SavedNames, testing::ValuesIn(mixtures_of_peft()), test_name);

// ---- adapters of PEFT ----

std::vector<std::string> adapters_of_peft() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kSaved)) {
    if (entry.is_directory()) names.push_back(entry.path().filename());
  }
  std::ranges::sort(names);
  return names;
}

class SavedExperts : public testing::TestWithParam<std::string> {
 protected:
  std::vector<float> logits(Decoder& decoder) {
    const Tensor ids = results_.at("input_ids");
    std::vector<Sample> samples;
    for (int64_t row = 0; row < ids.dim(0); ++row) {
      const Tensor own = ids.rows(row, row + 1);
      samples.push_back({.ids = {own.data<const int64_t>(), own.data<const int64_t>() + own.numel()},
                         .labels = {},
                         .index = static_cast<size_t>(row)});
    }
    return all_logits(decoder, make_batch(samples, rank_.context().pool), rank_.step());
  }
  void expect_logits(Decoder& decoder, const std::string& wanted) {
    const std::span<const float> values = results_.at(wanted).span<const float>();
    EXPECT_LE(largest_difference(logits(decoder), values),
              1e-5 * std::max(1.0, norm(values) / std::sqrt(values.size())));
  }
  Decoder open() { return load_decoder(folder_ / "base", rank_.context()); }

  Rank rank_;
  TemporaryDirectory directory_;
  std::filesystem::path folder_ = kSaved / GetParam();
  SafetensorsFile results_{(folder_ / "logits.safetensors").string()};
};

TEST_P(SavedExperts, GiveTheLogitsOfPeft) {
  Decoder decoder = open();
  expect_logits(decoder, "base");
  const AttachedAdapter attached =
      load_adapter(decoder, read_peft_directory(folder_ / "adapter"), true, rank_.context());
  EXPECT_TRUE(attached.notes.empty()) << attached.notes.front();
  expect_logits(decoder, "adapter");
}

TEST_P(SavedExperts, AreMerged) {
  const CheckpointDir files(folder_ / "base");
  const TensorSource base = plain_source(files);
  merge_adapter(base, read_peft_directory(folder_ / "adapter"), directory_ / "merged", {.dtype = DType::f32},
                rank_.context().pool);
  EXPECT_EQ(CheckpointDir(directory_ / "merged").names(), files.names());
  Decoder merged = load_decoder(directory_ / "merged", rank_.context());
  expect_logits(merged, "adapter");
}

void expect_same_tensors(const PeftAdapter& is, const PeftAdapter& wanted) {
  ASSERT_EQ(is.tensors.size(), wanted.tensors.size());
  for (const auto& [name, tensor] : wanted.tensors) {
    const Tensor found = is.find(name);
    ASSERT_TRUE(found) << name;
    ASSERT_EQ(found.shape(), tensor.shape()) << name;
    EXPECT_EQ(std::memcmp(found.raw(), tensor.raw(), tensor.bytes()), 0) << name;
  }
}

TEST_P(SavedExperts, AreSavedAsPeftSavedThem) {
  Decoder decoder = open();
  const PeftAdapter theirs = read_peft_directory(folder_ / "adapter");
  save_adapter(decoder, load_adapter(decoder, theirs, true, rank_.context()), directory_ / "saved");
  const PeftAdapter saved = read_peft_directory(directory_ / "saved");
  expect_same_tensors(saved, theirs);
  EXPECT_EQ(saved.options.modules_to_save, theirs.options.modules_to_save);
}

// As versions before wrote them.
TEST_P(SavedExperts, AreReadByTheNamesOfTheFiles) {
  Decoder decoder = open();
  PeftAdapter theirs = read_peft_directory(folder_ / "adapter");
  const PeftAdapter earlier = in_file_names(theirs, decoder.config());
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const auto& [name, tensor] : earlier.tensors) tensors.emplace_back(kPeftPrefix + name, tensor);
  write_peft_directory(directory_ / "earlier", theirs.options, tensors);
  const AttachedAdapter attached =
      load_adapter(decoder, read_peft_directory(directory_ / "earlier"), true, rank_.context());
  expect_logits(decoder, "adapter");
  save_adapter(decoder, attached, directory_ / "saved");
  expect_same_tensors(read_peft_directory(directory_ / "saved"), theirs);
}

INSTANTIATE_TEST_SUITE_P(OfPeft, SavedExperts, testing::ValuesIn(adapters_of_peft()), test_name);

// ---- other entries ----

DecoderConfig small_mixture(const char* type) {
  return parse_decoder_config(R"({"model_type": ")" + std::string(type) + R"(", "hidden_size": 16,
      "intermediate_size": 24, "moe_intermediate_size": 6, "shared_expert_intermediate_size": 8, "num_hidden_layers": 2,
      "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 40, "num_experts": 4,
      "num_experts_per_tok": 2, "tie_word_embeddings": false})",
                              "test");
}

AdapterOptions saving(const std::vector<std::string>& entries) {
  AdapterOptions options;
  options.r = 1;
  options.target_modules.names = {"q_proj"};
  options.modules_to_save = entries;
  return options;
}

TEST(SavedEntries, OfTheFilesBecomePeftsWords) {
  const DecoderConfig config = small_mixture("mixtral");
  const AdapterOptions options =
      saving({"block_sparse_moe", "block_sparse_moe.gate", "layers.1.block_sparse_moe.experts", "experts", "lm_head"});
  EXPECT_THAT(in_peft_names(options, config).modules_to_save,
              testing::ElementsAre("mlp", "mlp.gate", "layers.1.mlp.experts", "experts", "lm_head"));
  EXPECT_EQ(plan_adapter(config, options).fully_trained,
            plan_adapter(config, saving({"mlp", "lm_head"})).fully_trained);
}

TEST(SavedEntries, ThatNameModulesOfPeftMeanNoSingleExperts) {
  const AdapterPlan plan = plan_adapter(small_mixture("qwen2_moe"), saving({"up_proj"}));
  EXPECT_EQ(plan.fully_trained.size(), 2u);
  EXPECT_TRUE(plan.fully_trained.contains("model.layers.0.mlp.shared_expert.up_proj.weight"));
  EXPECT_TRUE(plan.notes.empty());
}

// PEFT has none of them; what nibble saves of them has the names of the files.
TEST(SavedEntries, OfSingleExpertsAreReadHereAlone) {
  const DecoderConfig config = small_mixture("qwen3_moe");
  Rank rank;
  TemporaryDirectory directory;
  Decoder decoder = random_decoder(config, 1, rank.context());
  const AttachedAdapter attached = attach_adapter(decoder, saving({"experts.1.up_proj", "o_proj"}), rank.context());
  EXPECT_THAT(attached.notes,
              testing::ElementsAre("\"experts.1.up_proj\" in modules_to_save names no module of PEFT's, which has "
                                   "model.layers.0.mlp.experts there and may not read what is trained so"));
  save_adapter(decoder, attached, directory / "adapter");
  const PeftAdapter saved = read_peft_directory(directory / "adapter");
  EXPECT_TRUE(saved.find("model.layers.1.mlp.experts.1.up_proj.weight"));
  EXPECT_FALSE(saved.find("model.layers.1.mlp.experts.gate_up_proj"));
  Decoder again = random_decoder(config, 1, rank.context());
  load_adapter(again, saved, true, rank.context());
  EXPECT_EQ(adapter_tensors(again).size(), adapter_tensors(decoder).size());
}

// Which went by the names of the files: "experts" is the end of "shared_experts", but not of what Laguna's call it.
TEST(SavedEntries, MayMeanMoreThanFilesOfEarlierVersionsHave) {
  struct Earlier {
    const char *type, *entry, *lacks, *needs;
  };
  for (const Earlier& earlier : {Earlier{"laguna", "experts", ".shared_expert.", ".experts.0."},
                                 Earlier{"exaone_moe", "gate", ".e_score_correction_bias", "gate.weight"}}) {
    const DecoderConfig config = parse_decoder_config(saved_names().at(earlier.type).at("config").dump(), "test");
    Rank rank;
    TemporaryDirectory directory;
    Decoder decoder = random_decoder(config, 1, rank.context());
    const AttachedAdapter attached = attach_adapter(decoder, saving({earlier.entry}), rank.context());
    std::vector<std::pair<std::string, Tensor>> tensors = adapter_tensors(decoder);
    const size_t all = tensors.size();
    const auto drop = [&](const std::string& part) {
      return std::erase_if(tensors, [&](const auto& one) { return one.first.find(part) != std::string::npos; });
    };
    EXPECT_GT(drop(earlier.lacks), 0u);
    write_peft_directory(directory / "adapter", attached.options, tensors);
    Decoder again = random_decoder(config, 1, rank.context());
    load_adapter(again, read_peft_directory(directory / "adapter"), true, rank.context());
    EXPECT_EQ(adapter_tensors(again).size(), all);
    EXPECT_GT(drop(earlier.needs), 0u);
    write_peft_directory(directory / "incomplete", attached.options, tensors);
    EXPECT_THROW(plan_adapter(config, read_peft_directory(directory / "incomplete")), InputError);
  }
}

TEST(SavedEntries, TensorsOfOtherShapesAreRefused) {
  const DecoderConfig config = small_mixture("qwen3_moe");
  MemoryPool pool;
  PeftAdapter adapter;
  adapter.options = saving({"experts"});
  adapter.tensors["model.layers.0.mlp.experts.gate_up_proj"] = Tensor::zeros(pool, {3, 12, 16}, DType::f32);
  try {
    plan_adapter(config, adapter);
    ADD_FAILURE() << "no error";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("has shape [3, 12, 16], the model needs 12 rows for each of 4 experts"));
  }
}

}  // namespace
}  // namespace nibble
