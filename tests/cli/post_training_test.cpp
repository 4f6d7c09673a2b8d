// What runs on preferences and rewards tell people.

#include <gmock/gmock.h>

#include "nibble/tests/cli/small_model.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class PostTraining : public test::SmallModel {
 protected:
  Said train(const std::string& objective, const std::string& more = "") {
    test::write_bytes(root_ / "r.yaml",
                      "model: {path: me/small}\nobjective: {type: " + objective +
                          "}\ntrain: {steps: 1, threads: 1, microbatch_size: 2}\noutput: {dir: runs}\n" + more);
    return run("train r.yaml");
  }
};

TEST_F(PostTraining, PreferencesHaveAccuracyAndMarginAndNoPerplexity) {
  test::write_bytes(root_ / "d.jsonl", R"({"prompt": "What?", "chosen": " That.", "rejected": " No."}
{"prompt": "Who?", "chosen": " I.", "rejected": " You."}
)");
  const Said output = train("dpo", "data: {train: d.jsonl, eval: d.jsonl, max_length: 64}\n");
  ASSERT_EQ(output.code, 0) << output.text;
  EXPECT_THAT(output.text, AllOf(HasSubstr("training data: 2 pairs, "), HasSubstr("\ndata: 2 pairs, ")));
  EXPECT_THAT(test::read_bytes(root_ / "runs/run.json"), ContainsRegex("\"pairs\": 2"));
  EXPECT_THAT(output.text, AllOf(ContainsRegex("step 1/1  loss [^a]*  accuracy [0-9]+%  margin "),
                                 ContainsRegex("evaluation loss [0-9.]+  accuracy [0-9]+%  margin [-0-9.e]+  "),
                                 Not(HasSubstr("perplexity"))));
}

TEST_F(PostTraining, PromptsHaveAMeanRewardAndNoTrainedShare) {
  test::write_bytes(root_ / "d.jsonl", R"({"prompt": "What?"})"
                                       "\n");
  const Said output = train("grpo",
                            "rollout: {completions: 2, max_new_tokens: 4}\n"
                            "rewards: [{type: regex, pattern: e}]\ndata: {train: d.jsonl, max_length: 64}\n");
  ASSERT_EQ(output.code, 0) << output.text;
  EXPECT_THAT(output.text, AllOf(ContainsRegex("training data: 1 prompt, [0-9]+ tokens\n"),
                                 ContainsRegex("\ndata: 1 prompt, [0-9]+ tokens; 1 step\n"),
                                 ContainsRegex("step 1/1  loss [^a-z]*  reward [0-9.]+  lr ")));
}

TEST_F(PostTraining, AnswersBeyondTheModelsPositionsAreWarnedOf) {
  const std::filesystem::path file = snapshot("models--me--small") / "config.json";
  nlohmann::json config = nlohmann::json::parse(test::read_bytes(file));
  config["max_position_embeddings"] = 32;
  test::write_bytes(file, config.dump());
  test::write_bytes(root_ / "d.jsonl", "{\"prompt_ids\": [1, 5]}\n");
  for (const int tokens : {30, 31}) {
    std::filesystem::remove_all(root_ / "runs");
    const Said output = train("grpo", "rollout: {completions: 2, max_new_tokens: " + std::to_string(tokens) +
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

TEST_F(PostTraining, TextsWithALabelHaveNoTrainedTokens) {
  test::write_bytes(root_ / "d.jsonl", R"({"text": "What?", "label": 0}
{"text": "It is this.", "label": 1}
)");
  const Said output = train("classification, num_labels: 2", "data: {train: d.jsonl, eval: d.jsonl, max_length: 64}\n");
  ASSERT_EQ(output.code, 0) << output.text;
  EXPECT_THAT(output.text, AllOf(ContainsRegex("training data: 2 samples, [0-9]+ tokens\n"),
                                 ContainsRegex("\ndata: 2 samples, [0-9]+ tokens; 1 step\n"),
                                 ContainsRegex("evaluation loss [0-9.]+  accuracy [0-9]+%  \\(best\\)\n")));
  for (const char* command : {"preview r.yaml", "validate r.yaml"}) {
    EXPECT_THAT(run(command).text, AllOf(HasSubstr("1 step"), Not(HasSubstr(" trained")))) << command;
  }
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
  const Said output = run("train r.yaml");
  ASSERT_EQ(output.code, 0) << output.text;
  EXPECT_THAT(output.text, ContainsRegex("sample: \\.\\.\\. it\\? Is it this, or that\\? It is that, or this\\. \\| "
                                         "She is here: -> \\(blank\\)"));
}

}  // namespace
}  // namespace nibble
