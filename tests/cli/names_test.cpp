// What a user has lying around: models and data by their IDs in the Hugging Face cache, recipes in YAML or of other
// tools, runs for their adapters.

#include <gmock/gmock.h>

#include "nibble/tests/assets.h"
#include "nibble/tests/cli/small_model.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::SmallModel;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Names : public SmallModel {
 protected:
  void SetUp() override {
    SmallModel::SetUp();
    const fs::path data = snapshot("datasets--me--talk") / "main";
    fs::create_directories(data);
    const std::string fixtures = std::string(kSourceDir) + "/tests/data/goldens/tables/";
    fs::copy(fixtures + "zstd_v2.parquet", data / "train.parquet");
    fs::copy(fixtures + "stream.arrow", data / "train.arrow");
    test::write_bytes(root_ / "d.csv", "question,answer\nWhat?,That.\nWho?,She.\n");
  }
};

TEST_F(Names, ARecipeInYamlTrainsAModelAndADatasetOfTheCache) {
  test::write_bytes(root_ / "r.yaml",
                    "model: {path: me/small}\nadapter: {r: 2}\n"
                    "data:\n  train: [me/talk/main/*.parquet, d.csv]\n  fields: {completion: answer, answer: answer}\n"
                    "  skip_bad: 1000\n  max_length: 256\n  truncate: cut\n"
                    "train: {steps: 2, threads: 1}\noutput: {dir: run}\n");
  const CommandOutput trained = run("train r.yaml");
  ASSERT_EQ(trained.code, 0) << trained.text;
  const json recipe = json::parse(test::read_bytes(root_ / "run/recipe.json"));
  EXPECT_EQ(recipe["model"]["path"], (root_ / "hub/models--me--small/snapshots/abc").string());
  const json facts = json::parse(test::read_bytes(root_ / "run/adapter/adapter_config.json"));
  EXPECT_EQ(facts["base_model_name_or_path"], (root_ / "hub/models--me--small/snapshots/abc").string());

  const CommandOutput by_run = run("generate --model me/small --adapter run --ids 1,2,3 --max-new-tokens 4");
  const CommandOutput by_directory = run("generate --model " + (root_ / "hub/models--me--small").string() +
                                         " --adapter run/adapter --ids 1,2,3 --max-new-tokens 4");
  EXPECT_EQ(by_run.code, 0) << by_run.text;
  EXPECT_EQ(by_run.text, by_directory.text);
  const CommandOutput tokens = run("tokenize --model me/small --text What --json");
  EXPECT_EQ(tokens.code, 0) << tokens.text;
  EXPECT_EQ(run("merge --adapter run --out merged").code, 0);
}

TEST_F(Names, ACopiedRecipeMayBeYaml) {
  ASSERT_EQ(
      run("recipes cp qlora q.yaml && cd " + root_.path().string() + " && " + kProgram + " recipes cp qlora q.json")
          .code,
      0);
  const std::string keys = " model.path=me/small data.train=d.csv output.dir=run";
  const CommandOutput yaml = run("validate q.yaml" + keys), plain = run("validate q.json" + keys);
  EXPECT_EQ(yaml.code, 0) << yaml.text;
  EXPECT_EQ(yaml.text, plain.text);
  EXPECT_THAT(test::read_bytes(root_ / "q.yaml"), AllOf(HasSubstr("# QLoRA: adapters on"), Not(HasSubstr("//"))));
}

TEST_F(Names, ADirectoryWithSplitsIsTrainedOnAndEvaluatedByThem) {
  const std::string record = R"({"prompt": "Who is she?", "completion": " She is here."})";
  fs::create_directories(root_ / "set");
  test::write_bytes(root_ / "set/train.jsonl", record + "\n" + record + "\n");
  test::write_bytes(root_ / "set/test.jsonl", record + "\n");
  test::write_bytes(root_ / "r.yaml",
                    "model: {path: me/small}\ndata: {train: set, eval: set, max_length: 64}\noutput: {dir: run}\n");
  const CommandOutput shown = run("validate r.yaml");
  EXPECT_EQ(shown.code, 0) << shown.text;
  for (const char* line : {"note: set: its split train is taken (1 file), not test\n", "training data: 2 samples",
                           "note: set: its split test is taken (1 file), not train\n", "evaluation data: 1 sample"}) {
    EXPECT_THAT(shown.text, HasSubstr(line));
  }
  for (const std::string command :
       {"eval --data set", "logprobs --format unpaired --data set --out l.jsonl", "score --data set --out s.jsonl",
        "tokenizer train --data set --vocab-size 1 --out t"}) {
    const std::string split = command.starts_with("eval") ? "test" : "train";
    const std::string model = command.starts_with("tokenizer") ? "" : " --model me/small";
    EXPECT_THAT(run(command + model).text, HasSubstr("note: set: its split " + split)) << command;
  }
  fs::rename(root_ / "set/train.jsonl", root_ / "set/validation.jsonl");
  const CommandOutput refused = run("validate r.yaml");
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.text, HasSubstr("error: set: holds the splits test, validation, none to train on; name the "
                                      "folder or the files, such as set/test.jsonl\n"));
}

TEST_F(Names, AnAdapterAloneNamesTheModelOfEveryCommand) {
  test::write_bytes(root_ / "d.jsonl", "{\"prompt\": \"Who is she?\", \"completion\": \" She is here.\"}\n");
  test::write_bytes(root_ / "r.json", R"({"model": {"path": "me/small"}, "adapter": {"r": 2}, "output": {"dir": "run"},
      "data": {"train": "d.jsonl", "eval_fraction": 0}, "train": {"steps": 1}})");
  ASSERT_EQ(run("train r.json").code, 0);
  for (const std::string command : {"eval --data d.jsonl", "generate --prompt 'Who is' --max-new-tokens 4",
                                    "chat --template plain --max-new-tokens 4 < d.jsonl",
                                    "logits --ids 1,4,5 --out l.npy", "export --no-tokenizer --force --out e.gguf"}) {
    const size_t blank = command.find(' ');
    const auto with = [&](const std::string& named) {
      return run(command.substr(0, blank) + named + command.substr(blank));
    };
    const CommandOutput both = with(" --model me/small --adapter run"), alone = with(" --adapter run"), none = with("");
    EXPECT_EQ(alone.code, 0) << alone.text;
    EXPECT_EQ(alone.text, both.text) << command;
    EXPECT_EQ(none.code, 2) << command;
    EXPECT_THAT(none.text, HasSubstr("error: --model is required")) << command;
  }
  const CommandOutput combined = run("combine --adapter run --weight 1 --adapter run/adapter --weight 1 --out both");
  EXPECT_EQ(combined.code, 0) << combined.text;
  EXPECT_THAT(combined.text, Not(HasSubstr("warning")));
}

TEST_F(Names, AdaptersOfSeveralBasesAreCombinedWithAWarning) {
  ASSERT_EQ(run("init --config config.json --seed 7 --out other").code, 0);
  test::write_bytes(root_ / "d.jsonl", "{\"prompt\": \"Who is she?\", \"completion\": \" She is here.\"}\n");
  test::write_bytes(root_ / "r.json", R"({"model": {"path": "me/small"}, "adapter": {"r": 2}, "output": {"dir": "run"},
      "data": {"train": "d.jsonl", "eval_fraction": 0}, "train": {"steps": 1}})");
  ASSERT_EQ(run("train r.json").code, 0);
  ASSERT_EQ(run("train r.json output.dir=run-nf4 model.quantize=nf4").code, 0);
  ASSERT_EQ(run("train r.json output.dir=run-other model.path=other model.tokenizer=me/small").code, 0);
  const auto combined = [&](const std::string& second) {
    const CommandOutput output =
        run("combine --adapter run --weight 1 --adapter " + second + " --weight 1 --force --out both");
    EXPECT_EQ(output.code, 0) << output.text;
    return output.text;
  };
  EXPECT_THAT(combined("run-other"),
              HasSubstr("warning: run-other/adapter was trained on another base than run/adapter: what is made of both "
                        "may fit neither\n"));
  EXPECT_THAT(combined("run-nf4"), HasSubstr("warning: run-nf4/adapter was trained on the base in nf4, run/adapter on "
                                             "the base without quantization\n"));
}

TEST_F(Names, WhatTheCacheLacksIsNamedWithTheCommandThatFetchesIt) {
  const CommandOutput model = run("generate --model me/large --ids 1");
  EXPECT_EQ(model.code, 4);
  EXPECT_THAT(model.text, HasSubstr("hf download me/large\n"));
  test::write_bytes(root_ / "r.json",
                    R"({"model": {"path": "me/small"}, "data": {"train": "me/talk"}, "output": {"dir": "run"}})");
  const CommandOutput data = run("validate r.json");
  EXPECT_EQ(data.code, 3);
  EXPECT_THAT(data.text, HasSubstr("name the folder of the data, such as "));
  EXPECT_THAT(data.text, HasSubstr("abc/main"));
  EXPECT_THAT(run("validate r.json data.train=me/none").text, HasSubstr("hf download me/none --repo-type dataset\n"));
}

TEST_F(Names, ASnapshotWithoutWeightsIsNamedWithTheCommandThatFetchesThem) {
  const std::filesystem::path model = root_ / "hub/models--me--small/snapshots/abc";
  const std::string generate = "generate --model me/small --ids 1";
  test::write_bytes(model / "model.safetensors.index.json", R"({"weight_map": {"a": "one.safetensors"}})");
  remove(model / "model.safetensors");
  EXPECT_THAT(run(generate).text, HasSubstr("one.safetensors: is missing, though the index names it; download it: "
                                            "hf download me/small\n"));
  remove(model / "model.safetensors.index.json");
  const CommandOutput output = run(generate);
  EXPECT_EQ(output.code, 3);
  EXPECT_THAT(output.text, HasSubstr("has neither model.safetensors nor model.safetensors.index.json; download it: "
                                     "hf download me/small\n"));
}

TEST_F(Names, InspectTakesAnId) {
  const CommandOutput output = run("inspect me/small");
  EXPECT_EQ(output.code, 0) << output.text;
  EXPECT_THAT(output.text, HasSubstr("model_type           llama"));
  EXPECT_THAT(run("inspect me/none").text, HasSubstr("hf download me/none\n"));
}

TEST_F(Names, AConfigurationOfAnotherToolBecomesARecipe) {
  test::write_bytes(root_ / "theirs.yml",
                    "base_model: me/small\nadapter: lora\nlora_r: 2\ndatasets:\n  - path: d.csv\nmicro_batch_size: 1\n"
                    "max_steps: 1\noutput_dir: run\nflash_attention: true\n");
  const CommandOutput output = run("recipes convert theirs.yml mine.json");
  EXPECT_EQ(output.code, 0) << output.text;
  EXPECT_THAT(output.text, HasSubstr("note: flash_attention: has no counterpart\n"));
  EXPECT_THAT(output.text, HasSubstr("mine.json: made from a configuration of Axolotl\n"));
  EXPECT_EQ(run("recipes convert theirs.yml mine.json").code, 2);
  const CommandOutput trained = run("train mine.json");
  EXPECT_EQ(trained.code, 0) << trained.text;
}

TEST_F(Names, LabelsInCsvAreNotTakenForText) {
  test::write_bytes(root_ / "kto.csv", "prompt,completion,label\na,b,True\na,c,False\n");
  test::write_bytes(root_ / "r.json",
                    R"({"model": {"path": "me/small"}, "data": {"train": "kto.csv"}, "output": {"dir": "run"}})");
  const CommandOutput output = run("validate r.json");
  EXPECT_EQ(output.code, 3);
  EXPECT_THAT(output.text, HasSubstr("kto.csv:2:1: is labelled as a good or a bad answer"));
}

}  // namespace
}  // namespace nibble
