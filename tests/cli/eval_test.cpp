// nibble eval: how answers are compared.

#include <gmock/gmock.h>

#include "nibble/tests/cli/small_model.h"

namespace nibble {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class Eval : public test::SmallModel {
 protected:
  /// Learns "7 is it" by heart; `held_out` asks for it in other words.
  void SetUp() override {
    SmallModel::SetUp();
    test::write_bytes(root_ / "d.jsonl", R"({"prompt": "What?", "completion": " It is\n#### 7"})"
                                         "\n");
    test::write_bytes(root_ / "held_out.jsonl", R"({"prompt": "What?", "completion": " Here it is:\n#### 7.0"})"
                                                "\n");
    test::write_bytes(root_ / "r.yaml",
                      "model: {path: me/small}\ndata: {train: d.jsonl, pack: false, max_length: 64}\n"
                      "train: {steps: 120}\noptimizer: {lr: 1e-2, schedule: constant}\noutput: {dir: run}\n");
    const CommandOutput trained = run("train r.yaml");
    ASSERT_EQ(trained.code, 0) << trained.text;
  }
  double exact_match(const std::string& words) {
    const CommandOutput output = run("eval --model run/model --data held_out.jsonl --exact-match --json " + words);
    EXPECT_EQ(output.code, 0) << output.text;
    return json::parse(output.text.substr(output.text.find('{')))["exact_match"];
  }
};

TEST_F(Eval, AnswersAreComparedByWhatCounts) {
  EXPECT_EQ(exact_match(""), 0);
  EXPECT_EQ(exact_match("--answer number"), 1);
  EXPECT_EQ(exact_match("--answer last-line"), 0);
  EXPECT_EQ(exact_match("--answer regex --pattern '####\\s*(\\d)'"), 1);
  EXPECT_EQ(exact_match("--answer Number --max-new-tokens 1"), 0);
  const CommandOutput progress = run("eval --model run/model --data held_out.jsonl --exact-match");
  EXPECT_THAT(progress.text, Not(HasSubstr("evaluation 0/1")));  // no line in a file before it has taken a while
  EXPECT_THAT(progress.text, Not(HasSubstr("truncated")));
  EXPECT_THAT(run("eval --model run/model --data held_out.jsonl --max-length 8").text,
              HasSubstr("note: 1 truncated (--max-length is 8)\n"));
}

// The columns of a GRPO run's prompts, and of a file that no format fits.
// The config that the run began with has no end.
TEST_F(Eval, WhatIsGeneratedEndsWhereTheTokenizerEndsAText) {
  const auto generated = [&] { return run("generate --model run/model --prompt What? --max-new-tokens 40").text; };
  EXPECT_EQ(generated(), "What? It is\n#### 7\n");
  for (const char* name : {"config.json", "generation_config.json"}) {
    const auto file = root_ / "run/model" / name;
    json config = json::parse(test::read_bytes(file));
    EXPECT_EQ(config["eos_token_id"], 2) << name;
    config.erase("eos_token_id");
    test::write_bytes(file, config.dump());
  }
  EXPECT_EQ(generated(), "What? It is\n#### 7\n");
}

TEST_F(Eval, FieldsSayWhatTheFilesCallThem) {
  test::write_bytes(root_ / "p.jsonl", R"({"prompt": "What?", "answer": " It is\n#### 7"})");
  test::write_bytes(root_ / "qa.csv", "ask,good,bad\nWhat?,It is,No\n");
  const std::string eval = "eval --model run --data p.jsonl --exact-match";
  EXPECT_THAT(run(eval).text, HasSubstr("set data.format and data.fields (--format, --fields); known are"));
  EXPECT_THAT(run(eval + " --fields completion=answer").text, HasSubstr("exact match 100.0% (1 of 1)"));
  test::write_bytes(root_ / "comma.jsonl", R"({"prompt": "What?", "Answer, final": " It is\n#### 7"})");
  EXPECT_THAT(run("eval --model run --data comma.jsonl --exact-match --fields 'completion=Answer, final'").text,
              HasSubstr("exact match 100.0% (1 of 1)"));
  EXPECT_THAT(run(eval + " --fields completion=anser").text,
              HasSubstr("data.fields (--fields) calls completion \"anser\", which is not there; the record has"));
  const CommandOutput wrong = run(eval + " --fields completion=answer,=x");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.text, HasSubstr("--fields completion=answer,=x is no list of NAME=COLUMN"));
  EXPECT_EQ(run(eval + " --fields question=ask --format choices").code, 2);
  const std::string pairs = " --data qa.csv --fields prompt=ask,chosen=good,rejected=bad --out ";
  EXPECT_EQ(run("logprobs --model run/model" + pairs + "logprobs.jsonl").code, 0);
  EXPECT_THAT(test::read_bytes(root_ / "logprobs.jsonl"), HasSubstr("\"rejected\""));
  EXPECT_THAT(run("score --model run/model" + pairs + "scores.jsonl").text,
              HasSubstr("run/model: has no score head that would say how many labels there are; name a reward model"));
}

TEST_F(Eval, IdsNeedNoTokenizer) {
  ASSERT_EQ(run("init --config config.json --out bare").code, 0);
  ASSERT_FALSE(exists(root_ / "bare/tokenizer.json"));
  test::write_bytes(root_ / "ids.jsonl", R"({"input_ids": [5, 6, 7, 8], "labels": [5, 6, 7, 8]})");
  const CommandOutput output = run("eval --model bare --data ids.jsonl");
  EXPECT_EQ(output.code, 0) << output.text;
  EXPECT_EQ(run("eval --model bare --data ids.jsonl --exact-match --answer number").code, 3);
}

// Good and bad answers have no loss in common that would say something.
TEST_F(Eval, PairsHaveAccuracyAndMarginAndNoLoss) {
  const std::string good = R"(" It is\n#### 7")", bad = R"(" Here it is")", begin = R"({"prompt": "What?", "chosen": )";
  const std::string right = begin + good + ", \"rejected\": " + bad + "}\n";
  test::write_bytes(root_ / "pairs.jsonl", right + right + begin + bad + ", \"rejected\": " + good + "}\n");
  const std::string words = "eval --model run --data pairs.jsonl";
  EXPECT_THAT(run(words).text, HasSubstr("evaluate it with `nibble eval --format preference`; or name"));
  const CommandOutput output = run(words + " --format preference");
  EXPECT_THAT(output.text, HasSubstr("accuracy 66.7% (2 of 3), mean margin "));
  EXPECT_THAT(output.text, Not(HasSubstr("perplexity")));
  ASSERT_EQ(run("logprobs --model run --data pairs.jsonl --out l.jsonl").code, 0);
  const std::string lines = test::read_bytes(root_ / "l.jsonl");
  const json pair = json::parse(lines.substr(0, lines.find('\n')));
  const std::string said = run(words + " --format preference --json").text;
  const json found = json::parse(said.substr(said.find('{')));
  EXPECT_EQ(found["asked"], 3);
  EXPECT_NEAR(found["margin"].get<double>(), (pair["chosen"].get<double>() - pair["rejected"].get<double>()) / 3, 1e-4);
  EXPECT_EQ(run(words + " --format preference --exact-match").code, 2);
  for (const char* unused : {" --format preference --limit 3", " --format text --answer number", " --limit 3",
                             " --format choices --pattern x", " --format choices --exact-match",
                             " --format choices --template chatml", " --format choices --hidden-parts drop"}) {
    EXPECT_EQ(run(words + unused).code, 2) << unused;
  }
  const CommandOutput cut = run(words + " --format preference --max-length 8");
  EXPECT_EQ(cut.code, 2);
  EXPECT_THAT(cut.text, HasSubstr("--max-length, --truncate and --train-on-prompt with --format preference; leave"));
  const CommandOutput others = run("eval --model run --data d.jsonl --format unpaired");
  EXPECT_EQ(others.code, 2);
  EXPECT_THAT(others.text, HasSubstr("--format unpaired has no answers whose loss says how good a model is; see"));
}

TEST_F(Eval, AMisspelledOptionIsNamedAndNotTheOneThatIsMissing) {
  EXPECT_EQ(run("eval --modle run --data d.jsonl").text,
            "error: --modle run were not expected; did you mean --model?\n");
  EXPECT_EQ(run("logprobs --model run --data d.jsonl --output l.jsonl").text,
            "error: --output l.jsonl were not expected; did you mean --out?\n");
  EXPECT_EQ(run("generate --model run --promt hi").text,
            "error: --promt hi were not expected; did you mean --prompt?\n");
  EXPECT_EQ(run("logprobs --model run --data d.jsonl --foo").text,
            "error: --out is required, and --foo was not expected; see nibble logprobs --help\n");
  EXPECT_EQ(run("trian r.json").text, "error: trian is no command; did you mean train?\n");
}

TEST_F(Eval, InspectTellsOfATextBesideATowerWhatItsKeysSay) {
  create_directory(root_ / "tower");
  copy_file(root_ / "run/model/model.safetensors", root_ / "tower/model.safetensors");
  test::write_bytes(root_ / "tower/config.json", R"({"model_type": "kimi_k25", "text_config": {"vocab_size": 163840,
      "quantization_config": {"quant_method": "compressed-tensors"}}})");
  EXPECT_THAT(run("inspect tower").text,
              AllOf(HasSubstr("\nvocab_size           163,840\nquantization\n  quant_method "),
                    HasSubstr(" compressed-tensors\nbytes ")));
}

TEST_F(Eval, NumbersAreWrittenForPeople) {
  std::string words;
  for (int i = 0; i < 1200; ++i) words += "9 0 ";
  test::write_bytes(root_ / "long.txt", words);
  using ::testing::ContainsRegex;
  EXPECT_THAT(run("eval --model run --data long.txt").text, ContainsRegex(" over [0-9],[0-9]+ tokens"));
  create_directory(root_ / "large");
  test::write_bytes(root_ / "large/recipe.json", R"({"large": 18446744073709551615})");
  EXPECT_THAT(run("inspect large").text, HasSubstr(" 18446744073709551615\n"));
  EXPECT_THAT(run("inspect run/model").text, ContainsRegex("\nbytes +[0-9]+,[0-9]+\n.* [0-9]+,[0-9]+  model"));
  const std::string job = " r.yaml data.train=long.txt data.eval=long.txt data.max_length=8192 train.steps=1";
  EXPECT_THAT(
      run("validate" + job).text,
      ContainsRegex("model: [0-9]+,[0-9]+ parameters\nvalid: 1 step, the first with [0-9],[0-9]+ tokens, [0-9],"));
  EXPECT_THAT(run("train" + job + " output.dir=long").text, ContainsRegex("  [0-9],[0-9]+ label tokens"));
}

TEST_F(Eval, WhatCannotBeComparedIsReported) {
  const std::string words = "eval --model run/model --data d.jsonl --exact-match ";
  EXPECT_THAT(run(words + "--answer regex").text, HasSubstr("--answer regex and --pattern go together"));
  EXPECT_THAT(run(words + "--answer regex --pattern '(x)'").text,
              HasSubstr("d.jsonl:1:1: has an answer in which --answer finds nothing"));
  EXPECT_EQ(run("eval --model run/model --data d.jsonl --answer number").code, 2);
}

// The template ends a turn with a line break, which no label has; what a user says later is no answer.
TEST_F(Eval, TheLastAnswerOfAConversationIsCompared) {
  const auto talk = [&](const char* name, const char* last) {
    json messages = json::array();
    const char* role = "user";
    for (const char* text : {"One?", "It is 1", "Two?", last}) {
      messages.push_back({{"role", role}, {"content", text}});
      role = std::string_view(role) == "user" ? "assistant" : "user";
    }
    test::write_bytes(root_ / name, json{{"messages", messages}}.dump() + "\n");
  };
  talk("talk.jsonl", "It is 2");
  talk("other.jsonl", "It is 3");
  const CommandOutput trained =
      run("train r.yaml data.train=talk.jsonl data.template=chatml data.max_length=256 output.dir=talk");
  ASSERT_EQ(trained.code, 0) << trained.text;
  const std::string words = "eval --model talk/model --template chatml --exact-match --data ";
  EXPECT_THAT(run(words + "talk.jsonl").text, HasSubstr("exact match 100.0% (1 of 1)"));
  EXPECT_THAT(run(words + "other.jsonl").text, HasSubstr("exact match 0.0% (0 of 1)"));
  EXPECT_THAT(run(words + "talk.jsonl --answer number").text, HasSubstr("exact match 100.0% (1 of 1)"));
  EXPECT_THAT(run(words + "other.jsonl --answer number").text, HasSubstr("exact match 0.0% (0 of 1)"));
}

}  // namespace
}  // namespace nibble
