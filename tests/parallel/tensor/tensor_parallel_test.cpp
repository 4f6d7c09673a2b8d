// Every family on two and three tensor-parallel ranks (threads) against Transformers: the losses and gradients of the
// shards, put together, are those of the unsharded model. The cases have odd widths, so shards are uneven.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "nibble/adapters/attach.h"
#include "nibble/core/base/parallel.h"
#include "nibble/parallel/comm/thread_comm.h"
#include "nibble/parallel/parallelize.h"
#include "nibble/parallel/sharded_executor.h"
#include "nibble/parallel/tensor/global_tensor.h"
#include "nibble/parallel/tensor/tensor_parallel.h"
#include "nibble/recipes/models/init_model.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/core/models/golden.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using namespace nibble::test;
namespace fs = std::filesystem;

const fs::path kCases = std::string(kSourceDir) + "/tests/data/goldens/families";

struct Computed {
  double loss = 0, norm = 0;
  std::map<std::string, std::vector<float>> gradients;
};

using Adapt = std::function<void(Decoder&, RankContext&)>;

/// What `ranks` ranks make of the samples together. adapt: attaches an adapter; without it everything is trained.
Computed compute(const fs::path& model, std::span<const Sample> samples, int ranks, const Adapt& adapt = {}) {
  Computed computed;
  run_on_threads(ranks, [&](Communicator& comm) {
    MemoryPool pool;
    RankContext rank{comm, pool, 1, 5};
    set_threads(1);
    const Mesh mesh({.tensor = ranks}, comm);
    LoadOptions options;
    const auto tensor = tensor_parallel(read_decoder_config(model), comm, pool);
    options.sharding = tensor.get();
    Decoder decoder = load_decoder(model, rank, options);
    if (adapt) adapt(decoder, rank);
    ParallelModel parallel = parallelize(decoder, !adapt, {}, mesh, rank);
    ShardedExecutor executor(decoder, parallel, rank);
    const Batch batch = make_batch(samples, pool);
    const std::vector<Parameter*> parameters = parallel.parameters();
    executor.begin_step(1);
    const StepSums sums = executor.gradients({&batch, 1}, NextToken(), parameters, {.step = 3});
    const double loss = sums.loss * static_cast<double>(sums.label_tokens);
    EXPECT_NEAR(decoder.loss_sum(batch, {.rank = rank, .row_keys = {}}), adapt ? 0.0 : loss, adapt ? 1e9 : 1e-9);
    for (const Parameter* parameter : parameters) {
      const Tensor global =
          gather_on_first(mesh.tensor(), parameter->name, parameter->gradient, parameter->shard, pool);
      if (!global || comm.rank() > 0) continue;
      const std::span<const float> values = global.span<const float>();
      computed.gradients[parameter->name] = {values.begin(), values.end()};
    }
    if (comm.rank() == 0) {
      computed.loss = sums.loss;
      computed.norm = std::sqrt(sums.squares);
    }
  });
  return computed;
}

bool has_heads_for(const fs::path& folder, int ranks) {
  try {
    tensor_shard(read_decoder_config(folder / "model"), 0, ranks);
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

std::vector<std::string> cases() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kCases)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

void attach(Decoder& decoder, RankContext& rank) {
  AdapterOptions options;
  options.r = 3;
  options.lora_alpha = 5;
  options.lora_dropout = 0.25;
  options.init_lora_weights = LoraInit::random;
  options.target_modules.pattern = "all-linear";
  attach_adapter(decoder, options, rank);
}

void expect_same(const Computed& result, const Computed& one) {
  EXPECT_NEAR(result.loss, one.loss, 1e-5);
  EXPECT_NEAR(result.norm, one.norm, 1e-4 * one.norm);
  ASSERT_EQ(result.gradients.size(), one.gradients.size());
  for (const auto& [name, wanted] : one.gradients) {
    EXPECT_LE(distance(result.gradients.at(name), wanted), 1e-4 * norm(wanted) + 1e-6 * one.norm) << name;
  }
}

/// Those that two ranks cannot share: by name, because every test of this program begins with listing the others.
const std::set<std::string>& unshared_cases() {
  static const std::set<std::string> names = {
      "apertus-0",   "bamba-0",     "bitnet-0",     "falcon-0",  "falcon-1", "falcon-2",        "falcon-7b-form",
      "falcon_h1-0", "falcon_h1-1", "gemma3n-0",    "gemma3n-1", "gemma4-1", "gpt_bigcode-0",   "granite_hybrid-0",
      "lfm2-0",      "minicpm3-0",  "nemotron_h-0", "olmo2-0",   "olmo3-0",  "padding-gemma3n", "padding-gemma3n-other",
      "qwen3_5-0",   "stablelm-0",  "youtu-0",      "zamba2-4"};
  return names;
}

std::vector<std::string> shared_cases() {
  std::vector<std::string> names = cases();
  std::erase_if(names, [](const std::string& name) { return unshared_cases().contains(name); });
  return names;
}

TEST(TensorParallelism, CasesThatTwoRanksCannotShareAreThoseNamed) {
  for (const std::string& name : cases()) {
    EXPECT_EQ(has_heads_for(kCases / name, 2), !unshared_cases().contains(name)) << name;
  }
}

class TensorParallelism : public testing::TestWithParam<std::string> {};

TEST_P(TensorParallelism, HasTheGradientsOfTransformers) {
  const FamilyCase golden(kCases / GetParam());
  const SafetensorsFile file((golden.folder / "grads.safetensors").string());
  double squares = 0;
  for (const std::string& name : file.names()) squares += std::pow(norm(file.at(name).span<const float>()), 2);
  for (const int ranks : {2, 3}) {
    if (!has_heads_for(golden.folder, ranks)) continue;
    const Computed result = compute(golden.model, golden.samples, ranks);
    EXPECT_NEAR(result.loss, golden.record["loss"].get<double>(), 1e-4);
    EXPECT_NEAR(result.norm, std::sqrt(squares), 1e-3 * std::sqrt(squares));
    EXPECT_EQ(result.gradients.size(), file.names().size());
    for (const std::string& name : file.names()) {
      ASSERT_TRUE(result.gradients.contains(name)) << name;
      const std::span<const float> wanted = file.at(name).span<const float>();
      EXPECT_LE(distance(result.gradients.at(name), wanted), 1e-3 * norm(wanted) + 1e-6 * std::sqrt(squares)) << name;
    }
  }
}

TEST_P(TensorParallelism, HasTheAdapterGradientsOfOneRank) {
  const FamilyCase golden(kCases / GetParam());
  const Computed one = compute(golden.model, golden.samples, 1, attach);
  for (const int ranks : {2, 3}) {
    if (has_heads_for(golden.folder, ranks)) expect_same(compute(golden.model, golden.samples, ranks, attach), one);
  }
}

INSTANTIATE_TEST_SUITE_P(Committed, TensorParallelism, testing::ValuesIn(shared_cases()), [](const auto& which) {
  std::string name = which.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(TensorParallelism, SlicesMostFamilies) {
  std::set<std::string> types;
  for (const std::string& name : cases()) {
    if (has_heads_for(kCases / name, 2)) types.insert(read_decoder_config(kCases / name / "model").model_type);
  }
  for (const char* type : {"llama", "mistral", "qwen2", "phi3", "gpt_neox", "gpt2", "opt", "bloom", "gptj", "cohere",
                           "cohere2", "gemma3_text", "codegen", "smollm3", "olmo"}) {
    EXPECT_TRUE(types.contains(type)) << type;
  }
}

// Groups of queries with their key and value, the form of Falcon 40B, of which no case is there.
TEST(TensorParallelism, AFalconWithGroupsIsThatOfOneRank) {
  TemporaryDirectory directory;
  const nlohmann::json config = {{"architectures", {"FalconForCausalLM"}},
                                 {"model_type", "falcon"},
                                 {"hidden_size", 24},
                                 {"num_hidden_layers", 2},
                                 {"num_attention_heads", 6},
                                 {"num_kv_heads", 3},
                                 {"new_decoder_architecture", true},
                                 {"bias", true},
                                 {"vocab_size", 37},
                                 {"alibi", false},
                                 {"initializer_range", 0.2}};
  write_bytes(directory / "config.json", config.dump());
  init_model({.config = (directory / "config.json").string(), .out = (directory / "m").string(), .dtype = "f32"});
  Sample sample;
  for (int t = 0; t < 20; ++t) sample.ids.push_back((t * t + 3) % 37);
  sample.labels = sample.ids;
  for (const Adapt& adapt : {Adapt(), Adapt(attach)}) {
    const Computed one = compute(directory / "m", {&sample, 1}, 1, adapt);
    expect_same(compute(directory / "m", {&sample, 1}, 2, adapt), one);
    expect_same(compute(directory / "m", {&sample, 1}, 3, adapt), one);
  }
}

TEST(TensorParallelism, RefusesByNameWhatCannotBeSliced) {
  const auto refusal = [](const std::string& name, int ranks) {
    const DecoderConfig config = read_decoder_config(kCases / name / "model");
    return error_of<UsageError>([&] { tensor_shard(config, 0, ranks); });
  };
  EXPECT_NE(refusal("falcon-2", 2).find("has 1 heads to share"), std::string::npos) << refusal("falcon-2", 2);
  EXPECT_NE(refusal("llama-0", 4).find("has 3 heads to share"), std::string::npos) << refusal("llama-0", 4);
}

TEST(TensorParallelism, HeadsAndColumnsOfAllRanksAreTheWhole) {
  for (const std::string& name : cases()) {
    const DecoderConfig config = read_decoder_config(kCases / name / "model");
    for (const int ranks : {2, 3}) {
      if (!has_heads_for(kCases / name, ranks)) continue;
      TensorShard before{};
      for (int r = 0; r < ranks; ++r) {
        const TensorShard shard = tensor_shard(config, r, ranks);
        EXPECT_EQ(shard.heads.begin, before.heads.end);
        const bool one_head = config.kv_heads == 1;
        EXPECT_EQ(shard.kv_heads.begin, one_head ? 0 : before.kv_heads.end);
        EXPECT_EQ(shard.mlp.begin, before.mlp.end);
        EXPECT_EQ(shard.vocabulary.begin, before.vocabulary.end);
        if (!one_head) {
          EXPECT_EQ(shard.heads.size() * config.kv_heads, shard.kv_heads.size() * config.heads);
        }
        EXPECT_TRUE(shard.heads.size() > 0 && shard.mlp.size() > 0 && shard.vocabulary.size() > 0);
        before = shard;
      }
      EXPECT_EQ(before.heads.end, config.heads);
      EXPECT_EQ(before.kv_heads.end, config.kv_heads);
      EXPECT_EQ(before.mlp.end, config.mlp_width);
      EXPECT_EQ(before.vocabulary.end, config.vocab_size);
    }
  }
}

}  // namespace
}  // namespace nibble
