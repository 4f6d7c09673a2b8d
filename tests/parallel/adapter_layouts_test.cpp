// Everything that an adapter can train, on stages, parts and shards of a model: as on one rank, or refused by name
// before any weight is read.

#include <tuple>

#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/tests/parallel/own_model.h"

namespace nibble {
namespace {

using namespace nibble::test;

struct AdapterKind {
  const char* name;
  bool tied;  // the model's head
  json adapter;
};

const std::vector<AdapterKind>& adapter_kinds() {
  static const json q = {"q_proj"};
  static const std::vector<AdapterKind> all = {
      {"Tokens", false, {{"target_modules", q}, {"trainable_token_indices", {97, 98, 256}}}},
      {"TokensOfBothTables",
       false,
       {{"target_modules", q}, {"trainable_token_indices", {{"embed_tokens", {97, 98}}, {"lm_head", {99, 256}}}}}},
      {"TokensTied", true, {{"target_modules", q}, {"trainable_token_indices", {97, 98, 256}}}},
      {"SavedHead", false, {{"target_modules", q}, {"modules_to_save", {"lm_head"}}}},
      {"SavedHeadTied", true, {{"target_modules", q}, {"modules_to_save", {"lm_head"}}}},
      {"SavedEmbedding", false, {{"target_modules", q}, {"modules_to_save", {"embed_tokens"}}}},
      {"SavedEmbeddingTied", true, {{"target_modules", q}, {"modules_to_save", {"embed_tokens"}}}},
      {"SavedTables", false, {{"target_modules", q}, {"modules_to_save", {"embed_tokens", "lm_head"}}}},
      {"SavedMlpOfOneLayer", false, {{"target_modules", q}, {"modules_to_save", {"layers.1.mlp"}}}},
      {"SavedNorms", false, {{"target_modules", q}, {"modules_to_save", {"model.norm", "input_layernorm"}}}},
      {"FirstLayer", false, {{"target_modules", {"q_proj", "down_proj"}}, {"layers_to_transform", {0}}}},
      {"LastLayer", false, {{"target_modules", {"q_proj", "down_proj"}}, {"layers_to_transform", {3}}}},
      {"OneModule", false, {{"target_modules", R"(model\.layers\.2\.mlp\.down_proj)"}}},
      {"RankOfOneModule", false, {{"target_modules", q}, {"rank_pattern", {{R"(layers\.3\.self_attn\.q_proj)", 2}}}}},
      {"Embedding", false, {{"target_modules", {"q_proj", "embed_tokens"}}}},
      {"EmbeddingOnly", true, {{"target_modules", {"embed_tokens"}}}},
      {"Head", false, {{"target_modules", {"v_proj", "lm_head"}}}},
      {"AllLinear", false, {{"target_modules", "all-linear"}}},
      {"Dora", false, {{"target_modules", {"q_proj", "down_proj"}}, {"use_dora", true}}},
      {"DoraOfEmbedding", false, {{"target_modules", {"embed_tokens", "v_proj"}}, {"use_dora", true}}},
      {"AllBiases", false, {{"target_modules", q}, {"bias", "all"}}},
      {"BiasesOfAdapted", false, {{"target_modules", {"o_proj", "v_proj"}}, {"bias", "lora_only"}}},
      {"LoraBias", false, {{"target_modules", {"q_proj", "o_proj"}}, {"lora_bias", true}}},
      {"Pissa", false, {{"target_modules", q}, {"init_lora_weights", "pissa"}}},
      {"PissaOfRandomRounds", false, {{"target_modules", q}, {"init_lora_weights", "pissa_niter_2"}}},
      {"Olora", false, {{"target_modules", {"down_proj"}}, {"init_lora_weights", "olora"}}},
  };
  return all;
}

const std::vector<NamedLayout>& adapter_layouts() {
  static const std::vector<NamedLayout> all = {
      {"Pipeline2", 2, {{"pipeline", 2}}},
      {"Pipeline4", 4, {{"pipeline", 4}}},
      {"Tensor2", 2, {{"tensor", 2}}},
      {"Tensor4", 4, {{"tensor", 4}}},
      {"Pipeline2Tensor2", 4, {{"pipeline", 2}, {"tensor", 2}}},
      {"Pipeline2Shard2", 4, {{"pipeline", 2}, {"shard", 2}, {"shard_adapters", true}}},
      {"Shard2Tensor2", 4, {{"shard", 2}, {"tensor", 2}, {"shard_adapters", true}}},
      {"Shard4", 4, {{"shard", 4}, {"shard_adapters", true}}},
  };
  return all;
}

/// What is allowed to be refused on several ranks, and with which words.
std::string refusal_of(const std::string& kind, const json& parallel) {
  const bool sharded = parallel.contains("tensor");
  if (kind == "TokensTied" && parallel.contains("pipeline")) return "trainable_token_indices";
  if (!sharded) return "";
  if (kind.starts_with("Tokens")) return "trainable_token_indices needs full weights, which parallel.tensor shards";
  if (kind.starts_with("Dora")) return "use_dora needs full weights, which parallel.tensor shards";
  if (kind.starts_with("Embedding")) return "LoRA on model.embed_tokens needs the full table";
  if (kind == "LoraBias") return "lora_bias needs full weights";
  if (kind.starts_with("Pissa") || kind == "Olora") return "init_lora_weights needs full weights";
  return "";
}

class AdapterRuns : public OwnModel {
 protected:
  struct Told {
    Outcome outcome;
    std::vector<std::string> notes;
  };

  /// The run, and the notes that its first rank shows.
  Told told(json wanted, int ranks, const std::string& name) {
    wanted["output"]["dir"] = (directory_ / name).string();
    const Recipe read = parse_recipe(wanted.dump(), "test");
    Told told;
    run_on_threads(ranks, [&](Communicator& comm) {
      MemoryPool pool;
      RankContext rank{comm, pool, 1, 11};
      set_threads(1);
      Observer observer;
      if (comm.rank() == 0) {
        observer.on_message = [&](const std::string& text) {
          if (text.starts_with("note: ")) told.notes.push_back(text);
        };
      }
      train(read, rank, observer);
    });
    told.outcome = outcome_of(directory_ / name);
    return told;
  }

  std::map<std::string, std::vector<float>> tensors_of(const std::string& run) const {
    const SafetensorsFile file((directory_ / run / "adapter" / "adapter_model.safetensors").string());
    std::map<std::string, std::vector<float>> found;
    for (const std::string& name : file.names()) {
      const std::span<const float> values = file.at(name).span<const float>();
      found[name] = {values.begin(), values.end()};
    }
    return found;
  }

  json config_of(const std::string& run) const {
    return json::parse(read_bytes(directory_ / run / "adapter" / "adapter_config.json"));
  }

  void expect_same_run(const json& wanted, const NamedLayout& layout, const std::string& name) {
    const Told one = told(wanted, 1, name + "-one");
    json spread = wanted;
    spread["parallel"] = layout.parallel;
    const Told several = told(spread, layout.ranks, name);
    ASSERT_EQ(several.outcome.losses.size(), one.outcome.losses.size());
    for (size_t i = 0; i < one.outcome.losses.size(); ++i) {
      EXPECT_NEAR(several.outcome.losses[i], one.outcome.losses[i], 2e-5) << "step " << i + 1;
      EXPECT_NEAR(several.outcome.norms[i], one.outcome.norms[i], 2e-4 * one.outcome.norms[i]) << "step " << i + 1;
    }
    EXPECT_EQ(several.notes, one.notes);
    EXPECT_EQ(config_of(name), config_of(name + "-one"));
    const auto got = tensors_of(name), want = tensors_of(name + "-one");
    ASSERT_EQ(got.size(), want.size());
    for (const auto& [tensor, values] : want) {
      ASSERT_TRUE(got.contains(tensor)) << tensor;
      ASSERT_EQ(got.at(tensor).size(), values.size()) << tensor;
      double worst = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        worst = std::max(worst, std::abs(double(got.at(tensor)[i]) - double(values[i])));
      }
      EXPECT_LT(worst, 4e-3) << tensor;  // Adam makes a whole step of a gradient's sign, however small the gradient
    }
  }
};

class AdapterLayouts : public AdapterRuns, public testing::WithParamInterface<std::tuple<size_t, size_t>> {};

TEST_P(AdapterLayouts, TrainAsOneRankOrAreRefusedByName) {
  const AdapterKind& kind = adapter_kinds()[std::get<0>(GetParam())];
  const NamedLayout& layout = adapter_layouts()[std::get<1>(GetParam())];
  const fs::path model = kind.tied ? make_model("tied", true) : base_;
  json wanted = own_recipe(model, 12);
  wanted["adapter"] = {{"r", 4}, {"lora_alpha", 8}};
  wanted["adapter"].merge_patch(kind.adapter);
  const std::string refusal = refusal_of(kind.name, layout.parallel);
  if (refusal.empty()) {
    expect_same_run(wanted, layout, "new");
    wanted["adapter"] = {{"path", (directory_ / "new-one" / "adapter").string()}};
    return expect_same_run(wanted, layout, "continued");
  }
  told(wanted, 1, "one");
  const json continued = {{"path", (directory_ / "one" / "adapter").string()}};
  fs::remove(model / "model.safetensors");
  wanted["parallel"] = layout.parallel;
  std::vector<json> refused = {wanted["adapter"]};
  if (kind.name != std::string("PissaOfRandomRounds")) refused.push_back(continued);  // saved as a plain LoRA
  for (const json& adapter : refused) {
    wanted["adapter"] = adapter;
    EXPECT_NE(error_of<UsageError>([&] { told(wanted, layout.ranks, "refused"); }).find(refusal), std::string::npos)
        << adapter;
    EXPECT_FALSE(fs::exists(directory_ / "refused"));
  }
}

INSTANTIATE_TEST_SUITE_P(All, AdapterLayouts,
                         testing::Combine(testing::Range<size_t>(0, 26), testing::Range<size_t>(0, 8)),
                         [](const auto& which) {
                           return std::string(adapter_kinds()[std::get<0>(which.param)].name) + "On" +
                                  adapter_layouts()[std::get<1>(which.param)].name;
                         });

TEST_F(AdapterRuns, EntriesWithoutAModuleAreNamedOnceForTheWholeModel) {
  for (const NamedLayout& layout : adapter_layouts()) {
    json wanted = own_recipe(base_, 12);
    wanted["adapter"] = {{"r", 4}, {"target_modules", {"q_proj", "lm_head", "c_attn"}}};
    wanted["parallel"] = layout.parallel;
    EXPECT_EQ(told(wanted, layout.ranks, layout.name).notes,
              (std::vector<std::string>{R"(note: these fit no module: target_modules "c_attn")"}));
    wanted["adapter"]["modules_to_save"] = {"classifier"};
    EXPECT_NE(error_of<UsageError>([&] {
                told(wanted, layout.ranks, "refused");
              }).find(R"(modules_to_save names "classifier", which fits no module)"),
              std::string::npos);
  }
}

// Its start cannot be computed again from the base: what is saved has to be B A - B0 A0, which is nothing where nothing
// was learned.
TEST_F(AdapterRuns, ARandomPissaStartIsSavedAsAPlainLora) {
  json wanted = own_recipe(base_, 12);
  wanted["adapter"] = {{"r", 3}, {"lora_alpha", 6}, {"target_modules", {"q_proj"}}};
  wanted["adapter"]["init_lora_weights"] = "pissa_niter_2";
  wanted["optimizer"]["lr"] = 0;
  told(wanted, 1, "out");
  const json config = config_of("out");
  EXPECT_EQ(config["init_lora_weights"], true);
  EXPECT_EQ(config["r"], 6);
  const auto tensors = tensors_of("out");
  const std::string module = "base_model.model.model.layers.3.self_attn.q_proj.";
  const std::vector<float>&a = tensors.at(module + "lora_A.weight"), &b = tensors.at(module + "lora_B.weight");
  ASSERT_EQ(a.size(), 6u * 32);
  ASSERT_EQ(b.size(), 64u * 6);
  double largest = 0;
  for (size_t row = 0; row < 64; ++row) {
    for (size_t column = 0; column < 32; ++column) {
      double sum = 0;
      for (size_t k = 0; k < 6; ++k) sum += double(b[row * 6 + k]) * double(a[k * 32 + column]);
      largest = std::max(largest, std::abs(sum));
    }
  }
  EXPECT_LT(largest, 1e-12);
}

}  // namespace
}  // namespace nibble
