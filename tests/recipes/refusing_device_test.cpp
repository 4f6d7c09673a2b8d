// Whole recipes on a device whose elements the host cannot read: training, evaluation, checkpoints, several ranks.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "nibble/core/base/parallel.h"
#include "nibble/core/base/rank_context.h"
#include "nibble/parallel/comm/thread_comm.h"
#include "nibble/recipes/models/init_model.h"
#include "nibble/recipes/train.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/core/ops/refusing_device.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kConfig = R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 96, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu", "bos_token_id": 1,
    "eos_token_id": 2, "initializer_range": 0.2, "tie_word_embeddings": false})";

struct RefusedRun {
  const char* name;
  json changes;
  int ranks = 1;
  const char* dtype = "bf16";
};

const std::vector<RefusedRun>& refused_runs() {
  const json lora = {{"r", 4}, {"lora_dropout", 0.1}};
  const auto adapter = [&](json with) {
    with.update(lora);
    return json{{"adapter", with}};
  };
  const auto on = [&](const json& changes, const json& parallel) {
    json result = changes;
    result["parallel"] = parallel;
    return result;
  };
  const json full = json::object();
  static const std::vector<RefusedRun> all = {
      {"Lora", adapter({})},
      {"Qlora", adapter({}), 1, "nf4"},
      {"Rslora", adapter({{"use_rslora", true}})},
      {"Dora", adapter({{"use_dora", true}}), 1, "nf4"},
      {"Pissa", adapter({{"init_lora_weights", "pissa"}})},
      {"Tokens", adapter({{"trainable_token_indices", {5, 9}}})},
      {"SavedModules", adapter({{"modules_to_save", {"lm_head"}}})},
      {"Full", full},
      {"Copies", on(adapter({}), {{"replicate", 2}}), 2},
      {"ShardedFull", on(full, {{"shard", 2}}), 2},
      {"ShardedQlora", on(adapter({}), {{"shard", 2}}), 2, "nf4"},
      {"Zero1", on(full, {{"shard", 2}, {"zero", 1}}), 2},
      {"PipelinedQlora", on(adapter({}), {{"pipeline", 2}}), 2, "nf4"},
      {"TensorLora", on(adapter({}), {{"tensor", 2}}), 2},
      {"TensorFull", on(full, {{"tensor", 2}}), 2},
  };
  return all;
}

class Refusing : public testing::TestWithParam<size_t> {
 protected:
  /// Every file of tensors that the recipe leaves, by its path.
  std::map<std::string, std::string> trained(const RefusedRun& of, bool refuses) {
    const fs::path out = directory_ / (refuses ? "there" : "here");
    json result = {{"model", {{"path", (directory_ / "base").string()}, {"compute_dtype", "f32"}}},
                   {"data",
                    {{"train", (directory_ / "data.jsonl").string()},
                     {"eval", (directory_ / "data.jsonl").string()},
                     {"format", "tokens"},
                     {"max_length", 24}}},
                   {"train", {{"steps", 3}, {"accumulate", 4}, {"save_every", 1}, {"eval_every", 2}}},
                   {"output", {{"dir", out.string()}}}};
    result.merge_patch(of.changes);
    const Recipe recipe = parse_recipe(result.dump(), "test");
    run_on_threads(of.ranks, [&](Communicator& comm) {
      const test::RefusingDevice device;
      MemoryPool pool(0, refuses ? static_cast<const Device&>(device) : cpu_device());
      RankContext rank{comm, pool, 1, 0};
      set_threads(1);
      train(recipe, rank, {});
    });
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(out)) {
      if (entry.path().extension() != ".safetensors") continue;
      files[entry.path().lexically_relative(out).string()] = test::read_bytes(entry.path());
    }
    return files;
  }

  test::TemporaryDirectory directory_;
};

TEST_P(Refusing, ARecipeLeavesTheSameBytes) {
  const RefusedRun& of = refused_runs()[GetParam()];
  test::write_bytes(directory_ / "config.json", kConfig);
  init_model(
      {.config = (directory_ / "config.json").string(), .out = (directory_ / "base").string(), .dtype = of.dtype});
  std::string lines;
  for (int i = 0; i < 8; ++i) {
    json ids = json::array();
    for (int t = 0; t < 20; ++t) ids.push_back(3 + (7 * i + t * t) % 90);
    lines += json{{"input_ids", ids}, {"labels", ids}}.dump() + "\n";
  }
  test::write_bytes(directory_ / "data.jsonl", lines);
  const auto here = trained(of, false), there = trained(of, true);
  EXPECT_GE(here.size(), 2u);
  ASSERT_EQ(here.size(), there.size());
  for (const auto& [name, bytes] : here) EXPECT_TRUE(there.at(name) == bytes) << name;
}

INSTANTIATE_TEST_SUITE_P(All, Refusing, testing::Range<size_t>(0, refused_runs().size()),
                         [](const auto& which) { return refused_runs()[which.param].name; });

}  // namespace
}  // namespace nibble
