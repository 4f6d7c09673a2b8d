// Whole runs on several ranks (threads of this process): every way to train in every layout gives what one rank gives.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <tuple>

#include "nibble/core/base/error.h"
#include "nibble/core/base/parallel.h"
#include "nibble/core/base/rank_context.h"
#include "nibble/core/io/safetensors.h"
#include "nibble/parallel/comm/thread_comm.h"
#include "nibble/recipes/train.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::TemporaryDirectory;

/// What a run leaves, as far as the layout must not change it.
struct Outcome {
  std::vector<double> losses, norms;
  std::string weights;  ///< bytes of the adapter's or the model's safetensors file
};

Outcome outcome_of(const fs::path& out) {
  Outcome outcome;
  std::ifstream file(out / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const json value = json::parse(line);
    if (value["split"] != "train") continue;
    outcome.losses.push_back(value["loss"]);
    outcome.norms.push_back(value["grad_norm"]);
  }
  const fs::path adapter = out / "adapter" / "adapter_model.safetensors";
  outcome.weights = test::read_bytes(fs::exists(adapter) ? adapter : out / "model" / "model.safetensors");
  return outcome;
}

/// A small real model, real text, and everything that could depend on the layout: dropout, packing, shuffling,
/// accumulation, warm-up, clipping, weight decay, evaluation.
class Layouts : public testing::Test {
 protected:
  void SetUp() override {
    base_ = test::find_asset("stories260K-hf");
    const fs::path text = test::find_asset("data-tinystories-sample");
    if (base_.empty() || text.empty()) GTEST_SKIP() << "assets are not here";
    std::ifstream file(text / "tinystories_sample.txt");
    std::string lines, all((std::istreambuf_iterator<char>(file)), {});
    for (size_t at = 0; at + 200 < all.size() && at < 40 * 200; at += 200) {
      lines += json{{"text", all.substr(at, 200)}}.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
    }
    test::write_bytes(directory_ / "text.jsonl", lines);
  }

  json recipe(const std::string& mode) const {
    json made = {{"model", {{"path", base_.string()}, {"compute_dtype", "f32"}}},
                 {"data",
                  {{"train", (directory_ / "text.jsonl").string()},
                   {"format", "text"},
                   {"eval_fraction", 0.1},
                   {"max_length", 48}}},
                 {"train",
                  {{"steps", 3},
                   {"accumulate", 4},
                   {"seed", 11},
                   {"max_grad_norm", 0.5},
                   {"gradient_sum", "tree"},
                   {"gradient_checkpointing", "none"}}},
                 {"optimizer", {{"lr", 2e-3}, {"weight_decay", 0.01}}}};
    if (mode == "lora" || mode == "qlora") {
      made["adapter"] = {{"r", 4}, {"lora_alpha", 8}, {"lora_dropout", 0.1}};
    }
    if (mode == "qlora") made["model"]["quantize"] = "nf4";
    if (mode == "pretrain") {
      made["model"] = {
          {"init", (base_ / "config.json").string()}, {"tokenizer", base_.string()}, {"compute_dtype", "f32"}};
    }
    return made;
  }

  Outcome run(json wanted, int ranks, const std::string& name, int64_t stop_after = -1, int delay_us = 0) {
    const fs::path out = directory_ / name;
    wanted["output"]["dir"] = out.string();
    const Recipe read = parse_recipe(wanted.dump(), "test");
    run_on_threads(ranks, [&](Communicator& comm) {
      comm.settings().timeout_seconds = 60;
      comm.settings().max_delay_us = delay_us;
      MemoryPool pool;
      RankContext rank{comm, pool, 1, static_cast<uint64_t>(read.train.seed)};
      set_threads(1);
      int64_t last = 0;
      Observer observer;
      observer.on_step = [&](const StepReport& report) { last = report.step; };
      // Only one rank hears the signal.
      observer.stop_requested = [&] { return last == stop_after && comm.rank() == comm.size() - 1; };
      try {
        train(read, rank, observer);
      } catch (const Interrupted&) {
      }
    });
    return stop_after < 0 ? outcome_of(out) : Outcome();
  }

  TemporaryDirectory directory_;
  fs::path base_;
};

void expect_same_bits(const Outcome& got, const Outcome& want) {
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.norms, want.norms);
  EXPECT_TRUE(got.weights == want.weights) << "the trained weights differ";
}

struct Case {
  const char* name;
  int ranks;
  json parallel;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"Copies2", 2, {{"replicate", 2}}},
      {"Copies4", 4, {{"replicate", 4}}},
      {"Zero1Over2", 2, {{"shard", 2}, {"zero", 1}}},
      {"Zero2Over4", 4, {{"shard", 4}, {"zero", 2}}},
      {"Zero3Over2", 2, {{"shard", 2}}},
      {"Zero3Over4", 4, {{"shard", 4}}},
      {"Zero3KeepsGathered", 2, {{"shard", 2}, {"reshard_after_forward", false}, {"prefetch", 0}}},
      {"Hybrid2x2", 4, {{"shard", 2}, {"replicate", 2}}},
      {"AdaptersCutToo", 2, {{"shard", 2}, {"shard_adapters", true}}},
  };
  return all;
}

class SameBits : public Layouts, public testing::WithParamInterface<std::tuple<const char*, size_t>> {};

TEST_P(SameBits, AsOneRank) {
  const auto& [mode, which] = GetParam();
  const Case& layout = cases()[which];
  json wanted = recipe(mode);
  const Outcome one = run(wanted, 1, "one");
  wanted["parallel"] = layout.parallel;
  expect_same_bits(run(wanted, layout.ranks, "several"), one);
  ASSERT_EQ(one.losses.size(), 3u);
  EXPECT_GT(one.norms.back(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    All, SameBits, testing::Combine(testing::Values("full", "lora", "qlora", "pretrain"), testing::Range<size_t>(0, 9)),
    [](const auto& which) { return std::string(std::get<0>(which.param)) + cases()[std::get<1>(which.param)].name; });

TEST_F(Layouts, ThreeRanksAndUnevenStepsGiveTheSameNumbers) {
  for (const char* mode : {"full", "qlora"}) {
    json wanted = recipe(mode);
    wanted["train"]["accumulate"] = 5;
    const Outcome one = run(wanted, 1, std::string("one-") + mode);
    for (const char* axis : {"replicate", "shard"}) {
      wanted["parallel"] = {{axis, 3}};
      const Outcome three = run(wanted, 3, std::string(axis) + "-" + mode);
      ASSERT_EQ(three.losses.size(), one.losses.size());
      for (size_t i = 0; i < one.losses.size(); ++i) {
        EXPECT_NEAR(three.losses[i], one.losses[i], 1e-5) << mode << " " << axis;
        EXPECT_NEAR(three.norms[i], one.norms[i], 1e-4 * one.norms[i]) << mode << " " << axis;
      }
    }
  }
}

const std::vector<Case>& staged() {
  static const std::vector<Case> all = {
      {"Naive2", 2, {{"pipeline", 2}, {"schedule", "naive"}}},
      {"GPipe3", 3, {{"pipeline", 3}, {"schedule", "gpipe"}, {"microbatches", 3}}},
      {"OneFOneB4", 4, {{"pipeline", 4}, {"schedule", "1f1b"}}},
      {"ByHand", 2, {{"pipeline", 2}, {"stages", {1, 4}}}},
      {"TwoColumns", 4, {{"pipeline", 2}, {"replicate", 2}}},
  };
  return all;
}

class Stages : public Layouts, public testing::WithParamInterface<std::tuple<const char*, size_t>> {};

TEST_P(Stages, GiveTheLossesOfOneRank) {
  const auto& [mode, which] = GetParam();
  const Case& layout = staged()[which];
  json wanted = recipe(mode);
  const Outcome one = run(wanted, 1, "one");
  wanted["parallel"] = layout.parallel;
  const Outcome several = run(wanted, layout.ranks, "several");
  ASSERT_EQ(several.losses.size(), one.losses.size());
  for (size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(several.losses[i], one.losses[i], 2e-5) << "step " << i + 1;
    EXPECT_NEAR(several.norms[i], one.norms[i], 2e-4 * one.norms[i]) << "step " << i + 1;
  }
  EXPECT_EQ(several.weights.size(), one.weights.size());
}

INSTANTIATE_TEST_SUITE_P(
    All, Stages, testing::Combine(testing::Values("full", "lora", "qlora", "pretrain"), testing::Range<size_t>(0, 5)),
    [](const auto& which) { return std::string(std::get<0>(which.param)) + staged()[std::get<1>(which.param)].name; });

TEST_F(Layouts, StagesOfShardsGiveTheLossesOfOneRank) {
  json wanted = recipe("qlora");
  const Outcome one = run(wanted, 1, "one");
  for (const bool cut : {false, true}) {
    wanted["parallel"] = {{"pipeline", 2}, {"shard", 2}, {"shard_adapters", cut}};
    const Outcome several = run(wanted, 4, cut ? "cut" : "whole");
    ASSERT_EQ(several.losses.size(), one.losses.size());
    for (size_t i = 0; i < one.losses.size(); ++i) EXPECT_NEAR(several.losses[i], one.losses[i], 2e-5);
  }
}

TEST_F(Layouts, RandomDelaysChangeNothing) {
  json wanted = recipe("full");
  wanted["parallel"] = {{"shard", 2}, {"replicate", 2}};
  const Outcome calm = run(wanted, 4, "calm");
  expect_same_bits(run(wanted, 4, "delayed", -1, 3000), calm);
}

TEST_F(Layouts, ARunStoppedOnOneLayoutGoesOnOnAnother) {
  for (const char* mode : {"full", "lora"}) {
    json wanted = recipe(mode);
    wanted["train"]["steps"] = 6;
    const Outcome one = run(wanted, 1, std::string("straight-") + mode);
    const std::string name = std::string("resumed-") + mode;
    wanted["parallel"] = {{"shard", 4}};
    run(wanted, 4, name, 1);
    wanted["parallel"] = {{"shard", 2}, {"zero", 1}};
    run(wanted, 2, name, 2);
    wanted["parallel"] = json::object();
    run(wanted, 1, name, 4);
    wanted["parallel"] = {{"shard", 2}, {"replicate", 2}};
    expect_same_bits(run(wanted, 4, name), one);
  }
}

TEST_F(Layouts, ABudgetThatOneRankRefusesIsEnoughForFour) {
  json wanted = recipe("full");
  wanted["output"]["dir"] = (directory_ / "budget").string();
  wanted["train"]["microbatch_size"] = 1;
  const auto peaks = [&](int ranks, size_t budget, const json& parallel) {
    json copy = wanted;
    copy["parallel"] = parallel;
    copy["output"]["force"] = true;
    copy["output"]["resume"] = "never";
    const Recipe read = parse_recipe(copy.dump(), "test");
    std::vector<size_t> found(static_cast<size_t>(ranks));
    run_on_threads(ranks, [&](Communicator& comm) {
      MemoryPool pool(budget);
      RankContext rank{comm, pool, 1, 11};
      set_threads(1);
      train(read, rank, {});
      found[static_cast<size_t>(comm.rank())] = pool.peak();
    });
    return *std::max_element(found.begin(), found.end());
  };
  const size_t alone = peaks(1, 0, json::object());
  const size_t budget = alone * 3 / 5;
  EXPECT_THROW(peaks(1, budget, json::object()), IoError);
  EXPECT_LE(peaks(4, budget, {{"shard", 4}}), budget);
  const Outcome sharded = outcome_of(directory_ / "budget");
  EXPECT_LE(peaks(4, budget, {{"pipeline", 4}, {"schedule", "naive"}}), budget);
  EXPECT_EQ(sharded.losses, run(recipe("full"), 1, "free").losses);
}

TEST_F(Layouts, DegreesThatDoNotFitTheRanksAreRefused) {
  json wanted = recipe("lora");
  wanted["parallel"] = {{"shard", 2}, {"replicate", 2}};
  const std::string message = test::error_of<UsageError>([&] { run(wanted, 2, "refused"); });
  EXPECT_NE(message.find("= 4, the job has 2 ranks"), std::string::npos) << message;
  EXPECT_FALSE(fs::exists(directory_ / "refused"));
}

/// Bytes that every rank together sent, by operation.
std::map<std::string, int64_t> bytes_sent(const json& wanted, const fs::path& out, int ranks) {
  std::map<std::string, int64_t> sent;
  std::mutex mutex;
  json copy = wanted;
  copy["output"]["dir"] = out.string();
  const Recipe read = parse_recipe(copy.dump(), "test");
  run_on_threads(ranks, [&](Communicator& comm) {
    MemoryPool pool;
    RankContext rank{comm, pool, 1, 11};
    set_threads(1);
    train(read, rank, {});
    const std::lock_guard lock(mutex);
    for (const auto& [name, traffic] : comm.settings().traffic) sent[name] += traffic.sent;
  });
  return sent;
}

TEST_F(Layouts, BytesMovedAreThoseOfTheFormulas) {
  json wanted = recipe("full");
  wanted["data"].erase("eval_fraction");
  wanted["train"]["steps"] = 2;
  wanted["train"]["accumulate"] = 2;
  const int64_t parameters = [&] {
    int64_t count = 0;
    const SafetensorsFile file((base_ / "model.safetensors").string());
    for (const std::string& name : file.names()) count += name == "lm_head.weight" ? 0 : file.at(name).numel();
    return count;
  }();
  // All ranks together send (N - 1) times the bytes for every gather or scatter of the whole.
  wanted["parallel"] = {{"replicate", 2}};
  EXPECT_EQ(bytes_sent(wanted, directory_ / "ddp", 2)["sum gradients"], 2 * (2 * 4 * parameters));
  wanted["parallel"] = {{"shard", 2}};
  const auto sharded = bytes_sent(wanted, directory_ / "zero3", 2);
  const int64_t steps = 2;
  EXPECT_NEAR(static_cast<double>(sharded.at("reduce gradients")), static_cast<double>(steps * 4 * parameters),
              0.001 * static_cast<double>(steps * 4 * parameters));
}

}  // namespace
}  // namespace nibble
