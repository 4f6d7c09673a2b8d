// What a beginner gets wrong: recipes and data files. Every message is one line, names the place and the fix.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "nibble/tests/assets.h"
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
      std::string("OMP_NUM_THREADS=1 ") + NIBBLE_PROGRAM + " validate " + recipe + " " + overrides + " 2>&1 >/dev/null";
  std::FILE* pipe = popen(command.c_str(), "r");
  Answer answer;
  std::array<char, 4096> line{};
  while (pipe && std::fgets(line.data(), line.size(), pipe)) {
    if (std::string(line.data()).starts_with("error:")) answer.errors += line.data();
  }
  const int status = pipe ? pclose(pipe) : -1;
  answer.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
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
  expect(of("{\"model\": {\"path\": \"m\"}\n \"data\": {}}"), 3, {"r.json:2:7: ", "correct the JSON there"});
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
         {"train.steps: contradicts train.epochs; give one of them"});
}

TEST_F(WrongRecipe, EarlyStopWithNothingToEvaluate) {
  expect(of(with(R"(, "train": {"early_stop": 3})")), 2, {"give data.eval or data.eval_fraction"});
}

TEST_F(WrongRecipe, SameKeyTwice) { expect(of(R"({"model": {"path": "a", "path": "b"}})"), 3, {"r.json:1", "path"}); }

TEST_F(WrongRecipe, ModelThatIsNotThere) { expect(of(with("")), 4, {"no-model"}); }

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
  void SetUp() override {
    model_ = test::find_asset("stories260K-hf");
    if (model_.empty()) GTEST_SKIP() << "asset stories260K-hf is absent; set NIBBLE_TEST_ASSETS";
  }
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
         {"has no sample to train on", "1 have no trained token", "check data.format"});
}

TEST_F(WrongData, TooLongWhereThatIsAnError) {
  std::string words;
  for (int i = 0; i < 300; ++i) words += "dog ";
  expect(of("{\"prompt\": \"" + words + "\", \"completion\": \"b\"}\n", "data.truncate=error"), 3,
         {"is longer than data.max_length (64 tokens)", "raise data.max_length, or set data.truncate"});
}

TEST_F(WrongData, TypeThatIsNoData) { expect(of("x", "", "d.parquet"), 3, {"d.parquet", "jsonl"}); }

TEST_F(WrongData, ChatWithoutATemplate) {
  const Answer answer =
      of("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\n");
  EXPECT_NE(answer.code, 0);
  EXPECT_NE(answer.errors.find("data.template"), std::string::npos) << answer.errors;
}

}  // namespace
}  // namespace nibble
