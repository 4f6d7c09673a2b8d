// `nibble launch`: ranks as processes under mpirun; signals, lost ranks, exit codes, printed forms.

#include "nibble/parallel/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/recipes/models/init_model.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/small_run.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// A small LoRA run with two copies, started by the program.
struct Job : test::SmallRun {
  void write_recipe(const fs::path& base, int steps) const { SmallRun::write_recipe(base, steps, "accumulate"); }
  void start_ranks(int ranks, const std::vector<std::string>& overrides) {
    std::vector<std::string> words = {"launch", "-n", std::to_string(ranks), "--threads", "1", "--", "train", recipe()};
    words.insert(words.end(), overrides.begin(), overrides.end());
    start(words);
  }
  /// Processes that run this job's recipe as ranks.
  std::vector<pid_t> rank_processes() const {
    std::vector<pid_t> found;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const std::string name = entry.path().filename().string();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      const std::string words = test::read_bytes(entry.path() / "cmdline");
      if (words.find(directory.path().string()) == std::string::npos || words.find("mpirun") == 0) continue;
      if (words.find("mpiexec.hydra") == 0 || words.find("hydra_pmi_proxy") != std::string::npos) continue;
      if (words.find(std::string("launch") + '\0') == std::string::npos) found.push_back(std::stoi(name));
    }
    std::sort(found.begin(), found.end());
    return found;
  }
};

TEST(Launch, TwoProcessesGiveTheBitsOfOneAlsoAfterASignalAndALostRank) {
  const std::filesystem::path base = test::data_path("stories-llama");
  Job two;
  two.write_recipe(base, 1'000'000'000);  // what ends it is the signal, then the loss
  two.start_ranks(2, {"parallel.replicate=2"});
  two.wait_for_lines(10);
  kill(two.child, SIGTERM);
  ASSERT_EQ(two.wait(), 75) << two.errors();
  EXPECT_NE(two.errors().find("checkpoint saved"), std::string::npos) << two.errors();

  two.start_ranks(2, {"parallel.replicate=2"});
  two.wait_for_lines(two.lines() + 30);  // over the next checkpoint
  const std::vector<pid_t> ranks = two.rank_processes();
  ASSERT_EQ(ranks.size(), 2u);
  kill(ranks.back(), SIGKILL);
  ASSERT_EQ(two.wait(), 76) << two.errors();
  EXPECT_THAT(two.errors(), testing::AnyOf(testing::HasSubstr(" was ended by signal 9; "),
                                           testing::HasSubstr("error: a rank was lost (mpiexec.hydra names process ")));

  const std::string steps = "train.steps=" + std::to_string(two.lines() + 5);
  two.start_ranks(2, {"parallel.replicate=2", steps});
  ASSERT_EQ(two.wait(), 0) << two.errors();
  Job one;
  one.write_recipe(base, 1);
  one.start({"train", (one.directory / "recipe.json").string(), steps});
  ASSERT_EQ(one.wait(), 0) << one.errors();
  EXPECT_TRUE(two.adapter() == one.adapter()) << "the adapters differ";
}

TEST(Launch, ThreeSignalsEndMpirunWithoutAWordOfIt) {
  Job job;
  job.write_recipe(test::data_path("stories-llama"), 1'000'000'000);
  job.start_ranks(2, {"parallel.replicate=2"});
  job.wait_for_lines(3);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) kill(job.child, signal);  // of one kind two could become one
  ASSERT_EQ(job.wait(), 75) << job.errors();
  for (const char* const noise : {"error:", "***", "EXIT CODE", "EXIT STRING"}) {
    EXPECT_EQ(job.errors().find(noise), std::string::npos) << job.errors();
  }
  EXPECT_THAT(job.errors(), testing::AnyOf(testing::HasSubstr("\nstopping: "), testing::HasSubstr("\nstopped; ")));
}

TEST(Launch, ExpertsOnTwoProcessesGiveTheBitsOfOneAlsoAfterASignal) {
  Job one, two;
  const fs::path base = one.directory / "model";
  const json config = {{"model_type", "qwen3_moe"},
                       {"hidden_size", 32},
                       {"num_hidden_layers", 2},
                       {"num_attention_heads", 4},
                       {"num_key_value_heads", 2},
                       {"head_dim", 8},
                       {"intermediate_size", 24},
                       {"moe_intermediate_size", 24},
                       {"num_local_experts", 6},
                       {"num_experts_per_tok", 2},
                       {"vocab_size", 512},
                       {"max_position_embeddings", 64},
                       {"tie_word_embeddings", false},
                       {"eos_token_id", 2},
                       {"initializer_range", 0.2},
                       {"dtype", "float32"}};
  test::write_bytes(one.directory / "model.json", config.dump());
  init_model({.config = (one.directory / "model.json").string(), .out = base.string(), .seed = 3, .dtype = "nf4"});
  const std::vector<std::string> adapter = {
      "adapter.lora_dropout=0", R"(adapter.target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])",
      R"(adapter.target_modules=["q_proj"])"};
  const auto with = [&](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), adapter.begin(), adapter.end());
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  two.write_recipe(base, 1'000'000'000);  // what ends it is the signal
  two.start_ranks(2, with({}, {"parallel.experts=2"}));
  two.wait_for_lines(10);
  kill(two.child, SIGTERM);
  ASSERT_EQ(two.wait(), 75) << two.errors();
  const std::string steps = "train.steps=" + std::to_string(two.lines() + 5);
  two.start_ranks(2, with({}, {"parallel.experts=2", steps}));
  ASSERT_EQ(two.wait(), 0) << two.errors();
  one.write_recipe(base, 1);
  one.start(with({"train", (one.directory / "recipe.json").string()}, {steps}));
  ASSERT_EQ(one.wait(), 0) << one.errors();
  EXPECT_TRUE(two.adapter() == one.adapter()) << "the adapters differ";
}

TEST(Launch, AnErrorOfAllRanksIsOneLine) {
  const std::filesystem::path base = test::data_path("stories-llama");
  Job job;
  job.write_recipe(base, 2);
  job.start_ranks(2, {"parallel.replicate=3"});
  EXPECT_EQ(job.wait(), 2);
  const std::string errors = job.errors();
  EXPECT_EQ(errors.find("error: "), errors.rfind("error: ")) << errors;
  EXPECT_NE(errors.find("= 3, the job has 2 ranks"), std::string::npos) << errors;
}

TEST(Launch, APlanOfSeveralRanksMeasuresThemUnderMpirun) {
  const std::filesystem::path base = test::data_path("stories-llama");
  Job job;
  job.write_recipe(base, 1);
  job.start({"plan", (job.directory / "recipe.json").string(), "parallel.replicate=2",
             "parallel.offload_activations=true", "data.max_length=64", "train.microbatch_size=1", "--json"});
  ASSERT_EQ(job.wait(), 0) << job.errors();
  EXPECT_EQ(job.errors(), "");  // else they were measured as threads
  const json plan = json::parse(job.output());
  EXPECT_EQ(plan["world_size"], 2);
  EXPECT_EQ(plan["machine"], "this machine");
  EXPECT_GT(plan["computing_seconds"], 0);
  EXPECT_GT(plan["communicating_seconds"], 0);
  EXPECT_GE(plan["step_seconds"], plan["communicating_seconds"]);
  EXPECT_FALSE(fs::exists(job.out())) << "a plan leaves nothing";
}

TEST(Launch, PrintedFormsNameRanksThreadsAndRecipe) {
  LaunchOptions options;
  options.ranks = 4;
  options.threads = 2;
  options.hosts = "alpha:2,beta:2";
  options.root = true;
  options.program = "/usr/bin/nibble";
  options.args = {"train", "my recipe.json", "parallel.shard=4"};
  EXPECT_EQ(shell_line(mpirun_command(options, "Open MPI v4.1.4")),
            "mpirun --allow-run-as-root --oversubscribe --bind-to none -n 4 --host alpha:2,beta:2 -x OMP_NUM_THREADS=2 "
            "/usr/bin/nibble train 'my recipe.json' parallel.shard=4");
  EXPECT_EQ(shell_line(mpirun_command(options, "MPICH")),
            "mpirun -bind-to none -n 4 -hosts alpha:2,beta:2 -genv OMP_NUM_THREADS 2 /usr/bin/nibble train "
            "'my recipe.json' parallel.shard=4");
  EXPECT_NE(slurm_command(options).find("srun --mpi=pmix --ntasks=4 --cpus-per-task=2"), std::string::npos);
  EXPECT_NE(kubernetes_job(options).find("      replicas: 4\n"), std::string::npos);
}

TEST(Launch, AmountsOfMemoryAreReadAsTheirUnitsSay) {
  EXPECT_EQ(parse_bytes("2GiB"), size_t{2} << 30);
  EXPECT_EQ(parse_bytes("1TiB"), size_t{1} << 40);
  EXPECT_EQ(parse_bytes("1.5m"), size_t{3} << 19);
  EXPECT_EQ(parse_bytes("28MB"), 28'000'000u);
  EXPECT_EQ(parse_bytes("0.5tb"), 500'000'000'000u);
  EXPECT_EQ(parse_bytes("100"), 100u);
  for (const char* bad : {"", "x", "-1G", "2 XB", "nan", "1e40"}) EXPECT_THROW(parse_bytes(bad), UsageError) << bad;
}

}  // namespace
}  // namespace nibble
