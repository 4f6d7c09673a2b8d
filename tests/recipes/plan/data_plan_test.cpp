// What a plan counts for the data.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "nibble/core/comm/communicator.h"
#include "nibble/core/ops/meta/meta_device.h"
#include "nibble/recipes/models/open_model.h"
#include "nibble/recipes/models/tokenizers.h"
#include "nibble/recipes/plan/plan_job.h"
#include "nibble/recipes/training/training_data.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using nlohmann::json;

TEST(PlannedData, AreAllThatARunHoldsOfThem) {
  const test::TemporaryDirectory directory;
  std::string lines;
  for (int i = 0; i < 1000; ++i)
    lines += R"({"prompt": "a question", "completion": "an answer"})"
             "\n";
  std::filesystem::create_directories(directory.path() / "d");
  const std::string all = (directory.path() / "d").string(), file = all + "/a.jsonl";
  test::write_bytes(file, lines);
  const auto planned = [&](const json& data) {
    const json recipe = {{"model", {{"path", test::data_path("stories-llama").string()}}},
                         {"adapter", {{"r", 2}}},
                         {"data", data},
                         {"output", {{"dir", "none"}}}};
    return plan_job(parse_recipe(recipe.dump(), "test")).program_bytes;
  };
  const int64_t once = planned({{"train", file}});
  EXPECT_GT(once, std::ssize(lines));
  EXPECT_EQ(planned({{"train", all}}), once);
  EXPECT_EQ(planned({{"train", all + "/*.jsonl"}}), once);
  EXPECT_EQ(planned({{"train", file}, {"eval", all}}), 2 * once);
  EXPECT_EQ(planned({{"train", "none"}}), 0);
  for (const char* name : {"/p.jsonl.gz", "/p.jsonl.zst", "/p.parquet"}) {
    test::write_bytes(all + name, lines);
    EXPECT_GE(planned({{"train", all + name}}), 4 * std::ssize(lines)) << name;
  }
}

// PiSSA and OLoRA take from the weights, which then are no file's: passes that recompute do not release them.
TEST(PlannedAdapters, ThatTakeTheirStartFromTheBaseHaveCopiesOfIt) {
  const auto held = [](const json& start) {
    const json recipe = {{"model", {{"path", test::data_path("stories-llama").string()}}},
                         {"adapter", {{"r", 2}, {"init_lora_weights", start}}},
                         {"data", {{"train", "none"}}},
                         {"output", {{"dir", "none"}}}};
    const PlanJob job = plan_job(parse_recipe(recipe.dump(), "test"));
    const MetaDevice device;
    MemoryPool pool(0, device);
    SelfComm comm;
    RankContext rank{comm, pool, 1, 0};
    Decoder model = job.make_model(job.model.config, {}, nullptr, nullptr, rank);
    int64_t adapted = 0;
    model.visit_linears([&](Linear& linear) {
      if (linear.adapter()) adapted += static_cast<int64_t>(linear.weight().parameter()->value.bytes());
    });
    return std::pair(static_cast<int64_t>(pool.in_use()), adapted);
  };
  const auto [plain, none] = held(true);
  for (const char* start : {"pissa", "olora"}) {
    const auto [copied, adapted] = held(start);
    EXPECT_GE(copied - plain, adapted) << start;
    EXPECT_LE(copied - plain, adapted + adapted / 8) << start;
  }
}

// A pair of long answers is a sequence of more than data.max_length tokens.
TEST(PlannedData, PairsHaveAllTokensOfBothAnswersAndTheirPromptOnceWhereItIsComputedOnce) {
  struct Pairs {
    int count, prompt, answer;  // tokens
  };
  const auto planned = [](const std::vector<Pairs>& pairs, bool pack, int64_t microbatch_size, int64_t steps) {
    const test::TemporaryDirectory directory;
    std::string lines;
    for (const Pairs& some : pairs) {
      const auto ids = [](int count, int id) { return std::vector<int>(static_cast<size_t>(count), id); };
      const json pair = {{"prompt_ids", ids(some.prompt, 5)},
                         {"chosen_ids", ids(some.answer, 6)},
                         {"rejected_ids", ids(some.answer, 7)}};
      for (int i = 0; i < some.count; ++i) lines += pair.dump() + "\n";
    }
    test::write_bytes(directory / "pairs.jsonl", lines);
    const json json_recipe = {
        {"model", {{"path", test::data_path("stories-llama").string()}}},
        {"adapter", {{"r", 2}}},
        {"objective", {{"type", "dpo"}}},
        {"data", {{"train", (directory / "pairs.jsonl").string()}, {"max_length", 32}, {"pack", pack}}},
        {"train", {{"microbatch_size", microbatch_size}, {"steps", steps}}},
        {"output", {{"dir", "none"}}}};
    const Recipe recipe = parse_recipe(json_recipe.dump(), "test");
    const DecoderConfig config = model_config(recipe.model);
    EXPECT_EQ(plan_job(recipe).tokens, 2 * 32 * microbatch_size) << "as far as the recipe says";
    const Encoder encoder = open_encoder(tokenizer_path_of(recipe), "", config.vocab_size);
    return plan_job(recipe, TrainingData(recipe, config, encoder, Observer())).tokens;
  };
  for (const bool pack : {true, false}) {
    EXPECT_EQ(planned({{4, 4, 28}}, pack, 1, 4), 64);
    EXPECT_EQ(planned({{4, 4, 28}}, pack, 2, 4), 128);
    EXPECT_EQ(planned({{4, 20, 12}}, pack, 1, 4), 32 + 12 + 2) << "the prompt's last token predicts for each answer";
    EXPECT_EQ(planned({{1, 4, 28}, {1, 1, 3}}, pack, 2, 4), 64 + 8);
  }
  EXPECT_EQ(planned({{8, 1, 3}}, true, 1, 4), 32);
  EXPECT_EQ(planned({{8, 1, 3}}, false, 1, 4), 8);
  EXPECT_EQ(planned({{1, 4, 28}, {1, 1, 3}}, false, 2, 4000), 128) << "of steps that nobody looked at";
}

// One step is saved when it is over.
TEST(PlannedData, ACheckpointIsCopiedWhereARunGoesOnBehindIt) {
  const auto saves = [](const json& train) {
    const json recipe = {{"model", {{"path", test::data_path("stories-llama").string()}}},
                         {"adapter", {{"r", 2}}},
                         {"data", {{"train", "none"}}},
                         {"train", train},
                         {"output", {{"dir", "none"}}}};
    return plan_job(parse_recipe(recipe.dump(), "test")).saves_midway;
  };
  EXPECT_FALSE(saves({{"steps", 1}}));
  EXPECT_TRUE(saves({{"steps", 2}}));
  EXPECT_TRUE(saves({{"epochs", 1}, {"save_every", 10}}));
  EXPECT_FALSE(saves({{"steps", 10}, {"save_every", 10}}));
}

TEST(PlannedData, UnpackedSequencesOfVariedLengthsHaveTheTokensOfTheLargestMicrobatch) {
  const auto planned = [](const json& objective, int64_t steps, bool shuffle) {
    const test::TemporaryDirectory directory;
    std::string lines;
    for (const int tokens : {30, 4, 6, 8, 2, 2, 2, 2}) {
      const std::vector<int> ids(static_cast<size_t>(tokens), 5);
      lines += json{{"input_ids", ids}, {"labels", ids}, {"label", tokens % 4 / 2}}.dump() + "\n";
    }
    test::write_bytes(directory / "d.jsonl", lines);
    json json_recipe = {
        {"model", {{"path", test::data_path("stories-llama").string()}}},
        {"adapter", {{"r", 2}}},
        {"data",
         {{"train", (directory / "d.jsonl").string()}, {"max_length", 64}, {"pack", false}, {"shuffle", shuffle}}},
        {"train", {{"microbatch_size", 4}, {"steps", steps}}},
        {"output", {{"dir", "none"}}}};
    if (!objective.is_null()) json_recipe["objective"] = objective;
    const Recipe recipe = parse_recipe(json_recipe.dump(), "test");
    const DecoderConfig config = model_config(recipe.model);
    EXPECT_EQ(plan_job(recipe).tokens, 4 * 64) << "as far as the recipe says";
    const Encoder encoder = open_encoder(tokenizer_path_of(recipe), "", config.vocab_size);
    return plan_job(recipe, TrainingData(recipe, config, encoder, Observer())).tokens;
  };
  EXPECT_EQ(planned(nullptr, 2, false), 30 + 4 + 6 + 8);
  EXPECT_EQ(planned({{"type", "classification"}, {"num_labels", 2}}, 2, false), 48);
  EXPECT_LE(planned(nullptr, 1, true), 48);
  EXPECT_EQ(planned(nullptr, 4000, true), 4 * 30) << "of steps that nobody looked at";
}

}  // namespace
}  // namespace nibble
