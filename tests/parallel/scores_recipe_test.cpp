// Score heads and distillation through the recipe: the same losses and metrics however ranks share the work, stopped
// and resumed; what does not fit is refused.

#include <gmock/gmock.h>

#include "nibble/core/comm/local_rank.h"
#include "nibble/parallel/plan/memory.h"
#include "nibble/quant/quantize_model.h"
#include "nibble/recipes/plan/plan_job.h"
#include "nibble/recipes/train.h"
#include "nibble/tests/parallel/own_model.h"

namespace nibble {
namespace {

using namespace nibble::test;
using testing::HasSubstr;

class Scores : public OwnModel {
 protected:
  void SetUp() override {
    OwnModel::SetUp();
    trains_ = finetune;
    teacher_ = make_model("teacher", true);
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

  std::string pairs() const {
    return write_lines("pairs.jsonl", 20, [](int i) {
      return json{{"prompt_ids", ids(3 * i, 3 + i % 4)},
                  {"chosen_ids", ids(40 + i, 2 + i % 5)},
                  {"rejected_ids", ids(90 + i, 1 + 3 * i % 7)},
                  {"margin", 0.1 * i}};
    });
  }
  std::string labeled(const std::string& name, const std::function<json(int)>& label) const {
    return write_lines(name + ".jsonl", 20, [&](int i) {
      return json{{"input_ids", ids(3 * i, 3 + i % 7)}, {"label", label(i)}};
    });
  }

  /// Every kind of objective, by its name here.
  json recipe_for(const std::string& kind, bool adapter = true) const {
    json recipe = own_recipe(base_, 1);
    std::string data;
    if (kind == "reward") {
      data = pairs();
      recipe["objective"] = {{"type", "reward"}, {"center_rewards_coefficient", 0.01}};
    } else if (kind == "distillation") {
      data = write_lines("tokens.jsonl", 20, [](int i) {
        json labels = ids(3 * i, 4 + i % 7);
        labels[0] = labels[1] = -100;
        return json{{"input_ids", ids(3 * i, 4 + i % 7)}, {"labels", labels}};
      });
      recipe["objective"] = {{"type", "distillation"},
                             {"beta", 0.5},
                             {"temperature", 2.0},
                             {"teacher_model_name_or_path", teacher_.string()}};
    } else {
      recipe["objective"] = {{"type", "classification"}, {"num_labels", kind == "regression" ? 1 : 3}};
      data = labeled(kind, [&](int i) -> json {
        if (kind == "regression") return 0.25 * (i % 5) - 1;
        if (kind == "several") return json{i % 2, (i / 2) % 2, 1};
        return i % 3;
      });
    }
    recipe["data"] = {{"train", data}, {"max_length", 24}, {"eval_fraction", 0.2}};
    if (kind == "distillation") recipe["data"]["pack"] = false;
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

  std::string refused(const json& recipe) {
    try {
      run(recipe, 1, "refused");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  fs::path teacher_;
};

const std::vector<std::string> kKinds = {"reward", "class", "several", "regression", "distillation"};

TEST_F(Scores, CopiesAndShardsHaveTheBitsOfOneRank) {
  for (const std::string& kind : kKinds) {
    json wanted = recipe_for(kind);
    const Outcome one = run(wanted, 1, "one" + kind);
    ASSERT_EQ(one.losses.size(), 3u);
    EXPECT_EQ(metrics_of("one" + kind)[0].contains("margin"), kind == "reward");
    EXPECT_EQ(metrics_of("one" + kind)[0].contains("accuracy"), kind != "distillation" && kind != "regression");
    for (const auto& [parallel, ranks] :
         std::vector<std::pair<json, int>>{{{{"replicate", 2}}, 2}, {{{"replicate", 4}}, 4}, {{{"shard", 2}}, 2}}) {
      wanted["parallel"] = parallel;
      const std::string name = parallel.dump() + kind;
      const Outcome several = run(wanted, ranks, name);
      EXPECT_EQ(several.losses, one.losses) << name;
      EXPECT_TRUE(several.weights == one.weights) << name;
      EXPECT_EQ(metrics_of(name), metrics_of("one" + kind)) << name;
      expect_same_evaluations(several, one, 1e-9);
    }
  }
}

TEST_F(Scores, MicrobatchesOfAnySizeHaveTheLossOfOne) {
  for (const std::string& kind : kKinds) {
    json wanted = recipe_for(kind);
    const Outcome four = run(wanted, 1, "four" + kind);
    for (const int size : {2, 4}) {
      wanted["train"]["microbatch_size"] = size;
      wanted["train"]["accumulate"] = 4 / size;
      const Outcome other = run(wanted, 1, std::to_string(size) + kind);
      for (size_t i = 0; i < four.losses.size(); ++i) {
        EXPECT_NEAR(other.losses[i], four.losses[i], 2e-5 * std::max(1.0, four.losses[i])) << kind << i;
      }
      expect_same_evaluations(other, four, 1e-4);
    }
  }
}

TEST_F(Scores, StagesOnABaseInFourBitsHaveTheLossesOfOneRank) {
  for (const std::string& kind : kKinds) {
    json wanted = recipe_for(kind);
    wanted["model"]["quantize"] = "nf4";
    const Outcome one = run(wanted, 1, "one" + kind);
    for (const auto& [parallel, ranks] : std::vector<std::pair<json, int>>{
             {{{"pipeline", 2}}, 2}, {{{"pipeline", 2}, {"shard", 2}}, 4}, {{{"shard", 2}}, 2}}) {
      wanted["parallel"] = parallel;
      const std::string name = parallel.dump() + kind;
      const Outcome several = run(wanted, ranks, name);
      ASSERT_EQ(several.losses.size(), one.losses.size()) << name;
      for (size_t i = 0; i < one.losses.size(); ++i) EXPECT_NEAR(several.losses[i], one.losses[i], 1e-9) << name;
    }
  }
}

TEST_F(Scores, AStoppedRunResumesToTheSameBits) {
  for (const std::string& kind : kKinds) {
    for (const bool adapter : {true, false}) {
      const json wanted = recipe_for(kind, adapter);
      const std::string name = kind + (adapter ? "-adapter" : "-full");
      const Outcome whole = run(wanted, 1, "whole" + name);
      run(wanted, 1, "stopped" + name, 1);
      const Outcome resumed = run(wanted, 1, "stopped" + name);
      EXPECT_EQ(resumed.losses, whole.losses) << name;
      EXPECT_EQ(resumed.evaluations, whole.evaluations) << name;
      EXPECT_TRUE(resumed.weights == whole.weights) << name;
      EXPECT_EQ(metrics_of("stopped" + name), metrics_of("whole" + name));
    }
  }
}

TEST_F(Scores, LearnWhatTheDataSay) {
  for (const std::string& kind : kKinds) {
    json wanted = recipe_for(kind);
    wanted["train"]["steps"] = 25;
    wanted["optimizer"] = {{"lr", 1e-2}, {"schedule", "constant"}};
    const Outcome outcome = run(wanted, 1, "out" + kind);
    EXPECT_LT(outcome.losses.back(), 0.8 * outcome.losses.front()) << kind;
  }
}

TEST_F(Scores, AFullRunLeavesADirectoryThatTheNextOneContinues) {
  json wanted = recipe_for("several", false);
  run(wanted, 1, "first");
  const fs::path model = directory_ / "first" / "model";
  const json config = json::parse(read_bytes(model / "config.json"));
  EXPECT_EQ(config["architectures"], json({"Qwen3ForSequenceClassification"}));
  EXPECT_EQ(config["id2label"].size(), 3u);
  wanted["model"]["path"] = model.string();
  wanted["objective"].erase("num_labels");
  EXPECT_EQ(run(wanted, 1, "second").losses.size(), 3u);
  wanted["objective"]["num_labels"] = 5;
  EXPECT_THAT(refused(wanted), HasSubstr("has a score head of 3 labels where 5 are asked for"));
  json next_tokens = own_recipe(model, 4);
  EXPECT_THAT(refused(next_tokens), HasSubstr("ends in a score head"));
}

TEST_F(Scores, AnAdapterBringsItsScoreHead) {
  json wanted = recipe_for("class");
  run(wanted, 1, "first");
  const fs::path adapter = directory_ / "first" / "adapter";
  const json config = json::parse(read_bytes(adapter / "adapter_config.json"));
  EXPECT_EQ(config["task_type"], "SEQ_CLS");
  EXPECT_EQ(config["modules_to_save"], json({"score"}));
  EXPECT_EQ(SafetensorsFile(adapter / "adapter_model.safetensors").at("base_model.model.score.weight").shape(),
            (Shape{3, 32}));
  wanted["adapter"] = {{"path", adapter.string()}};
  wanted["objective"].erase("num_labels");
  EXPECT_EQ(run(wanted, 1, "second").losses.size(), 3u);
  json next_tokens = own_recipe(base_, 4);
  next_tokens["adapter"] = {{"path", adapter.string()}};
  EXPECT_THAT(refused(next_tokens), HasSubstr("the adapter has a score head"));
}

TEST_F(Scores, RefuseWhatDoesNotFit) {
  json wanted = recipe_for("class");
  wanted["objective"].erase("num_labels");
  EXPECT_THAT(refused(wanted), HasSubstr("objective.num_labels"));
  wanted["objective"]["num_labels"] = 2;
  wanted["data"].erase("eval_fraction");
  wanted["train"].erase("eval_every");
  EXPECT_THAT(refused(wanted), HasSubstr(".jsonl:3:1: has the label 2; a class is one whole number from 0 to 1"));
  wanted = recipe_for("class");
  wanted["data"]["train"] = labeled("text", [](int) { return "spam"; });
  EXPECT_THAT(refused(wanted), HasSubstr("text.jsonl:1"));
  wanted["data"]["train"] = labeled("mixed", [](int i) { return i == 3 ? json({0, 1, 1}) : json(1); });
  EXPECT_THAT(refused(wanted),
              HasSubstr("has the label [0, 1, 1], where the first text has 1; give all texts a class"));
  wanted = recipe_for("reward");
  wanted["parallel"] = {{"tensor", 2}};
  EXPECT_THAT(refused(wanted), HasSubstr("parallel.tensor: reward needs a full head"));
  wanted = recipe_for("reward");
  wanted["train"]["samples"] = 1;
  EXPECT_THAT(refused(wanted), HasSubstr("train.samples"));
  wanted = recipe_for("distillation");
  wanted["objective"].erase("teacher_model_name_or_path");
  EXPECT_THAT(refused(wanted), HasSubstr("objective.teacher_model_name_or_path"));
  wanted["objective"]["teacher_model_name_or_path"] = data_path("stories-llama");
  EXPECT_THAT(refused(wanted), HasSubstr("the student of 257"));
  wanted = recipe_for("distillation");
  wanted["objective"]["beta"] = 2;
  EXPECT_THAT(refused(wanted), HasSubstr("objective.beta: must be from 0 to 1"));
}

TEST_F(Scores, SayWhereOneLabelIsAllThereIs) {
  json wanted = recipe_for("class");
  wanted["data"]["train"] = labeled("one", [](int) { return 1; });
  wanted["output"] = {{"dir", (directory_ / "one-label").string()}};
  const Recipe recipe = parse_recipe(wanted.dump(), "test");
  LocalRank rank(1, 0);
  std::string output;
  Observer observer;
  observer.on_message = [&](const std::string& line) { output += line + "\n"; };
  finetune(recipe, rank.context(), observer);
  EXPECT_THAT(output, HasSubstr("all texts have the label 1"));
}

TEST_F(Scores, ATeacherInFourBitsTeaches) {
  json wanted = recipe_for("distillation");
  const Outcome plain = run(wanted, 1, "plain");
  const fs::path packed = directory_ / "packed";
  LocalRank rank(1, 0);
  quantize_model(teacher_, packed, {}, rank.context());
  wanted["objective"]["teacher_model_name_or_path"] = packed.string();
  const Outcome other = run(wanted, 1, "other");
  EXPECT_NE(other.losses[0], plain.losses[0]);
  EXPECT_NEAR(other.losses[0], plain.losses[0], 0.3 * plain.losses[0]);
}

// A model teaches itself nothing: the loss is 0 where they are the same.
TEST_F(Scores, AModelIsAtNoDistanceFromItself) {
  for (const double beta : {0.0, 0.5, 1.0}) {
    json wanted = recipe_for("distillation", false);
    wanted["objective"]["teacher_model_name_or_path"] = base_.string();
    wanted["objective"]["beta"] = beta;
    EXPECT_NEAR(run(wanted, 1, "self" + std::to_string(beta)).losses[0], 0, 1e-6);
  }
}

// The teacher is mapped from its files; of a full run the score head is trained.
TEST_F(Scores, PlansCountTheTeacherAndTheScoreHead) {
  const auto base_bytes = [&](const json& asked) {
    json wanted = asked;
    wanted["output"]["dir"] = (directory_ / "plan").string();
    const Recipe recipe = parse_recipe(wanted.dump(), "test");
    const PlanJob job = plan_job(recipe);
    const PlanLayout layout = plan_layout(recipe);
    const StageMemory memory = plan_memory(job, layout, place_stages(job, layout, 1), 1).stages.at(0);
    return std::pair{memory.split[MemoryUse::base] + memory.cached, job.model.trained_values()};
  };
  json distills = recipe_for("distillation"), next_tokens = distills;
  next_tokens.erase("objective");
  const auto teacher = static_cast<int64_t>(fs::file_size(teacher_ / "model.safetensors"));
  const int64_t more = base_bytes(distills).first - base_bytes(next_tokens).first;
  EXPECT_GT(more, teacher * 9 / 10);
  EXPECT_LT(more, teacher * 11 / 10);
  const auto trained = [&](const char* kind) { return base_bytes(recipe_for(kind)).second; };
  EXPECT_EQ(trained("class") - trained("reward"), 2 * 32) << "rows of D values";
}

}  // namespace
}  // namespace nibble
