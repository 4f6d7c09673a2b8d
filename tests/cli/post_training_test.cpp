// What runs on preferences and rewards tell people.

#include <gmock/gmock.h>

#include <cstring>
#include <sstream>

#include "nibble/tests/cli/small_model.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class PostTraining : public test::SmallModel {
 protected:
  CommandOutput train(const std::string& objective, const std::string& more = "", const std::string& command = "train",
                      const std::string& keys = "") {
    test::write_bytes(root_ / "r.yaml",
                      "model: {path: me/small}\nobjective: {type: " + objective +
                          "}\ntrain: {steps: 1, threads: 1, microbatch_size: 2}\noutput: {dir: runs}\n" + more);
    return run(command + " r.yaml " + keys);
  }
  /// d.jsonl
  void write_pairs() {
    test::write_bytes(root_ / "d.jsonl", R"({"prompt": "What?", "chosen": " That.", "rejected": " No."}
{"prompt": "Who?", "chosen": " I.", "rejected": " You."}
)");
  }
};

TEST_F(PostTraining, PreferencesHaveAccuracyAndMarginAndNoPerplexity) {
  write_pairs();
  const CommandOutput output = train("dpo", "data: {train: d.jsonl, eval: d.jsonl, max_length: 64}\n");
  ASSERT_EQ(output.code, 0) << output.text;
  EXPECT_THAT(output.text, AllOf(HasSubstr("training data: 2 pairs, "), HasSubstr("\ndata: 2 pairs, ")));
  EXPECT_THAT(test::read_bytes(root_ / "runs/run.json"), ContainsRegex("\"pairs\": 2"));
  EXPECT_THAT(output.text, AllOf(ContainsRegex("step 1/1  loss [^a]*  accuracy [0-9]+%  margin "),
                                 ContainsRegex("evaluation loss [0-9.]+  accuracy [0-9]+%  margin [-0-9.e]+  "),
                                 Not(HasSubstr("perplexity"))));
  EXPECT_THAT(train("dpo", "data: {train: d.jsonl, eval_fraction: 0.5, max_length: 64}\n", "validate").text,
              HasSubstr("evaluation data: 1 pair split off"));
}

TEST_F(PostTraining, PromptsHaveAMeanRewardAndNoTrainedShare) {
  test::write_bytes(root_ / "d.jsonl", R"({"prompt": "What?"})"
                                       "\n");
  const CommandOutput output = train("grpo",
                                     "rollout: {completions: 2, max_new_tokens: 4}\n"
                                     "rewards: [{type: regex, pattern: e}]\ndata: {train: d.jsonl, max_length: 64}\n");
  ASSERT_EQ(output.code, 0) << output.text;
  EXPECT_THAT(output.text, AllOf(ContainsRegex("training data: 1 prompt, [0-9]+ tokens\n"),
                                 ContainsRegex("\ndata: 1 prompt, [0-9]+ tokens; 1 step\n"),
                                 ContainsRegex("step 1/1  loss [^a-z]*  reward [0-9.]+  lr ")));
}

TEST_F(PostTraining, FewStepsAreSaidInWhatAStepHas) {
  write_pairs();
  const auto warning = [&](const std::string& objective, const std::string& more) {
    return train(objective, "data: {train: d.jsonl, max_length: 64}\n" + more, "validate",
                 "train.steps=null train.epochs=3 train.accumulate=2")
        .text;
  };
  EXPECT_THAT(warning("dpo", ""), HasSubstr("warning: the run has only 3 steps of 4 pairs; lower train.accumulate or"));
  EXPECT_THAT(warning("grpo", "rollout: {completions: 4, max_new_tokens: 4}\nrewards: [{type: regex, pattern: e}]\n"),
              HasSubstr("warning: the run has only 6 steps of 4 answers; lower train.accumulate or"));
}

TEST_F(PostTraining, AnswersBeyondTheModelsPositionsAreWarnedOf) {
  const std::filesystem::path file = snapshot("models--me--small") / "config.json";
  nlohmann::json config = nlohmann::json::parse(test::read_bytes(file));
  config["max_position_embeddings"] = 32;
  test::write_bytes(file, config.dump());
  test::write_bytes(root_ / "d.jsonl", "{\"prompt_ids\": [1, 5]}\n");
  for (const int tokens : {30, 31}) {
    std::filesystem::remove_all(root_ / "runs");
    const CommandOutput output = train("grpo", "rollout: {completions: 2, max_new_tokens: " + std::to_string(tokens) +
                                                   "}\nrewards: [{type: regex, pattern: e}]\n"
                                                   "data: {train: d.jsonl, max_length: 64}\n");
    ASSERT_EQ(output.code, 0) << output.text;
    const auto warns = HasSubstr(
        "warning: the longest prompt with its answer may have 33 tokens, the model was made for 32 "
        "(max_position_embeddings); lower rollout.max_new_tokens");
    if (tokens == 31) {
      EXPECT_THAT(output.text, warns);
    } else {
      EXPECT_THAT(output.text, Not(warns));
    }
  }
}

// Learned positions end; rope goes on, worse.
TEST_F(PostTraining, TextsBeyondTheModelsPositionsAreWarnedOfOrNamed) {
  const std::filesystem::path file = snapshot("models--me--small") / "config.json";
  nlohmann::json config = nlohmann::json::parse(test::read_bytes(file));
  config["max_position_embeddings"] = 32;
  test::write_bytes(file, config.dump());
  const std::vector<int> answer(40, 7);
  const nlohmann::json longer = {{"prompt_ids", {1, 5}}, {"chosen_ids", answer}, {"rejected_ids", {6}}};
  test::write_bytes(root_ / "d.jsonl", R"({"prompt_ids": [1, 5], "chosen_ids": [7], "rejected_ids": [6]})"
                                       "\n" +
                                           longer.dump() + "\n");
  ASSERT_EQ(train("reward", "data: {train: d.jsonl, max_length: 64}\n").code, 0);
  const std::string warning =
      "warning: the longest sample has 42 tokens, the model was made for 32 (max_position_embeddings); ";
  for (const char* words : {"logprobs --model me/small --out o.jsonl", "score --model runs --out s.jsonl",
                            "eval --model me/small --format preference"}) {
    const CommandOutput output = run(std::string(words) + " --data d.jsonl");
    EXPECT_EQ(output.code, 0) << output.text;
    EXPECT_THAT(output.text, HasSubstr(warning + "shorten it\n"));
  }
  const nlohmann::json tokens = {{"input_ids", answer}, {"labels", answer}};
  test::write_bytes(root_ / "t.jsonl", tokens.dump() + "\n");
  EXPECT_THAT(run("eval --model me/small --data t.jsonl").text,
              AllOf(HasSubstr("the longest sample has 40 tokens"), HasSubstr("; lower --max-length\n")));

  const nlohmann::json learned = {{"architectures", {"GPT2LMHeadModel"}},
                                  {"model_type", "gpt2"},
                                  {"n_embd", 16},
                                  {"n_layer", 1},
                                  {"n_head", 2},
                                  {"n_positions", 32},
                                  {"vocab_size", 300}};
  test::write_bytes(root_ / "gpt2.json", learned.dump());
  ASSERT_EQ(run("init --config gpt2.json --out gpt2 && cp tokenizer/* " + (root_ / "gpt2").string()).code, 0);
  ASSERT_EQ(train("reward", "data: {train: d.jsonl, max_length: 32}\n", "train",
                  "model.path=gpt2 output.dir=scores data.max_dropped=0.9")
                .code,
            0);
  std::filesystem::remove(root_ / "o.jsonl");
  const std::string named = "error: d.jsonl:2:1: has 42 tokens, the model holds 32 positions; ";
  for (const char* words : {"logprobs --model gpt2 --out o.jsonl", "score --model scores --out o.jsonl",
                            "eval --model gpt2 --format preference"}) {
    const CommandOutput output = run(std::string(words) + " --data d.jsonl");
    EXPECT_EQ(output.code, 3) << output.text;
    EXPECT_THAT(output.text, HasSubstr(named + "shorten it\n"));
  }
  EXPECT_FALSE(exists(root_ / "o.jsonl"));
  for (const char* command : {"validate", "train"}) {
    const CommandOutput output =
        train("dpo", "data: {train: d.jsonl, max_length: 64}\n", command, "model.path=gpt2 output.dir=none");
    EXPECT_EQ(output.code, 3) << output.text;
    EXPECT_THAT(output.text, HasSubstr(named + "lower data.max_length\n"));
  }
  // A teacher that has fewer positions than the student is told of before the run too.
  test::write_bytes(root_ / "p.jsonl", "{\"prompt_ids\": [1, 5]}\n");
  const std::string teacher = "distillation, teacher_model_name_or_path: gpt2";
  const CommandOutput taught = train(teacher, "data: {train: t.jsonl, max_length: 64}\n", "validate");
  EXPECT_THAT(taught.text, HasSubstr("t.jsonl:1:1: has 40 tokens, gpt2 (objective.teacher_model_name_or_path) holds 32 "
                                     "positions; lower data.max_length"));
  nlohmann::json longer_model = config;
  longer_model["max_position_embeddings"] = 64;
  test::write_bytes(file, longer_model.dump());
  // One that reads short texts does, whatever data.max_length would allow.
  std::string texts;
  for (int i = 0; i < 20; ++i) texts += "{\"input_ids\": [1, 5, 6], \"labels\": [1, 5, 6]}\n";
  test::write_bytes(root_ / "s.jsonl", texts);
  const CommandOutput learned_from =
      train(teacher, "data: {train: s.jsonl, max_length: 64}\n", "train", "output.dir=taught");
  EXPECT_EQ(learned_from.code, 0) << learned_from.text;
  const CommandOutput drawn =
      train(teacher, "data: {train: p.jsonl, max_length: 64}\nrollout: {max_new_tokens: 40}\n", "validate");
  EXPECT_EQ(drawn.code, 3) << drawn.text;
  EXPECT_THAT(drawn.text,
              HasSubstr("gpt2 (objective.teacher_model_name_or_path): the longest prompt with its answer may "
                        "have 42 tokens, it holds 32 positions; lower rollout.max_new_tokens or data."));
  const CommandOutput evaluated = run("eval --model gpt2 --data t.jsonl");
  EXPECT_EQ(evaluated.code, 3) << evaluated.text;
  EXPECT_THAT(evaluated.text,
              HasSubstr("t.jsonl:1:1: has 40 tokens, the model holds 32 positions; lower --max-length"));
}

TEST_F(PostTraining, TextsWithALabelHaveNoTrainedTokens) {
  test::write_bytes(root_ / "d.jsonl", R"({"text": "What?", "label": 0}
{"text": "It is this.", "label": 1}
)");
  const CommandOutput output =
      train("classification, num_labels: 2", "data: {train: d.jsonl, eval: d.jsonl, max_length: 64}\n");
  ASSERT_EQ(output.code, 0) << output.text;
  EXPECT_THAT(output.text, AllOf(ContainsRegex("training data: 2 samples, [0-9]+ tokens\n"),
                                 ContainsRegex("\ndata: 2 samples, [0-9]+ tokens; 1 step\n"),
                                 ContainsRegex("evaluation loss [0-9.]+  accuracy [0-9]+%  \\(best\\)\n")));
  for (const char* command : {"preview r.yaml", "validate r.yaml"}) {
    EXPECT_THAT(run(command).text, AllOf(HasSubstr("1 step"), Not(HasSubstr(" trained")))) << command;
  }
}

TEST_F(PostTraining, ScoresOfPairsHaveAccuracyAndMargin) {
  write_pairs();
  ASSERT_EQ(train("reward", "data: {train: d.jsonl, max_length: 64}\n").code, 0);
  const CommandOutput output = run("score --model runs --data d.jsonl --out s.jsonl");
  ASSERT_EQ(output.code, 0) << output.text;
  int right = 0;
  std::istringstream lines(test::read_bytes(root_ / "s.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto pair = nlohmann::json::parse(line);
    right += pair["chosen"] > pair["rejected"];
  }
  EXPECT_THAT(output.text, ContainsRegex("accuracy [0-9.]+% \\(" + std::to_string(right) + " of 2\\), mean margin "));
  test::write_bytes(root_ / "one.jsonl", R"({"input_ids": [5], "label": 1})");
  const CommandOutput one = run("score --model runs --data one.jsonl --format labeled --out s.jsonl");
  EXPECT_EQ(one.code, 0) << one.text;
}

// As the shipped recipes are used: reward.json holds the base in 4 bits, ppo.json as its files are.
TEST_F(PostTraining, AJudgeAndAValueModelOfAnotherBaseAreSaid) {
  write_pairs();
  const std::string data = "adapter: {r: 2}\ndata: {train: d.jsonl, max_length: 64}\n";
  ASSERT_EQ(train("reward", data, "train", "output.dir=judge model.quantize=nf4").code, 0);
  test::write_bytes(root_ / "d.jsonl", R"({"prompt": "What?"})"
                                       "\n");
  const std::string draws = data + "rollout: {max_new_tokens: 4, completions: 2}\n";
  const std::string what = ": this adapter was trained on the base in nf4; model.quantize=nf4 gives that\n";
  const std::string ppo = "ppo, reward_model: judge, value_adapter: judge";
  const CommandOutput other = train(ppo, draws, "train", "output.dir=a");
  ASSERT_EQ(other.code, 0) << other.text;
  EXPECT_THAT(other.text, AllOf(HasSubstr("warning: objective.reward_model" + what),
                                HasSubstr("warning: objective.value_adapter" + what)));
  EXPECT_THAT(train(ppo, draws, "train", "output.dir=b model.quantize=nf4").text, Not(HasSubstr("this adapter was")));
  EXPECT_THAT(train("grpo", draws + "rewards: [{type: model, path: judge}]\n", "train", "output.dir=c").text,
              HasSubstr("warning: rewards[0].path" + what));
}

TEST_F(PostTraining, AJudgeThatCannotJudgeIsNamedWithItsKeyBeforeTheRun) {
  write_pairs();
  const std::string data = "adapter: {r: 2}\ndata: {train: d.jsonl, max_length: 64}\n";
  ASSERT_EQ(train("dpo", data, "train", "output.dir=plain").code, 0);
  ASSERT_EQ(train("reward", data, "train", "output.dir=mine").code, 0);
  nlohmann::json config = nlohmann::json::parse(test::read_bytes(root_ / "config.json"));
  config["hidden_size"] = 32;
  test::write_bytes(root_ / "wide.json", config.dump());
  ASSERT_EQ(run("init --config wide.json --out wide && cp tokenizer/* " + (root_ / "wide").string()).code, 0);
  ASSERT_EQ(train("reward", data, "train", "output.dir=other model.path=wide").code, 0);

  test::write_bytes(root_ / "d.jsonl", R"({"prompt": "What?"})"
                                       "\n");
  const std::string draws = data + "rollout: {max_new_tokens: 4, completions: 2}\n";
  const auto ppo = [&](const std::string& keys) { return train("ppo, reward_model: mine", draws, "validate", keys); };
  const auto grpo = [&](const std::string& reward) {
    return train("grpo", draws + "rewards: [{" + reward + "}]\n", "validate");
  };
  EXPECT_EQ(ppo("objective.value_adapter=mine").code, 0);
  const std::string fits_none = "optimizer.no_decay fits no tensor";
  EXPECT_THAT(ppo("optimizer.no_decay=[value_model.*.score]").text, Not(HasSubstr(fits_none)));
  EXPECT_THAT(ppo("optimizer.no_decay=[valeu_model]").text, HasSubstr(fits_none));
  const std::string no_head = "[^ ]*plain/adapter: has no score head that would say how many labels there are; name a";
  EXPECT_THAT(ppo("objective.reward_model=plain").text, ContainsRegex("error: objective.reward_model: " + no_head));
  EXPECT_THAT(train("ppo, reward_model: plain", draws).text,
              ContainsRegex("error: objective.reward_model: " + no_head));
  EXPECT_THAT(grpo("type: model, path: plain").text, ContainsRegex("error: rewards.0..path: " + no_head));
  EXPECT_THAT(run("score --model me/small --adapter plain --data d.jsonl --out s.jsonl").text,
              ContainsRegex("error: " + no_head));
  for (const char* key : {"objective.reward_model", "objective.value_adapter"}) {
    const CommandOutput output = ppo(std::string(key) + "=other");
    EXPECT_EQ(output.code, 3);
    EXPECT_THAT(output.text, ContainsRegex("error: " + std::string(key) + ": [^ ]*other/adapter/.* has shape "));
  }
  const CommandOutput command = grpo("type: command, argv: [nosuch.py]");
  EXPECT_EQ(command.code, 4);
  EXPECT_THAT(command.text, HasSubstr("rewards (command): nosuch.py cannot be started; check argv of this reward"));
}

// Its prompt is cut at a word, its lines are told apart, and an answer of which nothing is to be seen is said to be
// one.
TEST_F(PostTraining, SampleLinesAreReadable) {
  std::string lines;
  for (int i = 0; i < 8; ++i) {
    lines += R"({"prompt": "Who is she? What is it? Is it this, or that? It is that, or this.\nShe is here:", )"
             R"("completion": "\n\n\n\n"})"
             "\n";
  }
  test::write_bytes(root_ / "d.jsonl", lines + R"({"prompt": "Who?", "completion": " I."})"
                                               "\n");
  test::write_bytes(
      root_ / "r.yaml",
      "model: {path: me/small}\ndata: {train: d.jsonl, max_length: 128, max_dropped: 0.9}\noptimizer: {lr: 0.05}\n"
      "train: {steps: 40, samples: 1, threads: 1}\noutput: {dir: runs}\n");
  const CommandOutput output = run("train r.yaml");
  ASSERT_EQ(output.code, 0) << output.text;
  EXPECT_THAT(output.text, ContainsRegex("sample: \\.\\.\\. it\\? Is it this, or that\\? It is that, or this\\. \\| "
                                         "She is here: -> \\(blank\\)"));
}

// 0xFF is part of a NaN in every dtype of weights.
void spoil(const std::filesystem::path& safetensors, const std::string& tensor) {
  std::string bytes = test::read_bytes(safetensors);
  uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof size);
  const nlohmann::json header = nlohmann::json::parse(bytes.substr(8, size));
  bytes.replace(8 + size + header[tensor]["data_offsets"][0].get<size_t>(), 4, 4, '\xFF');
  std::filesystem::remove(safetensors);  // it may be a link
  test::write_bytes(safetensors, bytes);
}

TEST_F(PostTraining, ResultsThatAreNotFiniteAreRefused) {
  write_pairs();
  ASSERT_EQ(train("reward", "data: {train: d.jsonl, max_length: 64}\n").code, 0);
  for (const auto& model : {snapshot("models--me--small"), root_ / "runs/model"}) {
    spoil(model / "model.safetensors", "model.norm.weight");
  }
  const std::string names_weight = "not finite: model.norm.weight, element 0 of 16, is nan; check the model's weights";
  for (const char* words :
       {"logprobs --model me/small --data d.jsonl --out o", "eval --model me/small --data d.jsonl --format preference",
        "eval --model me/small --data d.jsonl --format completion --fields completion=chosen",
        "score --model runs --data d.jsonl --out o", "logits --model me/small --ids 1,5 --out o"}) {
    const CommandOutput output = run(words);
    EXPECT_EQ(output.code, 5) << output.text;
    EXPECT_THAT(output.text, HasSubstr(names_weight));
  }
  const CommandOutput gradients = run("gradients --model me/small --ids 1,5 --labels 1,5 --out o");
  EXPECT_EQ(gradients.code, 5) << gradients.text;
  EXPECT_THAT(gradients.text, HasSubstr("gradients: the loss is not finite; check the model's weights"));
  EXPECT_FALSE(exists(root_ / "o"));
}

// A judge that says nothing would train nothing; what was drawn before is kept.
TEST_F(PostTraining, AJudgeWithoutANumberEndsTheRun) {
  write_pairs();
  ASSERT_EQ(train("reward", "data: {train: d.jsonl, max_length: 64}\n").code, 0);
  std::filesystem::rename(root_ / "runs/model", root_ / "judge");
  std::filesystem::remove_all(root_ / "runs");
  spoil(root_ / "judge/model.safetensors", "model.norm.weight");
  const CommandOutput output = train("grpo",
                                     "rollout: {completions: 2, max_new_tokens: 4}\n"
                                     "rewards: [{type: model, path: judge}]\ndata: {train: d.jsonl, max_length: 64}\n");
  EXPECT_EQ(output.code, 5) << output.text;
  EXPECT_THAT(output.text, HasSubstr("error: rewards[0].path: score of an answer: not finite: model.norm.weight, "));
}

TEST_F(PostTraining, GradientsOfARecipeTakeNothingBesides) {
  for (const char* words : {"--recipe r.yaml --ids 1,5", "--recipe r.yaml --threads 1", "--ids 1,5 train.steps=1"}) {
    const CommandOutput output = run("gradients --out o " + std::string(words));
    EXPECT_EQ(output.code, 2) << output.text;
  }
  EXPECT_THAT(run("gradients --out o --recipe r.yaml lr=1 --ids 1").text, HasSubstr("error: --ids with --recipe; "));
  EXPECT_THAT(run("gradients --out o --model me/small lr=1").text, HasSubstr("lr=1 changes a recipe; give a --recipe"));
}

}  // namespace
}  // namespace nibble
