// Whole runs on several ranks (threads of this process): every way to train in every layout gives what one rank gives.

#include "nibble/tests/parallel/layouts.h"

#include <algorithm>
#include <cstdio>
#include <tuple>

#include "nibble/core/ops/int8/int8_product.h"
#include "nibble/core/train/telemetry/trace.h"
#include "nibble/parallel/plan/memory.h"
#include "nibble/recipes/plan/plan_job.h"

namespace nibble {
namespace {

using namespace nibble::test;

void expect_same_bits(const Outcome& got, const Outcome& want) {
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.norms, want.norms);
  EXPECT_TRUE(got.weights == want.weights) << "the trained weights differ";
  expect_same_evaluations(got, want, 0);
}

const std::vector<NamedLayout>& data_layouts() {
  static const std::vector<NamedLayout> all = {
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
  const NamedLayout& layout = data_layouts()[which];
  if (std::string(mode) == "qlora_int8" && ops::int8_levels() == 0) GTEST_SKIP() << "no products in 8 bits";
  json wanted = recipe(mode);
  const Outcome one = run(wanted, 1, "one");
  wanted["parallel"] = layout.parallel;
  expect_same_bits(run(wanted, layout.ranks, "several"), one);
  ASSERT_EQ(one.losses.size(), 3u);
  EXPECT_GT(one.norms.back(), 0);
  EXPECT_EQ(one.evaluations.size(), 2u);
  EXPECT_EQ(one.output.size(), 6u);
  EXPECT_FALSE(one.output.front().empty());
}

INSTANTIATE_TEST_SUITE_P(All, SameBits,
                         testing::Combine(testing::Values("full", "lora", "qlora", "pretrain"),
                                          testing::Range<size_t>(0, 9)),
                         [](const auto& which) {
                           return std::string(std::get<0>(which.param)) + data_layouts()[std::get<1>(which.param)].name;
                         });

INSTANTIATE_TEST_SUITE_P(EightBits, SameBits, testing::Combine(testing::Values("qlora_int8"), testing::Values(0, 4, 5)),
                         [](const auto& which) { return data_layouts()[std::get<1>(which.param)].name; });

// A profile of several ranks: layers are there, and what they exchange or wait for is communication.
TEST_F(Layouts, ProfilesTellComputingFromCommunication) {
  const std::vector<json> layouts = {{{"replicate", 2}}, {{"shard", 2}}, {{"pipeline", 2}}, {{"tensor", 2}}};
  for (const json& layout : layouts) {
    json wanted = recipe("lora");
    wanted["parallel"] = layout;
    wanted["output"]["dir"] = (directory_ / layout.dump()).string();
    const Recipe read = parse_recipe(wanted.dump(), "test");
    std::mutex mutex;
    std::vector<std::map<Phase, double>> seconds(2);
    run_on_threads(2, [&](Communicator& comm) {
      MemoryPool pool;
      RankContext rank{comm, pool, 1, 11};
      set_threads(1);
      Trace trace(comm.rank());
      Observer observer;
      observer.trace = &trace;
      train(read, rank, observer);
      const std::lock_guard lock(mutex);
      for (const Phase phase : {Phase::forward, Phase::backward, Phase::optimizer, Phase::communication, Phase::other})
        seconds[static_cast<size_t>(comm.rank())][phase] = trace.seconds(phase);
    });
    for (std::map<Phase, double>& rank : seconds) {
      EXPECT_GT(rank[Phase::forward], 0) << layout;
      EXPECT_GT(rank[Phase::backward], 0) << layout;
      EXPECT_GT(rank[Phase::optimizer], 0) << layout;
      EXPECT_GT(rank[Phase::communication], 0) << layout;
      EXPECT_LT(rank[Phase::other], rank[Phase::forward] + rank[Phase::backward] + rank[Phase::communication])
          << layout;
    }
  }
}

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

const std::vector<NamedLayout>& staged() {
  static const std::vector<NamedLayout> all = {
      {"Naive2", 2, {{"pipeline", 2}, {"schedule", "naive"}}},
      {"GPipe3", 3, {{"pipeline", 3}, {"schedule", "gpipe"}, {"microbatches", 3}}},
      {"OneFOneB4", 4, {{"pipeline", 4}, {"schedule", "1f1b"}}},
      {"ByHand", 2, {{"pipeline", 2}, {"stages", {1, 4}}}},
      {"TwoColumns", 4, {{"pipeline", 2}, {"replicate", 2}}},
      {"OfShards", 4, {{"pipeline", 2}, {"shard", 2}, {"shard_adapters", true}}},
      {"OfShardedState", 4, {{"pipeline", 2}, {"shard", 2}, {"zero", 1}}},
  };
  return all;
}

class Stages : public Layouts, public testing::WithParamInterface<std::tuple<const char*, size_t>> {};

TEST_P(Stages, GiveTheLossesOfOneRank) {
  const auto& [mode, which] = GetParam();
  const NamedLayout& layout = staged()[which];
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
  expect_same_evaluations(several, one, 2e-5);
}

INSTANTIATE_TEST_SUITE_P(
    All, Stages, testing::Combine(testing::Values("full", "lora", "qlora", "pretrain"), testing::Range<size_t>(0, 7)),
    [](const auto& which) { return std::string(std::get<0>(which.param)) + staged()[std::get<1>(which.param)].name; });

TEST_F(Layouts, StagesOfShardsGiveTheLossesOfOneRank) {
  json wanted = recipe("qlora");
  const Outcome one = run(wanted, 1, "one");
  for (const bool sharded : {false, true}) {
    wanted["parallel"] = {{"pipeline", 2}, {"shard", 2}, {"shard_adapters", sharded}};
    const Outcome several = run(wanted, 4, sharded ? "sharded" : "full");
    ASSERT_EQ(several.losses.size(), one.losses.size());
    for (size_t i = 0; i < one.losses.size(); ++i) EXPECT_NEAR(several.losses[i], one.losses[i], 2e-5);
  }
}

TEST_F(Layouts, RecomputedLayersGiveTheLossesOfKeptOnes) {
  json wanted = recipe("full");
  const Outcome one = run(wanted, 1, "one");
  wanted["train"]["gradient_checkpointing"] = "block";
  const std::vector<json> layouts = {{{"shard", 2}},
                                     {{"pipeline", 2}},
                                     {{"tensor", 2}},
                                     {{"pipeline", 2}, {"tensor", 2}},
                                     {{"shard", 2}, {"tensor", 2}}};
  for (const json& layout : layouts) {
    wanted["parallel"] = layout;
    const int ranks = layout.size() == 1 ? 2 : 4;
    const Outcome several = run(wanted, ranks, "recomputed" + layout.dump());
    ASSERT_EQ(several.losses.size(), one.losses.size());
    for (size_t i = 0; i < one.losses.size(); ++i) {
      EXPECT_NEAR(several.losses[i], one.losses[i], 2e-5) << layout;
      EXPECT_NEAR(several.norms[i], one.norms[i], 2e-4 * one.norms[i]) << layout;
    }
  }
}

TEST_F(Layouts, ActivationsInAFileChangeNoBit) {
  const std::vector<std::pair<int, json>> layouts = {{1, json::object()},
                                                     {2, {{"shard", 2}}},
                                                     {2, {{"replicate", 2}}},
                                                     {2, {{"pipeline", 2}, {"schedule", "naive"}}},
                                                     {3, {{"pipeline", 3}, {"schedule", "gpipe"}}},
                                                     {2, {{"pipeline", 2}, {"schedule", "1f1b"}}},
                                                     {2, {{"tensor", 2}}},
                                                     {4, {{"pipeline", 2}, {"shard", 2}}}};
  for (const char* mode : {"full", "lora"}) {
    for (const auto& [ranks, layout] : layouts) {
      for (const char* checkpointing : {"none", "block"}) {
        const std::string name = mode + layout.dump() + checkpointing;
        json wanted = recipe(mode);
        wanted["train"]["steps"] = 2;
        wanted["train"]["samples"] = 0;  // they keep no activations, and equal weights say equal texts
        wanted["train"]["gradient_checkpointing"] = checkpointing;
        wanted["parallel"] = layout;
        const Outcome kept = run(wanted, ranks, name);
        wanted["parallel"]["offload_activations"] = true;
        SCOPED_TRACE(name);
        expect_same_bits(run(wanted, ranks, "spilled" + name), kept);
      }
    }
  }
}

// The plan counts the program besides the pool, and so does the room given here.
TEST_F(Layouts, AsManyBlocksAreRecomputedAsTheBudgetAsksFor) {
  json wanted = recipe("lora");
  wanted["data"]["max_length"] = 512;
  wanted["train"]["steps"] = 2;
  wanted["output"]["dir"] = "none";
  const auto planned = [&](const char* checkpointing) {
    wanted["train"]["gradient_checkpointing"] = checkpointing;
    const Recipe read = parse_recipe(wanted.dump(), "test");
    return plan_memory(plan_job(read), plan_layout(read), {0, 5}, 1).needed_bytes();
  };
  const int64_t all = planned("none"), least = planned("block");
  ASSERT_LT(least, all);
  wanted["train"]["gradient_checkpointing"] = "none";
  const Outcome kept = run(wanted, 1, "kept");
  wanted["train"]["gradient_checkpointing"] = "auto";
  const auto run_within = [&](int64_t budget, const std::string& name) {
    std::string output;
    json here = wanted;
    here["output"]["dir"] = (directory_ / name).string();
    const Recipe read = parse_recipe(here.dump(), "test");
    MemoryPool pool(static_cast<size_t>(budget));
    SelfComm comm;
    RankContext rank{comm, pool, 1, 11};
    set_threads(1);
    Observer observer;
    observer.on_message = [&](const std::string& line) {
      if (line.find("recomputing ") != std::string::npos) output = line;
    };
    train(read, rank, observer);
    const Outcome outcome = outcome_of(directory_ / name);
    EXPECT_EQ(outcome.losses, kept.losses) << name;
    EXPECT_TRUE(outcome.weights == kept.weights) << name;
    return output;
  };
  EXPECT_EQ(run_within(all, "enough"), "");
  const int64_t half = least + (all - least) / 2;
  const std::string some = run_within(half, "some");
  int blocks = 0;
  ASSERT_EQ(std::sscanf(some.c_str(), "recomputing %d of 5 blocks to fit ", &blocks), 1) << some;
  const auto fits_with = [&](int recomputed) {
    const Recipe read = parse_recipe(wanted.dump(), "test");
    PlanLayout layout = plan_layout(read);
    layout.recomputed.assign(5, false);
    std::fill_n(layout.recomputed.begin(), recomputed, true);
    return plan_memory(plan_job(read), layout, {0, 5}, 1, half).fits(half);
  };
  ASSERT_TRUE(blocks >= 1 && blocks < 5) << some;
  EXPECT_TRUE(fits_with(blocks));
  EXPECT_FALSE(fits_with(blocks - 1));
  const std::string little = run_within(least - (1 << 20), "little");
  EXPECT_TRUE(little.starts_with("warning: recomputing 5 of 5 blocks to fit ")) << little;
  EXPECT_NE(little.find("too little by the plan"), std::string::npos) << little;
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
  const std::string message = error_of<UsageError>([&] { run(wanted, 2, "refused"); });
  EXPECT_NE(message.find("= 4, the job has 2 ranks"), std::string::npos) << message;
  EXPECT_FALSE(fs::exists(directory_ / "refused"));
}

TEST_F(Layouts, ARunReportsTheSameFactsAndSamplesOnAnyNumberOfRanks) {
  json wanted = recipe("lora");
  wanted["train"]["samples"] = 1;
  run(wanted, 1, "one");
  const auto facts = [&](const std::string& name) { return json::parse(read_bytes(directory_ / name / "run.json")); };
  const auto check = [&](const json& parallel, int ranks, bool samples) {
    const std::string name = "several" + parallel.dump();
    wanted["parallel"] = parallel;
    run(wanted, ranks, name);
    EXPECT_EQ(facts(name)["model"], facts("one")["model"]) << name;
    EXPECT_EQ(facts(name)["data"], facts("one")["data"]) << name;
    EXPECT_EQ(facts(name)["ranks"], ranks) << name;
    if (!samples) return;
    EXPECT_EQ(outcome_of(directory_ / name).output, outcome_of(directory_ / "one").output);
  };
  ASSERT_FALSE(read_bytes(directory_ / "one/samples.jsonl").empty());
  check({{"shard", 2}}, 2, true);
  check({{"replicate", 2}}, 2, true);
  check({{"tensor", 2}, {"pipeline", 2}}, 4, false);
}

TEST_F(Layouts, BytesMovedAreThoseOfTheFormulas) {
  json wanted = recipe("full");
  wanted["data"].erase("eval_fraction");
  wanted["train"].erase("eval_every");
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

// A frozen 4-bit base is gathered twice in a microbatch, before the forward and before the backward pass of a block:
// 0.516 bytes a weight. The table of the (tied) embedding is needed twice in the forward pass.
TEST_F(Layouts, AFourBitBaseIsGatheredTwiceAtHalfAByteAWeight) {
  json wanted = recipe("qlora");
  wanted["model"]["double_quant"] = true;
  wanted["data"].erase("eval_fraction");
  wanted["train"].erase("eval_every");
  wanted["train"]["steps"] = 2;
  wanted["train"]["accumulate"] = 4;
  wanted["train"]["samples"] = 0;
  wanted["parallel"] = {{"shard", 2}};
  double linears = 0, table = 0;
  const SafetensorsFile file((base_ / "model.safetensors").string());
  for (const std::string& name : file.names()) {
    const double elements = static_cast<double>(file.at(name).numel());
    if (name.ends_with("_proj.weight")) linears += elements;
    if (name.ends_with("embed_tokens.weight")) table += static_cast<double>(file.at(name).bytes());
  }
  const double passes = 2 * 4 / 2;  // steps x microbatches over the ranks
  const double expected = passes * (2 * 0.516 * linears + 2 * table);
  const double sent = static_cast<double>(bytes_sent(wanted, directory_ / "qlora", 2)["gather weights"]);
  EXPECT_NEAR(sent, expected, 0.02 * expected);
}

// Twelve answers under way together: a layer is gathered once for a token of all of them.
TEST_F(Layouts, AShardedBaseIsGatheredOnceForTheTokensOfAllAnswers) {
  std::string prompts;
  for (int i = 0; i < 3; ++i) prompts += json{{"prompt_ids", {1, 300 + 7 * i, 311}}}.dump() + "\n";
  write_bytes(directory_ / "prompts.jsonl", prompts);
  json wanted = recipe("lora");
  wanted["objective"] = {{"type", "grpo"}};
  wanted["rewards"] = {{{"type", "length"}, {"max_completion_len", 24}, {"soft_punish_cache", 20}}};
  wanted["data"] = {{"train", (directory_ / "prompts.jsonl").string()}, {"max_length", 48}};
  wanted["train"] = {{"steps", 1}, {"microbatch_size", 4}, {"accumulate", 3}, {"samples", 0}};
  wanted["parallel"] = {{"shard", 2}};
  const auto sent = [&](int64_t tokens) {
    wanted["rollout"] = {{"completions", 4}, {"max_new_tokens", tokens}};
    const std::string name = "answers" + std::to_string(tokens);
    const int64_t bytes = bytes_sent(wanted, directory_ / name, 2).at("gather weights");
    std::ifstream file(directory_ / name / "rollouts" / "step-1.jsonl");
    size_t answers = 0, longest = 0;
    for (std::string line; std::getline(file, line); ++answers) {
      longest = std::max(longest, json::parse(line)["completion_ids"].size());
    }
    EXPECT_EQ(answers, 12u);
    EXPECT_EQ(longest, static_cast<size_t>(tokens));
    return static_cast<double>(bytes);
  };
  const double few = sent(4), more = sent(24);
  // All ranks together send what is gathered once; the table of the (tied) embedding is needed at both ends.
  double model = 0, table = 0;
  const SafetensorsFile file((base_ / "model.safetensors").string());
  for (const std::string& name : file.names()) {
    const double bytes = static_cast<double>(file.at(name).bytes());
    (name.ends_with("embed_tokens.weight") ? table : model) += name == "lm_head.weight" ? 0 : bytes;
  }
  EXPECT_NEAR(more - few, 20 * (model + 2 * table), 0.02 * 20 * (model + 2 * table));
}

}  // namespace
}  // namespace nibble
