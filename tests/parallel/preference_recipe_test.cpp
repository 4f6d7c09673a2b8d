// Preferences through the recipe: the same losses and metrics however ranks share the work, stopped and resumed.

#include <gmock/gmock.h>

#include "nibble/recipes/train.h"
#include "nibble/tests/parallel/own_model.h"

namespace nibble {
namespace {

using namespace nibble::test;
using testing::AllOf;
using testing::HasSubstr;

class Preferences : public OwnModel {
 protected:
  void SetUp() override {
    OwnModel::SetUp();
    trains_ = finetune;
  }

  std::string write_lines(const std::string& name, int count, const std::function<json(int)>& line) const {
    std::string lines;
    for (int i = 0; i < count; ++i) lines += line(i).dump() + "\n";
    const fs::path file = directory_ / name;
    write_bytes(file, lines);
    return file.string();
  }

  static json ids(int from, int count) {
    json list = json::array();
    for (int k = 0; k < count; ++k) list.push_back((from + 7 * k * k) % 250);
    return list;
  }

  /// A recipe for `objective` on answers of unequal length.
  json preference_recipe(const json& objective, bool adapter = true) const {
    const bool pairs = objective["type"] != "kto";
    json recipe = own_recipe(base_, 1);
    recipe["objective"] = objective;
    const std::string data = pairs ? write_lines("pairs.jsonl", 20,
                                                 [](int i) {
                                                   return json{{"prompt_ids", ids(3 * i, 3 + i % 4)},
                                                               {"chosen_ids", ids(40 + i, 2 + i % 5)},
                                                               {"rejected_ids", ids(90 + i, 1 + 3 * i % 7)}};
                                                 })
                                   : write_lines("answers.jsonl", 20, [](int i) {
                                       return json{{"prompt_ids", ids(3 * i, 3 + i % 4)},
                                                   {"completion_ids", ids(40 + i, 2 + i % 5)},
                                                   {"label", i % 3 != 0}};
                                     });
    recipe["data"] = {{"train", data}, {"max_length", 24}, {"eval_fraction", 0.2}};
    recipe["train"]["eval_every"] = 2;
    if (adapter) recipe["adapter"] = {{"r", 4}, {"lora_alpha", 8}, {"init_lora_weights", false}};
    return recipe;
  }

  /// The train lines of a run's metrics, without what time and memory say.
  std::vector<json> metrics_of(const std::string& run) const {
    std::ifstream file(directory_ / run / "metrics.jsonl");
    std::vector<json> all;
    for (std::string line; std::getline(file, line);) {
      json values = json::parse(line);
      for (const char* key : {"tokens_per_second", "peak_memory_bytes", "rank_peak_memory_bytes", "seconds"})
        values.erase(key);
      if (values["split"] == "train") all.push_back(values);
    }
    return all;
  }
};

const std::vector<json> kObjectives = {
    {{"type", "dpo"}},
    {{"type", "dpo"}, {"loss_type", {"aot", "sft"}}, {"beta", 0.5}},
    {{"type", "dpo"}, {"loss_type", {"ipo", "sft"}}, {"use_weighting", true}, {"reference", "initial"}},
    {{"type", "kto"}, {"beta", 0.5}},
    {{"type", "kto"}, {"reference", "initial"}},
    {{"type", "cpo"}},
    {{"type", "simpo"}},
    {{"type", "orpo"}},
};

TEST_F(Preferences, CopiesAndShardsHaveTheBitsOfOneRank) {
  for (const json& objective : kObjectives) {
    json wanted = preference_recipe(objective);
    const Outcome one = run(wanted, 1, "one" + objective.dump());
    ASSERT_EQ(one.losses.size(), 3u);
    ASSERT_TRUE(metrics_of("one" + objective.dump())[0].contains("rewards/chosen"));
    for (const auto& [parallel, ranks] :
         std::vector<std::pair<json, int>>{{{{"replicate", 2}}, 2}, {{{"replicate", 4}}, 4}, {{{"shard", 2}}, 2}}) {
      wanted["parallel"] = parallel;
      const std::string name = parallel.dump() + objective.dump();
      const Outcome several = run(wanted, ranks, name);
      EXPECT_EQ(several.losses, one.losses) << name;
      EXPECT_TRUE(several.weights == one.weights) << name;
      EXPECT_EQ(metrics_of(name), metrics_of("one" + objective.dump())) << name;
      expect_same_evaluations(several, one, 0);
    }
  }
}

TEST_F(Preferences, MicrobatchesOfAnySizeHaveTheLossOfOne) {
  for (const json& objective : kObjectives) {
    json wanted = preference_recipe(objective);
    const Outcome four = run(wanted, 1, "four" + objective.dump());
    for (const int size : {2, 4}) {
      wanted["train"]["microbatch_size"] = size;
      wanted["train"]["accumulate"] = 4 / size;
      const Outcome other = run(wanted, 1, std::to_string(size) + objective.dump());
      for (size_t i = 0; i < four.losses.size(); ++i) {
        EXPECT_NEAR(other.losses[i], four.losses[i], 2e-5 * std::max(1.0, four.losses[i])) << objective << i;
      }
      expect_same_evaluations(other, four, 1e-4);
    }
  }
}

TEST_F(Preferences, StagesAndTensorParallelRanksHaveTheLossesOfOneRank) {
  for (const json& objective : kObjectives) {
    json wanted = preference_recipe(objective);
    const Outcome one = run(wanted, 1, "one" + objective.dump());
    for (const auto& [parallel, ranks, tolerance] : std::vector<std::tuple<json, int, double>>{
             {{{"pipeline", 2}}, 2, 1e-9}, {{{"pipeline", 2}, {"shard", 2}}, 4, 1e-9}, {{{"tensor", 2}}, 2, 1e-4}}) {
      wanted["parallel"] = parallel;
      const std::string name = parallel.dump() + objective.dump();
      const Outcome several = run(wanted, ranks, name);
      ASSERT_EQ(several.losses.size(), one.losses.size()) << name;
      for (size_t i = 0; i < one.losses.size(); ++i) {
        EXPECT_NEAR(several.losses[i], one.losses[i], tolerance * std::max(1.0, one.losses[i])) << name;
      }
      const std::vector<json> metrics = metrics_of(name), wanted_metrics = metrics_of("one" + objective.dump());
      ASSERT_EQ(metrics.size(), wanted_metrics.size()) << name;
      for (const char* metric : {"logps/chosen", "logits/chosen", "logits/rejected", "entropy"}) {
        if (!wanted_metrics[0].contains(metric)) continue;  // entropy, of some objectives
        EXPECT_NEAR(metrics[0][metric].get<double>(), wanted_metrics[0][metric].get<double>(), 1e-3) << metric << name;
      }
    }
  }
}

TEST_F(Preferences, AStoppedRunResumesToTheSameBits) {
  for (const json& objective : kObjectives) {
    json wanted = preference_recipe(objective);
    const Outcome whole = run(wanted, 1, "whole" + objective.dump());
    const std::string name = "stopped" + objective.dump();
    run(wanted, 1, name, 1);
    const Outcome resumed = run(wanted, 1, name);
    EXPECT_EQ(resumed.losses, whole.losses) << objective;
    EXPECT_EQ(resumed.evaluations, whole.evaluations) << objective;
    EXPECT_TRUE(resumed.weights == whole.weights) << objective;
    EXPECT_EQ(metrics_of(name), metrics_of("whole" + objective.dump()));
  }
}

TEST_F(Preferences, ReferencesThatAreTheSameModelGiveTheSameRun) {
  // The adapter off, the same computed before training, and the base as a directory; of a base in 4 bits as well.
  for (const bool quantized : {false, true}) {
    json wanted = preference_recipe({{"type", "dpo"}});
    if (quantized) wanted["model"]["quantize"] = "nf4";
    const std::string kind = quantized ? "nf4" : "f32";
    const Outcome off = run(wanted, 1, "off" + kind);
    wanted["objective"]["precompute_ref_log_probs"] = true;
    const Outcome computed = run(wanted, 1, "computed" + kind);
    wanted["objective"] = {{"type", "dpo"}, {"reference", base_.string()}};
    const Outcome directory = run(wanted, 1, "directory" + kind);
    EXPECT_EQ(directory.losses, computed.losses);
    EXPECT_TRUE(directory.weights == computed.weights);
    EXPECT_EQ(metrics_of("directory" + kind), metrics_of("computed" + kind));
    // Other texts stand beside each in the pass of the reference.
    for (size_t i = 0; i < off.losses.size(); ++i) EXPECT_NEAR(computed.losses[i], off.losses[i], 1e-6);
    expect_same_evaluations(computed, off, 1e-6);
  }
}

TEST_F(Preferences, RefuseAReferenceWithAnotherVocabulary) {
  json wanted = preference_recipe({{"type", "dpo"}, {"reference", data_path("stories-llama")}});
  EXPECT_THAT(error_of<InputError>([&] { run(wanted, 1, "refused"); }),
              AllOf(HasSubstr("has \"<unk>\" as token 0, the policy \""), HasSubstr("objective.reference")));
}

TEST_F(Preferences, OnABaseInFourBitsHaveTheSameLossesInEveryLayout) {
  for (const json& objective : kObjectives) {
    json wanted = preference_recipe(objective);
    wanted["model"]["quantize"] = "nf4";
    const Outcome one = run(wanted, 1, "one" + objective.dump());
    for (const auto& [parallel, ranks] :
         std::vector<std::pair<json, int>>{{{{"replicate", 2}}, 2}, {{{"shard", 2}}, 2}, {{{"pipeline", 2}}, 2}}) {
      wanted["parallel"] = parallel;
      const Outcome several = run(wanted, ranks, parallel.dump() + objective.dump());
      ASSERT_EQ(several.losses.size(), one.losses.size());
      for (size_t i = 0; i < one.losses.size(); ++i) EXPECT_NEAR(several.losses[i], one.losses[i], 1e-9) << parallel;
      if (!parallel.contains("pipeline")) {
        EXPECT_TRUE(several.weights == one.weights) << parallel;
      }
    }
  }
}

TEST_F(Preferences, BeginAtTheirReferenceWhereThatIsTheStart) {
  for (const bool adapter : {true, false}) {  // without one: the model as it began
    json wanted = preference_recipe({{"type", "dpo"}}, adapter);
    if (adapter) wanted["objective"]["reference"] = "initial";
    const std::string name = adapter ? "adapter" : "full";
    const Outcome outcome = run(wanted, 1, name);
    EXPECT_NEAR(outcome.losses[0], std::log(2.0), 1e-12);
    EXPECT_EQ(metrics_of(name)[0]["rewards/chosen"].get<double>(), 0);
    EXPECT_NE(outcome.losses[1], outcome.losses[0]);
  }
}

TEST_F(Preferences, KeepWhatAReferenceSaysInTheCacheUntilAnythingChanges) {
  json wanted = preference_recipe({{"type", "dpo"}, {"precompute_ref_log_probs", true}});
  const fs::path cache = directory_ / "cache";
  fs::create_directories(cache);
  wanted["data"]["cache"] = cache.string();
  const auto kept = [&] {
    int count = 0;
    for (const auto& entry : fs::directory_iterator(cache)) {
      count += entry.path().filename().string().starts_with("reference-");
    }
    return count;
  };
  const Outcome first = run(wanted, 1, "first");
  EXPECT_EQ(kept(), 2) << "of training and evaluation data";
  wanted["parallel"] = {{"replicate", 2}};
  EXPECT_EQ(run(wanted, 2, "third").losses, first.losses);
  EXPECT_EQ(kept(), 2) << "what is there is used";
  wanted["data"]["max_length"] = 20;
  wanted["parallel"] = nullptr;
  run(wanted, 1, "fourth");
  EXPECT_EQ(kept(), 4);
}

// Asked to stop at its k-th batch, on one rank and then with two, which share the batches: no batch is computed twice.
TEST_F(Preferences, GoOnWithAReferencePassThatWasStopped) {
  json wanted = preference_recipe({{"type", "dpo"}, {"reference", "initial"}});
  wanted["data"]["cache"] = (directory_ / "cache").string();
  std::vector<std::pair<int64_t, int64_t>> told;
  const auto train_told = [&](const Recipe& recipe, RankContext& rank, Observer observer, int64_t stop_at) {
    observer.on_work = [&](const WorkProgress& work) {
      if (work.what == "reference" && rank.comm.rank() == 0) told.emplace_back(work.done, work.of);
    };
    if (stop_at > 0) observer.stop_requested = [&, stop_at] { return std::ssize(told) == stop_at; };
    finetune(recipe, rank, observer);
  };
  const auto texts_left = [&](const std::string& name, int ranks, int64_t stop_at) {
    told.clear();
    trains_ = [&](const Recipe& recipe, RankContext& rank, const Observer& observer) {
      train_told(recipe, rank, observer, stop_at);
    };
    const Outcome outcome = run(wanted, ranks, name);
    return std::pair(told.empty() ? 0 : told.front().second, outcome);
  };
  const auto [all, unfinished] = texts_left("stopped", 1, 3);
  EXPECT_EQ(all, 32) << "of 16 pairs";
  ASSERT_EQ(told.size(), 3u);
  const int64_t done = told.back().first;
  EXPECT_GT(done, 0);
  EXPECT_TRUE(unfinished.losses.empty());
  wanted["parallel"] = {{"replicate", 2}};
  const auto [left, resumed] = texts_left("stopped", 2, 0);
  EXPECT_EQ(left, all - done);
  wanted["data"].erase("cache");
  EXPECT_EQ(resumed.losses, texts_left("whole", 2, 0).second.losses);
  ASSERT_EQ(resumed.losses.size(), 3u);
}

TEST_F(Preferences, LearnWhichAnswerIsTheBetterOne) {
  for (json objective : kObjectives) {
    if (objective["type"] == "kto") objective["beta"] = 1;
    json wanted = preference_recipe(objective);
    wanted["train"]["steps"] = 20;
    wanted["optimizer"] = {{"lr", 1e-2}, {"schedule", "constant"}};
    const std::string name = "out" + objective.dump();
    run(wanted, 1, name);
    const std::vector<json> metrics = metrics_of(name);
    EXPECT_GT(metrics.back()["rewards/margins"].get<double>(), metrics.front()["rewards/margins"].get<double>())
        << objective;
  }
}

}  // namespace
}  // namespace nibble
