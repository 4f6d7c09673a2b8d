// The SageMaker contract, in a directory that looks like /opt/ml.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <nlohmann/json.hpp>

#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Job {
  test::TemporaryDirectory base;

  explicit Job(const fs::path& model) {
    for (const char* folder : {"input/config", "input/data/train", "model", "output"})
      fs::create_directories(base / folder);
    fs::create_directory_symlink(fs::absolute(model), base / "input/data/model");
    std::string lines;
    for (int i = 0; i < 8; ++i) lines += json{{"prompt", "The dog"}, {"completion", " ran home."}}.dump() + "\n";
    test::write_bytes(base / "input/data/train/d.jsonl", lines);
    test::write_bytes(base / "input/config/resourceconfig.json", R"({"current_host": "algo-1", "hosts": ["algo-1"]})");
  }
  int run(const json& parameters) const {
    test::write_bytes(base / "input/config/hyperparameters.json", parameters.dump());
    const std::string command = std::string("OMP_NUM_THREADS=1 ") + kProgram + " sagemaker-train --base " +
                                base.path().string() + " >/dev/null 2>&1";
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string failure() const { return test::read_bytes(base / "output/failure"); }
};

// Every value is a string, as the service writes them.
const json kParameters = {{"recipe", "qlora"},
                          {"steps", "3"},
                          {"epochs", "null"},
                          {"optimizer.lr", "1e-3"},
                          {"max_length", "64"},
                          {"eval_fraction", "null"},
                          {"train.eval_every", "null"},
                          {"r", "4"},
                          {"skip_modules", "[\"lm_head\"]"},
                          {"sagemaker_region", "\"x\""},
                          {"train.threads", "1"}};

TEST(Sagemaker, JobLeavesItsAdapterInTheModelFolder) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const Job job(model);
  ASSERT_EQ(job.run(kParameters), 0) << job.failure();
  EXPECT_TRUE(fs::exists(job.base / "model/adapter_model.safetensors"));
  EXPECT_TRUE(fs::exists(job.base / "model/metrics.jsonl"));
  EXPECT_TRUE(fs::exists(job.base / "model/report.html"));
  EXPECT_TRUE(fs::exists(job.base / "checkpoints/checkpoints/step-3"));
  EXPECT_FALSE(fs::exists(job.base / "output/failure"));
  const json config = json::parse(test::read_bytes(job.base / "model/adapter_config.json"));
  EXPECT_EQ(config["r"], 4);
}

TEST(Sagemaker, ARecipeOfAChannelMayBeYaml) {
  const Job job(test::data_path("stories-llama"));
  fs::create_directories(job.base / "input/data/recipe");
  test::write_bytes(job.base / "input/data/recipe/mine.yaml",
                    "adapter: {r: 2}\ndata: {max_length: 64}\ntrain: {steps: 1, threads: 1}\n");
  ASSERT_EQ(job.run({{"recipe", "recipe/mine.yaml"}}), 0) << job.failure();
  EXPECT_TRUE(fs::exists(job.base / "model/adapter_model.safetensors"));
}

TEST(Sagemaker, FailureSaysWhy) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const Job job(model);
  json parameters = kParameters;
  parameters["learning_rate"] = "1";
  EXPECT_EQ(job.run(parameters), 2);
  EXPECT_NE(job.failure().find("learning_rate: unknown key"), std::string::npos) << job.failure();
}

TEST(Sagemaker, SeveralInstancesAreRefusedWithTheReason) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const Job job(model);
  test::write_bytes(job.base / "input/config/resourceconfig.json", R"({"current_host": "a", "hosts": ["a", "b"]})");
  EXPECT_EQ(job.run(kParameters), 2);
  EXPECT_NE(job.failure().find("set the instance count to 1"), std::string::npos) << job.failure();
}

}  // namespace
}  // namespace nibble
