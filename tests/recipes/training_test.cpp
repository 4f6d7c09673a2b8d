// Whole runs on a real model, through the path that `nibble train` takes.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>

#include "nibble/adapters/peft/peft_directory.h"
#include "nibble/core/base/error.h"
#include "nibble/core/base/parallel.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/io/npy.h"
#include "nibble/core/ops/int8/int8_product.h"
#include "nibble/core/train/telemetry/progress.h"
#include "nibble/recipes/models/fingerprints.h"
#include "nibble/recipes/plan/plan_job.h"
#include "nibble/recipes/train.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::TemporaryDirectory;

/// What a run logs at each step.
std::vector<double> losses(const fs::path& run, const std::string& split = "train") {
  std::vector<double> found;
  std::ifstream file(run / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const json value = json::parse(line);
    if (value["split"] == split) found.push_back(value["loss"]);
  }
  return found;
}

/// The rows of an int64 array [n, T].
std::vector<std::vector<int64_t>> rows_of(const fs::path& path) {
  const Tensor array = read_npy(path);
  std::vector<std::vector<int64_t>> rows;
  for (int64_t r = 0; r < array.dim(0); ++r) {
    const Tensor row = array.rows(r, r + 1);
    rows.emplace_back(row.data<const int64_t>(), row.data<const int64_t>() + row.numel());
  }
  return rows;
}

struct Job {
  TemporaryDirectory directory;
  std::vector<std::string> messages;
  std::vector<int64_t> evaluations_ahead;  // at every step
  int64_t stop_after = -1;
  int64_t stop_from = -1;  // the time it is asked whether to stop, from 1
  int threads = 1;

  fs::path out() const { return directory.path() / "out"; }

  void run(json recipe) {
    recipe["output"]["dir"] = out().string();
    int64_t last = 0;
    Observer observer;
    observer.on_message = [&](const std::string& line) { messages.push_back(line); };
    observer.on_step = [&](const StepReport& report) { last = report.step; };
    observer.on_evaluations_ahead = [&](int64_t tokens) { evaluations_ahead.push_back(tokens); };
    int64_t asked = 0;
    observer.stop_requested = [&] { return last == stop_after || ++asked == stop_from; };
    const Recipe read = parse_recipe(recipe.dump(), "test");
    LocalRank rank(threads, static_cast<uint64_t>(read.train.seed));
    train(read, rank.context(), observer);
  }
};

class LoraGolden : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(LoraGolden, LossesOfTwentyAdamWStepsAreTorchs) {
  const std::filesystem::path golden = test::data_path("lora-golden");
  const std::filesystem::path base = test::data_path(GetParam().second);
  Job job;
  const auto ids = rows_of(golden / "input_ids.npy"), labels = rows_of(golden / "labels.npy");
  std::string lines;
  for (size_t i = 0; i < ids.size(); ++i) lines += json{{"input_ids", ids[i]}, {"labels", labels[i]}}.dump() + "\n";
  const fs::path data = job.directory.path() / "data.jsonl";
  test::write_bytes(data, lines);
  job.run({{"model", {{"path", base.string()}, {"compute_dtype", "f32"}}},
           {"adapter", {{"type", "lora"}, {"path", (golden / "adapter-init").string()}}},
           {"data", {{"train", data.string()}, {"format", "tokens"}, {"shuffle", false}, {"pack", false}}},
           {"train", {{"steps", 21}, {"microbatch_size", ids.size()}, {"max_grad_norm", 0}}},
           {"optimizer", {{"lr", 5e-3}, {"weight_decay", 0.01}, {"schedule", "constant"}}}});
  const json report = json::parse(std::ifstream(golden / "report.json"));
  const std::vector<double> want = report[GetParam().first]["losses"], got = losses(job.out());
  ASSERT_EQ(got.size(), 21u);
  ASSERT_EQ(want.size(), 21u);
  for (size_t k = 0; k < want.size(); ++k) EXPECT_NEAR(got[k], want[k], 1e-3 * want[k]) << "step " << k + 1;
}

INSTANTIATE_TEST_SUITE_P(Bases, LoraGolden,
                         testing::Values(std::pair{"lora_fp32", "stories-llama"},
                                         std::pair{"qlora_nf4_dq", "stories-llama-nf4-dq"}),
                         [](const auto& which) { return std::string(which.param.first); });

// Of 60 tokens each after steps 2, 4 and 5: a third of a step's arithmetic, half of one where the weights are frozen.
TEST(EvaluationsAhead, AreReportedInTokensOfTraining) {
  json recipe = {{"model", {{"path", test::data_path("stories-llama").string()}, {"compute_dtype", "f32"}}},
                 {"data", {{"format", "tokens"}}},
                 {"train", {{"steps", 5}, {"eval_every", 2}, {"gradient_checkpointing", "none"}}}};
  for (const bool adapter : {false, true}) {
    Job job;
    const std::vector<int64_t> ids = {1, 9, 8, 7, 6, 5, 9, 8, 7, 6, 5, 4};
    const std::string line = json{{"input_ids", ids}, {"labels", ids}}.dump() + "\n";
    for (const char* name : {"train", "eval"}) {
      const fs::path path = job.directory.path() / (std::string(name) + ".jsonl");
      test::write_bytes(path, line + line + line + line + line);
      recipe["data"][name] = path.string();
    }
    if (adapter) recipe["adapter"] = {{"r", 2}};
    job.run(recipe);
    const std::vector<int64_t> full = {60, 60, 40, 40, 20}, frozen = {90, 90, 60, 60, 30};
    EXPECT_EQ(job.evaluations_ahead, adapter ? frozen : full);
  }
}

/// The ways to train, all with everything that could break resuming: dropout, noise, packing, shuffling, accumulation,
/// warm-up, evaluation, several epochs.
class EveryWay : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()).ends_with("int8") && ops::int8_levels() == 0) GTEST_SKIP() << "no products in 8 bits";
  }

  void make_recipe(Job& job) {
    const fs::path base = test::data_path("stories-llama"), text = test::data_path("stories");
    recipe_ = {
        {"model", {{"path", base.string()}}},
        {"data",
         {{"train", (job.directory.path() / "stories.jsonl").string()}, {"eval_fraction", 0.2}, {"max_length", 48}}},
        {"train", {{"steps", 7}, {"accumulate", 3}, {"seed", 11}, {"eval_every", 2}, {"neftune_noise_alpha", 5}}},
        {"optimizer", {{"lr", 2e-3}, {"warmup_steps", 2}, {"weight_decay", 0.01}}}};
    const std::string kind = GetParam();
    if (kind == "pretrain") {  // with a tokenizer that the run trains
      recipe_["model"] = {{"init", (base / "config.json").string()}};
    } else if (kind != "full") {
      recipe_["adapter"] = {{"r", 4}, {"lora_alpha", 8}, {"lora_dropout", 0.1}};
      recipe_["optimizer"]["loraplus_lr_ratio"] = 2;
    }
    if (kind.starts_with("qlora")) recipe_["model"]["quantize"] = "nf4";
    if (kind.ends_with("int8")) recipe_["model"]["compute_dtype"] = "int8";
    write_stories(text / "stories.txt", job.directory.path() / "stories.jsonl");
  }

  /// Every other paragraph of the text as one document.
  static void write_stories(const fs::path& text, const fs::path& to) {
    std::ifstream file(text);
    std::string lines;
    int64_t count = 0;
    for (std::string line; std::getline(file, line);) {
      if (line.size() > 20 && line.find("<|") == std::string::npos && count++ % 2 == 0)
        lines += json{{"text", line}}.dump() + "\n";
    }
    test::write_bytes(to, lines);
  }

  /// The bytes a run leaves for others.
  static std::map<std::string, std::string> results(const Job& job) {
    std::map<std::string, std::string> files;
    for (const char* name : {"adapter", "model"}) {
      if (!fs::exists(job.out() / name)) continue;
      for (const auto& entry : fs::directory_iterator(job.out() / name)) {
        files[std::string(name) + "/" + entry.path().filename().string()] = test::read_bytes(entry.path());
      }
    }
    return files;
  }
  /// metrics.jsonl, or samples.jsonl, without what the clock and the process say.
  static std::string metrics(const Job& job, const char* file = "metrics.jsonl") {
    const std::regex timed(R"re(,"(tokens_per_second|peak_memory_bytes|seconds)":[0-9.e+-]+)re");
    return std::regex_replace(test::read_bytes(job.out() / file), timed, "");
  }

  json recipe_;
};

TEST_P(EveryWay, StoppedAtStepKAndResumedIsTheUninterruptedRunBitForBit) {
  Job whole;
  make_recipe(whole);
  whole.run(recipe_);
  const auto want = results(whole);
  ASSERT_FALSE(want.empty());
  for (const int64_t stop : {1, 2, 5}) {
    Job parts;
    make_recipe(parts);
    parts.stop_after = stop;
    EXPECT_THROW(parts.run(recipe_), Interrupted);
    EXPECT_TRUE(results(parts).empty());
    parts.stop_after = -1;
    parts.run(recipe_);
    EXPECT_EQ(metrics(parts), metrics(whole)) << "stopped after " << stop;
    EXPECT_TRUE(results(parts) == want) << "stopped after " << stop;
  }
}

// After a step, before a batch of an evaluation, at a token of a sample; the fifth step is in the second epoch.
TEST_P(EveryWay, StoppedWhereverItIsAskedAndResumedIsTheUninterruptedRunBitForBit) {
  const auto make = [&](Job& job) {
    make_recipe(job);
    recipe_["output"]["keep_best"] = true;
    recipe_["train"].update({{"steps", 5}, {"early_stop", 3}, {"samples", 1}});
  };
  Job whole;
  make(whole);
  whole.run(recipe_);
  const auto want = results(whole);
  const std::string samples = metrics(whole, "samples.jsonl");
  bool stopped = true;
  for (int64_t from = 1; stopped; from += 1 + from / 2) {
    Job parts;
    make(parts);
    parts.stop_from = from;
    stopped = false;
    try {
      parts.run(recipe_);
    } catch (const Interrupted&) {
      stopped = true;
      EXPECT_TRUE(results(parts).empty());
    }
    parts.stop_from = -1;
    if (stopped) parts.run(recipe_);
    EXPECT_EQ(metrics(parts), metrics(whole)) << "stopped at " << from;
    EXPECT_EQ(metrics(parts, "samples.jsonl"), samples) << "stopped at " << from;
    EXPECT_TRUE(results(parts) == want) << "stopped at " << from;
  }
}

TEST_P(EveryWay, OneThreadAndThreeGiveTheSameBits) {
  Job one, three;
  make_recipe(one);
  one.run(recipe_);
  make_recipe(three);
  three.threads = 3;
  three.run(recipe_);
  EXPECT_EQ(metrics(three), metrics(one));
  EXPECT_TRUE(results(three) == results(one));
}

class FineTuning : public EveryWay {};

TEST_P(FineTuning, TheBannerSaysHowLongItTakesAtLeast) {
  Job job;
  make_recipe(job);
  job.stop_from = 1;
  recipe_["train"]["steps"] = 10'000'000;
  EXPECT_THROW(job.run(recipe_), Interrupted);
  const auto says_time = [](const std::string& line) { return line.find("; time: at least ") != line.npos; };
  const bool has_peak = recipe_["model"].value("compute_dtype", "") != "int8";
  EXPECT_EQ(std::ranges::count_if(job.messages, says_time), has_peak ? 1 : 0);
}

TEST_P(FineTuning, OtherDataOrBaseIsRefusedWhenARunGoesOn) {
  Job job;
  make_recipe(job);
  job.stop_after = 2;
  EXPECT_THROW(job.run(recipe_), Interrupted);
  const auto refusal = [&]() -> std::string {
    try {
      job.run(recipe_);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "ran";
  };
  const std::string before = metrics(job);
  const fs::path data = job.directory.path() / "stories.jsonl";
  const std::string lines = test::read_bytes(data);
  test::write_bytes(data, lines + "{\"text\": \"One more.\"}\n");
  EXPECT_NE(refusal().find("stories.jsonl\" has other content"), std::string::npos) << refusal();
  test::write_bytes(data, lines);
  recipe_["data"]["max_length"] = 40;
  EXPECT_NE(refusal().find("data.max_length was 48 and is 40; "), std::string::npos) << refusal();
  recipe_["data"]["max_length"] = 48;
  const fs::path base = job.directory.path() / "other-base";
  fs::create_directory(base);  // not with the asset's permissions
  fs::copy(recipe_["model"]["path"].get<std::string>(), base);
  for (const auto& entry : fs::directory_iterator(base)) {
    fs::permissions(entry.path(), fs::perms::owner_all);
  }
  std::string weights = test::read_bytes(base / "model.safetensors");
  weights[weights.size() - 2] ^= 1;
  test::write_bytes(base / "model.safetensors", weights);
  recipe_["model"]["path"] = base.string();
  EXPECT_NE(refusal().find("model.safetensors of model.path has other content"), std::string::npos) << refusal();
  recipe_["model"]["path"] = test::data_path("stories-llama").string();
  recipe_["optimizer"]["lr"] = 1e-3;
  EXPECT_NE(refusal().find("optimizer.lr was 0.002 and is 0.001"), std::string::npos) << refusal();
  EXPECT_EQ(metrics(job), before) << "nothing changed";
}

// A bound for gross faults only; what rounding may cost a product is in tests/core/ops/int8/int8_product_test.cpp.
TEST_P(FineTuning, InEightBitsLossesAreNearThoseInFloatsAndTheAdapterSaysSo) {
  if (std::string(GetParam()) == "full" || ops::int8_levels() == 0) GTEST_SKIP() << "has no products in 8 bits";
  Job floats, bytes;
  make_recipe(floats);
  floats.run(recipe_);
  make_recipe(bytes);
  recipe_["model"]["compute_dtype"] = "int8";
  bytes.run(recipe_);
  const std::vector<double> want = losses(floats.out()), got = losses(bytes.out());
  ASSERT_EQ(got.size(), want.size());
  EXPECT_NE(got, want);
  for (size_t k = 0; k < want.size(); ++k) EXPECT_NEAR(got[k], want[k], 0.01 * want[k]) << "step " << k + 1;
  EXPECT_TRUE(trained_in_int8(bytes.out() / "adapter"));
  EXPECT_FALSE(trained_in_int8(floats.out() / "adapter"));
}

INSTANTIATE_TEST_SUITE_P(Training, EveryWay,
                         testing::Values("full", "lora", "qlora", "pretrain", "lora_int8", "qlora_int8"),
                         [](const auto& which) { return std::string(which.param); });
INSTANTIATE_TEST_SUITE_P(Training, FineTuning, testing::Values("full", "lora", "qlora"),
                         [](const auto& which) { return std::string(which.param); });

TEST(Pretraining, LeavesTheTokenizerThatItTrained) {
  const fs::path base = test::data_path("stories-llama");
  Job job;
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines += json{{"text", "Story " + std::to_string(i) + " is about a small blue hat."}}.dump() + "\n";
  const fs::path data = job.directory.path() / "stories.jsonl";
  test::write_bytes(data, lines);
  job.run({{"model", {{"init", (base / "config.json").string()}}},
           {"data", {{"train", data.string()}, {"max_length", 32}}},
           {"train", {{"steps", 1}}}});
  const std::string trained = test::read_bytes(job.out() / "tokenizer" / "tokenizer.model");
  EXPECT_FALSE(trained.empty());
  EXPECT_EQ(test::read_bytes(job.out() / "model" / "tokenizer.model"), trained);
}

// Whoever generates with the model reads these files.
TEST(FullRun, LeavesAModelThatEndsWhereTheTokenizerDoes) {
  Job job;
  const fs::path base = test::data_path("stories-llama"), tokenizer = job.directory.path() / "tokenizer";
  const fs::path data = job.directory.path() / "stories.jsonl";
  fs::create_directory(tokenizer);
  fs::copy_file(base / "tokenizer.model", tokenizer / "tokenizer.model");
  test::write_bytes(tokenizer / "tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "<s>"})");
  test::write_bytes(data, json{{"text", "A small blue hat."}}.dump() + "\n");
  job.run({{"model", {{"path", base.string()}, {"tokenizer", tokenizer.string()}}},
           {"data", {{"train", data.string()}, {"max_length", 32}}},
           {"train", {{"steps", 1}}}});
  EXPECT_EQ(json::parse(std::ifstream(job.out() / "model/config.json"))["eos_token_id"], 1);
  EXPECT_EQ(json::parse(std::ifstream(job.out() / "model/generation_config.json"))["eos_token_id"], json({1, 2}));
}

TEST(WeightsOfData, AreToldByWhatAnEpochTakes) {
  Job job;
  const std::string rows = json{{"input_ids", {5, 6, 7}}}.dump() + "\n" + json{{"input_ids", {8, 9, 10}}}.dump() + "\n";
  for (const char* name : {"half.jsonl", "twice.jsonl"}) test::write_bytes(job.directory.path() / name, rows);
  const auto source = [&](const char* name, double weight) {
    return json{{"path", (job.directory.path() / name).string()}, {"weight", weight}};
  };
  job.run({{"model", {{"path", test::data_path("stories-llama").string()}}},
           {"adapter", {{"r", 2}}},
           {"data", {{"train", {source("half.jsonl", 0.5), source("twice.jsonl", 2)}}, {"format", "tokens"}}},
           {"train", {{"steps", 1}}}});
  const auto told = [&](const std::string& begin) {
    return std::ranges::any_of(job.messages, [&](const std::string& line) { return line.starts_with(begin); });
  };
  EXPECT_TRUE(told("training data: 4 samples, 12 tokens, "));
  EXPECT_TRUE(told("an epoch takes 5 samples, 15 tokens, by the weights in data.train"));
}

// With packing a sequence has all tokens of an epoch at most, without it those of the longest sample.
TEST(PlannedMemory, CountsNoMoreTokensThanTheDataFill) {
  const std::string record = json{{"input_ids", {1, 9, 8, 7, 6, 5, 9, 8, 7, 6, 5, 4}}}.dump() + "\n";
  const auto planned = [&](bool pack, int64_t max_length) {
    Job job;
    const fs::path data = job.directory.path() / "data.jsonl";
    test::write_bytes(data, record + record + record);
    const json twice = {{"path", data.string()}, {"weight", 2}};
    job.run(
        {{"model", {{"path", test::data_path("stories-llama").string()}, {"compute_dtype", "f32"}}},
         {"adapter", {{"r", 2}}},
         {"data", {{"train", json::array({twice})}, {"format", "tokens"}, {"pack", pack}, {"max_length", max_length}}},
         {"train", {{"steps", 1}}}});
    const auto line = std::ranges::find_if(
        job.messages, [](const std::string& message) { return message.starts_with("planned memory: "); });
    return line == job.messages.end() ? "none" : *line;
  };
  EXPECT_EQ(planned(true, 1 << 24), planned(true, 72));
  EXPECT_EQ(planned(false, 1 << 24), planned(false, 12));
  EXPECT_NE(planned(true, 72), "none");
}

// A tokenizer of `count` words, "w0" and so on.
void write_words(const fs::path& path, int64_t count) {
  json words;
  for (int64_t id = 0; id < count; ++id) words["w" + std::to_string(id)] = id;
  const json tokenizer = {{"added_tokens", json::array()},
                          {"normalizer", nullptr},
                          {"pre_tokenizer", {{"type", "WhitespaceSplit"}}},
                          {"post_processor", nullptr},
                          {"decoder", nullptr},
                          {"model", {{"type", "WordLevel"}, {"vocab", words}, {"unk_token", "w0"}}}};
  test::write_bytes(path, tokenizer.dump());
}

// Transformers multiplies what experts read by noise, if config.json says so, and draws PhiMoE's experts.
TEST(RouterNoise, IsWarnedOfInOneLine) {
  const auto warnings = [](const std::string& type, double noise) {
    Job job;
    const fs::path model = job.directory.path() / "model", data = job.directory.path() / "data.jsonl";
    fs::copy(fs::path(kSourceDir) / "tests/data/goldens/model_types" / type / "model", model);
    json config = json::parse(std::ifstream(model / "config.json"));
    config["router_jitter_noise"] = noise;
    test::write_bytes(model / "config.json", config.dump());
    test::write_bytes(data, json{{"input_ids", {5, 6, 7, 8}}}.dump() + "\n");
    job.run({{"model", {{"path", model.string()}}},
             {"adapter", {{"r", 2}}},
             {"data", {{"train", data.string()}, {"format", "tokens"}}},
             {"train", {{"steps", 1}}}});
    std::erase_if(job.messages, [](const std::string& line) { return !line.starts_with("warning: "); });
    return job.messages;
  };
  EXPECT_EQ(warnings("minimax_m2", 0), std::vector<std::string>());
  const std::vector<std::string> some = warnings("minimax_m2", 0.25), drawn = warnings("phimoe", 0);
  ASSERT_EQ(some.size(), 1u);
  EXPECT_NE(some[0].find("(router_jitter_noise is 0.25), nibble does not"), std::string::npos) << some[0];
  ASSERT_EQ(drawn.size(), 1u);
  EXPECT_NE(drawn[0].find("draws the experts of phimoe at random, nibble does not"), std::string::npos) << drawn[0];
}

class AddedTokens : public ::testing::TestWithParam<json> {};

TEST_P(AddedTokens, AreTrainedAndSavedWithTheAdapter) {
  constexpr int64_t kRows = 61, kAdded = 2;  // of the model, beyond it
  Job job;
  const fs::path words = job.directory.path() / "tokenizer.json", data = job.directory.path() / "data.jsonl";
  write_words(words, kRows + kAdded);
  test::write_bytes(data, json{{"text", "w5 w61 w7 w62 w61"}}.dump() + "\n");
  json adapter = {{"r", 2}};
  if (!GetParam().is_null()) adapter["trainable_token_indices"] = GetParam();
  const json recipe = {{"model",
                        {{"path", (fs::path(kSourceDir) / "tests/data/goldens/peft_llama/base").string()},
                         {"tokenizer", words.string()}}},
                       {"adapter", adapter},
                       {"data", {{"train", data.string()}}},
                       {"optimizer", {{"lr", 1e-2}}},
                       {"train", {{"steps", 3}}}};
  job.run(recipe);
  EXPECT_TRUE(std::ranges::any_of(job.messages, [](const std::string& line) {
    return line.find("2 tokens were added to the tokenizer: each") != std::string::npos;
  }));
  const PeftAdapter saved = read_peft_directory(job.out() / "adapter");
  EXPECT_EQ(saved.options.trainable_token_indices.size(), 2u);
  for (const auto& [table, ids] : saved.options.trainable_token_indices) {
    EXPECT_NE(table, "");  // PEFT would not find it
    EXPECT_EQ(ids, (std::vector<int64_t>{kRows, kRows + 1})) << table;
  }
  for (const char* table : {"model.embed_tokens", "lm_head"}) {
    const auto rows = saved.tensors.find(std::string(table) + ".token_adapter.trainable_tokens_delta");
    ASSERT_NE(rows, saved.tensors.end()) << table;
    ASSERT_EQ(rows->second.dim(0), kAdded);
    const Tensor first = rows->second.rows(0, 1), second = rows->second.rows(1, 2);
    EXPECT_TRUE(std::ranges::any_of(first.span<const float>(), [](float x) { return x != 0; })) << table;
    // They start alike, as the mean of the others: what tells them apart was learnt.
    EXPECT_NE(std::memcmp(first.raw(), second.raw(), first.bytes()), 0) << table;
  }
}

INSTANTIATE_TEST_SUITE_P(Named, AddedTokens, ::testing::Values(json(), json{61, 62}, json{{"embed_tokens", {61, 62}}}));

TEST(TokensBehindTheVocabulary, NoneBehindThoseOfTheTokenizerIsPlanned) {
  const TemporaryDirectory directory;
  const fs::path words = directory.path() / "tokenizer.json";
  write_words(words, 63);
  const auto planned = [&](int64_t id) {
    const json recipe = {{"model",
                          {{"path", (fs::path(kSourceDir) / "tests/data/goldens/peft_llama/base").string()},
                           {"tokenizer", words.string()}}},
                         {"adapter", {{"trainable_token_indices", {id}}}},
                         {"data", {{"train", "none"}}},
                         {"output", {{"dir", "none"}}}};
    return plan_job(parse_recipe(recipe.dump(), "test")).model.config.vocab_size;
  };
  EXPECT_EQ(planned(62), 63);
  EXPECT_NE(test::error_of<UsageError>([&] { planned(63); }).find("outside the vocabulary of 63"), std::string::npos);
}

}  // namespace
}  // namespace nibble
