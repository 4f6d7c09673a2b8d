// nibble plan, and a run under a budget: what they tell.

#include <gmock/gmock.h>

#include <cstdlib>
#include <thread>

#include "nibble/tests/cli/small_model.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PlanProgram : public test::SmallModel {
 protected:
  void SetUp() override {
    test::SmallModel::SetUp();
    test::write_bytes(root_ / "d.jsonl", R"({"prompt": "What?", "completion": " That."})"
                                         "\n");
    test::write_bytes(root_ / "r.yaml",
                      "model: {path: me/small}\ndata: {train: d.jsonl, max_length: 64}\n"
                      "train: {steps: 1, threads: 1}\noutput: {dir: runs}\n");
  }
};

TEST_F(PlanProgram, ABudgetThatIsTooSmallIsReported) {
  const CommandOutput plan = run("plan r.yaml --max-memory 1MiB");
  EXPECT_EQ(plan.code, 0) << "a plan is no refusal";
  EXPECT_THAT(plan.text, AllOf(HasSubstr(" MiB, which does not fit: needs "), HasSubstr("\nnothing fits: ")));
  EXPECT_EQ(plan.text.find(" a rank with its page cache, the budget") != std::string::npos,
            plan.text.find(" of the base in the page cache") != std::string::npos)
      << "what is needed beside the memory of the process: " << plan.text;
  EXPECT_THAT(run("train r.yaml train.gradient_checkpointing=auto --max-memory 12MiB").text,
              HasSubstr("\nwarning: recomputing "));
}

TEST_F(PlanProgram, WithoutMpirunRanksAreMeasuredAsThreads) {
  const std::string path = std::getenv("PATH");
  setenv("PATH", root_.path().c_str(), 1);
  const CommandOutput plan = run("plan r.yaml parallel.replicate=2");
  setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(plan.code, 0);
  EXPECT_THAT(plan.text, HasSubstr("note: 2 ranks under mpirun left no measurement, so they were measured as threads"));
}

TEST_F(PlanProgram, SharesOfAClusterAreAtMostOne) {
  for (const std::string key : {"overlap", "efficiency"}) {
    test::write_bytes(root_ / "c.json", R"({"flops": 1e12, "link_bandwidth": 1e9, ")" + key + "\": 1.5}");
    const CommandOutput plan = run("plan r.yaml --cluster c.json");
    EXPECT_EQ(plan.code, 2);
    EXPECT_EQ(plan.text, "error: c.json: " + key + ": is a share, from 0 to 1, not 1.5\n");
  }
}

TEST_F(PlanProgram, MoreThreadsThanCoresAreReported) {
  const std::string cores = std::to_string(std::thread::hardware_concurrency());
  const std::string threads = std::to_string(std::thread::hardware_concurrency() + 1);
  EXPECT_THAT(run("train r.yaml train.threads=" + threads).text,
              HasSubstr("warning: " + threads + " threads share " + cores + " core"));
}

TEST_F(PlanProgram, ARunOfOneStepTakesTheTimeOfAStep) {
  const std::string text = run("plan r.yaml").text;
  const size_t begin = text.find("step: ") + 6;
  const std::string step = text.substr(begin, text.find(',', begin) - begin);
  EXPECT_THAT(text, HasSubstr("whole run: 1 step, " + step + ", without"));
}

}  // namespace
}  // namespace nibble
