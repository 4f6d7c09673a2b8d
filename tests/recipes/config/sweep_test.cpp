#include "nibble/recipes/config/sweep.h"

#include <gtest/gtest.h>

#include <set>

#include "nibble/core/base/error.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using test::TemporaryDirectory;

TEST(Sweep, KeyWithoutItsSectionIsCompleted) {
  EXPECT_EQ(parse_sweep_axis("lr=1e-4,2e-4").key, "optimizer.lr");
  EXPECT_EQ(parse_sweep_axis("lr=1e-4,2e-4").values, (std::vector<std::string>{"1e-4", "2e-4"}));
  const std::string message = test::error_of<UsageError>([] { parse_sweep_axis("path=a,b"); });
  EXPECT_NE(message.find("write model.path or adapter.path"), std::string::npos) << message;
  EXPECT_NE(
      test::error_of<UsageError>([] { parse_sweep_axis("optimizer.lrr=1,2"); }).find("did you mean optimizer.lr?"),
      std::string::npos);
}

TEST(Sweep, AKeyWithoutItsSectionIsTheOneThatTheObjectiveHas) {
  const TemporaryDirectory directory;
  const std::string file = (directory / "r.json").string();
  test::write_bytes(
      file, R"({"model": {"path": "m"}, "adapter": {}, "data": {"train": "d.jsonl"}, "output": {"dir": "runs/s"},
    "objective": {"type": "distillation", "teacher_model_name_or_path": "t"}})");
  const auto keys = [&](const std::vector<std::string>& words) {
    std::vector<std::string> found;
    for (const SweepAxis& axis : parse_sweep_axes(file, words)) found.push_back(axis.key);
    return found;
  };
  EXPECT_EQ(keys({"temperature=0.5,1", "lr=1e-5,1e-4"}),
            (std::vector<std::string>{"objective.temperature", "optimizer.lr"}));
  EXPECT_EQ(keys({"temperature=0.5,1", "objective.type=grpo", "objective.teacher_model_name_or_path=null",
                  R"(rewards=[{"type":"number","column":"a"}])", "accumulate=8"})
                .front(),
            "rollout.temperature");
  EXPECT_EQ(test::error_of<UsageError>([&] { keys({"path=a,b"}); }),
            "path: is ambiguous; write model.path or adapter.path");
  EXPECT_EQ(test::error_of<UsageError>([&] {
              keys({"temperature=1,2", "foo"});
            }),
            "foo: is no key=values; write optimizer.lr=1e-4,2e-4");
  test::write_bytes(file, "{}");
  EXPECT_EQ(test::error_of<UsageError>([&] { keys({"path=a,b"}); }),
            "path: is ambiguous; write model.path or adapter.path");
}

TEST(Sweep, AMisspelledKeyWithoutItsSectionIsNamed) {
  EXPECT_EQ(test::error_of<UsageError>([] { parse_sweep_axis("betta=0.1,0.2"); }),
            "betta: unknown key; did you mean beta?");
}

TEST(Sweep, CommasInsideListsDivideNothing) {
  EXPECT_EQ(parse_sweep_axis("betas=[0.9,0.95],[0.9,0.99]").values,
            (std::vector<std::string>{"[0.9,0.95]", "[0.9,0.99]"}));
}

TEST(Sweep, IsAllCombinationsAndNamesThemByWhatDiffers) {
  const TemporaryDirectory directory;
  test::write_bytes(directory / "r.json", R"({"model": {"path": "m"}, "adapter": {}, "data": {"train": "d.jsonl"},
    "output": {"dir": "runs/s"}})");
  const std::vector<SweepRun> runs =
      sweep_runs((directory / "r.json").string(),
                 {parse_sweep_axis("lr=1e-4,2e-4"), parse_sweep_axis("r=8,16,32"), parse_sweep_axis("seed=3")});
  ASSERT_EQ(runs.size(), 6u);
  EXPECT_EQ(runs[0].name, "lr=1e-4,r=8");
  EXPECT_EQ(runs[5].name, "lr=2e-4,r=32");
  EXPECT_EQ(runs[5].directory, "runs/s/lr=2e-4,r=32");
  const Recipe last = read_recipe((directory / "r.json").string(), runs[5].overrides);
  EXPECT_EQ(last.optimizer.lr, 2e-4);
  EXPECT_EQ(last.adapter->options.r, 32);
  EXPECT_EQ(last.train.seed, 3);
  EXPECT_EQ(last.output.dir, "runs/s/lr=2e-4,r=32");
}

TEST(Sweep, ListsAndObjectsAreNamedAsTheyAreWritten) {
  const TemporaryDirectory directory;
  test::write_bytes(directory / "r.json", R"({"model": {"path": "m"}, "adapter": {}, "data": {"train": "d.jsonl"},
    "output": {"dir": "runs/s"}})");
  EXPECT_EQ(sweep_runs((directory / "r.json").string(), {parse_sweep_axis("betas=[0.9,0.95],[0.9,0.99]")})[1].name,
            "betas=[0.9,0.99]");
  const std::vector<SweepRun> objects =
      sweep_runs((directory / "r.json").string(), {parse_sweep_axis(R"(rank_pattern={"q_proj":4},{"q_proj":8})")});
  EXPECT_EQ(objects[1].name, R"(rank_pattern={"q_proj":8})");
}

TEST(Sweep, ValuesNeverShareADirectory) {
  const TemporaryDirectory directory;
  test::write_bytes(directory / "r.json", R"({"model": {"path": "m"}, "adapter": {}, "data": {"train": "d.jsonl"},
    "output": {"dir": "runs/s"}})");
  const std::string longer(300, 'a');
  const std::vector<std::string> values = {"\u00e4.jsonl", "\u00f6.jsonl", "a b.jsonl",        "a_b.jsonl",
                                           "a/b.jsonl",    "a%2Fb.jsonl",  longer + "b.jsonl", longer + "c.jsonl"};
  SweepAxis axis{"data.train", values};
  std::set<std::filesystem::path> directories;
  for (const SweepRun& run : sweep_runs((directory / "r.json").string(), {axis})) {
    directories.insert(run.directory);
    EXPECT_EQ(run.directory.parent_path(), "runs/s") << run.directory;
    EXPECT_LT(run.name.size(), 250u);
    EXPECT_EQ(read_recipe((directory / "r.json").string(), run.overrides).output.dir, run.directory.string());
  }
  EXPECT_EQ(directories.size(), values.size());
}

TEST(Sweep, WrongValueIsFoundBeforeAnythingStarts) {
  const TemporaryDirectory directory;
  test::write_bytes(directory / "r.json", R"({"model": {"path": "m"}, "adapter": {}, "data": {"train": "d.jsonl"},
    "output": {"dir": "runs/s"}})");
  EXPECT_THROW(sweep_runs((directory / "r.json").string(), {parse_sweep_axis("lr=1e-4,-1")}), UsageError);
  EXPECT_THROW(sweep_runs((directory / "r.json").string(), {parse_sweep_axis("lr=1e-4")}), UsageError);
}

TEST(Sweep, RunsThatWouldBeTheSameAreRefused) {
  const TemporaryDirectory directory;
  test::write_bytes(directory / "r.json", R"({"model": {"path": "m"}, "adapter": {}, "data": {"train": "d.jsonl"},
    "output": {"dir": "runs/s"}})");
  const auto refusal = [&](const std::string& axis) {
    return test::error_of<UsageError>([&] { sweep_runs((directory / "r.json").string(), {parse_sweep_axis(axis)}); });
  };
  EXPECT_EQ(refusal("output.dir=a,b"), "output.dir: is one directory, which holds all runs; name one");
  EXPECT_EQ(refusal("lr=1e-4,0.0001"), "lr=0.0001: is the same run as lr=1e-4; name each value once");
}

TEST(Sweep, RunIsDoneWhenItsResultIsOfTheSameRecipe) {
  const TemporaryDirectory directory;
  const std::string file = (directory / "r.json").string();
  test::write_bytes(file,
                    R"({"model": {"path": "m"}, "adapter": {}, "data": {"train": "d.jsonl"}, "output": {"dir": ")" +
                        (directory / "s").string() + "\"}}");
  const SweepRun run = sweep_runs(file, {parse_sweep_axis("lr=1e-4,2e-4")})[0];
  EXPECT_FALSE(is_done(file, run));
  std::filesystem::create_directories(run.directory / "adapter");
  test::write_bytes(run.directory / "recipe.json", to_json(read_recipe(file, run.overrides)));
  EXPECT_TRUE(is_done(file, run));
  test::write_bytes(run.directory / "recipe.json", to_json(read_recipe(file, {"optimizer.lr=3e-4"})));
  EXPECT_FALSE(is_done(file, run));
}

}  // namespace
}  // namespace nibble
