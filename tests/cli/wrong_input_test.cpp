// What a beginner gets wrong: recipes and data files. Every message is one line, names the place and the fix.

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

#include "nibble/tests/assets.h"
#include "nibble/tests/command_output.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using nlohmann::json;
using test::TemporaryDirectory;

struct Answer {
  int code = -1;
  std::string errors;  ///< lines that begin with "error:"
};

Answer validate(const std::string& recipe, const std::string& overrides) {
  const std::string command =
      std::string("OMP_NUM_THREADS=1 ") + kProgram + " validate " + recipe + " " + overrides + " 2>&1 >/dev/null";
  const test::CommandOutput output = test::output_of(command);
  Answer answer{output.code, ""};
  std::istringstream lines(output.text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("error:")) answer.errors += line + "\n";
  }
  return answer;
}

void expect(const Answer& answer, int code, const std::vector<std::string>& parts) {
  EXPECT_EQ(answer.code, code) << answer.errors;
  EXPECT_EQ(std::count(answer.errors.begin(), answer.errors.end(), '\n'), 1) << answer.errors;
  for (const std::string& part : parts) {
    EXPECT_NE(answer.errors.find(part), std::string::npos) << "\"" << part << "\" is not in: " << answer.errors;
  }
}

class WrongRecipe : public testing::Test {
 protected:
  /// Validates this text as a recipe.
  Answer of(const std::string& text, const std::string& overrides = "") {
    test::write_bytes(directory_ / "r.json", text);
    return validate((directory_ / "r.json").string(), overrides);
  }
  /// A good recipe with something added to it.
  static std::string with(const std::string& more) {
    return R"({"model": {"path": "no-model"}, "data": {"train": "no.jsonl"}, "output": {"dir": "runs/x"})" + more + "}";
  }
  TemporaryDirectory directory_;
};

TEST_F(WrongRecipe, MisspeltKey) {
  expect(of(with(R"(, "optimizer": {"learning_rat": 1})")), 2, {"r.json: optimizer.learning_rat: unknown key"});
  expect(of(with(R"(, "train": {"microbatchsize": 1})")), 2, {"did you mean train.microbatch_size?"});
}

TEST_F(WrongRecipe, MisspeltSection) {
  expect(of(with(R"(, "adaptor": {"r": 8})")), 2, {"r.json: adaptor: unknown key; did you mean adapter?"});
}

TEST_F(WrongRecipe, KeyInTheWrongSection) {
  expect(of(with(R"(, "train": {"lr": 1e-4})")), 2, {"train.lr: unknown key; did you mean optimizer.lr?"});
}

TEST_F(WrongRecipe, MissingComma) {
  expect(of("{\"model\": {\"path\": \"m\"}\n \"data\": {}}"), 3, {"r.json:2:7: ", "put a comma before it"});
}

TEST_F(WrongRecipe, NoModel) {
  expect(of(R"({"data": {"train": "x"}, "output": {"dir": "o"}})"), 2,
         {"model.path: is missing; name a model directory"});
}

TEST_F(WrongRecipe, NumberAsWords) {
  expect(of(with(R"(, "optimizer": {"lr": "fast"})")), 2, {"optimizer.lr: must be a number", "not \"fast\""});
}

TEST_F(WrongRecipe, ValueOutOfRange) {
  expect(of(with(R"(, "train": {"microbatch_size": 0})")), 2, {"train.microbatch_size: must be", "not 0"});
  expect(of(with(""), "optimizer.lr=-1"), 2, {"command line: optimizer.lr: must be", "not -1"});
}

TEST_F(WrongRecipe, NameNearAKnownOne) {
  expect(of(with(R"(, "optimizer": {"schedule": "cosin"})")), 2, {"did you mean cosine?"});
}

TEST_F(WrongRecipe, FourBitBaseWithoutAnAdapter) {
  expect(of(with(""), "model.quantize=nf4"), 2,
         {"model.quantize: 4-bit weights cannot be trained; add an adapter section, or leave it out"});
}

TEST_F(WrongRecipe, StepsAndEpochsTogether) {
  expect(of(with(R"(, "train": {"steps": 10, "epochs": 1})")), 2,
         {"train.steps: contradicts train.epochs; give one of them; train.epochs=null takes it out of the recipe"});
}

TEST_F(WrongRecipe, EarlyStopWithNothingToEvaluate) {
  expect(of(with(R"(, "train": {"early_stop": 3})")), 2, {"give data.eval or data.eval_fraction"});
}

TEST_F(WrongRecipe, SameKeyTwice) { expect(of(R"({"model": {"path": "a", "path": "b"}})"), 3, {"r.json:1", "path"}); }

TEST_F(WrongRecipe, ModelThatIsNotThere) {
  expect(of(with("")), 4, {"error: model.path: no-model: no such directory; check the path"});
}

TEST_F(WrongRecipe, AdaptersThatAreNotThereAreNamedByTheirKeys) {
  const std::string model = "model.path=" + directory_.path().string();
  expect(of(with(R"(, "adapter": {"path": "gone/adapter"})"), model), 4,
         {"error: adapter.path: gone/adapter: no such directory"});
  const std::string ppo =
      with(R"(, "adapter": {}, "rewards": [{"type": "exact", "column": "a"}, {"type": "model", "path": "gone/judge"}],
      "objective": {"type": "ppo", "value_adapter": "gone/value"})");
  expect(of(ppo, model), 4, {"error: objective.value_adapter: gone/value: no such directory; check the path"});
  expect(of(ppo, model + " objective.value_adapter=null"), 4,
         {"error: rewards[1].path: gone/judge: no such directory"});
  expect(of(with(R"(, "adapter": {}, "objective": {"type": "dpo", "reference": "gone/base"})"), model), 4,
         {"error: objective.reference: gone/base: no such directory"});
}

TEST_F(WrongRecipe, FilesAndNamesThatCannotBeWhereDirectoriesAreAskedForAreNamedByTheirKeys) {
  const std::string model = "model.path=" + directory_.path().string(), file = (directory_ / "file").string();
  test::write_bytes(file, "x");
  const std::string ppo = with(R"(, "adapter": {}, "objective": {"type": "ppo", "reward_model": "r"})");
  expect(of(ppo, model + " objective.value_model=" + file), 3,
         {"error: objective.value_model: " + file + ": is a file; give the directory that it is in"});
  expect(of(ppo, model + " objective.value_adapter=" + std::string(300, 'a')), 4,
         {"error: objective.value_adapter: aaa", "aaa: File name too long; check the path"});
}

TEST_F(WrongRecipe, ModelOfTheHubOrWithAShellsSigns) {
  expect(of(with(""), "model.path=meta-llama/Llama-3.2-1B"), 4, {"hf download meta-llama/Llama-3.2-1B"});
  expect(of(with(""), "'model.path=~/models/x'"), 4, {"~/models/x: no such directory; write the path out"});
}

TEST_F(WrongRecipe, KeysOfOtherTools) {
  for (const auto& [theirs, ours] :
       {std::pair{"base_model", "model.path"},  // Axolotl
        std::pair{"micro_batch_size", "train.microbatch_size"},
        std::pair{"cutoff_len", "data.max_length"},  // LLaMA-Factory
        std::pair{"lora_rank", "adapter.r"}, std::pair{"gradient_accumulation_steps", "train.accumulate"},  // Trainer
        std::pair{"learning_rate", "optimizer.lr"}, std::pair{"output_dir", "output.dir"}}) {
    expect(of(with(std::string(", \"") + theirs + "\": 8")), 2, {std::string("did you mean ") + ours + "?"});
  }
  expect(of(with(R"(, "adapter": {"alpha": 16})")), 2,
         {"adapter.alpha: unknown key; did you mean adapter.lora_alpha?"});
  expect(of(with(R"(, "adapter": {"rank": 16})")), 2, {"did you mean adapter.r?"});
  expect(of(R"({"model": {"path": "m", "load_in_4bit": true}})"), 2, {"did you mean model.quantize?"});
  expect(of(with(""), "data.format=sharegpt"), 2, {"did you mean chat?"});
  expect(of(with(""), "optimizer.type=paged_adamw_32bit"), 2, {"did you mean adamw?"});
}

TEST_F(WrongRecipe, KeysWithDashes) {
  expect(of(with(""), "--optimizer.lr=1e-4"), 2, {"keys of the recipe are given without dashes: optimizer.lr=1e-4"});
}

TEST_F(WrongRecipe, JsonAsPythonOrEditorsLeaveIt) {
  expect(of(R"({"model": {"path": "m",}})"), 3, {"r.json:1:", "remove the comma before it"});
  expect(of(R"({"data": {"pack": True}})"), 3, {"write true for True"});
  expect(of("{'model': 1}"), 3, {"put strings in double quotes"});
  expect(of(""), 3, {"r.json: is empty"});
  expect(of(std::string("\xff\xfe{\0", 4)), 3, {"r.json: is UTF-16; save it as UTF-8"});
  test::write_bytes(directory_ / "r.yaml", "model:\n  path: x\n path: y\n");
  expect(validate((directory_ / "r.yaml").string(), ""), 3, {"r.yaml:3:2: is no YAML: "});
  expect(of(with(R"(, "adapter": "lora")")), 2, {"adapter: must be an object; write { }"});
}

TEST_F(WrongRecipe, FlagsOfOtherCommandsInsteadOfARecipe) {
  expect(validate("--model m", "--data=d.jsonl"), 2,
         {"copy a recipe (nibble recipes cp qlora), then: nibble validate qlora.json model.path=m data.train=d.jsonl "
          "output.dir=runs/mine"});
  expect(validate("--out o", "--model"), 2, {"nibble validate qlora.json output.dir=o model.path=...\n"});
  expect(validate("--model 'a b'", "--out=c"), 2, {"qlora.json 'model.path=a b' output.dir=c\n"});
}

TEST_F(WrongRecipe, KeysWithoutARecipe) {
  expect(validate("model.path=m", "data.train=d.jsonl"), 2,
         {"model.path=m: is a key of a recipe, and no recipe is named; copy one (nibble recipes cp qlora)",
          "qlora.json model.path=m data.train=d.jsonl\n"});
  expect(validate("'model.path=a b'", "data.train=d"), 2, {"qlora.json 'model.path=a b' data.train=d\n"});
}

TEST_F(WrongRecipe, ShippedOneThatIsNotCopied) {
  expect(validate("qlora.json", ""), 4, {"qlora.json: no such file", "nibble recipes cp qlora"});
  expect(validate("recipes/configs/falcon-7b-qlora-pipeline.json", ""), 4,
         {"falcon-7b-qlora-pipeline.json: no such file", "nibble recipes cp falcon-7b-qlora-pipeline"});
}

class WrongData : public testing::Test {
 protected:
  /// Validates a LoRA of the small model on these bytes.
  Answer of(const std::string& bytes, const std::string& overrides = "", const std::string& name = "d.jsonl") {
    test::write_bytes(directory_ / name, bytes);
    const json recipe = {{"model", {{"path", model_.string()}}},
                         {"adapter", {{"r", 4}}},
                         {"data", {{"train", (directory_ / name).string()}, {"max_length", 64}}},
                         {"output", {{"dir", (directory_ / "run").string()}}}};
    test::write_bytes(directory_ / "r.json", recipe.dump());
    return validate((directory_ / "r.json").string(), overrides);
  }
  void SetUp() override { model_ = test::data_path("stories-llama"); }
  TemporaryDirectory directory_;
  std::filesystem::path model_;
};

TEST_F(WrongData, GoodDataPass) { EXPECT_EQ(of("{\"prompt\": \"a\", \"completion\": \"b\"}\n").code, 0); }

TEST_F(WrongData, FileThatIsNotThere) {
  expect(of("", "data.train=gone.jsonl"), 3, {"gone.jsonl: no such file", "check the path"});
}

TEST_F(WrongData, EmptyFile) { expect(of(""), 3, {"d.jsonl: holds no record"}); }

TEST_F(WrongData, BrokenLine) {
  expect(of("{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": \"a\", \"completion\n"), 3,
         {"d.jsonl:2", "data.skip_bad"});
}

TEST_F(WrongData, FieldMissing) {
  expect(of("{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": \"a\"}\n"), 3, {"d.jsonl:2", "completion"});
}

TEST_F(WrongData, FieldOfTheWrongType) {
  expect(of("{\"prompt\": \"a\", \"completion\": 7}\n"), 3, {"d.jsonl:1", "completion"});
}

TEST_F(WrongData, UnknownFields) {
  expect(of("{\"frage\": \"a\", \"antwort\": \"b\"}\n"), 3, {"d.jsonl:1", "data.format"});
}

TEST_F(WrongData, FilesThatAreNoJsonLines) {
  expect(of("instruction,output\na,b\n"), 3, {"d.jsonl:1:1: is not JSON, it looks like CSV"});
  expect(of("version https://git-lfs.github.com/spec/v1\noid sha256:1\n"), 3, {"is a Git LFS pointer", "git lfs pull"});
  expect(of("<!DOCTYPE html>\n<html>"), 3, {"d.jsonl: is a web page"});
  expect(of("{\n \"prompt\": \"a\",\n \"completion\": \"b\"\n}\n"), 3, {"write each record on one line"});
  expect(of("{\"prompt\": \"a\", \"completion\": \"b\"},\n"), 3, {"d.jsonl:1:", "remove the comma"});
  expect(of("{'prompt': 'a'}\n"), 3, {"put strings in double quotes"});
  expect(of("{\"prompt\": \"say \"hi\"\", \"completion\": \"b\"}\n"), 3, {"for a quotation mark inside a string"});
}

TEST_F(WrongData, NullAndRolesThatAreNot) {
  expect(of("{\"prompt\": \"a\", \"completion\": null}\n"), 3, {"\"completion\" (null)"});
  expect(of("{\"prompt\": \"a\", \"completion\": null}\n", "data.format=completion"), 3,
         {"field \"completion\" is null"});
  expect(of("{\"conversations\": [{\"from\": \"alien\", \"value\": \"a\"}]}\n", "data.template=chatml"), 3,
         {"conversations[0] is from \"alien\"", "known are human, gpt"});
  expect(of("{\"messages\": [{\"role\": \"bot\", \"content\": \"a\"}]}\n", "data.template=chatml"), 3,
         {"messages[0]", "'bot'", "roles are system, user, assistant"});
  expect(of("{\"messages\": []}\n", "data.template=chatml"), 3, {"field \"messages\" is empty; give it"});
}

TEST_F(WrongData, OfTheHub) {
  expect(of("", "data.train=tatsu-lab/alpaca"), 3, {"hf download tatsu-lab/alpaca --repo-type dataset"});
}

/// A copy of the small model with something wrong.
class WrongModel : public WrongData {
 protected:
  void SetUp() override {
    WrongData::SetUp();
    if (IsSkipped()) return;
    copy_ = directory_ / "model";
    std::filesystem::create_directories(copy_);
    for (const auto& entry : std::filesystem::directory_iterator(model_)) {
      if (entry.is_regular_file()) test::write_bytes(copy_ / entry.path().filename(), test::read_bytes(entry.path()));
    }
    model_ = copy_;
  }
  Answer found() { return of("{\"prompt\": \"a\", \"completion\": \"b\"}\n"); }
  std::filesystem::path copy_;
};

TEST_F(WrongModel, WeightsThatAreNotThereOrNotThemselves) {
  EXPECT_EQ(found().code, 0);
  const std::string weights = test::read_bytes(copy_ / "model.safetensors");
  const auto with_weights = [&](const std::string& bytes) {
    test::write_bytes(copy_ / "model.safetensors", bytes);
    return found();
  };
  expect(with_weights("version https://git-lfs.github.com/spec/v1\noid sha256:46\nsize 135\n"), 3,
         {"model.safetensors: is a Git LFS pointer", "git lfs pull"});
  expect(with_weights(""), 3, {"model.safetensors: is empty"});
  expect(with_weights(weights.substr(0, weights.size() / 2)), 3, {"model.safetensors", "download it again"});
  std::filesystem::remove(copy_ / "model.safetensors");
  expect(found(), 3, {"has neither model.safetensors nor"});
  test::write_bytes(copy_ / "pytorch_model.bin", "PK\x03\x04");
  expect(found(), 3, {"has only pickled weights (pytorch_model.bin)", "safetensors"});
  test::write_bytes(copy_ / "model.safetensors.index.json",
                    R"({"weight_map": {"a": "model-00001-of-00002.safetensors"}})");
  expect(found(), 3, {"model-00001-of-00002.safetensors: is missing", "download the shard"});
}

TEST_F(WrongModel, TokenizerOrConfigMissing) {
  std::filesystem::remove(copy_ / "tokenizer.model");
  std::filesystem::remove(copy_ / "tokenizer.json");
  expect(found(), 3, {copy_.string() + ": has no tokenizer", "set model.tokenizer"});
  test::write_bytes(copy_ / "tokenizer.json", "version https://git-lfs.github.com/spec/v1\n");
  expect(found(), 3, {"tokenizer.json: is a Git LFS pointer"});
  std::filesystem::remove(copy_ / "config.json");
  expect(found(), 3, {copy_.string() + ": has no config.json"});
  model_ = copy_ / "model.safetensors";
  expect(found(), 3, {"model.safetensors: is a file; give the directory"});
}

TEST_F(WrongModel, SomethingElseThanAModelsDirectory) {
  const auto said = [&](const std::string& command) {
    return test::output_of(kProgram + (" " + command) + " 2>&1").text;
  };
  const std::string file = (copy_ / "model.safetensors").string(), gguf = (directory_ / "m.gguf").string();
  const std::string adapter = (directory_ / "adapter").string();
  test::write_bytes(gguf, "GGUF");
  std::filesystem::create_directories(adapter);
  test::write_bytes(adapter + "/adapter_config.json", R"({"peft_type": "LORA", "r": 2, "target_modules": ["q_proj"]})");
  const std::string template_of = "template --messages " + (directory_ / "none.json").string();
  for (const std::string& command :
       {std::string("generate --prompt a"), std::string("generate --ids 1,5"), std::string("chat --template plain"),
        "merge --out x --adapter " + adapter, std::string("eval --data none.jsonl"), template_of}) {
    EXPECT_EQ(said(command + " --model " + file),
              "error: " + file + ": is a file; give the directory of the model that it is in\n");
    EXPECT_EQ(
        said(command + " --model " + gguf),
        "error: " + gguf + ": is a GGUF file; make a directory of it: nibble import --model FILE.gguf --out DIR\n");
    EXPECT_EQ(said(command + " --model no/such"),
              "error: no/such: no such directory; check the path; what is on the "
              "Hugging Face Hub has to be downloaded first: hf download no/such\n");
  }
  model_ = gguf;
  expect(found(), 3, {"error: model.path: " + gguf + ": is a GGUF file; make a directory of it: nibble import"});
  const std::string is_adapter = ": is an adapter; name it with --adapter or adapter.path, and its base as the model\n";
  EXPECT_EQ(said("generate --ids 1,5 --model " + adapter), "error: " + adapter + is_adapter);
  model_ = adapter;
  expect(found(), 3, {"error: " + adapter + is_adapter});
}

TEST_F(WrongModel, QuantizedByOthers) {
  json config = json::parse(test::read_bytes(copy_ / "config.json"));
  config["quantization_config"] = {{"quant_method", "awq"}, {"bits", 4}};
  test::write_bytes(copy_ / "config.json", config.dump());
  expect(found(), 3, {"the model is quantized by awq"});
}

// They would have no effect.
TEST_F(WrongModel, NamesThatFitNothing) {
  found();
  const auto run = [&](const std::string& words, int code, const std::string& part) {
    const test::CommandOutput output = test::output_of("cd " + directory_.path().string() + " && OMP_NUM_THREADS=1 " +
                                                       kProgram + " " + words + " 2>&1");
    EXPECT_EQ(output.code, code) << output.text;
    EXPECT_NE(output.text.find(part), std::string::npos) << output.text;
  };
  run("quantize --model model --out q --skip down_prjo", 2,
      "error: --skip: \"down_prjo\" is no module of the model; did you mean down_proj?\n");
  const std::string skips = " r.json adapter.r=2 model.quantize=nf4 model.skip_modules=";
  for (const char* command : {"validate", "plan", "train"}) {
    run(command + skips + "[lm_head,nothing]", 2,
        "error: model.skip_modules: \"nothing\" is no module of the model; name one, such as ");
  }
  run("validate" + skips + "[lm_head,score,model.layers.1,up_proj]", 0, "");
  const std::string warning = "warning: optimizer.no_decay fits no tensor that is trained\n";
  for (const char* command : {"validate", "train"}) {
    const std::string asked = std::string(command) + " r.json train.steps=1 adapter.r=2 ";
    run(asked + "optimizer.no_decay=[norm,bias]", 0, warning);
    const std::string fits = asked + "output.dir=fits optimizer.no_decay=[lora_B,bias]";
    EXPECT_EQ(test::output_of("cd " + directory_.path().string() + " && " + kProgram + " " + fits + " 2>&1")
                  .text.find("no_decay fits"),
              std::string::npos)
        << command;
  }
  run("validate r.json optimizer.no_decay=[nrom]", 0, warning);
  run("validate r.json adapter.target_modules=[q_proj] adapter.layers_to_transform=[0,99]", 0,
      "note: these fit no module: layers_to_transform 99\n");
  run("validate r.json adapter.exclude_modules=all-linear adapter.r=2", 0,
      "note: these fit no module: exclude_modules \"all-linear\"\n");
  std::filesystem::remove(directory_ / "model/model.safetensors");
  run("plan" + skips + "[lm_head]", 0, "");
  run("plan" + skips + "[nothing]", 2, "\"nothing\" is no module of the model");
}

TEST_F(WrongModel, SamplesLongerThanTheModelWasMadeForAreWarnedOf) {
  std::string words;
  for (int i = 0; i < 900; ++i) words += "dog ";
  test::write_bytes(directory_ / "long.jsonl", "{\"text\": \"" + words + "\"}\n");
  of("{\"prompt\": \"a\", \"completion\": \"b\"}\n");
  const std::string command = std::string("OMP_NUM_THREADS=1 ") + kProgram + " validate " +
                              (directory_ / "r.json").string() +
                              " data.max_length=2048 data.train=" + (directory_ / "long.jsonl").string() + " 2>&1";
  const test::CommandOutput output = test::output_of(command);
  EXPECT_EQ(output.code, 0) << output.text;
  EXPECT_NE(output.text.find("the model was made for 512 (max_position_embeddings); lower data.max_length"),
            std::string::npos)
      << output.text;
}

TEST_F(WrongData, NotUtf8) {
  expect(of("{\"prompt\": \"a\xff\", \"completion\": \"b\"}\n"), 3, {"d.jsonl:1", "UTF-8"});
}

TEST_F(WrongData, IdBeyondTheVocabulary) {
  expect(of("{\"input_ids\": [1, 99999], \"labels\": [1, 99999]}\n"), 3, {"d.jsonl:1", "99999"});
}

TEST_F(WrongData, LabelsOfAnotherLength) {
  expect(of("{\"input_ids\": [1, 2, 3], \"labels\": [1, 2]}\n"), 3, {"d.jsonl:1", "labels"});
}

TEST_F(WrongData, NothingIsTrained) {
  expect(of("{\"input_ids\": [1, 2, 3], \"labels\": [-100, -100, -100]}\n"), 3,
         {"has no sample to train on", "of 1 record 1 without a trained token", "check data.format"});
}

TEST_F(WrongData, TooLongWhereThatIsAnError) {
  std::string words;
  for (int i = 0; i < 300; ++i) words += "dog ";
  expect(of("{\"prompt\": \"" + words + "\", \"completion\": \"b\"}\n", "data.truncate=error"), 3,
         {"is longer than data.max_length (64 tokens)", "raise data.max_length, or set data.truncate"});
}

TEST_F(WrongData, TypeThatIsNoData) { expect(of("x", "", "d.xlsx"), 3, {"d.xlsx", "jsonl"}); }

TEST_F(WrongData, ChatWithoutATemplate) {
  const Answer answer =
      of("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\n");
  EXPECT_NE(answer.code, 0);
  EXPECT_NE(answer.errors.find("data.template"), std::string::npos) << answer.errors;
}

TEST_F(WrongData, PartsThatABuiltInTemplateHasNoFormFor) {
  const json list = json::array({{{"name", "f"}}});
  for (const auto& [where, key, part, name] : std::vector<std::tuple<std::string, std::string, json, std::string>>{
           {"", "tools", list, "a list of tools"},
           {"", "functions", list, "a list of tools"},
           {"", "documents", list, "documents"},
           {"/messages/1", "function_call", list[0], "tool calls in messages[1]"},
           {"/messages/1", "reasoning", "r", "reasoning in messages[1]"},
           {"/messages/1", "thinking", "r", "reasoning in messages[1]"}}) {
    json chat = {{"messages", {{{"role", "user"}, {"content", "a"}}, {{"role", "assistant"}, {"content", "b"}}}}};
    chat[json::json_pointer(where)][key] = part;
    const std::string record = chat.dump() + "\n";
    expect(of(record, "data.template=plain"), 3,
           {"error: " + (directory_ / "d.jsonl").string() + ":1:1: has " + name +
                ", which the chat template does not show",
            "data.hidden_parts=drop (--hidden-parts drop)\n"});
    EXPECT_EQ(of(record, "data.template=plain data.hidden_parts=drop").code, 0) << key;
  }
}

}  // namespace
}  // namespace nibble
